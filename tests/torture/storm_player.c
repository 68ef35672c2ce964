/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The players of the storm (storm.c): exporters of one thread, importers of several threads.
 */
#include "tests/torture/crash.h"
#include "tests/torture/storm.h"

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

#define STORM_FILE STORM_PLAYER

#define CHILD_S 10

/* All words of a block are its token, which names its exporter and is never used twice. */
static uint64_t token_of(uint32_t place, uint32_t life, uint64_t serial)
{
	return (uint64_t)(place + 1) << 56 | (uint64_t)(life & 0xffff) << 40 | (serial & 0xffffffffff);
}

struct place *me;

static bool playing(void)
{
	return atomic_load_explicit(&table->phase, memory_order_relaxed) == PHASE_PLAY &&
	       atomic_load_explicit(&me->leaves, memory_order_relaxed) != CLOSES;
}

static bool exits(void)
{
	return atomic_load_explicit(&me->leaves, memory_order_relaxed) == EXITS;
}

/* ------------------------------------------------------------------ players */
uint32_t here;
static CUresult (*copy_to_device)(CUdeviceptr, const void *, size_t);
__thread struct spot *spot;
__thread uint64_t seed;

uint32_t dice(uint32_t sides)
{
	return torture_dice(&seed, sides);
}

static void beat(void)
{
	atomic_fetch_add_explicit(&spot->beat, 1, memory_order_relaxed);
}

void complain(const char *call, int result)
{
	const char *name = NULL;

	if (exits())
		return;
	COUNT(errors);
	cu.cuGetErrorName((CUresult)result, &name);
	fprintf(stderr, "storm: ERROR %u (pid %d, thread %d): %s: %s (%d), after %.1f s\n", here, (int)getpid(),
		(int)(spot - me->spot), call, name ? name : "?", result,
		(double)(torture_now() - table->began) / 1e9);
}

void fill(CUdeviceptr address, uint64_t token)
{
	uint64_t words[WORDS];

	for (int i = 0; i < WORDS; i++)
		words[i] = token;
	SURE(copy_to_device(address, words, BYTES));
	/* such a copy may return before the bytes are in device memory, where other processes read them */
	SURE(cu.cuCtxSynchronize());
}

