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
 * their own beside that; one forks, with fork() and _Fork().  Exporters are killed.
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

#include "tests/e2e/cuda_door.h"
#include "tests/torture/chance.h"
#include "tests/torture/supervisor.h"

#define FINISH_NS (60000 * MS)
#define BACK_NS (10000 * MS)
#define KILL_NS (10000 * MS)
#define END_NS (75000 * MS) /* all that comes after the time asked for */
#define HUNG_NS (30000 * MS)
#define CHILD_S 10
#define STRANGE 5 /* ends; from then on exporters don't come again */
#define KILL_EVERY_MS 300 /* on average */

enum {
	EXPORTERS = 5,
	IMPORTERS = 2,
	PLACES = EXPORTERS + IMPORTERS,
	DEVICES = 2,
	SLOTS = 24, /* blocks of an exporter, at most */
	THREADS = 8,
	KEPT = 12, /* opens of a thread, at most */
	POOL = 64, /* and between threads */
	BYTES = 4096,
	WORDS = BYTES / 8,
	HANDLE_WORDS = 8,
};

/* X(counter): all are printed. */
#define COUNTERS(X)                                                                                \
	X(exports)                                                                                 \
	X(frees)                                                                                   \
	X(opens)	 /* of memory, granted */                                                  \
	X(opens_freed)	 /* of which withdrawn meanwhile, or of a killed exporter */               \
	X(refused)	 /* of such ones */                                                        \
	X(refused_alive) /* of those still published, their exporter alive: must be none */        \
	X(reads)                                                                                   \
	X(foreign)	 /* which met a word that is not the block's: must be none */              \
	X(handed)	 /* from one thread to another */                                          \
	X(own)		 /* blocks that a thread of an importer exported, opened and freed */      \
	X(events)	 /* opened */                                                              \
	X(events_refused)                                                                          \
	X(context_ends)                                                                            \
	X(forks)                                                                                   \
	X(kills)                                                                                   \
	X(errors)	 /* answers that bare would not give: must be none */

enum phase { PHASE_PLAY, PHASE_FINISH, PHASE_LEAVE };
enum state { STATE_BEGINS, STATE_READY, STATE_EMPTY };
static const char *const state_names[] = { "beginning", "ready", "empty" };

/*
 * Where an exporter publishes a handle.  The writer makes @seq odd, stores the rest with
 * release, and makes it even; a reader who loads with acquire and finds the same even @seq
 * before and after has one whole.  Token 0: nothing is published.
 */
struct slot {
	_Atomic uint64_t seq, token;
	_Atomic uint64_t memory[HANDLE_WORDS], event[HANDLE_WORDS];
};

struct place {
	_Atomic uint32_t life, doomed, state;
	struct slot slot[SLOTS];
	struct spot { /* for who wonders why it hangs */
		_Atomic uint32_t line;
		_Atomic uint64_t beat;
	} spot[THREADS];
};

static struct table {
	uint64_t seed;
	bool control, may_fork;
	_Atomic uint32_t phase;
#define X(name) _Atomic uint64_t name;
	COUNTERS(X)
#undef X
	struct place place[PLACES];
} *table;

#define COUNT(name) atomic_fetch_add_explicit(&table->name, 1, memory_order_relaxed)

/* A block's token is in all of its words: whose it is, and never used twice. */
static uint64_t token_of(uint32_t place, uint32_t life, uint64_t serial)
{
	return (uint64_t)(place + 1) << 56 | (uint64_t)(life & 0xffff) << 40 | (serial & 0xffffffffff);
}

static bool playing(void)
{
	return atomic_load_explicit(&table->phase, memory_order_relaxed) == PHASE_PLAY;
}

/* ------------------------------------------------------------------ players */
static struct place *me;
static uint32_t here;
static CUresult (*copy_to_device)(CUdeviceptr, const void *, size_t);
static __thread struct spot *spot;
static __thread uint64_t seed;

static uint32_t dice(uint32_t sides)
{
	return torture_dice(&seed, sides);
}

static void beat(void)
{
	atomic_fetch_add_explicit(&spot->beat, 1, memory_order_relaxed);
}

static void complain(const char *call, int result)
{
	const char *name = NULL;

	COUNT(errors);
	cu.cuGetErrorName((CUresult)result, &name);
	fprintf(stderr, "storm: ERROR %u (pid %d, thread %d): %s: %s (%d)\n", here, (int)getpid(),
		(int)(spot - me->spot), call, name ? name : "?", result);
}

