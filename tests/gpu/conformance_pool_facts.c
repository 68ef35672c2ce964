/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts about pools that legacy handles of stream-ordered memory rely on: what a pool says of its memory and of its
 * blocks, pools before any context, pools after the end of one, and imported pools.  This file has the worker's side
 * and the assertions.
 */
#include "conformance_worker.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda.h>

typedef unsigned long long ull;

/* ---- the worker ---- */

/* -> v[0]: the bytes that its own pool has given out, v[1]: those that it has of the device */
static CUresult numbers(uint64_t *v)
{
	TRY(driver.p_cuMemPoolGetAttribute(mine.pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &v[0]));
	return driver.p_cuMemPoolGetAttribute(mine.pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &v[1]);
}

/* -> v[0]: how device @device reaches the imported pool, v[1]: the result of giving it access, v[2]: how it reaches it then */
static CUresult access_of_imported(int device, uint64_t *v)
{
	CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemAccess_flags is = CU_MEM_ACCESS_FLAGS_PROT_NONE;

	TRY(driver.p_cuMemPoolGetAccess(&is, mine.imported_pool, &access.location));
	v[0] = is;
	v[1] = driver.p_cuMemPoolSetAccess(mine.imported_pool, &access, 1);
	is = CU_MEM_ACCESS_FLAGS_PROT_NONE;
	TRY(driver.p_cuMemPoolGetAccess(&is, mine.imported_pool, &access.location));
	v[2] = is;
	return CUDA_SUCCESS;
}