static bool begin(void)
{
	const char *why = cuda_door_open();

	/* a child that outlives its parent ends by itself */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setvbuf(stderr, NULL, _IOLBF, 512);
	crash_tell("storm", &me->doomed);
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

/* @memory NULL: withdraws the handle. */
static void publish(struct slot *slot, uint64_t token, enum kind kind, const CUipcMemHandle *memory,
		    const CUipcEventHandle *event)
{
	atomic_fetch_add(&slot->seq, 1);
	atomic_store_explicit(&slot->token, token, memory_order_release);
	if (memory) {
		atomic_store_explicit(&slot->kind, kind, memory_order_release);
		store_words(slot->memory, memory);
		store_words(slot->event, event);
	}
	atomic_fetch_add(&slot->seq, 1);
}

/* The supervisor calls it for a killed exporter: withdraws the unfinished handle and half of the others. */
void withdraw(struct slot *slot, uint32_t die)
{
	if (atomic_load(&slot->seq) % 2) {
		atomic_store_explicit(&slot->token, 0, memory_order_release);
		atomic_fetch_add(&slot->seq, 1);
	} else if (die) {
		publish(slot, 0, OF_MEMORY, NULL, NULL);
	}
}

struct block {
	CUdeviceptr address; /* 0: none */
	CUevent event;
	enum kind kind;
	CUipcMemHandle handle;
};
static struct block blocks[SLOTS];

static void block_free(int k)
{
	struct block *block = &blocks[k];

	publish(&me->slot[k], 0, OF_MEMORY, NULL, NULL);
	if (block->kind == OF_VIRTUAL)
		SURE(virtual_free(block->address));
	else if (dice(4) && !(block->kind == OF_ASYNC && async_is_counted()))
		SURE(cu.cuMemFree_v2(block->address));
	else
		SURE(cu.cuMemFreeAsync(block->address, NULL));
	SURE(cu.cuEventDestroy_v2(block->event));
	block->address = 0;
	COUNT(frees);
}

static bool block_export(const struct block *block, CUipcMemHandle *handle)
{
	return block->kind == OF_POOL ? SURE(pool_export(handle, block->address)) :
				SURE(cu.cuIpcGetMemHandle(handle, block->address));
}

static bool block_alloc(struct block *block)
{
	if (block->kind == OF_MEMORY)
		return SURE(cu.cuMemAlloc_v2(&block->address, BYTES));
	if (block->kind == OF_ASYNC)
		return SURE(async_alloc(&block->address, (CUdevice)(here % DEVICES)));
	return block->kind == OF_POOL ? SURE(pool_alloc(&block->address)) :
					SURE(virtual_alloc(&block->address, (CUdevice)(here % DEVICES)));
}

static void block_make(int k, uint64_t token)
{
	struct block *block = &blocks[k];
	CUipcEventHandle event;

	block->kind = dice(3) == 0 ? OF_POOL : OF_MEMORY;
	if (block->kind == OF_MEMORY && virtual_is_shared() && dice(2))
		block->kind = dice(2) ? OF_VIRTUAL : OF_ASYNC;
	if (!block_alloc(block)) {
		block->address = 0;
		return;
	}
	fill(block->address, token);
	if (SURE(cu.cuEventCreate(&block->event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)) &&
	    block_export(block, &block->handle) &&
	    SURE(cu.cuIpcGetEventHandle(&event, block->event))) {
		publish(&me->slot[k], token, block->kind, &block->handle, &event);
		COUNT(exports);
		if (block->kind == OF_POOL)
			COUNT(pool_blocks);
		if (block->kind == OF_VIRTUAL)
			COUNT(virtual_blocks);
		if (block->kind == OF_ASYNC)
			COUNT(async_blocks);
		if (dice(64) == 0)
			SURE(async_end_pool());
	}
}

static void block_export_again(const struct block *block)
{
	CUipcMemHandle handle;

	if (block_export(block, &handle) &&
	    memcmp(&handle, &block->handle, sizeof(handle)))
		complain("another handle of the same block", 0);
}

/* Without a collector thread, calls of the driver release what it has freed. */
static void drain(void)
{
	const char *collector = getenv("CULIMBO_COLLECTOR");
	bool calls = collector && !strcmp(collector, "inline") && !table->control;
	CUdeviceptr address;

	while (atomic_load(&table->phase) != PHASE_LEAVE) {
		if (calls && SURE(cu.cuMemAlloc_v2(&address, BYTES)))
			SURE(cu.cuMemFree_v2(address));
		if (!table->control)
			SURE(async_tell((CUdevice)(here % DEVICES)));
		nap_ms(2);
		beat();
	}
}

static int play_exporter(uint32_t life)
{
	uint64_t serial = 0;
	CUcontext context;

	if (!SURE(cu.cuDevicePrimaryCtxRetain(&context, (CUdevice)(here % DEVICES))) ||
	    !SURE(cu.cuCtxSetCurrent(context)) || !SURE(pool_make((CUdevice)(here % DEVICES))))
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
	SURE(pool_end());
	SURE(async_end_pool());
	SURE(cu.cuCtxSynchronize());
	atomic_store(&me->state, STATE_EMPTY);
	drain();
	return 0;
}

/* ---------------------------------------------------------------- importers */
/* Imports that pass from thread to thread, for threads with the primary context. */
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
		if (words[i] == import->token || exits())
			continue;
		COUNT(foreign);
		fprintf(stderr,
			"storm: FOREIGN %u (pid %d, thread %d), %s: block 0x%016llx, byte %d: 0x%016llx\n",
			here, (int)getpid(), (int)(spot - me->spot), when,
			(unsigned long long)import->token, 8 * i, (unsigned long long)words[i]);
		return;
	}
}

void import_close(struct import *import)
{
	read_all(import, "before a close");
	if (import->event)
		SURE(cu.cuEventDestroy_v2(import->event));
	if (import->kind == OF_VIRTUAL)
		SURE(virtual_close(import->address));
	else if (import->kind == OF_ASYNC)
		SURE(async_close(import->address));
	else if (import->kind == OF_MEMORY)
		SURE(cu.cuIpcCloseMemHandle(import->address));
	else if (dice(2))
		SURE(cu.cuMemFree_v2(import->address));
	else
		SURE(cu.cuMemFreeAsync(import->address, NULL));
	if (import->kind == OF_MEMORY)
		claim_end(import->token);
	*import = (struct import){ .address = 0 };
}

