/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the supervisors of torture.c and storm.c have in common: they start
 * processes under the library, look at the driver's memory beside them, and say
 * what holds.  They are never under the library themselves, and make no CUDA
 * call.  One thread calls these.
 *
 * TORTURE_DIR (a folder to write in) and TORTURE_BUILD (the build tree) come
 * from torture.sh and storm.sh, as do TORTURE_SEED and CULIMBO_DIR.
 */
#ifndef SUPERVISOR_H
#define SUPERVISOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define MS UINT64_C(1000000)

extern struct supervisor {
	const char *folder, *build;
	char *self; /* this program's path */
	uint64_t seed;
	bool gpu;    /* the machine's own driver, not the simulated one */
	bool failed; /* a line was not ok */
} supervisor;

/*
 * Reads the environment, and takes grandchildren that lose their parents for its
 * own.  Returns a memory of @size bytes that all processes share, and its descriptor
 * for their arguments.  Ends the program with "Bail out!" where it can't.
 */
void *supervisor_begin(bool gpu, size_t size, int *fd);

/* A line of TAP without a number: torture.sh and storm.sh give it one. */
__attribute__((format(printf, 2, 3))) void ok(bool holds, const char *format, ...);
__attribute__((format(printf, 1, 2), noreturn)) void bail(const char *format, ...);

void nap_ms(unsigned int ms);

/*
 * Starts `SELF ROLE FD NUMBER`, its output in NAME.out and NAME.err of the folder;
 * @bare: without the library.  Which door to the driver it takes, and whether it has a
 * collector, comes from @number.  It ends with us.
 */
pid_t start(const char *name, const char *role, int fd, unsigned int number, bool bare);
/*
 * In what was started so: its exit status.  The role "play" is the caller's: @play, with
 * the shared table, of @size bytes, and its number.  -1: this is no such process.
 */
int play_role(int argc, char **argv, size_t size,
	      int (*play)(void *table, uint32_t number, char **argv));

/* What the kernel says of a process: a letter, and what it sleeps in; the end of a line. */
void print_process(pid_t pid);

/*
 * A bare process beside them all: how much is free, of devices 0 to @last?  Its
 * role is "observe"; observe() is all that it does, and it ends with observer_end().
 */
struct memory {
	uint64_t free, total;
};
int observe(int fd, unsigned int last);
void start_observer(unsigned int last);
struct memory look(void);
void observer_end(void);

/* One more process that shares, in the role "share": share_once().  True: it ended well. */
int share_once(void);
bool one_more(uint64_t most_ns);

/*
 * What exporters that live have in their limbos, as `culimbo ps` says: events, too, which
 * no look at the memory sees.  UINT64_MAX: it does not say.
 */
uint64_t in_limbos(void);

/* Of exporters, in CULIMBO_DIR: how many, and which. */
int files(void);
void print_files(void);
/*
 * Files of exporters that were killed: the next process that shares takes them away, but
 * for one that its exporter was just making, which goes when it is 2 s old.  So others
 * share, one after the other for @each_ns at most, until none is left, for @all_ns at
 * most.  Returns how many are, -1 where one did not share.
 */
int files_left(uint64_t each_ns, uint64_t all_ns);

/*
 * Waits for it, @ns at most and never beyond end_by, and takes note of who ends
 * meanwhile; says who is in the way.  Who uses it has end_by (of torture_now()),
 * gather(), which takes that note, and print_waiting(TEXT).
 */
#define WAIT_FOR(condition, ns)                                                                    \
	({                                                                                         \
		uint64_t wait_deadline = torture_now() + (ns);                                     \
		bool held;                                                                         \
                                                                                                   \
		if (wait_deadline > end_by)                                                        \
			wait_deadline = end_by;                                                    \
		while (gather(), !(held = (condition)) && torture_now() < wait_deadline)           \
			nap_ms(2);                                                                 \
		if (!held)                                                                         \
			print_waiting(#condition);                                                 \
		held;                                                                              \
	})

/*
 * Adds up what the reports at exit say (CULIMBO_REPORT_FILE): holds taken back from the
 * dead, by all; blocks still in the limbo, by the @n processes of @last.  Those that were
 * killed say nothing.  Returns how many of the last ones reported.
 */
unsigned int read_reports(const pid_t *last, unsigned int n, uint64_t *reclaimed, uint64_t *in_limbo);

#endif
