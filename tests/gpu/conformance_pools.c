/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts 11 to 19, 32 and 33: pools shared between processes, and pointers into them.
 * conformance_pool_memory.c has when the memory comes back.
 */
#include "conformance.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <cuda.h>

typedef unsigned long long ull;

bool share_pool(struct worker *a, struct worker *b, uint64_t threshold)
{
	struct answer r = ask(a, POOL_NEW, threshold, 0, 0, 0);
	int taken = r.result;

	if (!taken) {
		r = ask(a, POOL_SHARE, 0, 0, 0, 0);
		taken = r.result;
	}
	if (!taken) {
		taken = ask(b, POOL_TAKE, (uint64_t)a->pid, r.v[0], 0, 0).result;
		close_descriptor(a, r.v[0]);
	}
	return ok(!taken, "pools: a pool with a handle type is exported and imported (%d)", taken);
}

void end_pool(struct worker *a)
{
	ask(a, POOL_END, 0, 0, 0, 0);
}

uint64_t pool_alloc(struct worker *w, uint64_t bytes)
{
	struct answer r = ask(w, POOL_ALLOC, bytes, 0, 0, 0);

	if (r.result)
		note("allocating %llu bytes from a pool gave %d", (ull)bytes, r.result);
	return r.v[0];
}

int pool_free(struct worker *w, uint64_t pointer)
{
	return ask(w, POOL_FREE, pointer, 1, 0, 0).result;
}

int pool_export(struct worker *w, uint64_t pointer, unsigned char *data)
{
	struct answer r = ask(w, POOL_EXPORT, pointer, 0, 0, 0);

	memcpy(data, r.handle, 64);
	return r.result;
}

int pool_import(struct worker *w, const unsigned char *data, uint64_t *pointer)
{
	struct answer r = ask_handle(w, POOL_IMPORT, data);

	*pointer = r.v[0];
	return r.result;
}

void set_word(struct worker *w, uint64_t pointer, uint32_t value)
{
	set(w, pointer, value, 4);
}

/* Fact 11: one block is freed while it is imported; the next block of its size is then allocated. */
static void reuse(struct worker *a, struct worker *b, const char *what, uint64_t bytes, bool by_cuMemFree)
{
	uint64_t d = pool_alloc(a, bytes), e, p = 0;
	unsigned char data[64];
	int result;

	set_word(a, d + bytes - 4, 17);
	result = pool_export(a, d, data);
	if (!result)
		result = pool_import(b, data, &p);
	if (!ok(!result && get(b, p + bytes - 4) == 17, "fact 11: %s: the importer reads the block (%d)", what, result))
		return;
	result = by_cuMemFree ? release(a, d) : pool_free(a, d);
	ok(!result, "fact 11: %s: the exporter frees it (%d)", what, result);
	e = pool_alloc(a, bytes);
	ok(e == d, "fact 11: %s: the next allocation of that size has the same address", what);
	set_word(a, e + bytes - 4, 238);
	ok(get(b, p + bytes - 4) == 238, "fact 11: %s: the importer reads the new owner's bytes", what);
	pool_free(b, p);
	pool_free(a, e);
}

/*
 * With the default release threshold: is the address used again, and which bytes does the importer
 * read?  The read may crash the importer, so it is a worker of its own.
 */
static void reuse_by_default(struct worker *a, bool waited)
{
	uint64_t d, e, p = 0;
	unsigned char data[64];
	struct worker b;
	int result;

	spawn(&b);
	if (!share_pool(a, &b, 0)) {
		dismiss(&b);
		return;
	}
	d = pool_alloc(a, 4 * MIB);
	set_word(a, d, 17);
	pool_export(a, d, data);
	result = pool_import(&b, data, &p);
	ask(a, POOL_FREE, d, waited, 0, 0);
	e = pool_alloc(a, 4 * MIB);
	set_word(a, e, 238);
	note("measured: release threshold 0, 4 MiB, the stream %s for after cuMemFreeAsync: import %d, the next allocation "
	     "has %s address, the importer reads %u (17: its own, 238: the next block's)", waited ? "waited" : "not waited",
	     result, e == d ? "the same" : "another", get(&b, p));
	pool_free(&b, p);
	pool_free(a, e);
	end_pool(a);
	dismiss(&b);
}

static void stale_data(struct worker *a, struct worker *b)
{
	uint64_t d = pool_alloc(a, 4 * MIB), e, p = 0;
	unsigned char data[64];
	int result;

	set_word(a, d, 13);
	pool_export(a, d, data);
	pool_free(a, d);
	e = pool_alloc(a, 4 * MIB);
	set_word(a, e, 14);
	result = pool_import(b, data, &p);
	ok(e == d && !result && get(b, p) == 14,
	   "fact 13: data of a block that was freed and allocated again imports (%d), and maps the next block", result);
	pool_free(b, p);
	pool_free(a, e);
}

