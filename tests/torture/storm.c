/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The storm: importers of many threads, contexts that end, and exporters that are killed.
 *
 * storm [--control] [--no-forks] SECONDS (storm.sh calls it)
 *
 * The torture has many processes of one thread each.  The storm has 2 importers of 8 threads, on 2
 * devices, and 5 exporters that only share and free.  All run as fast as they can.  An import
 * passes from thread to thread, or ends with its context, which is destroyed, reset or released.
 * Threads also export, open and free blocks of their own.  One thread forks, with fork() and _Fork().
 * Exporters are killed.  Each second an importer closes everything and ends, or calls exit() while its threads
 * work, and another starts: the driver keeps what a process ever imported of a pool until that process destroys its
 * imported pool or ends, even when the exporter has died (measured).
 *
 * Asserted:
 *  1. Every read of an open block gives the block's own bytes, even when its exporter has freed it
 *     or was killed.
 *  2. A handle that was published before its block was freed opens as that block or is refused.  A
 *     handle that is still published by a live exporter opens.
 *  3. When importers have closed and exporters freed everything, all memory is free while the
 *     exporters still live.
 *  4. No call fails that would succeed without culimbo.  No process hangs, crashes or outlives this
 *     one.  No file is left.
 *
 * Only counted: refused handles that were withdrawn meanwhile or whose exporter was killed; events
 * that cannot be opened, because their exporter may destroy them at any time.  What is open in a
 * context when it ends is neither read nor closed again.  What the threads of a process see that has called exit()
 * counts for nothing.
 *
 * With --control it runs without culimbo: foreign bytes must be read, or the test proves nothing.
 * With --no-forks no thread forks, and nobody calls exit() while its threads work: the runtimes of sanitizers do
 * not survive a _Fork(), and report the threads that are left.
 *
 * Rules: A block is written once, before its handle is published, and the handle is withdrawn before the
 * block is freed.  No wait is without a deadline.  Everything ends 75 s after the requested time.  Only
 * child processes are signalled.  The seed decides what each process does, the kernel when.
 * Only on the simulated driver.
 */
#include "tests/torture/crash.h"
#include "tests/torture/storm.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

struct table *table;

#define BACK_NS (10000 * MS)
#define KILL_NS (10000 * MS)
#define END_NS (75000 * MS) /* time limit for everything after the requested time */
#define HUNG_NS (30000 * MS)

#define STRANGE 5 /* after this many abnormal ends exporters are not restarted */
#define KILL_EVERY_MS 300 /* on average */
#define LEAVE_EVERY_MS 1000
#define LOOK_EVERY_MS 500

static const char *const state_names[] = { "beginning", "ready", "empty" };

static int table_fd;
static struct process {
	pid_t pid; /* 0: none */
	bool killed;
	uint64_t beat[THREADS], beat_at[THREADS];
	uint64_t asked_at; /* to end; 0: not asked */
} process[PLACES];
static uint64_t longest_end_ns; /* from the moment an importer was asked to end until it had ended */
static pid_t last_pid[PLACES];
static unsigned int strange_ends, hung;
static uint64_t least_free[DEVICES]; /* bytes, as far as seen */
static uint64_t end_by = UINT64_MAX; /* no wait goes beyond this time */

static unsigned int threads_of(uint32_t i)
{
	return i < EXPORTERS ? 1 : THREADS;
}

static void start_player(uint32_t i)
{
	uint64_t now = torture_now();
	char name[16];

	snprintf(name, sizeof(name), "%02u", i);
	atomic_store(&table->place[i].state, STATE_BEGINS);
	/* starts a new life before it can be killed again: nothing of the last life is alive */
	atomic_fetch_add(&table->place[i].life, 1);
	atomic_store(&table->place[i].doomed, 0);
	atomic_store(&table->place[i].leaves, 0);
	atomic_store(&table->place[i].pool_kept, 0);
	atomic_store(&table->place[i].pool_used, 0);
	process[i] = (struct process){ .pid = 0 };
	for (int t = 0; t < THREADS; t++)
		process[i].beat_at[t] = now;
	process[i].pid = last_pid[i] = start(name, "play", table_fd, i, table->control);
}

