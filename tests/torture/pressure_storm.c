/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pressure storm: no allocation fails under culimbo that would succeed without it.
 *
 * pressure_storm [--control] ALLOCATIONS (pressure_storm.sh calls it)
 *
 * Each round has 1 to 8 processes with 1 to 4 threads each.  Sharers allocate, export and free.
 * Bystanders allocate and free, and share nothing.  No process opens a block, so no block is held.
 * Rounds differ in grace period, collector and pace, and in what the limbo of each process may take
 * (CULIMBO_GRACE_BYTES): by default 1/64 of the device, or all of it.  Then the limbos fill the device,
 * and allocations succeed only by what they give back.  Sharers ask culimbo_stats() how full they are,
 * and that is asserted.
 *
 * All live blocks of a round fit into the device together at any time.  Each thread has its part of
 * the memory.  A block counts from before its allocation until its free has returned, in whole pages of
 * 2 MiB.  So without culimbo no allocation fails; the control shows that.  Under culimbo no allocation
 * may fail either.
 *
 * Rules: Each thread keeps to its part.  No wait is without a deadline.  All processes of a round have
 * ended before the next round begins.  Only on the simulated driver.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "preload/culimbo.h"
#include "tests/e2e/cuda_door.h"
#include "tests/torture/chance.h"
#include "tests/torture/supervisor.h"

#define MIB ((size_t)1 << 20)
#define PAGE (2 * MIB)
#define ROUND_NS (700 * MS)
#define FIXED_NS (200 * MS)
#define READY_NS (20000 * MS)
#define FULL "256MiB" /* as much as the device has: play.sh */
#define END_NS (60000 * MS) /* time limit for the end of a round */

enum {
	PROCESSES = 8,
	THREADS = 4,
	BLOCKS = 64, /* of each thread */
	SAID = 5,    /* number of failures that are printed in full */
};

enum phase { PHASE_BEGIN, PHASE_PLAY, PHASE_END };
enum role { ABSENT, SHARER, BYSTANDER };
static const char *const role_names[] = { "nobody", "sharer", "bystander" };

struct round {
	unsigned int sharers, bystanders, sharer_threads, bystander_threads;
	const char *grace;
	bool full; /* the limbo of each process may take the device */
	unsigned int inlines; /* number of sharers without a collector thread */
	unsigned int pace;    /* us; the longest pause of a thread between two steps */
	unsigned int largest; /* a block takes at most 1 / largest of the thread's part */
	unsigned int leaves;  /* ms; a sharer ends after at most this time and another starts; 0: never */
	unsigned int unused;  /* of 4 parts of the device, so many are in no thread's part */
};

/*
 * Always run first.  In the first one the limbo of one process takes more than half of the device.  The
 * others with a full limbo failed when they were written, before there was CULIMBO_GRACE_BYTES.
 */
static const struct round fixed[] = {
	{ 1, 0, 2, 0, "60s", true, 0, 0, 2, 0, 3 },
	{ 1, 2, 4, 1, "2s", true, 0, 400, 2, 0, 0 },  /* two bystanders */
	{ 2, 1, 1, 1, "60s", true, 0, 0, 1, 0, 0 },   /* no pause */
	{ 4, 0, 1, 0, "60s", true, 0, 100, 2, 0, 0 }, /* only sharers */
	{ 1, 0, 4, 0, "60s", true, 0, 0, 4, 0, 0 },   /* the threads of one process */
	{ 3, 5, 4, 4, "2s", true, 1, 200, 1, 0, 0 },
	{ 2, 2, 2, 2, "60s", true, 2, 0, 2, 0, 0 },   /* without a collector thread */
	{ 4, 2, 1, 2, "60s", true, 0, 0, 1, 50, 0 },  /* sharers end with a full limbo */
	{ 1, 5, 4, 4, "5ms", true, 0, 0, 1, 0, 0 },   /* one sharer, many bystanders */
	{ 4, 4, 2, 1, "0", false, 2, 100, 1, 0, 0 },  /* no grace period */
	{ 3, 5, 4, 4, "2s", false, 1, 200, 1, 0, 0 }, /* 1/64 of the device for each sharer */
	{ 4, 2, 1, 2, "60s", false, 2, 0, 1, 50, 0 },
};