void pool_reuse(struct worker *a, struct worker *b)
{
	if (!share_pool(a, b, KEEP_ALL))
		return;
	reuse(a, b, "1 KiB, cuMemFreeAsync", KIB, false);
	reuse(a, b, "1 KiB, cuMemFree", KIB, true);
	reuse(a, b, "4 MiB, cuMemFreeAsync", 4 * MIB, false);
	reuse(a, b, "64 MiB, cuMemFreeAsync", 64 * MIB, false);
	stale_data(a, b);
	end_pool(a);
	reuse_by_default(a, false);
	reuse_by_default(a, true);
}

static bool all_are(const unsigned char *bytes, size_t n, unsigned char value)
{
	for (size_t i = 0; i < n; i++)
		if (bytes[i] != value)
			return false;
	return true;
}

/* Fills bytes 48-55 or 56-63, which the driver ignores, with @value. */
static void unread(struct worker *b, const unsigned char *data, int from, unsigned char value)
{
	unsigned char changed[64];
	uint64_t p;
	int result;

	memcpy(changed, data, 64);
	memset(changed + 48, 0, 16);
	memset(changed + from, value, 8);
	result = pool_import(b, changed, &p);
	ok(!result && get(b, p) == 21, "fact 12: with %#x in bytes %d-%d it imports (%d)", value, from, from + 7, result);
	if (!result)
		pool_free(b, p);
}

void pool_data(struct worker *a, struct worker *b)
{
	uint64_t d, e, large, size, offset[2], number[2];
	unsigned char one[64], two[64];
	struct worker c;
	struct answer r;

	if (!share_pool(a, b, 0))
		return;
	d = pool_alloc(a, KIB);
	e = pool_alloc(a, KIB);
	large = pool_alloc(a, 64 * MIB);
	set_word(a, d, 21);
	set_word(a, e, 22);
	pool_export(a, d, one);
	pool_export(a, e, two);
	ok(all_are(one + 48, 16, 0x5a), "fact 12: cuMemPoolExportPointer leaves bytes 48-63 as they were");
	unread(b, one, 48, 0x5a);
	unread(b, one, 56, 0x5a);
	unread(b, one, 56, 0);
	memcpy(&number[0], one + 40, 8);
	memcpy(&number[1], two + 40, 8);
	memcpy(&offset[0], one + 24, 8);
	memcpy(&offset[1], two + 24, 8);
	/* blocks within one allocation of the pool have the same number */
	ok(number[0] != number[1] || offset[0] != offset[1],
	   "fact 12: bytes 24-31 or 40-47 differ for each block (%#llx, %#llx; %#llx, %#llx)", (ull)offset[0],
	   (ull)offset[1], (ull)number[0], (ull)number[1]);
	memcpy(&size, one + 32, 8);
	note("measured: two blocks of 1 KiB, %lld bytes apart: bytes 24-31 differ by %lld, bytes 32-39 are %llu",
	     (long long)(e - d), (long long)(offset[1] - offset[0]), (ull)size);
	pool_export(a, large, two);
	memcpy(&size, two + 32, 8);
	ok(size == 64 * MIB, "fact 12: bytes 32-39 are the size, of 64 MiB %llu", (ull)size);
	memcpy(&number[1], two + 40, 8);
	ok(number[0] != number[1], "fact 12: bytes 40-47 differ for each allocation of the pool's (%#llx, %#llx)",
	   (ull)number[0], (ull)number[1]);

	/* a separate importer, because it crashes */
	spawn(&c);
	r = ask(a, POOL_SHARE, 0, 0, 0, 0);
	ask(&c, POOL_TAKE, (uint64_t)a->pid, r.v[0], 0, 0);
	close_descriptor(a, r.v[0]);
	memset(one + 24, 0x5a, 8);
	r = ask_handle(&c, POOL_IMPORT, one);
	ok(r.result == CRASHED, "fact 12: garbage in bytes 24-31 kills the importer (%d, signal %d)", r.result,
	   r.result == CRASHED ? c.signal : 0);
	dismiss(&c);
	pool_free(a, d);
	pool_free(a, e);
	pool_free(a, large);
	end_pool(a);
}

