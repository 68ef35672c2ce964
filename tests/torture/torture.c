/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The torture: 8 exporters and 24 importers share, free, and are killed.
 *
 * torture [--gpu] [--control|--bare] SECONDS (torture.sh calls it)
 *
 * This is the supervisor.  It never has the library and makes no CUDA call.  It starts the processes,
 * kills and stops them at random, and restarts those that ended.  At the end it asserts:
 *   - No foreign byte was read, and no handle of a live block was refused.
 *   - All memory came back while the exporters were still alive, and no limbo has a block.
 *   - No file is left after other processes have shared, which removes the files of killed ones.
 *   - No process hung, crashed, wrote to stdout, or had a wrong exit status.  Errors of a GPU's driver
 *     in a process's first calls are counted apart.
 * With --control it runs without culimbo, and foreign bytes must be read, or the test proves nothing.
 * With --bare it runs without culimbo to the end and prints the counters: what the driver itself does.
 *
 * Rules: No wait is without a deadline.  Everything ends 75 s after the requested time (and after up to
 * twice 60 s for gathering), and it prints what it was still waiting for.  It signals only its own children
 * that were not reaped yet.  No child outlives it.
 *
 * supervisor.h says what torture.sh sets.  The seed decides what each process does, the kernel when.
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/e2e/cuda_door.h"
#include "tests/torture/supervisor.h"
#include "tests/torture/crash.h"
#include "tests/torture/torture.h"

#define GATHER_NS (60000 * MS)
#define FINISH_NS (60000 * MS)
#define BACK_NS (10000 * MS)
#define KILL_NS (10000 * MS)
#define END_NS (75000 * MS) /* time limit for everything after the requested time */
#define HUNG_NS (30000 * MS)
#define KILL_EVERY_MS 120 /* on average */
#define STOP_EVERY_MS 300
#define SETTLE_MS 250	  /* culimbo's default; a process is stopped for 1.2 to 4 times as long */
#define GPU_SLACK ((uint64_t)64 << 20) /* the memory of contexts may differ by this */

struct process {
	pid_t pid; /* 0: none */
	bool killed;
	uint64_t stopped_until; /* 0: it runs */
	uint64_t beat, beat_at;
};

static struct table *table;
static int table_fd;
static struct process process[PLACES];
static pid_t last_pid[PLACES];
static uint64_t seed;
static bool whole; /* --bare: continues after foreign bytes were seen */
static unsigned int strange_ends, hung;
static uint64_t end_by = UINT64_MAX; /* no wait goes beyond this time */

static const char *const state_names[] = { "beginning", "ready", "empty" };
static const char *const deed_names[] = {
#define X(name) #name,
	DEEDS(X)
#undef X
};

static uint32_t dice(uint32_t sides)
{
	return torture_dice(&seed, sides);
}

static void start_player(uint32_t i)
{
	char name[16];

	snprintf(name, sizeof(name), "%02u", i);
	atomic_store(&table->place[i].state, STATE_BEGINS);
	atomic_store(&table->place[i].doomed, 0);
	process[i] = (struct process){ .beat_at = torture_now() };
	process[i].pid = last_pid[i] = start(name, "play", table_fd, i, table->control);
}

static void kill_player(uint32_t i)
{
	uint32_t lives = 0;

	(void)atomic_compare_exchange_strong(&table->place[i].doomed, &lives, 1);
	process[i].killed = true;
	kill(process[i].pid, SIGKILL);
	atomic_fetch_add(&table->kills, 1);
}

/*
 * An exporter was ending or killed when the run ended, so it cannot report that its limbo is empty.
 * Another takes its place and only finishes.
 */
static bool ended_too_late(uint32_t i)
{
	return i < EXPORTERS && atomic_load(&table->phase) == PHASE_FINISH &&
	       atomic_load(&table->place[i].state) != STATE_EMPTY;
}