static struct table {
	uint64_t seed;
	_Atomic uint32_t phase;
	_Atomic uint32_t ready;
	struct round round;
	size_t part; /* bytes of each thread */
	_Atomic uint64_t allocations[3], failures[3], exports, errors; /* [enum role] */
	_Atomic uint64_t slow, slowest; /* allocations of more than 100 ms; the slowest, ns */
	/* in this round: the most bytes in the limbo of one process; calls that had no memory at first */
	_Atomic uint64_t limbo, shorts;
} *table;

static enum role role_of(const struct round *round, uint32_t i)
{
	return i < round->sharers ? SHARER : i < round->sharers + round->bystanders ? BYSTANDER : ABSENT;
}

static unsigned int threads_of(const struct round *round, uint32_t i)
{
	return role_of(round, i) == SHARER ? round->sharer_threads : round->bystander_threads;
}

/* ------------------------------------------------------------------ players */
static uint32_t here;
static CUcontext context;
static uint64_t leave_at = UINT64_MAX;
static culimbo_stats_fn *stats; /* NULL: without culimbo */

struct thread {
	pthread_t thread;
	unsigned int number;
	uint64_t seed;
	enum role role;
	size_t live; /* bytes, whole pages */
	unsigned int n;
	struct block {
		uint64_t what; /* an address, or the handle from cuMemCreate() */
		size_t bytes;
		bool created;
	} block[BLOCKS];
};

static size_t pages(size_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

static void complain(const struct thread *me, const char *call, int result)
{
	const char *name = NULL;

	if (atomic_fetch_add(&table->errors, 1) >= SAID)
		return;
	cu.cuGetErrorName((CUresult)result, &name);
	fprintf(stderr, "pressure_storm: ERROR %s %u.%u: %s: %s (%d)\n", role_names[me->role], here,
		me->number, call, name ? name : "?", result);
}

#define SURE(me, call)                                                                             \
	({                                                                                         \
		CUresult sure_result = (call);                                                     \
		if (sure_result)                                                                   \
			complain((me), #call, sure_result);                                        \
		!sure_result;                                                                      \
	})

static void at_least(_Atomic uint64_t *most, uint64_t n)
{
	uint64_t before = atomic_load(most);

	while (n > before && !atomic_compare_exchange_weak(most, &before, n))
		;
}

static void took(uint64_t ns)
{
	if (ns > 100 * MS)
		atomic_fetch_add(&table->slow, 1);
	at_least(&table->slowest, ns);
}

/* Adds what this process has counted; @ends: no further call is counted. */
static void ask_culimbo(bool ends)
{
	struct culimbo_stats is;

	if (!stats || stats(&is, sizeof(is)))
		return;
	at_least(&table->limbo, is.limbo_bytes);
	if (ends)
		atomic_fetch_add(&table->shorts, is.short_of_memory);
}

static void give(struct thread *me)
{
	struct block *block = &me->block[0];

	if (block->created) {
		SURE(me, cu.cuMemRelease(block->what));
	} else if (torture_dice(&me->seed, 8)) {
		SURE(me, cu.cuMemFree_v2((CUdeviceptr)block->what));
	} else {
		/* the memory is back once the stream is known to have reached the free */
		SURE(me, cu.cuMemFreeAsync((CUdeviceptr)block->what, NULL));
		SURE(me, cu.cuStreamSynchronize(NULL));
	}
	me->live -= pages(block->bytes);
	memmove(block, block + 1, --me->n * sizeof(*block));
}

static CUresult take(struct thread *me, struct block *block)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
	};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;
	CUresult result;

	if (block->created) {
		result = cu.cuMemCreate(&handle, block->bytes, &prop, 0);
		block->what = handle;
	} else {
		result = cu.cuMemAlloc_v2(&address, block->bytes);
		block->what = address;
	}
	return result;
}