void pool_exports(struct worker *a, struct worker *b)
{
	unsigned char data[64], again[64];
	struct answer r;
	uint64_t d;
	int result;

	r = ask(a, POOL_NEW, KEEP_ALL, 0, 0, 0);
	d = pool_alloc(a, KIB);
	result = pool_export(a, d, data);
	ok(!r.result && result == 1, "fact 14: cuMemPoolExportPointer gives 1 until the pool was exported (%d)", result);
	r = ask(a, POOL_SHARE, 0, 0, 0, 0);
	close_descriptor(a, r.v[0]);
	result = pool_export(a, d, data);
	ok(!result, "fact 14: and 0 after that, also for a block from before (%d)", result);
	result = pool_export(a, d, again);
	ok(!result && !memcmp(data, again, 64), "fact 32: asked twice it gives the same bytes");
	result = pool_export(a, d + 512, again);
	ok(result == 1, "fact 32: an interior pointer is refused with 1 (%d)", result);
	pool_free(a, d);
	result = pool_export(a, d, data);
	ok(result == 1, "fact 14: after the block was freed it gives 1 (%d)", result);
	end_pool(a);
}

void pool_twice(struct worker *a, struct worker *b)
{
	uint64_t d, p, q;
	unsigned char data[64];
	int first, second;

	if (!share_pool(a, b, 0))
		return;
	d = pool_alloc(a, 4 * MIB);
	set_word(a, d, 15);
	pool_export(a, d, data);
	first = pool_import(b, data, &p);
	second = pool_import(b, data, &q);
	ok(!first && !second && p == q && get(b, p) == 15, "fact 15: imported twice it has the same address (%d, %d)", first,
	   second);
	first = release(b, p);
	second = release(b, p);
	ok(!first && second == 1, "fact 15: the first free gives %d, the second 1 (%d)", first, second);
	note("measured: after the first free cuMemGetAddressRange gives %d", ask(b, RANGE, p, 0, 0, 0).result);
	pool_import(b, data, &p);
	pool_import(b, data, &q);
	release(b, p);
	note("measured: imported twice and freed once, the destroy of the imported pool gives %d", ask(b, POOL_LEAVE, 0, 0, 0, 0).result);
	pool_free(a, d);
	end_pool(a);
}

/* Each size has its own pool: what was exported comes back when the pool is destroyed. */
static void large_import(struct worker *a, uint64_t mib, bool crashes)
{
	uint64_t bytes = mib * MIB, d, p = 0;
	unsigned char data[64];
	struct worker c;
	struct answer r;
	bool good;

	ask(a, POOL_NEW, 0, 0, 0, 0);
	close_descriptor(a, ask(a, POOL_SHARE, 0, 0, 0, 0).v[0]);
	d = pool_alloc(a, bytes);
	set_word(a, d + bytes - 4, 16);
	r.result = pool_export(a, d, data);
	if (!d || r.result) {
		ok(false, "fact 16: a block of %llu MiB can be made and exported (%d)", (ull)mib, r.result);
		return;
	}
	spawn(&c);
	r = ask(a, POOL_SHARE, 0, 0, 0, 0);
	ask(&c, POOL_TAKE, (uint64_t)a->pid, r.v[0], 0, 0);
	close_descriptor(a, r.v[0]);
	r = ask_handle(&c, POOL_IMPORT, data);
	p = r.v[0];
	good = !r.result && get(&c, p + bytes - 4) == 16;
	if (crashes)
		ok(r.result == CRASHED && c.signal == SIGSEGV,
		   "fact 16: importing a block of %llu MiB is a segmentation fault (%d, signal %d)", (ull)mib, r.result,
		   r.result == CRASHED ? c.signal : 0);
	else
		ok(good, "fact 16: a block of %llu MiB can be imported (%d)", (ull)mib, r.result);
	dismiss(&c);
	pool_free(a, d);
	end_pool(a);
}

void pool_large(struct worker *a, struct worker *unused)
{
	static const uint64_t good[] = { 4096, 4200, 5120 };

	if (free_memory(a) < 8192 * MIB) {
		ok(true, "fact 16 # SKIP less than 8 GiB of the device are free");
		return;
	}
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		large_import(a, good[i], false);
	large_import(a, 6144, true);
}

/* Shares a block of @w's pool with @b, which maps it at *@import. */
static uint64_t imported(struct worker *w, struct worker *b, uint32_t value, uint64_t *import)
{
	uint64_t d = pool_alloc(w, 4 * MIB);
	unsigned char data[64];

	set_word(w, d, value);
	pool_export(w, d, data);
	if (pool_import(b, data, import))
		*import = 0;
	return d;
}