/* Reaps all processes that have ended, and restarts them while the run lasts. */
static void gather(void)
{
	pid_t pid;
	int status;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (uint32_t i = 0; i < PLACES; i++) {
			if (process[i].pid != pid)
				continue;
			process[i].pid = 0;
			/* one that crashes may be killed while the driver still takes its memory back */
			if (status && (!process[i].killed || atomic_load(&table->place[i].doomed) == CRASHED)) {
				strange_ends++;
				printf("# %u ended with wait status 0x%x, at '%s'\n", i, (unsigned int)status,
				       deed_names[atomic_load(&table->place[i].doing)]);
			}
			/* marks everything of that life as dead before the process may live again */
			atomic_fetch_add(&table->place[i].life, 1);
			if (atomic_load(&table->phase) <= PHASE_PLAY || ended_too_late(i))
				start_player(i);
			break;
		}
}

static void let_go(uint64_t now)
{
	for (uint32_t i = 0; i < PLACES; i++)
		if (process[i].pid && process[i].stopped_until && now >= process[i].stopped_until) {
			kill(process[i].pid, SIGCONT);
			process[i].stopped_until = 0;
			process[i].beat_at = now;
		}
}

static void count_hung(uint32_t i)
{
	if (table->gpu && atomic_load(&table->place[i].doing) == DEED_begin)
		atomic_fetch_add(&table->begin_waited, 1);
	else
		hung++;
}

/* A process that does nothing for so long, though it could, hangs. */
static void watch(uint64_t now)
{
	for (uint32_t i = 0; i < PLACES; i++) {
		struct process *p = &process[i];
		uint64_t beat = atomic_load(&table->place[i].beat);

		if (!p->pid || p->killed || p->stopped_until || beat != p->beat) {
			p->beat = beat;
			p->beat_at = now;
		} else if (now > p->beat_at + HUNG_NS) {
			count_hung(i);
			printf("# %u (pid %d) has been at '%s' (%s:%u) for %d s", i, (int)p->pid,
			       deed_names[atomic_load(&table->place[i].doing)],
			       player_file(atomic_load(&table->place[i].line)),
			       (unsigned int)atomic_load(&table->place[i].line) & 0xffff,
			       (int)(HUNG_NS / 1000 / MS));
			print_process(p->pid);
			printf("\n");
			kill_player(i);
		}
	}
}

/* Returns a random process that runs and has a context. */
static int pick(void)
{
	uint32_t i = dice(PLACES);

	return process[i].pid && !process[i].killed &&
			       atomic_load(&table->place[i].state) == STATE_READY ?
		       (int)i :
		       -1;
}

static void torment(uint64_t now, uint64_t *kill_at, uint64_t *stop_at)
{
	int i;

	if (now >= *kill_at) {
		*kill_at = now + dice(2 * KILL_EVERY_MS) * MS;
		i = pick();
		if (i >= 0)
			kill_player((uint32_t)i); /* even a stopped one */
	}
	if (now >= *stop_at) {
		*stop_at = now + dice(2 * STOP_EVERY_MS) * MS;
		i = pick();
		if (i >= 0 && !process[i].stopped_until && !kill(process[i].pid, SIGSTOP)) {
			process[i].stopped_until = now + (SETTLE_MS * 6 / 5 + dice(SETTLE_MS * 14 / 5)) * MS;
			atomic_fetch_add(&table->stops, 1);
		}
	}
}

/* ------------------------------------------------------------------- phases */
static bool all_in(uint32_t state, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		if (atomic_load(&table->place[i].state) != state)
			return false;
	return true;
}

static bool all_gone(uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		if (process[i].pid)
			return false;
	return true;
}

/* Names the remaining processes and their current deed. */
static void print_waiting(const char *for_what)
{
	printf("# still waiting for: %s\n", for_what);
	for (uint32_t i = 0; i < PLACES; i++) {
		const struct place *place = &table->place[i];

		if (!process[i].pid)
			continue;
		printf("#   %s %u (pid %d) is at '%s', %s:%u, %s%s", i < EXPORTERS ? "exporter" : "importer",
		       i, (int)process[i].pid, deed_names[atomic_load(&place->doing)],
		       player_file(atomic_load(&place->line)),
		       (unsigned int)atomic_load(&place->line) & 0xffff, state_names[atomic_load(&place->state)],
		       process[i].killed ? ", killed" : process[i].stopped_until ? ", stopped" : "");
		print_process(process[i].pid);
		printf("\n");
	}
	fflush(stdout);
}

static void kill_rest(void)
{
	for (uint32_t i = 0; i < PLACES; i++)
		if (process[i].pid) {
			count_hung(i);
			kill_player(i);
		}
	/* a killed process ends at once, unless the kernel has to wait in its driver */
	end_by = torture_now() + KILL_NS;
	WAIT_FOR(all_gone(0, PLACES), KILL_NS);
}