static void step(struct thread *me)
{
	size_t most = table->part / table->round.largest / PAGE;
	struct block block = { .bytes = PAGE * (1 + torture_dice(&me->seed, most ? (uint32_t)most : 1)) };
	CUipcMemHandle handle;
	uint64_t began;
	CUresult result;

	if (torture_dice(&me->seed, 8) == 0)
		block.bytes = 1024;
	else
		block.created = torture_dice(&me->seed, 6) == 0;
	while (me->n && (me->n == BLOCKS || me->live + pages(block.bytes) > table->part))
		give(me);
	if (me->role == SHARER && torture_dice(&me->seed, 4) == 0)
		ask_culimbo(false);
	began = torture_now();
	result = take(me, &block);
	took(torture_now() - began);
	atomic_fetch_add(&table->allocations[me->role], 1);
	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		if (atomic_fetch_add(&table->failures[me->role], 1) < SAID)
			fprintf(stderr,
				"pressure_storm: FAILED %s %u.%u: %zu MiB after %.1f ms, with %zu of %zu MiB live\n",
				role_names[me->role], here, me->number, block.bytes / MIB,
				(double)(torture_now() - began) * 1e-6, me->live / MIB, table->part / MIB);
		return;
	}
	if (result) {
		complain(me, "an allocation", (int)result);
		return;
	}
	me->live += pages(block.bytes);
	me->block[me->n++] = block;
	if (me->role == SHARER && !block.created && torture_dice(&me->seed, 8) &&
	    SURE(me, cu.cuIpcGetMemHandle(&handle, (CUdeviceptr)block.what)))
		atomic_fetch_add(&table->exports, 1);
}

static void *play_thread(void *data)
{
	struct thread *me = data;

	if (!SURE(me, cu.cuCtxSetCurrent(context)))
		return NULL;
	while (atomic_load(&table->phase) == PHASE_PLAY && torture_now() < leave_at) {
		step(me);
		if (table->round.pace)
			usleep(torture_dice(&me->seed, table->round.pace));
	}
	while (me->n)
		give(me);
	return NULL;
}

static int play(void *shared, uint32_t number, char **argv)
{
	static struct thread thread[THREADS];
	const char *why = cuda_door_open();
	uint64_t chance = torture_seed(torture_now(), (uint64_t)getpid());
	unsigned int n;

	table = shared;
	here = number / 4;
	n = threads_of(&table->round, here);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	*(void **)&stats = dlsym(RTLD_DEFAULT, "culimbo_stats");
	if (why || cu.cuInit(0) || cu.cuDevicePrimaryCtxRetain(&context, 0)) {
		fprintf(stderr, "pressure_storm: ERROR %u: %s\n", here, why ? why : "no context");
		return 3;
	}
	atomic_fetch_add(&table->ready, 1);
	while (atomic_load(&table->phase) == PHASE_BEGIN)
		usleep(500);
	if (table->round.leaves && role_of(&table->round, here) == SHARER)
		leave_at = torture_now() + (1 + torture_dice(&chance, table->round.leaves)) * MS;
	for (unsigned int i = 0; i < n; i++) {
		thread[i] = (struct thread){ .number = i, .role = role_of(&table->round, here) };
		thread[i].seed = torture_seed(table->seed, (uint64_t)getpid() << 16 | here << 8 | i);
		if (pthread_create(&thread[i].thread, NULL, play_thread, &thread[i]))
			return 4;
	}
	for (unsigned int i = 0; i < n; i++)
		pthread_join(thread[i].thread, NULL);
	ask_culimbo(true);
	return 0;
}

/* --------------------------------------------------------------- supervisor */
static uint64_t dice_seed;
static int table_fd;
static bool bare;
static pid_t process[PROCESSES];
static unsigned int strange_ends;
static uint64_t end_by = UINT64_MAX;
/* of all rounds with a full limbo, and of the others: what a round's table has */
static struct {
	unsigned int rounds;
	uint64_t limbo, shorts;
} seen[2];

static uint32_t dice(uint32_t sides)
{
	return torture_dice(&dice_seed, sides);
}

static void start_player(uint32_t i)
{
	char name[16];

	setenv("CULIMBO_COLLECTOR", i < table->round.inlines ? "inline" : "thread", 1);
	snprintf(name, sizeof(name), "%u", i);
	process[i] = start(name, "play", table_fd, i * 4 + i % 2, bare);
}

