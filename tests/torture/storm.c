/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The storm: threads of importers against contexts that end and exporters that die.
 *
 *	storm [--control] [--no-forks] SECONDS	(storm.sh calls it)
 *
 * Where the torture has many processes, each of one thread, this has 2 importers of
 * 8 threads, on 2 devices, and 5 exporters that do nothing but share and free.  All go
 * as fast as they can.  What an importer has open goes from thread to thread, or with
 * its context: destroyed, reset, released.  Threads export, open and free blocks of
 * their own beside that; one forks, with fork() and _Fork().  Exporters are killed, and every few
 * seconds an importer closes all, ends, and another comes: what a process has ever imported of a
 * pool, the driver keeps until that process ends, though the exporter has died (measured).
 *
 * Judged: every read of what is open meets the block's own bytes, whoever has freed it
 * since or was killed (1); a handle that was published before its block was freed opens
 * as that block or not at all, and one that is still published, of an exporter that lives,
 * opens (2); when importers have closed and exporters freed, all of the memory is back,
 * the exporters still there (3); no call fails that bare would not, nobody hangs, crashes
 * or outlives us, no file stays (4).
 *
 * Only counted: handles refused that were withdrawn meanwhile, or whose exporter was
 * killed; events that can't be opened (their exporter destroys them when it likes).
 * What is in a context when it ends is neither read nor closed again.
 *
 * With --control, bare: foreign bytes must be read, or the test is worth nothing.
 * With --no-forks none of them forks: a sanitizer's runtime does not stand a _Fork().
 *
 * What must hold: a block is written once, before its handle is published, and its
 * handle withdrawn before the block is freed; nothing waits without a deadline; all of it
 * ends 75 s after the time that was asked for; only children of ours are signalled.  The
 * seed decides what everybody does, the kernel when.  Only on the simulated driver.
 */
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
#define END_NS (75000 * MS) /* all that comes after the time asked for */
#define HUNG_NS (30000 * MS)

#define STRANGE 5 /* ends; from then on exporters don't come again */
#define KILL_EVERY_MS 300 /* on average */
#define LEAVE_EVERY_MS 4000

static const char *const state_names[] = { "beginning", "ready", "empty" };

static int table_fd;
static struct process {
	pid_t pid; /* 0: none */
	bool killed;
	uint64_t beat[THREADS], beat_at[THREADS];
} process[PLACES];
static pid_t last_pid[PLACES];
static unsigned int strange_ends, hung;
static uint64_t end_by = UINT64_MAX; /* nothing is waited for beyond */

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
	/* a life of its own before it is doomed no more: nothing of the last one is alive */
	atomic_fetch_add(&table->place[i].life, 1);
	atomic_store(&table->place[i].doomed, 0);
	atomic_store(&table->place[i].leaves, 0);
	process[i] = (struct process){ .pid = 0 };
	for (int t = 0; t < THREADS; t++)
		process[i].beat_at[t] = now;
	process[i].pid = last_pid[i] = start(name, "play", table_fd, i, table->control);
}

static void kill_player(uint32_t i)
{
	atomic_store(&table->place[i].doomed, 1);
	process[i].killed = true;
	kill(process[i].pid, SIGKILL);
}

static void print_player(uint32_t i)
{
	printf("#   %s %u (pid %d) is %s%s", i < EXPORTERS ? "exporter" : "importer", i,
	       (int)process[i].pid, state_names[atomic_load(&table->place[i].state)],
	       process[i].killed ? ", killed" : "");
	print_process(process[i].pid);
	printf("; last calls: storm_player.c");
	for (unsigned int t = 0; t < threads_of(i); t++)
		printf(":%u", (unsigned int)atomic_load(&table->place[i].spot[t].line));
	printf("\n");
}

/*
 * Takes note of all that have ended.  Importers come again while there is play, exporters to the
 * end: they have to say that they are empty.
 */