/* Starts exporters, then importers; returns the free memory measured in between. */
static struct memory gather_all(void)
{
	struct memory before;

	for (uint32_t i = 0; i < EXPORTERS; i++)
		start_player(i);
	if (!WAIT_FOR(all_in(STATE_READY, 0, EXPORTERS), GATHER_NS))
		bail("the exporters do not start (see the .err files)");
	before = look();
	for (uint32_t i = EXPORTERS; i < PLACES; i++)
		start_player(i);
	if (!WAIT_FOR(all_in(STATE_READY, EXPORTERS, PLACES), GATHER_NS))
		bail("the importers do not start (see the .err files)");
	return before;
}

static void play(double seconds)
{
	uint64_t begin = torture_now(), now = begin, kill_at = begin, stop_at = begin;

	atomic_store(&table->phase, PHASE_PLAY);
	while (now - begin < (uint64_t)(seconds * 1e9)) {
		gather();
		let_go(now);
		watch(now);
		torment(now, &kill_at, &stop_at);
		if (table->control && !whole && atomic_load(&table->foreign) > 3)
			break;
		nap_ms(3);
		now = torture_now();
	}
}

/*
 * Takes the gifts that nobody read out of all inboxes.  A pool's descriptor under way in a socket keeps the
 * pool's memory as an open one does (doc/measurements.md, pools).
 */
static void drop_gifts(void)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
	struct gift gift;
	struct iovec part = { .iov_base = &gift, .iov_len = sizeof(gift) };

	for (uint32_t i = 0; i < PLACES; i++) {
		struct msghdr message;
		ssize_t n;

		do {
			struct cmsghdr *header;
			int fd;

			message = (struct msghdr){ .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
						   .msg_controllen = sizeof(control) };
			n = recvmsg(table->place[i].inbox[0], &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
			header = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
			if (!header || header->cmsg_type != SCM_RIGHTS)
				continue;
			memcpy(&fd, CMSG_DATA(header), sizeof(fd));
			close(fd);
		} while (n > 0);
	}
}

/* What the default pools keep for their processes' next allocations, and which of it is still given out. */
static uint64_t in_pools(bool used)
{
	uint64_t all = 0;

	for (uint32_t i = 0; i < EXPORTERS; i++)
		all += atomic_load(used ? &table->place[i].pool_used : &table->place[i].pool_kept);
	return all;
}

/* Says how many descriptors each exporter has open: one of a pool keeps the pool's memory. */
static void print_descriptors(void)
{
	for (uint32_t i = 0; i < EXPORTERS; i++) {
		char path[32];
		DIR *folder;
		int n = 0;

		snprintf(path, sizeof(path), "/proc/%d/fd", (int)process[i].pid);
		folder = process[i].pid ? opendir(path) : NULL;
		if (!folder)
			continue;
		while (readdir(folder))
			n++;
		closedir(folder);
		printf("#   exporter %u (pid %d) has %d descriptors open\n", i, (int)process[i].pid, n - 2);
	}
	fflush(stdout);
}

static void print_counters(void)
{
	printf("#");
#define X(name) printf(" " #name "=%llu", (unsigned long long)atomic_load(&table->name));
	COUNTERS(X)
#undef X
	printf("\n");
}

/* On a slow GPU few of those that chance has killed had anything open: so the holds of every second importer are left. */
static void kill_half_of_importers(void)
{
	for (uint32_t i = EXPORTERS; i < PLACES; i += 2)
		if (process[i].pid && !process[i].killed)
			kill_player(i);
}

