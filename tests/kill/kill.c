/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Killed at every instruction: whatever operation on the exporter file a process is in when it dies,
 * no block is lost, released early or held forever.
 *
 * Each operation of ops.c runs in a child that ptrace steps, one instruction (or system call) at a
 * time, libc's included.  Three tests use that:
 *
 *  1. The judge, at every boundary between two steps.  A kill leaves only the file and the locks to
 *     other processes.  Where the file and its name are the same as at the boundary before, a kill leaves what
 *     was judged there (the killed process's locks are free at both).  So each boundary is compared with
 *     the one before.  Where they differ, the judge gets a copy of the file, with locks of its own
 *     that say which process lives: A does, the victim does not.  The judge also reads what the victim
 *     recorded for reports, as `culimbo report` does, and checks that the file has memory for all that it
 *     counts.  At the end of an operation the whole file is compared once more, so that no change was
 *     missed.
 *  2. A neighbour, at every boundary: another live importer takes or drops its hold of the same record, in
 *     the same holder word, and at the next boundary must find its bit unchanged.
 *  3. A real SIGKILL, at some boundaries: the judge gets the real file with the kernel's locks.
 *
 * The test cannot find errors of memory order between processors, because a step is complete before the
 * next one begins; the model and tests/unit/test_handshake.c find those.  Nor can it find errors with
 * processes that run between two of the judge's steps; the model does.  Where the processor has pairs
 * of load and conditional store instead of atomic instructions, such a pair never succeeds under
 * stepping, and this test does not end.
 *
 * It is built seven times: unchanged, and with planted faults that must be found:
 * CL_PLANT_TWO_STEP_RELEASE (by the neighbour), CL_PLANT_SLOT_BEFORE_BITS, a `closing` that is written
 * late, a size that is counted early, an open that is counted late, and a count of opens that begins
 * again (by the judge; late_closing.c, early_count.c, late_open.c, lost_opens.c).
 *
 *	kill [all] [NAME]	all: the judge runs at every boundary, changed or not, and many
 *				more kills happen (make check-kill-full); NAME: only the
 *				operations whose names contain NAME
 */
#include "tests/kill/kill.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim/base/options.h"

static bool all;
static const char *only;
static unsigned long long states, flips;

/*
 * The vDSO's functions restart when the kernel's clock has ticked meanwhile, which always happens under
 * slow stepping.  A system call is one step.
 */
int clock_gettime(clockid_t clock, struct timespec *now)
{
	return (int)syscall(SYS_clock_gettime, clock, now);
}
time_t time(time_t *now)
{
	struct timespec precise;

	clock_gettime(CLOCK_REALTIME, &precise);
	if (now)
		*now = precise.tv_sec;
	return precise.tv_sec;
}

/* ------------------------------------------------------------ 1: judged, stepped */
/* The file that a maker has created by now, or NULL. */
static struct cl_region *made(struct world *w, struct cl_region *region, const char **wrong)
{
	DIR *list = fdopendir(openat(w->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	struct cl_region *found = NULL;

	MUST(list);
	for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
		uint32_t id = cl_region_name_id(entry->d_name);
		uint32_t unfinished = cl_region_unfinished_id(entry->d_name);

		if (entry->d_name[0] == '.')
			continue;
		if (unfinished && cl_region_open_unfinished(region, w->dir, unfinished))
			*wrong = "a maker left a file that is not whole";
		else if (!id && !unfinished)
			*wrong = "a maker left a file that no search finds";
		else if (unfinished || cl_region_open(region, w->dir, id, wrong) == 0)
			found = region;
		w->file_id = id | unfinished;
	}
	closedir(list);
	return found;
}

/* *changed: whether anything had changed. */
static const char *judge_now(struct world *w, bool *judged, bool *changed)
{
	struct cl_region region, *r = w->role == MAKER ? NULL : &w->region;
	const char *wrong = NULL;

	if (w->role == MAKER) {
		r = made(w, &region, &wrong);
		if (wrong)
			return wrong;
		if (!r) /* nothing is visible to other processes, as before the operation */
			return NULL;
	}
	*changed = has_changed(w, r);
	if (has_lost_its_file(w))
		return "a file goes before its socket";
	if (*changed || all) {
		*judged = true;
		wrong = has_name(w) ? judge_copy(w, r) : judge(w, NULL, w->copies_dir);
	}
	if (w->role == MAKER)
		cl_region_close(&region);
	return wrong;
}

/* The boundaries at which something had changed. */
static unsigned int changes[256], changes_n;

static const char *step_and_judge(struct world *w, const struct op *op, unsigned int *steps)
{
	const char *wrong = NULL;
	uint64_t rest = 0;
	pid_t child = begin(w, op);

	*steps = changes_n = 0;
	forget_what_was_seen();
	if (op->role != MAKER)
		rest = sum_of_the_rest(w, &w->region);
	do {
		bool judged = false, changed = false;

		wrong = judge_now(w, &judged, &changed);
		states += judged;
		if (changed && changes_n < sizeof changes / sizeof *changes)
			changes[changes_n++] = *steps;
		if (!wrong)
			++*steps;
	} while (!wrong && step(child));
	if (!wrong && op->role != MAKER && rest != sum_of_the_rest(w, &w->region))
		wrong = "it wrote to a place that is not compared";
	finish(w, child);
	return wrong;
}

/* --------------------------------------------------------------- 2: a neighbour */
static const char *flip(struct world *w, uint32_t record, bool *gone)
{
	bool held = atomic_load(cl_region_word(&w->region, 0, record)) >> SLOT_A & 1;
	int err;

	if (held != w->held_by_a[record])
		return held ? "a hold that its owner had dropped came back" :
			      "a live importer's hold disappeared";
	if (held && cl_life_generation(cl_record_life(&w->region, record)) != 0)
		return "a record was released with a live hold";
	if (*gone)
		return NULL;
	if (held) {
		cl_record_unhold(&w->region, SLOT_A, record);
	} else {
		err = cl_record_hold(&w->region, SLOT_A, record, 0, handle);
		/* the block may have been freed meanwhile, or its exporter is about to */
		*gone = err == -ESTALE || err == -EAGAIN;
		if (err && !*gone)
			return "a neighbour's open fails";
	}
	if (!*gone)
		w->held_by_a[record] = !held;
	flips++;
	return NULL;
}

static const char *step_with_neighbour(struct world *w, const struct op *op)
{
	uint32_t record = (uint32_t)op->neighbour_of;
	pid_t child = begin(w, op);
	const char *wrong;
	bool gone = false;

	/*
	 * A neighbour that opens at every boundary never lets the victim count an open, until the count is
	 * at its end.
	 */
	atomic_store(&w->region.record[record].opens, CL_MANY - 100);
	do {
		wrong = flip(w, record, &gone);
	} while (!wrong && step(child));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	if (!wrong)
		wrong = flip(w, record, &gone);
	/* A has the neighbour's holds; the exporter must find the rest */
	if (!wrong && !gone)
		wrong = judge(w, &w->region, w->dir);
	cl_region_close(&w->region);
	empty_folder(w->dir);
	return wrong;
}

#ifndef PLANTED
/* --------------------------------------------------------------- 3: killed dead */
static unsigned long long kills;

static const char *kill_after(struct world *w, const struct op *op, unsigned int n)
{
	struct cl_region region, *r = &w->region;
	const char *wrong = NULL;
	pid_t child = begin(w, op);

	while (n-- && step(child))
		;
	kill(child, SIGKILL);
	MUST(waitpid(child, NULL, 0) == child);
	kills++;
	if (w->role == MAKER)
		r = made(w, &region, &wrong);
	else
		wrong = look_at_memory(w, r);
	if (!wrong)
		wrong = judge(w, r && has_name(w) ? r : NULL, w->dir);
	if (w->role == MAKER && r)
		cl_region_close(r);
	cl_region_close(&w->region);
	empty_folder(w->dir);
	return wrong;
}

static const char *kill_some(struct world *w, const struct op *op, unsigned int steps)
{
	unsigned long long times = all ? 200 : 8;
	const char *wrong = NULL;

	for (unsigned int i = 0; !wrong && i < changes_n; i++)
		wrong = kill_after(w, op, changes[i]);
	/* and evenly spread, but at no boundary twice */
	for (unsigned int i = 0; !wrong && i < times && i < steps; i++)
		wrong = kill_after(w, op, times < steps ? (unsigned int)(steps * i / times) : i);
	return wrong;
}
#endif

/* ------------------------------------------------------------------------ all */
#ifdef PLANTED
/* The operations that contain the fault; it is found when one of them fails. */
static bool is_planted_in(const struct op *op)
{
#ifdef PLANTED_IN_REPORT_DATA
	return op->report_data != NULL;
#elif defined(PLANTED_IN)
	return strstr(op->name, PLANTED_IN) != NULL;
#else
	return op->role == IMPORTER || strstr(op->name, "reap");
#endif
}
#endif

#ifndef PLANTED
static struct {
	unsigned long long boundaries, states, flips, kills;
} sum;

static double seconds(void)
{
	return (double)cl_now() / 1e9;
}
#endif

int main(int argc, char **argv)
{
	struct world w;
	const char *found = NULL;
	unsigned int lost = 0;
	pid_t child;

	all = argc > 1 && strcmp(argv[1], "all") == 0;
	only = argc > 1 + all ? argv[1 + all] : "";
	cl_options.settle.number = 0; /* a free lock means a dead process: the test decides which */
	stage = mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(stage != MAP_FAILED);
	memset(&w, 0, sizeof w);
	make_folder(w.folder, sizeof w.folder, &w.dir);
	make_folder(w.copies, sizeof w.copies, &w.copies_dir);
	child = begin(&w, &ops[0]);
	if (!child) {
		cl_region_close(&w.region);
		empty_folder(w.dir);
		printf("1..0 # SKIP ptrace is forbidden here\n");
		goto out;
	}
	finish(&w, child);
#ifdef PLANTED
	printf("1..1\n");
	for (unsigned int i = 1; !found && i < op_count; i++) {
		unsigned int steps = 0;

		if (!is_planted_in(&ops[i]) || !strstr(ops[i].name, only))
			continue;
		found = step_and_judge(&w, &ops[i], &steps);
		if (!found && ops[i].neighbour_of >= 0)
			found = step_with_neighbour(&w, &ops[i]);
		if (found)
			printf("# %s, step %u: %s\n", ops[i].name, steps, found);
	}
	printf("%s 1 - planted: %s is found\n", found ? "ok" : "not ok", PLANTED);
	lost = !found;
#else
	unsigned int marks = 0, n = 0;

	for (unsigned int i = 0; i < op_count; i++) {
		const struct op *op = &ops[i];
		unsigned int steps;
		double begun = seconds();

		/* the first operation measures the cost of the marks */
		if (i && !strstr(op->name, only))
			continue;
		states = flips = kills = 0;
		found = step_and_judge(&w, op, &steps);
		if (!found && op->neighbour_of >= 0)
			found = step_with_neighbour(&w, op);
		if (!found)
			found = kill_some(&w, op, steps);
		if (i == 0)
			marks = steps;
		printf("%s %u - %s\n", found ? "not ok" : "ok", ++n, op->name);
		printf("# %u boundaries, %llu states judged, %llu neighbour's steps, %llu kills, %.1f s\n",
		       steps - (i ? marks : 0), states, flips, kills, seconds() - begun);
		if (found)
			printf("# at boundary %u: %s\n", steps, found);
		fflush(stdout);
		lost += found != NULL;
		sum.boundaries += steps > marks ? steps - marks : 0;
		sum.states += states;
		sum.kills += kills;
		sum.flips += flips;
	}
	printf("1..%u\n", n);
	printf("# kill: operations=%u boundaries=%llu states=%llu neighbour=%llu kills=%llu lost=%u\n",
	       n - 1, sum.boundaries, sum.states, sum.flips, sum.kills, lost);
#endif
out:
	rmdir(w.folder);
	rmdir(w.copies);
	return lost != 0;
}