void pool_ends(struct worker *a, struct worker *b)
{
	struct worker x;
	uint64_t d, p;
	int result;

	if (!share_pool(a, b, 0))
		return;
	d = imported(a, b, 18, &p);
	result = ask(a, POOL_END, 0, 0, 0, 0).result;
	ok(!result && get(a, d) == 18, "fact 18: destroying a pool with a live block gives %d, the block lives", result);
	ok(p && get(b, p) == 18, "fact 32: the pool is destroyed: its importer reads on");
	result = pool_free(a, d);
	ok(!result, "fact 18: until it is freed (%d)", result);
	ok(p && get(b, p) == 18, "fact 32: and the importer reads on");
	pool_free(b, p);

	spawn(&x);
	if (share_pool(&x, b, 0)) {
		imported(&x, b, 32, &p);
		dismiss(&x);
		ok(p && get(b, p) == 32, "fact 32: the exporter exits: the importer reads on");
		pool_free(b, p);
	}
	dismiss(&x);
}

void pool_waits(struct worker *a, struct worker *b)
{
	struct answer r, export, import;
	uint64_t d, p;

	if (!share_pool(a, b, KEEP_ALL))
		return;
	d = pool_alloc(a, 4 * MIB);
	ask(a, SPIN, 200 * MS, 0, 0, 0);
	r = ask(a, FREE, d, 0, 0, 0);
	ok(!r.result && r.ns < 100 * MS, "fact 33: cuMemFree of a pool's block does not wait for a kernel (%.1f ms, result %d)",
	   (double)r.ns / 1e6, r.result);
	ask(a, SYNC, 0, 0, 0, 0);

	d = pool_alloc(a, 4 * MIB);
	export = ask(a, POOL_EXPORT, d, 0, 0, 0);
	import = ask_handle(b, POOL_IMPORT, export.handle);
	p = import.v[0];
	r = ask(b, POOL_FREE, p, 0, 0, 0);
	note("measured: export of a pointer %.0f us, import %.0f us, the importer's cuMemFreeAsync %.0f us", (double)export.ns / 1e3,
	     (double)import.ns / 1e3, (double)r.ns / 1e3);
	ask(b, SYNC, 0, 0, 0, 0);
	pool_free(a, d);
	end_pool(a);
}

void pool_captures(struct worker *a, struct worker *unused)
{
	struct answer r = ask(a, POOL_NEW, KEEP_ALL, 0, 0, 0);

	if (!r.result)
		r = ask(a, POOL_CAPTURE, 0, 0, 0, 0);
	ok(!r.result && r.v[0] == CUDA_ERROR_NOT_SUPPORTED && !r.v[1],
	   "pools: a capture that allocates from a shareable pool gets 801, and stays good (%d: %llu, its end %llu)", r.result,
	   (ull)r.v[0], (ull)r.v[1]);
	ok(!r.v[2] && !r.v[3], "pools: a capture allocates from the default pool (%llu, its end %llu)", (ull)r.v[2], (ull)r.v[3]);
	ok(r.v[4] == CUDA_ERROR_NOT_SUPPORTED && !r.v[5],
	   "pools: cuMemAllocAsync gets 801 where the device's pool is shareable, and the capture stays good (%llu, its end %llu)",
	   (ull)r.v[4], (ull)r.v[5]);
	end_pool(a);
}

/*
 * What @call gives in a capture of @mode at @w, and what its end gives, against what is asserted.  Returns
 * true if @pointer is still to be freed.
 */
static bool call_in_capture(struct worker *w, enum pool_call_in_capture call, unsigned int mode, uint64_t pointer)
{
	static const char *const calls[] = { "cuMemPoolExportPointer", "cuMemPoolExportToShareableHandle",
					     "cuMemPoolImportPointer", "cuMemAllocFromPoolAsync in another stream",
					     "cuMemFree", "cuMemFreeAsync in another stream",
					     "cuMemFreeAsync in the capturing stream",
					     "cuMemFreeAsync, in the capturing stream, of a block of a pool that is not shareable,",
					     "cuMemPoolDestroy", "cuMemPoolDestroy of a pool with a block",
					     "cuMemPoolExportPointer of no memory" };
	static const char *const modes[] = { "global", "thread-local", "relaxed" };
	bool by_capturing = call == CAPTURED_FREE_SAME || call == CAPTURED_FREE_PRIVATE;
	bool forbidden = mode != CU_STREAM_CAPTURE_MODE_RELAXED && !by_capturing;
	uint64_t result = forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED :
			  by_capturing || call == CAPTURED_EXPORT_NONE ? CUDA_ERROR_INVALID_VALUE :
									 CUDA_SUCCESS;
	uint64_t end = forbidden ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
	struct answer r = ask(w, POOL_IN_CAPTURE, call, mode, pointer, 0);

	ok(!r.result && r.v[0] == result && r.v[1] == end,
	   "pools: in a capture of %s mode %s gives %llu, and its end %llu (%d: %llu, %llu)", modes[mode], calls[call],
	   (ull)result, (ull)end, r.result, (ull)r.v[0], (ull)r.v[1]);
	return r.v[0] || (call != CAPTURED_FREE && call != CAPTURED_FREE_OTHER && call != CAPTURED_FREE_SAME);
}