#define CALL(call) (atomic_store_explicit(&spot->line, __LINE__, memory_order_relaxed), (call))
#define SURE(call)                                                                                 \
	({                                                                                         \
		CUresult sure_result = CALL(call);                                                 \
		if (sure_result)                                                                   \
			complain(#call, sure_result);                                              \
		!sure_result;                                                                      \
	})

static void fill(CUdeviceptr address, uint64_t token)
{
	uint64_t words[WORDS];

	for (int i = 0; i < WORDS; i++)
		words[i] = token;
	SURE(copy_to_device(address, words, BYTES));
	/* such a copy may return before it is in the device's memory, where others read */
	SURE(cu.cuCtxSynchronize());
}

static bool begin(void)
{
	const char *why = cuda_door_open();

	/* (a child that outlives its parent ends by itself) */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setvbuf(stderr, NULL, _IOLBF, 512);
	spot = &me->spot[0];
	if (!why && !(*(void **)&copy_to_device = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD),
							"cuMemcpyHtoD_v2")))
		why = dlerror();
	if (why)
		fprintf(stderr, "storm: ERROR %u: %s\n", here, why);
	return !why && SURE(cu.cuInit(0));
}

/* ---------------------------------------------------------------- exporters */
static void store_words(_Atomic uint64_t *to, const void *from)
{
	uint64_t words[HANDLE_WORDS];

	memcpy(words, from, sizeof(words));
	for (int i = 0; i < HANDLE_WORDS; i++)
		atomic_store_explicit(&to[i], words[i], memory_order_release);
}

static void load_words(void *to, _Atomic uint64_t *from)
{
	uint64_t words[HANDLE_WORDS];

	for (int i = 0; i < HANDLE_WORDS; i++)
		words[i] = atomic_load_explicit(&from[i], memory_order_acquire);
	memcpy(to, words, sizeof(words));
}

/* @memory NULL: nothing any more. */
static void publish(struct slot *slot, uint64_t token, const CUipcMemHandle *memory,
		    const CUipcEventHandle *event)
{
	atomic_fetch_add(&slot->seq, 1);
	atomic_store_explicit(&slot->token, token, memory_order_release);
	if (memory) {
		store_words(slot->memory, memory);
		store_words(slot->event, event);
	}
	atomic_fetch_add(&slot->seq, 1);
}

/* By the supervisor, of an exporter that was killed: what it was amid of, and half of the rest, is withdrawn. */
static void withdraw(struct slot *slot, uint32_t die)
{
	if (atomic_load(&slot->seq) % 2) {
		atomic_store_explicit(&slot->token, 0, memory_order_release);
		atomic_fetch_add(&slot->seq, 1);
	} else if (die) {
		publish(slot, 0, NULL, NULL);
	}
}

struct block {
	CUdeviceptr address; /* 0: none */
	CUevent event;
	CUipcMemHandle handle;
};
static struct block blocks[SLOTS];

static void block_free(int k)
{
	struct block *block = &blocks[k];

	publish(&me->slot[k], 0, NULL, NULL);
	if (dice(4))
		SURE(cu.cuMemFree_v2(block->address));
	else
		SURE(cu.cuMemFreeAsync(block->address, NULL));
	SURE(cu.cuEventDestroy_v2(block->event));
	block->address = 0;
	COUNT(frees);
}

static void block_make(int k, uint64_t token)
{
	struct block *block = &blocks[k];
	CUipcEventHandle event;

	if (!SURE(cu.cuMemAlloc_v2(&block->address, BYTES))) {
		block->address = 0;
		return;
	}
	fill(block->address, token);
	if (SURE(cu.cuEventCreate(&block->event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)) &&
	    SURE(cu.cuIpcGetMemHandle(&block->handle, block->address)) &&
	    SURE(cu.cuIpcGetEventHandle(&event, block->event))) {
		publish(&me->slot[k], token, &block->handle, &event);
		COUNT(exports);
	}
}

static void block_export_again(const struct block *block)
{
	CUipcMemHandle handle;

	if (SURE(cu.cuIpcGetMemHandle(&handle, block->address)) &&
	    memcmp(&handle, &block->handle, sizeof(handle)))
		complain("another handle of the same block", 0);
}

/* Without a collector what it has freed comes back while it calls the driver. */
static void drain(void)
{
	const char *collector = getenv("CULIMBO_COLLECTOR");
	bool calls = collector && !strcmp(collector, "inline") && !table->control;
	CUdeviceptr address;

	while (atomic_load(&table->phase) != PHASE_LEAVE) {
		if (calls && SURE(cu.cuMemAlloc_v2(&address, BYTES)))
			SURE(cu.cuMemFree_v2(address));
		nap_ms(2);
		beat();
	}
}