static void gather(void)
{
	pid_t pid;
	int status;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (uint32_t i = 0; i < PLACES; i++) {
			if (process[i].pid != pid)
				continue;
			process[i].pid = 0;
			if (status && !process[i].killed) {
				strange_ends++;
				printf("# %u ended with 0x%x\n", i, (unsigned int)status);
			}
			for (int k = 0; i < EXPORTERS && k < SLOTS; k++)
				withdraw(&table->place[i].slot[k], dice(2));
			if (i >= EXPORTERS && atomic_load(&table->place[i].leaves) && !status)
				COUNT(leaves);
			if (atomic_load(&table->phase) <= (i < EXPORTERS ? PHASE_FINISH : PHASE_PLAY) &&
			    strange_ends < STRANGE)
				start_player(i);
			break;
		}
}

/* Whoever does nothing for so long, though it may, hangs. */
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
	printf("# still waited for: %s\n", for_what);
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
	uint64_t start_at = torture_now(), now = start_at, kill_at = start_at;
	uint64_t leave_at = start_at + LEAVE_EVERY_MS * MS;
	uint32_t leaver = EXPORTERS;

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
		if (now >= leave_at && process[leaver].pid &&
		    atomic_load(&table->place[leaver].state) == STATE_READY) {
			leave_at = now + LEAVE_EVERY_MS * MS;
			atomic_store(&table->place[leaver].leaves, 1);
			leaver = leaver + 1 < PLACES ? leaver + 1 : EXPORTERS;
		}
		if (table->control && atomic_load(&table->foreign) > 3)
			break;
		nap_ms(2);
		now = torture_now();
	}
}

/* Whether nothing is left that we started, but what has yet to be waited for. */
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

static void judge(double seconds, struct memory before)
{
	uint64_t reclaimed = 0, in_limbo = 0, since;
	unsigned int reported;
	struct memory after;
	bool back, none;
	int left;

	ok(WAIT_FOR(all_gone(EXPORTERS, PLACES) && all_empty(), FINISH_NS),
	   "all importers close and end, all exporters free");
	since = torture_now();
	back = WAIT_FOR((after = look(), after.free >= before.free), BACK_NS);
	ok(back, "3 everything is back %llu ms later, the exporters still there (%llu of %llu bytes free)",
	   (unsigned long long)((torture_now() - since) / MS), (unsigned long long)after.free,
	   (unsigned long long)before.free);
	/* (who leaves at once may have an event's grace to go, or its holder's death to notice) */
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
	printf("storm: seconds=%.0f opens=%llu refused=%llu reads=%llu own=%llu context_ends=%llu forks=%llu "
	       "kills=%llu foreign=%llu errors=%llu blocks_left=%llu files_left=%d\n",
	       seconds, (unsigned long long)table->opens, (unsigned long long)table->refused,
	       (unsigned long long)table->reads, (unsigned long long)table->own,
	       (unsigned long long)table->context_ends, (unsigned long long)table->forks,
	       (unsigned long long)table->kills, (unsigned long long)table->foreign,
	       (unsigned long long)table->errors, (unsigned long long)in_limbo, left);
	ok(table->foreign == 0 && table->reads, "1 no foreign byte in %llu reads of %llu opens",
	   (unsigned long long)table->reads, (unsigned long long)table->opens);
	ok(table->opens && table->refused_alive == 0,
	   "2 no handle that was published, its exporter alive, was refused (%llu others were)",
	   (unsigned long long)table->refused);
	ok(reported == EXPORTERS && in_limbo == 0, "3 no block is in a limbo at the end (%u exporters say)",
	   reported);
	ok(after.free >= before.free, "3 and when all have ended, all of the memory is free");
	ok(left == 0, "4 no file is left, once others have shared");
	ok(none, "4 no process is left");
	ok(table->errors == 0 && strange_ends == 0 && hung == 0,
	   "4 %llu wrong answers, %u crashes, %u that hung; %llu contexts ended, %llu forks, %llu kills",
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