/* While another thread captures: both calls are forbidden, and spoil the capture, if its mode is global. */
static void calls_of_other_thread(struct worker *w)
{
	static const enum pool_call_in_capture calls[] = { CAPTURED_DESTROY, CAPTURED_DESTROY_USED, CAPTURED_EXPORT_NONE };

	for (unsigned int mode = 0; mode < 3; mode++)
		for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
			struct answer r = ask(w, POOL_IN_CAPTURE, calls[i], mode, 0, 1);
			bool forbidden = mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
			uint64_t result = forbidden			   ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED :
					  calls[i] == CAPTURED_EXPORT_NONE ? CUDA_ERROR_INVALID_VALUE :
									     CUDA_SUCCESS;
			uint64_t end = forbidden ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;

			ok(!r.result && r.v[0] == result && r.v[1] == end,
			   "pools: while another thread captures in mode %u, %s gives %llu, and the capture's end %llu (%d: %llu, %llu)",
			   mode, calls[i] == CAPTURED_EXPORT_NONE ? "an export of no memory" : "a pool's destroy", (ull)result,
			   (ull)end, r.result, (ull)r.v[0], (ull)r.v[1]);
		}
}

void pool_calls_in_captures(struct worker *a, struct worker *b)
{
	static const enum pool_call_in_capture exporters[] = { CAPTURED_EXPORT, CAPTURED_DESCRIPTOR, CAPTURED_ALLOC,
							       CAPTURED_FREE_SAME, CAPTURED_FREE, CAPTURED_FREE_OTHER,
							       CAPTURED_FREE_PRIVATE, CAPTURED_DESTROY,
							       CAPTURED_DESTROY_USED, CAPTURED_EXPORT_NONE };
	static const enum pool_call_in_capture importers[] = { CAPTURED_IMPORT, CAPTURED_FREE_SAME, CAPTURED_FREE,
							       CAPTURED_FREE_OTHER };
	unsigned char data[64];
	uint64_t d, p;

	if (!share_pool(a, b, KEEP_ALL))
		return;
	for (unsigned int mode = 0; mode < 3; mode++) {
		for (size_t i = 0; i < sizeof(exporters) / sizeof(*exporters); i++) {
			d = pool_alloc(a, MIB);
			if (call_in_capture(a, exporters[i], mode, d))
				pool_free(a, d);
		}
		d = pool_alloc(a, MIB);
		pool_export(a, d, data);
		for (size_t i = 0; i < sizeof(importers) / sizeof(*importers); i++) {
			pool_import(b, data, &p);
			if (call_in_capture(b, importers[i], mode, p))
				pool_free(b, p);
			if (importers[i] == CAPTURED_IMPORT && mode == CU_STREAM_CAPTURE_MODE_RELAXED)
				pool_free(b, p); /* imported twice */
		}
		pool_free(a, d);
	}
	calls_of_other_thread(a);
	end_pool(a);
}

void pool_of_other_device(struct worker *a, struct worker *b)
{
	struct answer r = ask(a, POOL_NEW, KEEP_ALL, 1, 0, 0);
	unsigned char data[64];
	int before, after;
	uint64_t d, p;

	if (r.result) {
		ok(true, "pools: a pool of device 1 # SKIP there is one device");
		return;
	}
	r = ask(a, POOL_SHARE, 0, 0, 0, 0);
	ask(b, POOL_TAKE, (uint64_t)a->pid, r.v[0], 0, 0);
	close_descriptor(a, r.v[0]);
	d = pool_alloc(a, MIB);
	pool_export(a, d, data);
	r.result = pool_import(b, data, &p);
	before = ask(b, READ, p, 0, 0, 0).result;
	after = ask(b, POOL_ACCESS, 0, 0, 0, 0).result;
	if (!after)
		after = ask(b, READ, p, 0, 0, 0).result;
	ok(!r.result && before && !after,
	   "pools: a context of device 0 imports a block of device 1's pool (%d), and reads it only when the pool lets device 0 in "
	   "(%d, then %d)", r.result, before, after);
	pool_free(b, p);
	pool_free(a, d);
	end_pool(a);
}