static void kill_player(uint32_t i)
{
	uint32_t lives = 0;

	(void)atomic_compare_exchange_strong(&table->place[i].doomed, &lives, 1);
	process[i].killed = true;
	kill(process[i].pid, SIGKILL);
}

static void print_player(uint32_t i)
{
	printf("#   %s %u (pid %d) is %s%s", i < EXPORTERS ? "exporter" : "importer", i,
	       (int)process[i].pid, state_names[atomic_load(&table->place[i].state)],
	       process[i].killed ? ", killed" : "");
	print_process(process[i].pid);
	printf("; last calls, in storm_player.c or storm_own.c:");
	for (unsigned int t = 0; t < threads_of(i); t++) {
		uint32_t line = atomic_load(&table->place[i].spot[t].line);

		printf(" %s%u", line >> 16 == STORM_OWN ? "own:" : "", (unsigned int)line & 0xffff);
	}
	printf("\n");
}

/*
 * Reaps all processes that have ended.  Importers are restarted while the storm runs, exporters to the end,
 * because they must report that their limbos are empty.
 */
static void gather(void)
{
	pid_t pid;
	int status;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		bool is_player = false;

		for (uint32_t i = 0; i < PLACES; i++) {
			if (process[i].pid != pid)
				continue;
			is_player = true;
			process[i].pid = 0;
			if (process[i].asked_at && torture_now() - process[i].asked_at > longest_end_ns)
				longest_end_ns = torture_now() - process[i].asked_at;
			/* one that crashes may be killed while the driver still takes its memory back */
			if (status && (!process[i].killed || atomic_load(&table->place[i].doomed) == CRASHED)) {
				strange_ends++;
				printf("# %u ended with wait status 0x%x\n", i, (unsigned int)status);
			}
			for (int k = 0; i < EXPORTERS && k < SLOTS; k++)
				withdraw(&table->place[i].slot[k], dice(2));
			if (i >= EXPORTERS && atomic_load(&table->place[i].leaves) == EXITS && !status)
				COUNT(exits);
			else if (i >= EXPORTERS && atomic_load(&table->place[i].leaves) && !status)
				COUNT(leaves);
			if (atomic_load(&table->phase) <= (i < EXPORTERS ? PHASE_FINISH : PHASE_PLAY) &&
			    strange_ends < STRANGE)
				start_player(i);
			break;
		}
		/* fork_once()'s child, whose importer ended first */
		if (!is_player && status) {
			hung += WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
			strange_ends += !WIFSIGNALED(status) || WTERMSIG(status) != SIGALRM;
			printf("# the forked process %d ended with wait status 0x%x (0xe: it hung until its alarm)\n", (int)pid,
			       (unsigned int)status);
		}
	}
}

/* A thread that does nothing for so long, though it could, hangs. */
static void watch(uint64_t now)
{
	for (uint32_t i = 0; i < PLACES; i++)
		for (unsigned int t = 0; process[i].pid && !process[i].killed && t < threads_of(i); t++) {
			uint64_t beats = atomic_load(&table->place[i].spot[t].beat);

			if (beats != process[i].beat[t]) {
				process[i].beat[t] = beats;
				process[i].beat_at[t] = now;
			} else if (now > process[i].beat_at[t] + HUNG_NS) {
				hung++;
				printf("# thread %u of %u has done nothing for %d s\n", t, i,
				       (int)(HUNG_NS / 1000 / MS));
				print_player(i);
				kill_player(i);
			}
		}
}

static bool all_gone(uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		if (process[i].pid)
			return false;
	return true;
}

static bool all_empty(void)
{
	for (uint32_t i = 0; i < EXPORTERS; i++)
		if (atomic_load(&table->place[i].state) != STATE_EMPTY)
			return false;
	return true;
}

static void print_waiting(const char *for_what)
{
	printf("# still waiting for: %s\n", for_what);
	for (uint32_t i = 0; i < PLACES; i++)
		if (process[i].pid)
			print_player(i);
	fflush(stdout);
}

static void kill_rest(void)
{
	for (uint32_t i = 0; i < PLACES; i++)
		if (process[i].pid) {
			hung++;
			kill_player(i);
		}
	end_by = torture_now() + KILL_NS;
	WAIT_FOR(all_gone(0, PLACES), KILL_NS);
}