static int play_exporter(uint32_t life)
{
	uint64_t serial = 0;
	CUcontext context;

	if (!SURE(cu.cuDevicePrimaryCtxRetain(&context, (CUdevice)(here % DEVICES))) ||
	    !SURE(cu.cuCtxSetCurrent(context)))
		return 3;
	atomic_store(&me->state, STATE_READY);
	while (playing()) {
		int k = (int)dice(SLOTS);

		if (blocks[k].address && dice(4) == 0) {
			block_export_again(&blocks[k]);
		} else {
			if (blocks[k].address)
				block_free(k);
			if (dice(3))
				block_make(k, token_of(here, life, ++serial));
		}
		if (dice(64) == 0)
			usleep(dice(2000));
		beat();
	}
	for (int k = 0; k < SLOTS; k++)
		if (blocks[k].address)
			block_free(k);
	SURE(cu.cuCtxSynchronize());
	atomic_store(&me->state, STATE_EMPTY);
	drain();
	return 0;
}

/* ---------------------------------------------------------------- importers */
struct import {
	CUdeviceptr address; /* 0: none */
	CUevent event;
	uint64_t token;
};

/* What goes from thread to thread, of those whose context it is. */
static struct {
	pthread_mutex_t lock;
	struct import import[POOL];
	int n;
} pool = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void read_all(const struct import *import, const char *when)
{
	uint64_t words[WORDS];

	if (!SURE(cu.cuMemcpyDtoH_v2(words, import->address, BYTES)))
		return;
	COUNT(reads);
	for (int i = 0; i < WORDS; i++) {
		if (words[i] == import->token)
			continue;
		COUNT(foreign);
		fprintf(stderr,
			"storm: FOREIGN %u (pid %d, thread %d), %s: block 0x%016llx, byte %d: 0x%016llx\n",
			here, (int)getpid(), (int)(spot - me->spot), when,
			(unsigned long long)import->token, 8 * i, (unsigned long long)words[i]);
		return;
	}
}

static void import_close(struct import *import)
{
	read_all(import, "before a close");
	if (import->event)
		SURE(cu.cuEventDestroy_v2(import->event));
	SURE(cu.cuIpcCloseMemHandle(import->address));
	*import = (struct import){ .address = 0 };
}

/* Published all the time since @seq was read, by an exporter that was not about to be killed. */
static bool published(struct place *from, const struct slot *slot, uint64_t seq, uint64_t token)
{
	return atomic_load(&slot->seq) == seq && !atomic_load(&from->doomed) &&
	       (token >> 40 & 0xffff) == (atomic_load(&from->life) & 0xffff);
}