static void gather(void)
{
	pid_t pid;
	int status;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (uint32_t i = 0; i < PROCESSES; i++) {
			if (process[i] != pid)
				continue;
			process[i] = 0;
			if (!status && table->round.leaves && atomic_load(&table->phase) == PHASE_PLAY)
				start_player(i);
			if (status) {
				strange_ends++;
				printf("# %s %u ended with 0x%x\n", role_names[role_of(&table->round, i)], i,
				       (unsigned int)status);
			}
		}
}

static unsigned int running(void)
{
	unsigned int n = 0;

	for (uint32_t i = 0; i < PROCESSES; i++)
		n += process[i] != 0;
	return n;
}

static void print_waiting(const char *for_what)
{
	printf("# still waited for: %s\n", for_what);
	for (uint32_t i = 0; i < PROCESSES; i++)
		if (process[i]) {
			printf("#   %s %u (pid %d)", role_names[role_of(&table->round, i)], i,
			       (int)process[i]);
			print_process(process[i]);
			printf("\n");
		}
}

static struct round any_round(void)
{
	static const char *const graces[] = { "0", "5ms", "200ms", "2s", "60s" };
	static const unsigned int paces[] = { 0, 0, 50, 200, 1000 };
	unsigned int processes = 1 + dice(PROCESSES);
	struct round round = { .sharers = 1 + dice(processes) };

	round.bystanders = processes - round.sharers;
	round.sharer_threads = 1 + dice(THREADS);
	round.bystander_threads = 1 + dice(THREADS);
	round.grace = graces[dice(5)];
	round.inlines = dice(2) ? 0 : dice(round.sharers + 1);
	round.pace = paces[dice(5)];
	round.largest = 1 + dice(4);
	round.leaves = dice(4) ? 0 : 20 + dice(200);
	round.full = dice(2);
	round.unused = dice(4) ? 0 : dice(4);
	return round;
}

static uint64_t all_of(_Atomic uint64_t count[3])
{
	return atomic_load(&count[SHARER]) + atomic_load(&count[BYSTANDER]);
}

static void play_round(const struct round *round, uint64_t ns, size_t device)
{
	uint64_t began = torture_now(), allocations = all_of(table->allocations),
		 failures = all_of(table->failures);
	unsigned int n = round->sharers + round->bystanders;
	unsigned int threads = round->sharers * round->sharer_threads +
			       round->bystanders * round->bystander_threads;

	table->round = *round;
	table->seed = dice_seed;
	/* in culimbo, a free that must wait as the driver's would keeps a page for a moment */
	table->part = (device / 4 * (4 - round->unused) / threads - PAGE) / PAGE * PAGE;
	atomic_store(&table->phase, PHASE_BEGIN);
	atomic_store(&table->ready, 0);
	atomic_store(&table->slow, 0);
	atomic_store(&table->slowest, 0);
	atomic_store(&table->limbo, 0);
	atomic_store(&table->shorts, 0);
	setenv("CULIMBO_GRACE", round->grace, 1);
	if (round->full)
		setenv("CULIMBO_GRACE_BYTES", FULL, 1);
	else
		unsetenv("CULIMBO_GRACE_BYTES");
	for (uint32_t i = 0; i < n; i++)
		start_player(i);
	if (WAIT_FOR(atomic_load(&table->ready) == n || running() < n, READY_NS)) {
		uint64_t until = torture_now() + ns;

		atomic_store(&table->phase, PHASE_PLAY);
		while (torture_now() < until && running() == n) {
			gather();
			nap_ms(5);
		}
	}
	atomic_store(&table->phase, PHASE_END);
	end_by = torture_now() + END_NS;
	if (!WAIT_FOR(!running(), END_NS)) {
		strange_ends++;
		for (uint32_t i = 0; i < PROCESSES; i++)
			if (process[i])
				kill(process[i], SIGKILL);
		end_by = UINT64_MAX;
		WAIT_FOR(!running(), END_NS);
	}
	end_by = UINT64_MAX;
	failures = all_of(table->failures) - failures;
	seen[round->full].rounds++;
	seen[round->full].shorts += atomic_load(&table->shorts);
	if (seen[round->full].limbo < atomic_load(&table->limbo))
		seen[round->full].limbo = atomic_load(&table->limbo);
	printf("# %u x %u sharers (%u inline), %u x %u bystanders, grace %s%s, pace %u us, %zu MiB each%s: %llu of %llu failed; limbo up to %llu MiB, short %llu times; slowest %.0f ms, %llu above 100; %.1f s\n",
	       round->sharers, round->sharer_threads, round->inlines, round->bystanders,
	       round->bystander_threads, round->grace, round->full ? " of " FULL : "", round->pace,
	       table->part / MIB,
	       round->leaves ? ", sharers leave" : "",
	       (unsigned long long)failures,
	       (unsigned long long)(all_of(table->allocations) - allocations),
	       (unsigned long long)(atomic_load(&table->limbo) / MIB),
	       (unsigned long long)atomic_load(&table->shorts),
	       (double)atomic_load(&table->slowest) * 1e-6, (unsigned long long)atomic_load(&table->slow),
	       (double)(torture_now() - began) * 1e-9);
	fflush(stdout);
}