/* Takes the pool once more.  -> v[0]: 1 if it has the handle of the imported one, v[1]: 1 if that of its own pool */
static CUresult take_again(pid_t pid, int theirs, uint64_t *v)
{
	int fd = take_descriptor(pid, theirs, BY_PIDFD);
	CUmemoryPool other = NULL;
	CUresult result;

	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	result = driver.p_cuMemPoolImportFromShareableHandle(&other, (void *)(intptr_t)fd,
							     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	close(fd);
	v[0] = other == mine.imported_pool;
	v[1] = other == mine.pool;
	mine.imported_pool = other;
	return result;
}

/*
 * Resets the primary context while its own pool is the device's and has the block @pointer.  -> v[0]: the result,
 * v[1]: 1 if the pool is still the device's, v[2]: the block's first word, v[3]: an allocation from the pool, v[4]: the
 * block's free
 */
static CUresult reset_context(CUdeviceptr pointer, uint64_t *v)
{
	CUmemoryPool current = NULL;
	CUdeviceptr other = 0;
	uint32_t word = 0;

	TRY(driver.p_cuDeviceSetMemPool(0, mine.pool));
	v[0] = driver.p_cuDevicePrimaryCtxReset_v2(0);
	TRY(driver.p_cuDevicePrimaryCtxRetain(&mine.context, 0));
	TRY(driver.p_cuCtxSetCurrent(mine.context));
	TRY(driver.p_cuStreamCreate(&mine.stream, CU_STREAM_NON_BLOCKING));
	TRY(driver.p_cuDeviceGetMemPool(&current, 0));
	v[1] = current == mine.pool;
	TRY(driver.p_cuMemcpyDtoH_v2(&word, pointer, 4));
	v[2] = word;
	v[3] = driver.p_cuMemAllocFromPoolAsync(&other, 1024, mine.pool, mine.stream);
	v[4] = driver.p_cuMemFreeAsync(pointer, mine.stream);
	return driver.p_cuStreamSynchronize(mine.stream);
}

CUresult pool_fact_call(const struct question *q, struct answer *r)
{
	switch (q->verb) {
	case POOL_NUMBERS:
		return numbers(r->v);
	case POOL_ACCESS_OF:
		return access_of_imported((int)q->a[0], r->v);
	case POOL_TAKE_AGAIN:
		return take_again((pid_t)q->a[0], (int)q->a[1], r->v);
	case POOL_RESET:
		return reset_context((CUdeviceptr)q->a[0], r->v);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

/* ---- the assertions ---- */

void pool_numbers(struct worker *a, struct worker *b)
{
	struct answer before, with, after, range;
	uint64_t d, p = 0;
	unsigned char data[64];

	if (!share_pool(a, b, KEEP_ALL))
		return;
	before = ask(a, POOL_NUMBERS, 0, 0, 0, 0);
	d = pool_alloc(a, 64 * MIB);
	with = ask(a, POOL_NUMBERS, 0, 0, 0, 0);
	pool_export(a, d, data);
	pool_import(b, data, &p);
	range = ask(a, RANGE, d + 512, 0, 0, 0);
	ok(!range.result && range.v[0] == d && range.v[1] == 64 * MIB,
	   "pools: cuMemGetAddressRange of a pointer into a block gives the block (%d: %lld bytes from it, %llu bytes)",
	   range.result, (long long)(range.v[0] - d), (ull)range.v[1]);
	range = ask(b, RANGE, p + 512, 0, 0, 0);
	ok(!range.result && range.v[0] == p && range.v[1] == 64 * MIB,
	   "pools: and so at an importer (%d: %lld bytes from it, %llu bytes)", range.result, (long long)(range.v[0] - p),
	   (ull)range.v[1]);
	pool_free(b, p);
	pool_free(a, d);
	after = ask(a, POOL_NUMBERS, 0, 0, 0, 0);
	ok(!before.result && !before.v[0] && with.v[0] == 64 * MIB && !after.v[0],
	   "pools: USED_MEM_CURRENT is what is given out (%d: %llu, with 64 MiB %llu, after their free %llu)", before.result,
	   (ull)before.v[0], (ull)with.v[0], (ull)after.v[0]);
	ok(!before.v[1] && with.v[1] >= 64 * MIB && after.v[1] == with.v[1],
	   "pools: RESERVED_MEM_CURRENT is what it has of the device (%llu, with 64 MiB %llu, after their free %llu)",
	   (ull)before.v[1], (ull)with.v[1], (ull)after.v[1]);
	d = pool_alloc(a, 4 * MIB);
	ask(a, FREE, d, 0, 0, 0);
	after = ask(a, POOL_NUMBERS, 0, 0, 0, 0);
	p = pool_alloc(a, 4 * MIB);
	ok(after.v[0] == 4 * MIB && p == d,
	   "pools: what cuMemFree has freed is used again, and stays in USED_MEM_CURRENT (%llu, %lld bytes from it)",
	   (ull)after.v[0], (long long)(p - d));
	pool_free(a, p);
	after = ask(a, POOL_NUMBERS, 0, 0, 0, 0);
	ok(after.v[0] == 4 * MIB, "pools: for good (%llu)", (ull)after.v[0]);
	end_pool(a);
	ask(b, POOL_LEAVE, 0, 0, 0, 0);
}

void pool_imported_again(struct worker *a, struct worker *b)
{
	uint64_t d, p = 0, descriptor;
	unsigned char data[64];
	struct answer r;
	int result;

	r = ask(a, POOL_NEW, KEEP_ALL, 0, 0, 0);
	descriptor = ask(a, POOL_SHARE, 0, 0, 0, 0).v[0];
	d = pool_alloc(a, 4 * MIB);
	set_word(a, d, 51);
	pool_export(a, d, data);
	for (int i = 0; i < 3; i++) {
		result = ask(b, POOL_TAKE, (uint64_t)a->pid, descriptor, 0, 0).result;
		if (!i) {
			r = ask(b, POOL_ACCESS_OF, 0, 0, 0, 0);
			ok(!r.result && r.v[0] == CU_MEM_ACCESS_FLAGS_PROT_READWRITE && !r.v[1] &&
				   r.v[2] == CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
			   "pools: the pool's device reaches an imported pool (%d: %llu), may be given that access (%llu), and has it "
			   "then (%llu)", r.result, (ull)r.v[0], (ull)r.v[1], (ull)r.v[2]);
		}
		result = result ? result : pool_import(b, data, &p);
		ok(!result && get(b, p) == 51, "pools: a process imports a pool (time %d), and reads its block (%d)",
		   i + 1, result);
		if (i < 2) {
			pool_free(b, p);
			result = ask(b, POOL_LEAVE, 0, 0, 0, 0).result;
			ok(!result, "pools: and destroys it (%d)", result);
		}
	}
	result = pool_free(b, p);
	ok(!result, "pools: then the block is freed (%d)", result);
	ask(b, POOL_LEAVE, 0, 0, 0, 0);
	pool_free(a, d);
	close_descriptor(a, descriptor);
	end_pool(a);
}

/*
 * One step of a sequence: T takes the pool, A takes it again, I imports the block's pointer, R reads it, F frees it, D
 * destroys the pool.  Returns its result; of R 0 if the word is right.
 */
static int step(struct worker *x, char what, const struct worker *a, uint64_t descriptor, const unsigned char *data,
		uint64_t *p)
{
	struct answer r;

	switch (what) {
	case 'T':
		return ask(x, POOL_TAKE, (uint64_t)a->pid, descriptor, 0, 0).result;
	case 'A':
		r = ask(x, POOL_TAKE_AGAIN, (uint64_t)a->pid, descriptor, 0, 0);
		return r.result ? r.result : r.v[0] ? 0 : 1000; /* 1000: under another handle */
	case 'I':
		return pool_import(x, data, p);
	case 'R':
		return get(x, *p) != 51;
	case 'F':
		return pool_free(x, *p);
	default:
		return ask(x, POOL_LEAVE, 0, 0, 0, 0).result;
	}
}

/* Plays @steps in a worker of its own, which may crash: the driver's heap may be corrupt.  Writes their results. */
static void play(const char *steps, const struct worker *a, uint64_t descriptor, const unsigned char *data, int *results)
{
	char line[128] = "";
	struct worker x;
	uint64_t p = 0;
	size_t at = 0;

	spawn(&x);
	for (size_t i = 0; steps[i]; i++) {
		results[i] = step(&x, steps[i], a, descriptor, data, &p);
		at += (size_t)snprintf(line + at, sizeof(line) - at, " %c=%d", steps[i], results[i]);
	}
	dismiss(&x);
	note("measured: T takes a pool, A again, I imports, R reads, F frees a block, D destroys it:%s; ended by signal %d", line,
	     x.signal);
}

/* A pool that is imported twice, and one that its own process imports. */
void pool_imported_twice(struct worker *a, struct worker *unused)
{
	static const char *const others[] = { "TIARDRFD", "TIDRFD", "TADTIRFD", "TDD", "TAAD" }; /* only measured */
	uint64_t d, descriptor;
	unsigned char data[64];
	struct answer r, own;
	struct worker x;
	int v[16];

	(void)unused;
	ask(a, POOL_NEW, KEEP_ALL, 0, 0, 0);
	descriptor = ask(a, POOL_SHARE, 0, 0, 0, 0).v[0];
	d = pool_alloc(a, 4 * MIB);
	set_word(a, d, 51);
	pool_export(a, d, data);
	play("TAIRFD", a, descriptor, data, v);
	ok(!v[0] && !v[1], "pools: a pool that is imported already is imported once more (%d), under the same handle (%d)", v[0], v[1]);
	ok(!v[2] && !v[3] && !v[4], "pools: its block is imported (%d), read (%d) and freed (%d)", v[2], v[3], v[4]);
	ok(!v[5], "pools: after two imports one destroy gives 0 (%d)", v[5]);
	play("TAIDR", a, descriptor, data, v);
	ok(v[3] == CUDA_ERROR_INVALID_VALUE && !v[4],
	   "pools: after two imports a destroy is refused while a block is mapped (%d), which stays good (%d)", v[3], v[4]);
	play("TAIFDD", a, descriptor, data, v);
	ok(!v[4] && !v[5], "pools: each of two imports takes a destroy (%d, %d)", v[4], v[5]);
	play("TADIRFD", a, descriptor, data, v);
	ok(!v[2] && !v[3] && !v[4] && !v[6],
	   "pools: after one of them (%d) a pointer is imported (%d), read (%d), and the pool destroyed (%d)", v[2], v[3], v[4], v[6]);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		play(others[i], a, descriptor, data, v);
	pool_free(a, d);
	close_descriptor(a, descriptor);
	end_pool(a);
	for (int how = 0; how < 2; how++) {
		spawn(&x);
		ask(&x, POOL_NEW, KEEP_ALL, 0, 0, 0);
		descriptor = ask(&x, POOL_SHARE, 0, 0, 0, 0).v[0];
		r = ask(&x, POOL_TAKE_AGAIN, (uint64_t)x.pid, descriptor, 0, 0);
		v[0] = how ? ask(&x, POOL_TAKE_AGAIN, (uint64_t)x.pid, descriptor, 0, 0).result : 0;
		v[1] = ask(&x, POOL_LEAVE, 0, 0, 0, 0).result;
		own = ask(&x, POOL_ALLOC, 4096, 0, 0, 0);
		v[2] = ask(&x, POOL_END, 0, 0, 0, 0).result;
		dismiss(&x);
		note("measured: a process imports its own pool%s (%d, %d): %s handle as its own; that destroyed %d, then an "
		     "allocation from its own %d, whose destroy %d; ended by signal %d", how ? " twice" : "", r.result, v[0],
		     r.v[1] ? "the same" : "another", v[1], own.result, v[2], x.signal);
	}
}

/* The worker has a context, so that a process of its own makes the pool. */
static void before_context(int to)
{
	CUmemPoolProps properties = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				      .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	CUmemoryPool pool = NULL, current = NULL;
	CUdeviceptr pointer = 0;
	uint64_t v[6] = { 999, 999, 999, 999, 999, 0 };
	CUcontext context;
	unsigned int flags;
	int active = 1;

	alarm(30);
	if (!load_driver() && !driver.p_cuInit(0)) {
		v[0] = driver.p_cuMemPoolCreate(&pool, &properties);
		v[1] = v[0] ? 999 : driver.p_cuDeviceSetMemPool(0, pool);
		driver.p_cuDevicePrimaryCtxGetState(0, &flags, &active);
		v[2] = (uint64_t)active;
		if (!driver.p_cuDevicePrimaryCtxRetain(&context, 0) && !driver.p_cuCtxSetCurrent(context)) {
			v[3] = driver.p_cuDeviceGetMemPool(&current, 0);
			v[4] = driver.p_cuMemAllocAsync(&pointer, 1024, NULL);
			driver.p_cuPointerGetAttribute(&current, (CUpointer_attribute)17 /* MEMPOOL_HANDLE */, pointer);
			v[5] = pool && current == pool;
		}
	}
	_exit(write(to, v, sizeof v) != sizeof v);
}

void pool_early(struct worker *unused_a, struct worker *unused_b)
{
	uint64_t v[6] = { 999, 999, 999, 999, 999, 0 };
	int ends[2];
	pid_t child;

	(void)unused_a, (void)unused_b;
	if (pipe(ends))
		return;
	child = fork();
	if (!child)
		before_context(ends[1]);
	close(ends[1]);
	if (read(ends[0], v, sizeof v) != sizeof v)
		v[5] = 0;
	close(ends[0]);
	if (child > 0)
		waitpid(child, NULL, 0);
	ok(!v[0] && !v[1] && !v[2], "pools: before any context a pool can be made and set as the device's (%llu, %llu), which makes none "
				    "(%llu)", (ull)v[0], (ull)v[1], (ull)v[2]);
	ok(!v[3] && !v[4] && v[5], "pools: cuMemAllocAsync then allocates from it (%llu, %llu, %llu)", (ull)v[3], (ull)v[4], (ull)v[5]);
}

void pool_after_reset(struct worker *unused, struct worker *b)
{
	unsigned char data[64];
	struct worker x;
	struct answer r;
	uint64_t d, p = 0;

	(void)unused;
	spawn(&x);
	if (!share_pool(&x, b, KEEP_ALL)) {
		dismiss(&x);
		return;
	}
	d = pool_alloc(&x, 4 * MIB);
	set_word(&x, d, 61);
	pool_export(&x, d, data);
	pool_import(b, data, &p);
	r = ask(&x, POOL_RESET, d, 0, 0, 0);
	ok(!r.result && !r.v[0] && r.v[2] == 61 && !r.v[3] && !r.v[4],
	   "pools: a pool and its blocks outlive a reset of the primary context (%d: reset %llu, word %llu, allocation %llu, "
	   "free %llu)", r.result, (ull)r.v[0], (ull)r.v[2], (ull)r.v[3], (ull)r.v[4]);
	note("measured: after the reset the pool that was set is %s the device's", r.v[1] ? "still" : "no longer");
	ok(get(b, p) == 61, "pools: and its importer reads on");
	pool_free(b, p);
	ask(b, POOL_LEAVE, 0, 0, 0, 0);
	end_pool(&x);
	dismiss(&x);
}