static void judge(double seconds, struct memory before)
{
	uint64_t reclaimed = 0, in_limbo = 0, slack = table->gpu ? GPU_SLACK : 0, since, kept;
	bool back;
	int left_by_killed, left;
	unsigned int reported;
	struct memory after;

	end_by = torture_now() + END_NS;
	kill_half_of_importers();
	atomic_store(&table->phase, PHASE_FINISH);
	let_go(UINT64_MAX);
	ok(WAIT_FOR(all_gone(EXPORTERS, PLACES) && all_in(STATE_EMPTY, 0, EXPORTERS), FINISH_NS),
	   "all importers close and end, all exporters free");
	drop_gifts();
	atomic_store(&table->phase, PHASE_DRAIN);
	since = torture_now();
	back = WAIT_FOR((after = look(), kept = in_pools(false), after.free + kept + slack >= before.free), BACK_NS);
	ok(back,
	   "3 all memory is free %llu ms later, the exporters still live (%llu of %llu bytes free, and %llu that their "
	   "default pools keep)",
	   (unsigned long long)((torture_now() - since) / MS), (unsigned long long)after.free,
	   (unsigned long long)(table->gpu ? before.free : after.total), (unsigned long long)kept);
	WAIT_FOR(!in_pools(true), BACK_NS);
	ok(!in_pools(true), "3 default pools whose blocks cuMemFreeAsync frees have got each back (%llu bytes are missing)",
	   (unsigned long long)in_pools(true));
	if (!back)
		print_descriptors();
	/* an exporter that ends at once may have an event in its grace period, or a holder's death to notice */
	if (!WAIT_FOR(in_limbos() == 0, BACK_NS))
		print_limbos();
	atomic_store(&table->phase, PHASE_LEAVE);
	WAIT_FOR(all_gone(0, PLACES), FINISH_NS);
	kill_rest();
	after = look();
	reported = read_reports(last_pid, EXPORTERS, &reclaimed, &in_limbo);
	left_by_killed = files();
	left = files_left(FINISH_NS, BACK_NS);
	print_counters();
	printf("torture: seconds=%.0f operations=%llu opens=%llu refused=%llu kills=%llu stops=%llu "
	       "execs=%llu forks=%llu reclaimed=%llu foreign=%llu blocks_left=%llu files_left=%d\n",
	       seconds, (unsigned long long)table->operations, (unsigned long long)table->opens,
	       (unsigned long long)table->refused, (unsigned long long)table->kills,
	       (unsigned long long)table->stops, (unsigned long long)table->execs,
	       (unsigned long long)table->forks, (unsigned long long)reclaimed,
	       (unsigned long long)table->foreign, (unsigned long long)in_limbo, left);
	ok(table->foreign == 0, "1 no foreign byte in %llu reads of %llu opens",
	   (unsigned long long)table->reads, (unsigned long long)table->opens);
	ok(table->opens_freed && table->refused,
	   "2 handles of freed blocks opened as their own (%llu) or were refused (%llu)",
	   (unsigned long long)table->opens_freed, (unsigned long long)table->refused);
	ok(table->refused_alive == 0, "2 no handle of a live block was refused");
	ok(reported == EXPORTERS && in_limbo == 0, "3 no block is in a limbo at the end (reported by %u exporters)",
	   reported);
	ok(after.free + slack >= before.free, "3 when all processes have ended, all memory is free");
	ok(left == 0, "no file is left (other processes removed %d of killed exporters)",
	   left_by_killed);
	ok(reclaimed > 0, "3 holds of dead processes were taken back (at least %llu)",
	   (unsigned long long)reclaimed);
	if (table->virtuals)
		ok(table->virtual_opens && table->virtual_several && (table->virtual_old || table->gpu) && table->virtual_refused &&
			   table->virtual_bare,
		   "virtual memory was shared: %llu handles opened, %llu of several pages; %llu pages read that had been "
		   "unmapped, %llu handles refused, %llu made by nobody without the option",
		   (unsigned long long)table->virtual_opens, (unsigned long long)table->virtual_several,
		   (unsigned long long)table->virtual_old, (unsigned long long)table->virtual_refused,
		   (unsigned long long)table->virtual_bare);
	if (table->asyncs)
		ok(table->async_opens && table->async_copies && table->async_ended && table->async_bare,
		   "stream-ordered memory was shared: %llu handles made, %llu opened, %llu blocks copied just before their "
		   "free, %llu pools destroyed, %llu handles made by nobody without the option",
		   (unsigned long long)table->async_exports, (unsigned long long)table->async_opens,
		   (unsigned long long)table->async_copies, (unsigned long long)table->async_ended,
		   (unsigned long long)table->async_bare);
	if (table->pools)
		ok(table->pool_imports && table->pool_copies && table->pools_ended,
		   "pools were used: %llu blocks imported, %llu copied just before their free, %llu pools destroyed",
		   (unsigned long long)table->pool_imports, (unsigned long long)table->pool_copies,
		   (unsigned long long)table->pools_ended);
	ok(table->errors == 0 && strange_ends == 0 && hung == 0,
	   "4 no wrong results (%llu), no crashes (%u), no hangs (%u)", (unsigned long long)table->errors,
	   strange_ends, hung);
	/*
	 * The driver does this without culimbo as well (6 and 114 times, against 5 and 123; doc/results).  If most
	 * processes were refused, something else would be wrong.
	 */
	if (table->gpu)
		ok((table->begin_unknown + table->begin_waited) * 4 <= table->begins,
		   "of %llu processes the driver refused the first calls of %llu (999 or 719), and did not answer %llu "
		   "within %d s; it does so without culimbo too",
		   (unsigned long long)table->begins, (unsigned long long)table->begin_unknown,
		   (unsigned long long)table->begin_waited, (int)(HUNG_NS / 1000 / MS));
}

