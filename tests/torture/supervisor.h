/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the supervisors torture.c, storm.c and pressure_storm.c.  They start processes under the
 * library, watch the driver's free memory, and assert.  They never have the library themselves and make no
 * CUDA call.  One thread calls these functions.
 *
 * torture.sh and storm.sh set TORTURE_DIR (a folder to write in), TORTURE_BUILD (the build tree),
 * TORTURE_SEED and CULIMBO_DIR.
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
	bool gpu;    /* the machine's driver, not the simulated one */
	bool failed; /* an assertion failed */
} supervisor;

/*
 * Reads the environment and makes this process adopt orphaned grandchildren.  Returns a memory of @size bytes
 * that all processes share, and its descriptor for their arguments.  On failure it ends the program with
 * "Bail out!".
 */
void *supervisor_begin(bool gpu, size_t size, int *fd);

/* Prints a line of TAP without a number; torture.sh and storm.sh add the number. */
__attribute__((format(printf, 2, 3))) void ok(bool holds, const char *format, ...);
__attribute__((format(printf, 1, 2), noreturn)) void bail(const char *format, ...);

void nap_ms(unsigned int ms);

/*
 * Starts `SELF ROLE FD NUMBER`, with its output in NAME.out and NAME.err of the folder; @bare: without the
 * library.  @number decides its door to the driver, its kind of collector, and
 * whether it shares all (CULIMBO_SHARE).  It is killed when this
 * process ends.
 */
pid_t start(const char *name, const char *role, int fd, unsigned int number, bool bare);
/*
 * Called in a process that start() made; returns its exit status.  For the role "play" it calls @play with
 * the shared table of @size bytes and the process's number.  Returns -1 in any other process.
 */
int play_role(int argc, char **argv, size_t size,
	      int (*play)(void *table, uint32_t number, char **argv));

/* Prints the kernel's state of a process, a letter and what it sleeps in, and ends the line. */
void print_process(pid_t pid);

enum { OBSERVED = 16 }; /* the most devices */
struct memory {
	uint64_t free, total;	    /* bytes of all devices */
	uint64_t free_of[OBSERVED]; /* bytes of each */
};
/*
 * A bare process with the role "observe" that reports the free memory of devices 0 to @last.  observe() is
 * all that it runs; observer_end() ends it.
 */
int observe(int fd, unsigned int last);
void start_observer(unsigned int last);
struct memory look(void);
void observer_end(void);

/* Starts a process with the role "share", which runs share_once().  True: it ended normally. */
int share_once(void);
bool one_more(uint64_t most_ns);

/*
 * Returns how many blocks and events live exporters have in their limbos, from `culimbo ps`.  Free memory does not show
 * events.  UINT64_MAX: `culimbo ps` failed.
 */
uint64_t in_limbos(void);
/* Prints the processes, and all about the first eight blocks in limbos: who exported each and who holds it. */
void print_limbos(void);

/* Counts the exporters' files in CULIMBO_DIR, and prints them. */
int files(void);
void print_files(void);
/*
 * Has further processes share, one after the other, each for @each_ns at most, until no file of a killed exporter is
 * left, for @all_ns at most.  A process that shares removes such files, except one that was just being
 * created; that goes when it is 2 s old.  Returns the number of files left, or -1 when a process failed to share.
 */
int files_left(uint64_t each_ns, uint64_t all_ns);

/*
 * Waits for a condition, @ns at most and never beyond end_by (in torture_now()), and reaps processes
 * meanwhile; prints what it is still waiting for.  The caller defines end_by, gather(), which reaps, and
 * print_waiting(TEXT).
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
 * Adds up the reports at exit (CULIMBO_REPORT_FILE): the holds that all took back from dead processes, and the
 * blocks still in the limbos of the @n processes of @last.  Killed processes write no report.  Returns how
 * many of the last ones wrote one.
 */
unsigned int read_reports(const pid_t *last, unsigned int n, uint64_t *reclaimed, uint64_t *in_limbo);

#endif