static void storm(double seconds)
{
	uint64_t start_at = table->began, now = start_at, kill_at = start_at, look_at = start_at;
	uint64_t leave_at = start_at + LEAVE_EVERY_MS * MS;
	uint32_t leaver = EXPORTERS;

	for (int i = 0; i < DEVICES; i++)
		least_free[i] = UINT64_MAX;
	while (now - start_at < (uint64_t)(seconds * 1e9) && !strange_ends) {
		gather();
		watch(now);
		if (now >= kill_at) {
			uint32_t i = dice(EXPORTERS);

			kill_at = now + (KILL_EVERY_MS / 2 + dice(KILL_EVERY_MS)) * MS;
			if (process[i].pid && !process[i].killed &&
			    atomic_load(&table->place[i].state) == STATE_READY) {
				kill_player(i);
				COUNT(kills);
			}
		}
		/*
		 * One that has not ended since it was asked is not asked anew: what it sees in exit() would count.
		 * The other is asked meanwhile.
		 */
		for (int n = 0; n < IMPORTERS && now >= leave_at; n++) {
			uint32_t i = leaver;

			leaver = leaver + 1 < PLACES ? leaver + 1 : EXPORTERS;
			if (!process[i].pid || atomic_load(&table->place[i].leaves) ||
			    atomic_load(&table->place[i].state) != STATE_READY)
				continue;
			leave_at = now + LEAVE_EVERY_MS * MS;
			process[i].asked_at = now;
			atomic_store(&table->place[i].leaves, table->may_fork && dice(2) ? EXITS : CLOSES);
		}
		if (now >= look_at) {
			struct memory memory = look();

			look_at = now + LOOK_EVERY_MS * MS;
			for (int i = 0; i < DEVICES; i++)
				if (memory.free_of[i] < least_free[i])
					least_free[i] = memory.free_of[i];
		}
		if (table->control && atomic_load(&table->foreign) > 3)
			break;
		nap_ms(2);
		now = torture_now();
	}
}

/* True when no started process is left, except those that were not reaped yet. */
static bool no_children(void)
{
	gather();
	return waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD;
}

static void print_counters(void)
{
	printf("#");
#define X(name) printf(" " #name "=%llu", (unsigned long long)atomic_load(&table->name));
	COUNTERS(X)
#undef X
	printf("\n");
}

/* What the default pools keep for their processes' next allocations, and which of it is still given out. */
static uint64_t in_pools(bool used)
{
	uint64_t all = 0;

	for (uint32_t i = 0; i < EXPORTERS; i++)
		all += atomic_load(used ? &table->place[i].pool_used : &table->place[i].pool_kept);
	return all;
}