static enum pools pools_asked(void)
{
	static const char *const names[] = { "0", "kept", "both", "most" };
	const char *asked = getenv("TORTURE_POOLS");

	for (int i = 0; asked && i <= POOLS_MOST; i++)
		if (!strcmp(asked, names[i]))
			return (enum pools)i;
	if (asked)
		bail("TORTURE_POOLS=%s: it can be 0, kept, both or most", asked);
	return POOLS_BOTH;
}

static int supervise(bool gpu, bool control, double seconds)
{
	const char *no_virtual = getenv("TORTURE_VIRTUAL"), *no_async = getenv("TORTURE_ASYNC");
	struct memory before;

	table = supervisor_begin(gpu, sizeof(*table), &table_fd);
	table->seed = supervisor.seed;
	table->gpu = gpu;
	table->control = control;
	table->pools = pools_asked();
	table->virtuals = !control && (!no_virtual || strcmp(no_virtual, "0"));
	table->asyncs = !control && (!no_async || strcmp(no_async, "0"));
	table->grace_ns = 500 * MS;
	table->big_bytes = (uint64_t)(gpu ? 64 : 8) << 20;
	seed = torture_seed(table->seed, UINT64_MAX);
	for (uint32_t i = 0; i < PLACES; i++)
		if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, table->place[i].inbox))
			bail("socketpair: %s", strerror(errno));
	start_observer(0);
	before = gather_all();
	play(seconds);
	if (!control) {
		judge(seconds, before);
		return supervisor.failed;
	}
	end_by = torture_now() + END_NS;
	let_go(UINT64_MAX);
	atomic_store(&table->phase, PHASE_LEAVE);
	for (uint32_t i = 0; i < PLACES; i++)
		if (process[i].pid)
			kill_player(i);
	WAIT_FOR(all_gone(0, PLACES), FINISH_NS);
	ok(table->foreign > 0, "control: without culimbo, foreign bytes are read (%llu in %llu opens)",
	   (unsigned long long)table->foreign, (unsigned long long)table->opens);
	if (whole)
		print_counters();
	return supervisor.failed;
}

/* For a test of crash.c. */
static int crash_now(void)
{
	_Atomic uint32_t doomed = 0;
	pid_t child;

	crash_tell("torture", &doomed);
	child = fork();
	if (child == 0)
		_exit(raise(SIGABRT));
	waitpid(child, NULL, 0);
	return doomed ? 1 : raise(SIGSEGV);
}

int main(int argc, char **argv)
{
	bool gpu = false, control = false;
	double seconds;
	int i = 1, role = play_role(argc, argv, sizeof(struct table), torture_play);

	if (role >= 0)
		return role;
	if (argc == 2 && !strcmp(argv[1], "--crash"))
		return crash_now();
	for (; i < argc && !strncmp(argv[i], "--", 2); i++) {
		gpu |= !strcmp(argv[i], "--gpu");
		whole |= !strcmp(argv[i], "--bare");
		control |= whole || !strcmp(argv[i], "--control");
	}
	seconds = i + 1 == argc ? strtod(argv[i], NULL) : 0;
	if (seconds <= 0) {
		fprintf(stderr, "usage: torture [--gpu] [--control|--bare] SECONDS (started by torture.sh)\n");
		return 2;
	}
	return supervise(gpu, control, seconds);
}
