/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions about time: what do the driver's calls take that culimbo makes in a call of a program that shares small blocks?
 *  - an export of a new block asks for its range, its context and its device: three calls, or one for all
 *  - a free into the limbo waits as the driver's free does: by a pinned byte that is made and ended while another is
 *    kept; cuCtxSynchronize() could do that where no stream captures
 * Each is timed over and over, and with the processor's caches emptied before each call, as they are beside other work.
 */
#include "probe.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { TIMES = 600, BLOCKS = 1000, EMPTYING = 8 << 20, PAGES = 2048, PAGE = 4096, CACHE_LINE = 64 };

static CUdeviceptr block[BLOCKS];
static void *byte;

/* ------------------------------------------------------------------------------- the caches */
static volatile unsigned char *memory;
static unsigned char *code;

static void make_memory(void)
{
	memory = mmap(NULL, EMPTYING, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	code = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(memory == MAP_FAILED || code == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : 0, "memory");
	for (size_t i = 0; i < EMPTYING; i += CACHE_LINE)
		memory[i] = 1;
#if defined __x86_64__
	memset(code, 0xc3, (size_t)PAGES * PAGE); /* ret */
#elif defined __aarch64__
	for (size_t i = 0; i < (size_t)PAGES * PAGE; i += 4)
		memcpy(code + i, (const unsigned char[]){ 0xc0, 0x03, 0x5f, 0xd6 }, 4); /* ret */
	__builtin___clear_cache((char *)code, (char *)code + (size_t)PAGES * PAGE);
#else
#error "how does a function return here?"
#endif
	must(mprotect(code, (size_t)PAGES * PAGE, PROT_READ | PROT_EXEC) ? CUDA_ERROR_NOT_PERMITTED : 0, "code");
}

static void empty_caches(void)
{
	unsigned char sum = 0;

	for (size_t i = 0; i < EMPTYING; i += CACHE_LINE)
		sum ^= memory[i];
	memory[0] = sum | 1;
	for (size_t i = 0; i < PAGES; i++) {
		unsigned char *ret = code + i * PAGE + i * CACHE_LINE % PAGE;
		void (*nothing)(void);

		memcpy(&nothing, &ret, sizeof(nothing));
		nothing();
	}
}

/* ------------------------------------------------------------------------------- what is timed */
static CUdeviceptr of(unsigned int i)
{
	return block[i * 7 % BLOCKS];
}

static void alloc_and_free(unsigned int i)
{
	CUdeviceptr other;

	(void)i;
	MUST(cu.cuMemAlloc_v2(&other, 1024));
	MUST(cu.cuMemFree_v2(other));
}
static void free_old_block(unsigned int i)
{
	MUST(cu.cuMemFree_v2(of(i)));
}
static void pinned_byte(unsigned int i)
{
	void *other;

	(void)i;
	MUST(cu.cuMemHostAlloc(&other, 1, CU_MEMHOSTALLOC_WRITECOMBINED));
	MUST(cu.cuMemFreeHost(other));
}
static void synchronize(unsigned int i)
{
	(void)i;
	MUST(cu.cuCtxSynchronize());
}
static void stream_synchronize(unsigned int i)
{
	(void)i;
	MUST(cu.cuStreamSynchronize(CU_STREAM_LEGACY));
}
static void query(unsigned int i)
{
	(void)i;
	MUST(cu.cuStreamQuery(CU_STREAM_LEGACY));
}

struct said {
	uint64_t start, size;
	CUcontext context;
	int device;
};
static void by_three(CUdeviceptr in, struct said *said)
{
	CUdeviceptr start = 0;
	size_t size = 0;

	MUST(cu.cuMemGetAddressRange_v2(&start, &size, in));
	MUST(cu.cuPointerGetAttribute(&said->context, CU_POINTER_ATTRIBUTE_CONTEXT, start));
	MUST(cu.cuPointerGetAttribute(&said->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, start));
	said->start = start;
	said->size = size;
}
static void by_one(CUdeviceptr in, struct said *said)
{
	CUpointer_attribute what[] = { CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
				       CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL };
	void *to[] = { &said->start, &said->size, &said->context, &said->device };

	MUST(cu.cuPointerGetAttributes(4, what, to, in));
}
static void three_queries(unsigned int i)
{
	struct said said = { 0 };

	by_three(of(i), &said);
}
static void one_query(unsigned int i)
{
	struct said said = { 0 };

	by_one(of(i), &said);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* @once: what it does to a block can be done once. */
static void time_call(const char *what, void (*call)(unsigned int i), bool once)
{
	static double us[2][TIMES];
	unsigned int n = once ? BLOCKS / 2 : TIMES;

	for (unsigned int cold = 0; cold < 2; cold++) {
		for (unsigned int i = 0; i < n; i++) {
			double from;

			if (cold)
				empty_caches();
			from = now_ms();
			call(once ? cold * n + i : i);
			us[cold][i] = (now_ms() - from) * 1e3;
		}
		qsort(us[cold], n, sizeof(us[cold][0]), by_size);
	}
	measured("%s: %.2f us (9 of 10 within %.2f), with empty caches %.2f (%.2f)", what, us[0][n / 2], us[0][n * 9 / 10],
		 us[1][n / 2], us[1][n * 9 / 10]);
}

static void costs(void)
{
	struct said three, one;
	CUdeviceptr large;

	begin();
	make_memory();
	MUST(cu.cuMemHostAlloc(&byte, 1, CU_MEMHOSTALLOC_WRITECOMBINED));
	for (unsigned int i = 0; i < BLOCKS; i++)
		MUST(cu.cuMemAlloc_v2(&block[i], 1024));
	MUST(cu.cuMemsetD8_v2(block[0], 1, 1024));
	MUST(cu.cuCtxSynchronize());
	for (unsigned int i = 0; i < TIMES; i++) /* the first calls take longer */
		query(i);
	time_call("a stream's query", query, false);
	time_call("cuCtxSynchronize(), all work is done", synchronize, false);
	time_call("cuStreamSynchronize() of the legacy stream, all work is done", stream_synchronize, false);
	time_call("a write-combined byte made and ended, another is kept", pinned_byte, false);
	time_call("1 KiB allocated and freed beside 1,000 others", alloc_and_free, false);
	time_call("range, context and device, by three calls", three_queries, false);
	time_call("range, context and device, by one call", one_query, false);
	for (size_t size = 1; size <= (size_t)64 << 20; size = size < 1024 ? 1024 : size * 32) {
		memset(&three, 0, sizeof(three));
		memset(&one, 0, sizeof(one));
		MUST(cu.cuMemAlloc_v2(&large, size));
		by_three(large + size / 2, &three);
		by_one(large + size / 2, &one);
		measured("amid a block of %zu bytes at +0: three calls say +%lld, %llu, device %d; one says +%lld, %llu, device %d, %s context", size,
			 (long long)(three.start - large), (unsigned long long)three.size, three.device, (long long)(one.start - large),
			 (unsigned long long)one.size, one.device, one.context == three.context ? "the same" : "another");
		MUST(cu.cuMemFree_v2(large));
	}
	time_call("the free of one of 1,000 to 501 blocks of 1 KiB, and with empty caches of 500 to 1", free_old_block, true);
}

const struct more_question costs_questions[] = {
	{ "costs", costs, 60000 },
	{ NULL, NULL, 0 },
};