static void judge(double seconds, struct memory before)
{
	uint64_t reclaimed = 0, in_limbo = 0, since, kept;
	unsigned int reported;
	struct memory after;
	bool back, none;
	int left;

	ok(WAIT_FOR(all_gone(EXPORTERS, PLACES) && all_empty(), FINISH_NS),
	   "all importers close and end, all exporters free");
	since = torture_now();
	back = WAIT_FOR((after = look(), kept = in_pools(false), after.free + kept >= before.free), BACK_NS);
	ok(back,
	   "3 all memory is free %llu ms later, the exporters still live (%llu of %llu bytes free, and %llu that their "
	   "default pools keep)",
	   (unsigned long long)((torture_now() - since) / MS), (unsigned long long)after.free,
	   (unsigned long long)before.free, (unsigned long long)kept);
	WAIT_FOR(!in_pools(true), BACK_NS);
	ok(!in_pools(true), "3 default pools whose blocks cuMemFreeAsync frees have got each back (%llu bytes are missing)",
	   (unsigned long long)in_pools(true));
	/* an exporter that ends at once may have an event in its grace period, or a holder's death to notice */
	WAIT_FOR(in_limbos() == 0, BACK_NS);
	atomic_store(&table->phase, PHASE_LEAVE);
	WAIT_FOR(all_gone(0, PLACES), FINISH_NS);
	kill_rest();
	reported = read_reports(last_pid, EXPORTERS, &reclaimed, &in_limbo);
	left = files_left(FINISH_NS, BACK_NS);
	after = look();
	observer_end();
	end_by = UINT64_MAX;
	none = WAIT_FOR(no_children(), KILL_NS);
	print_counters();
	/* meanwhile the driver keeps the memory of every dead exporter whose pool it had imported */
	printf("# an importer that was asked to end took %llu ms at most\n", (unsigned long long)(longest_end_ns / MS));
	for (int i = 0; i < DEVICES; i++)
		printf("# device %d had at least %llu of %llu MiB free, each time that it was looked at\n", i,
		       (unsigned long long)least_free[i] >> 20, (unsigned long long)before.free_of[i] >> 20);
	printf("storm: seconds=%.0f opens=%llu refused=%llu reads=%llu own=%llu context_ends=%llu forks=%llu "
	       "kills=%llu foreign=%llu errors=%llu blocks_left=%llu files_left=%d\n",
	       seconds, (unsigned long long)table->opens, (unsigned long long)table->refused,
	       (unsigned long long)table->reads, (unsigned long long)table->own,
	       (unsigned long long)table->context_ends, (unsigned long long)table->forks,
	       (unsigned long long)table->kills, (unsigned long long)table->foreign,
	       (unsigned long long)table->errors, (unsigned long long)in_limbo, left);
	ok(table->virtual_opens, "virtual memory was shared: %llu blocks, opened %llu times",
	   (unsigned long long)table->virtual_blocks, (unsigned long long)table->virtual_opens);
	ok(table->async_opens, "stream-ordered memory was shared by handles: %llu blocks, opened %llu times",
	   (unsigned long long)table->async_blocks, (unsigned long long)table->async_opens);
	ok(table->foreign == 0 && table->reads, "1 no foreign byte in %llu reads of %llu opens",
	   (unsigned long long)table->reads, (unsigned long long)table->opens);
	ok(table->opens && table->refused_alive == 0,
	   "2 no published handle of a live exporter was refused (%llu others were)",
	   (unsigned long long)table->refused);
	ok(reported == EXPORTERS && in_limbo == 0, "3 no block is in a limbo at the end (reported by %u exporters)",
	   reported);
	ok(after.free >= before.free, "3 when all processes have ended, all memory is free");
	ok(left == 0, "4 no file is left after other processes have shared");
	ok(none, "4 no process is left");
	ok(table->errors == 0 && strange_ends == 0 && hung == 0,
	   "4 no wrong results (%llu), no crashes (%u), no hangs (%u); %llu contexts ended, %llu forks, %llu kills",
	   (unsigned long long)table->errors, strange_ends, hung,
	   (unsigned long long)table->context_ends, (unsigned long long)table->forks,
	   (unsigned long long)table->kills);
}

static int supervise(bool control, bool forks, double seconds)
{
	struct memory before;

	table = supervisor_begin(false, sizeof(*table), &table_fd);
	table->seed = supervisor.seed;
	table->control = control;
	table->may_fork = forks;
	seed = torture_seed(table->seed, UINT64_MAX);
	start_observer(DEVICES - 1);
	before = look();
	table->began = torture_now();
	for (uint32_t i = 0; i < PLACES; i++)
		start_player(i);
	storm(seconds);
	end_by = torture_now() + END_NS;
	if (!control) {
		atomic_store(&table->phase, PHASE_FINISH);
		judge(seconds, before);
		return supervisor.failed;
	}
	atomic_store(&table->phase, PHASE_LEAVE);
	for (uint32_t i = 0; i < PLACES; i++)
		if (process[i].pid)
			kill_player(i);
	WAIT_FOR(all_gone(0, PLACES), FINISH_NS);
	ok(table->foreign > 0, "control: without culimbo, foreign bytes are read (%llu in %llu opens)",
	   (unsigned long long)table->foreign, (unsigned long long)table->opens);
	return supervisor.failed;
}

int main(int argc, char **argv)
{
	bool control = false, forks = true;
	double seconds;
	int i = 1, role = play_role(argc, argv, sizeof(struct table), play);

	if (role >= 0)
		return role;
	for (; i < argc && !strncmp(argv[i], "--", 2); i++) {
		control |= !strcmp(argv[i], "--control");
		forks &= strcmp(argv[i], "--no-forks") != 0;
	}
	seconds = i + 1 == argc ? strtod(argv[i], NULL) : 0;
	if (seconds <= 0) {
		fprintf(stderr, "usage: storm [--control] [--no-forks] SECONDS (started by storm.sh)\n");
		return 2;
	}
	return supervise(control, forks, seconds);
}