/* True when the handle was published all the time since @seq was read, by an exporter that was not about to be killed. */
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
	enum kind kind = (enum kind)atomic_load(&slot->kind);
	CUipcMemHandle memory;
	CUipcEventHandle event;
	bool before, after;
	CUresult result;

	load_words(&memory, slot->memory);
	load_words(&event, slot->event);
	if (seq % 2 || !token || atomic_load(&slot->seq) != seq)
		return;
	if (kind == OF_MEMORY && !claim(token))
		return;
	before = published(from, slot, seq, token);
	if (kind != OF_POOL)
		result = CALL(cu.cuIpcOpenMemHandle_v2(&import->address, memory,
						       CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	else if (!CALL(pool_import(&import->address, &memory, (uint32_t)(from - table->place),
				   (uint32_t)(token >> 40 & 0xffff), &result)))
		return;
	after = before && published(from, slot, seq, token);
	if (result) {
		import->address = 0;
		if (kind == OF_MEMORY)
			claim_end(token);
		if (after && !exits()) {
			COUNT(refused_alive);
			complain(kind == OF_POOL  ? "cuMemPoolImportPointer of a published block" :
				 kind == OF_ASYNC ? "cuIpcOpenMemHandle of a published stream-ordered block" :
						    "cuIpcOpenMemHandle of a published block", result);
		} else {
			COUNT(refused);
		}
		return;
	}
	COUNT(opens);
	if (!after)
		COUNT(opens_freed);
	if (kind == OF_POOL)
		COUNT(pool_imports);
	if (kind == OF_VIRTUAL)
		COUNT(virtual_opens);
	if (kind == OF_ASYNC)
		COUNT(async_opens);
	import->token = token;
	import->kind = kind;
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

/* A child cannot close its parent's imports, and cannot open anything. */
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
 * The context of a thread.  Threads 0 to 3 and 7 have the primary one of device 0; 7 also forks.  Threads 4
 * and 5 have one of their own, which they destroy with open imports and create again.  Thread 6 has the
 * primary one of device 1, which it resets or releases with open imports.
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

/* Returns false, after a complaint, when no context can be had. */
static bool context_anew(int thread, CUcontext *context)
{
	COUNT(context_ends);
	if (thread == RESETS && dice(2))
		/* other references to it stay */
		return SURE(cu.cuDevicePrimaryCtxReset_v2(1)) && SURE(cu.cuCtxSetCurrent(*context));
	return (thread == RESETS ? SURE(cu.cuDevicePrimaryCtxRelease_v2(1)) :
				   SURE(cu.cuCtxDestroy_v2(*context))) &&
	       context_make(thread, context);
}

/* Pool imports belong to no context and stay. */
static void forget_of_context(struct import *kept)
{
	for (int i = 0; i < KEPT; i++) {
		kept[i].event = NULL;
		if (kept[i].kind != OF_POOL)
			kept[i] = (struct import){ .address = 0 };
	}
}

static void *import_thread(void *arg)
{
	int thread = (int)(intptr_t)arg;
	struct import kept[KEPT] = { { 0 } };
	CUcontext context;

	spot = &me->spot[thread];
	seed = torture_seed(table->seed, (uint64_t)here << 32 | (uint64_t)(thread + 1) << 16 |
						 (atomic_load(&me->life) & 0xffff));
	claims_are_of(owns_context(thread) || thread == RESETS ? thread : 0);
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
		if (dice(16) == 0)
			share_own_pool();
		if (virtual_is_shared() && dice(16) == 0)
			share_own_virtual(thread == RESETS ? 1 : 0);
		if (virtual_is_shared() && dice(16) == 0)
			share_own_async(thread == RESETS ? 1 : 0);
		if ((owns_context(thread) || thread == RESETS) && dice(40) == 0) {
			forget_of_context(kept);
			if (!context_anew(thread, &context))
				return NULL;
			claims_end();
		}
		if (thread == FORKS && table->may_fork && !exits() && dice(200) == 0)
			fork_once(&kept[0]);
		beat();
	}
	for (int i = 0; i < KEPT; i++)
		if (kept[i].address)
			import_close(&kept[i]);
	SURE(async_end_pool());
	return NULL;
}

static int play_importer(void)
{
	pthread_t thread[THREADS];
	CUcontext context;

	if (!context_make(0, &context) || !SURE(pool_make(0)))
		return 3;
	atomic_store(&me->state, STATE_READY);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&thread[i], NULL, import_thread, (void *)(intptr_t)i))
			return 4;
	while (playing() && !exits())
		nap_ms(2);
	if (exits())
		return 0;
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	while (pool.n)
		import_close(&pool.import[--pool.n]);
	return 0;
}

int play(void *shared, uint32_t place, char **argv)
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