static int supervise(bool control, uint64_t allocations)
{
	struct memory before, after = { 0 };
	const unsigned int rounds = sizeof(fixed) / sizeof(*fixed);
	uint64_t done;
	bool back;

	table = supervisor_begin(false, sizeof(*table), &table_fd);
	dice_seed = torture_seed(supervisor.seed, UINT64_MAX);
	bare = control;
	start_observer(0);
	before = look();
	for (unsigned int i = 0; i < rounds && !strange_ends; i++)
		/* bare, the others are as those with a full limbo */
		if (!bare || fixed[i].full || !strcmp(fixed[i].grace, "0"))
			play_round(&fixed[i], FIXED_NS, before.free);
	while (all_of(table->allocations) < allocations && !strange_ends) {
		struct round round = any_round();

		play_round(&round, ROUND_NS, before.free);
	}
	done = all_of(table->allocations);
	end_by = torture_now() + END_NS;
	back = WAIT_FOR((after = look(), after.free >= before.free), END_NS);
	ok(back, "all memory is free again (%llu of %llu bytes)", (unsigned long long)after.free,
	   (unsigned long long)before.free);
	observer_end();
	printf("pressure_storm: allocations=%llu bystanders=%llu exports=%llu failures=%llu failures_bystanders=%llu errors=%llu\n",
	       (unsigned long long)done, (unsigned long long)table->allocations[BYSTANDER],
	       (unsigned long long)table->exports, (unsigned long long)all_of(table->failures),
	       (unsigned long long)table->failures[BYSTANDER], (unsigned long long)table->errors);
	ok(done && all_of(table->failures) == 0, "%s, none of %llu allocations failed (%llu did)",
	   control ? "control: without culimbo" : "under culimbo", (unsigned long long)done,
	   (unsigned long long)all_of(table->failures));
	/* memory that the driver did not have at first was in limbos, since what is live fits */
	if (!control)
		ok(seen[true].limbo >= before.total / 2 && seen[true].shorts && seen[false].rounds,
		   "%u rounds with a full limbo: one process had %llu of %llu MiB in it, the driver was short of memory %llu times; %u other rounds: %llu MiB, %llu times",
		   seen[true].rounds, (unsigned long long)(seen[true].limbo / MIB),
		   (unsigned long long)(before.total / MIB), (unsigned long long)seen[true].shorts,
		   seen[false].rounds, (unsigned long long)(seen[false].limbo / MIB),
		   (unsigned long long)seen[false].shorts);
	ok(table->errors == 0 && strange_ends == 0, "no wrong results (%llu), no process ended abnormally (%u)",
	   (unsigned long long)table->errors, strange_ends);
	return supervisor.failed;
}

int main(int argc, char **argv)
{
	int role = play_role(argc, argv, sizeof(struct table), play), i = 1;
	bool control = false;
	uint64_t allocations;

	if (role >= 0)
		return role;
	for (; i < argc && !strncmp(argv[i], "--", 2); i++)
		control |= !strcmp(argv[i], "--control");
	allocations = i + 1 == argc ? strtoull(argv[i], NULL, 10) : 0;
	if (!allocations) {
		fprintf(stderr, "usage: pressure_storm [--control] ALLOCATIONS (started by pressure_storm.sh)\n");
		return 2;
	}
	return supervise(control, allocations);
}