static void import_open(struct import *import)
{
	struct place *from = &table->place[dice(EXPORTERS)];
	struct slot *slot = &from->slot[dice(SLOTS)];
	uint64_t seq = atomic_load(&slot->seq), token = atomic_load(&slot->token);
	CUipcMemHandle memory;
	CUipcEventHandle event;
	bool before, after;
	CUresult result;

	load_words(&memory, slot->memory);
	load_words(&event, slot->event);
	if (seq % 2 || !token || atomic_load(&slot->seq) != seq)
		return;
	before = published(from, slot, seq, token);
	result = CALL(cu.cuIpcOpenMemHandle_v2(&import->address, memory,
					       CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	after = before && published(from, slot, seq, token);
	if (result) {
		import->address = 0;
		if (after) {
			COUNT(refused_alive);
			complain("cuIpcOpenMemHandle of what is published", result);
		} else {
			COUNT(refused);
		}
		return;
	}
	COUNT(opens);
	if (!after)
		COUNT(opens_freed);
	import->token = token;
	import->event = NULL;
	read_all(import, after ? "just opened" : "just opened, withdrawn meanwhile");
	if (dice(2))
		return;
	if (CALL(cu.cuIpcOpenEventHandle(&import->event, event))) {
		COUNT(events_refused);
		import->event = NULL;
	} else {
		COUNT(events);
	}
}

static void hand_over(struct import *import)
{
	pthread_mutex_lock(&pool.lock);
	if (import->address && pool.n < POOL) {
		pool.import[pool.n++] = *import;
		import->address = 0;
		COUNT(handed);
	} else if (!import->address && pool.n) {
		*import = pool.import[--pool.n];
	}
	pthread_mutex_unlock(&pool.lock);
}

/* A block of this process, exported, opened and freed by itself: under culimbo it is the block's own address. */
static void share_own(void)
{
	CUdeviceptr address, opened;
	CUipcMemHandle handle;
	CUresult result;

	if (!SURE(cu.cuMemAlloc_v2(&address, BYTES)))
		return;
	if (SURE(cu.cuIpcGetMemHandle(&handle, address))) {
		result = CALL(cu.cuIpcOpenMemHandle_v2(&opened, handle,
						       CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		if (!result && opened != address)
			complain("a block of one's own at another address", 0);
		if (!result)
			SURE(cu.cuIpcCloseMemHandle(opened));
		else if (!table->control) /* bare cannot */
			complain("cuIpcOpenMemHandle of one's own", result);
	}
	SURE(cu.cuMemFree_v2(address));
	COUNT(own);
}

/* What is its parent's a child can't close, and it can't open anything. */
static void fork_once(const struct import *import)
{
	pid_t child = dice(2) ? fork() : _Fork();
	CUipcMemHandle handle;
	CUdeviceptr address;
	int status;

	if (child == 0) {
		alarm(CHILD_S);
		memset(&handle, 0x11, sizeof(handle));
		if (import->address && !cu.cuIpcCloseMemHandle(import->address))
			_exit(3);
		if (!cu.cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
			_exit(4);
		_exit(0);
	}
	if (child < 0 || CALL(waitpid(child, &status, 0)) != child)
		return;
	COUNT(forks);
	if (status)
		complain("a forked child's end", status);
}

/*
 * Which context a thread has: 0 to 3 and 7 the primary one of device 0 (7 forks); 4 and
 * 5 one of their own, destroyed with what is open in it, then another; 6 the primary one
 * of device 1, reset or released so.
 */
enum { SHARES_POOL = 4, OWNS_FIRST = 4, OWNS_LAST = 5, RESETS = 6, FORKS = 7 };

static bool owns_context(int thread)
{
	return thread >= OWNS_FIRST && thread <= OWNS_LAST;
}

static bool context_make(int thread, CUcontext *context)
{
	return (owns_context(thread) ?
			SURE(cu.cuCtxCreate_v2(context, 0, (CUdevice)dice(DEVICES))) :
			SURE(cu.cuDevicePrimaryCtxRetain(context, thread == RESETS ? 1 : 0))) &&
	       SURE(cu.cuCtxSetCurrent(*context));
}

/* False: there is none any more, and a complaint. */
static bool context_anew(int thread, CUcontext *context)
{
	COUNT(context_ends);
	if (thread == RESETS && dice(2))
		/* references to it stay */
		return SURE(cu.cuDevicePrimaryCtxReset_v2(1)) && SURE(cu.cuCtxSetCurrent(*context));
	return (thread == RESETS ? SURE(cu.cuDevicePrimaryCtxRelease_v2(1)) :
				   SURE(cu.cuCtxDestroy_v2(*context))) &&
	       context_make(thread, context);
}

static void *import_thread(void *arg)
{
	int thread = (int)(intptr_t)arg;
	struct import kept[KEPT] = { { 0 } };
	CUcontext context;

	spot = &me->spot[thread];
	seed = torture_seed(table->seed, (uint64_t)here << 32 | (uint64_t)(thread + 1) << 16);
	if (!context_make(thread, &context))
		return NULL;
	while (playing()) {
		struct import *import = &kept[dice(KEPT)];

		if (!import->address)
			import_open(import);
		else if (dice(3))
			import_close(import);
		else
			read_all(import, "while open");
		if (thread < SHARES_POOL && dice(4) == 0)
			hand_over(import);
		if (dice(8) == 0)
			share_own();
		if ((owns_context(thread) || thread == RESETS) && dice(40) == 0) {
			memset(kept, 0, sizeof(kept));
			if (!context_anew(thread, &context))
				return NULL;
		}
		if (thread == FORKS && table->may_fork && dice(200) == 0)
			fork_once(&kept[0]);
		beat();
	}
	for (int i = 0; i < KEPT; i++)
		if (kept[i].address)
			import_close(&kept[i]);
	return NULL;
}

static int play_importer(void)
{
	pthread_t thread[THREADS];
	CUcontext context;

	if (!context_make(0, &context))
		return 3;
	atomic_store(&me->state, STATE_READY);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&thread[i], NULL, import_thread, (void *)(intptr_t)i))
			return 4;
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	while (pool.n)
		import_close(&pool.import[--pool.n]);
	return 0;
}

static int play(void *shared, uint32_t place, char **argv)
{
	uint32_t life;

	table = shared;
	here = place;
	me = &table->place[here];
	life = atomic_load(&me->life);
	seed = torture_seed(table->seed, (uint64_t)here << 32 | life);
	if (!begin())
		return 3;
	return here < EXPORTERS ? play_exporter(life) : play_importer();
}

/* --------------------------------------------------------------- supervisor */
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
	printf("; last calls: storm.c");
	for (unsigned int t = 0; t < threads_of(i); t++)
		printf(":%u", (unsigned int)atomic_load(&table->place[i].spot[t].line));
	printf("\n");
}

/* Takes note of all that have ended; exporters come again, to the end: they have to say that they are empty. */
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
			if (i < EXPORTERS && atomic_load(&table->phase) <= PHASE_FINISH &&
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
