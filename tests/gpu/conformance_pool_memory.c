/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts 17 and 31: when the device gets back the memory of a pool that processes share; and what an
 * importer's stream-ordered free waits for.
 */
#include "conformance.h"

#include <stdbool.h>
#include <stdint.h>

typedef unsigned long long ull;

void pool_memory_back(struct worker *a, struct worker *b)
{
	uint64_t before, with, after, d;
	struct answer r;

	r = ask(a, POOL_NEW, 0, 0, 0, 0);
	ok(!r.result, "fact 17: a pool can be made shareable (%d)", r.result);
	before = free_memory(a);
	d = pool_alloc(a, 256 * MIB);
	with = free_memory(a);
	pool_free(a, d);
	ask(a, POOL_TRIM, 0, 0, 0, 0);
	after = free_memory(a);
	ok(before - with >= 250 * MIB && after - with >= 250 * MIB,
	   "fact 17: it gives back what nobody imported: free memory %llu MiB, %llu with 256 allocated, %llu after free and trim",
	   (ull)(before / MIB), (ull)(with / MIB), (ull)(after / MIB));
	r = ask(a, POOL_ALLOC_CURRENT, KIB, 0, 0, 0);
	ok(!r.result && r.v[1], "fact 17: after cuDeviceSetMemPool cuMemAllocAsync allocates from it (%d)", r.result);
	pool_free(a, r.v[0]);
	r = ask(a, POOL_COSTS, 0, 0, 0, 0);
	note("measured: allocation and free of 1 KiB from it %llu ns, from the default pool %llu (result %d)", (ull)r.v[0],
	     (ull)r.v[1], r.result);
	end_pool(a);
}

static uint64_t allocated_mib(uint64_t free_before, uint64_t free_now)
{
	return free_before > free_now ? (free_before - free_now) / MIB : 0;
}

/*
 * Fact 31: a block of 256 MiB is imported once and freed by both processes, in this order.  The
 * exporter is a separate process, because the driver ended it in two of three runs on H200s with
 * threshold 0 and the importer first: by a double free of host memory, or by a call that did not
 * return.
 */
static void threshold(struct worker *a, bool importer_first, uint64_t keep)
{
	const char *order = importer_first ? "the importer first" : "the exporter first";
	const char *how = keep ? "greatest" : "0";
	uint64_t alone, before, freed, trimmed, again, d, e, p = 0;
	unsigned char data[64];
	struct worker c, x;
	int result;

	/* the contexts of both also take memory */
	spawn(&x);
	alone = free_memory(a);
	spawn(&c);
	if (!share_pool(&x, &c, keep)) {
		dismiss(&c);
		dismiss(&x);
		return;
	}
	before = free_memory(a);
	d = pool_alloc(&x, 256 * MIB);
	pool_export(&x, d, data);
	result = pool_import(&c, data, &p);
	if (importer_first)
		pool_free(&c, p);
	pool_free(&x, d);
	if (!importer_first)
		pool_free(&c, p);
	freed = free_memory(a);
	if (!keep)
		ask(&x, POOL_TRIM, 0, 0, 0, 0);
	trimmed = free_memory(a);
	if (!x.pid) {
		ok(true, "fact 31: threshold %s, %s # SKIP the driver ended the exporter in a call (signal %d)", how, order,
		   x.signal);
		dismiss(&c);
		dismiss(&x);
		return;
	}
	ok(!result && allocated_mib(before, freed) >= 250 && allocated_mib(before, trimmed) >= 250,
	   "fact 31: release threshold %s, a block of 256 MiB was imported and freed by both, %s: it does not come back "
	   "(%llu MiB taken, %llu %s)", how, order, (ull)allocated_mib(before, freed), (ull)allocated_mib(before, trimmed),
	   keep ? "then" : "after a trim");
	e = pool_alloc(&x, 256 * MIB);
	again = free_memory(a);
	ok(e == d, "fact 31: threshold %s, %s: the next allocation has the same address", how, order);
	if (keep)
		ok(allocated_mib(trimmed, again) < 32, "fact 31: threshold %s, %s: and takes no new memory (%llu MiB)", how,
		   order, (ull)allocated_mib(trimmed, again));
	else
		ok(allocated_mib(trimmed, again) >= 250, "fact 31: threshold %s, %s: and takes another 256 MiB (%llu)", how,
		   order, (ull)allocated_mib(trimmed, again));
	pool_free(&x, e);
	end_pool(&x);
	dismiss(&c);
	/* the driver returns the memory shortly after the process has ended */
	for (int i = 0; i < 200 && allocated_mib(alone, free_memory(a)) >= 32; i++)
		nap(10 * MS);
	ok(allocated_mib(alone, free_memory(a)) < 32,
	   "fact 31: threshold %s, %s: all of it is back when the importing process has ended (%llu MiB taken)", how, order,
	   (ull)allocated_mib(alone, free_memory(a)));
	dismiss(&x);
}

void pool_threshold(struct worker *a, struct worker *unused)
{
	threshold(a, true, 0);
	threshold(a, false, 0);
	threshold(a, false, KEEP_ALL);
}

/*
 * When the device gets back the 64 MiB of a block that was freed.  @pointer: the block was exported; then an importer
 * may import it and free it, destroy its imported pool, and go on.
 */
static void back_when(struct worker *b, uint64_t keep, bool pointer, bool imported)
{
	const char *how = keep ? "greatest" : "0";
	uint64_t before, trimmed, ended, closed, d, descriptor, p = 0;
	unsigned char data[64];
	struct worker x;
	int result;

	spawn(&x);
	result = ask(&x, POOL_NEW, keep, 0, 0, 0).result;
	before = free_memory(&x);
	d = pool_alloc(&x, 64 * MIB);
	descriptor = ask(&x, POOL_SHARE, 0, 0, 0, 0).v[0];
	if (pointer)
		result = result ? result : pool_export(&x, d, data);
	if (imported) {
		ask(b, POOL_TAKE, (uint64_t)x.pid, descriptor, 0, 0);
		result = result ? result : pool_import(b, data, &p);
		pool_free(b, p);
		result = result ? result : ask(b, POOL_LEAVE, 0, 0, 0, 0).result;
	}
	pool_free(&x, d);
	/* the trim of a pool that was imported from has ended its process (fact 31) */
	if (!imported)
		ask(&x, POOL_TRIM, 0, 0, 0, 0);
	trimmed = allocated_mib(before, free_memory(&x));
	end_pool(&x);
	ended = allocated_mib(before, free_memory(&x));
	close_descriptor(&x, descriptor);
	ask(&x, SYNC, 0, 0, 0, 0);
	closed = allocated_mib(before, free_memory(&x));
	if (pointer)
		ok(!result && trimmed >= 60 && ended >= 60 && closed < 4,
		   "pools: release threshold %s, a block of 64 MiB was exported%s: it comes back when its pool is destroyed and the "
		   "pool's descriptor closed, not before (%d; taken: %llu MiB after the free%s, %llu after the destroy, %llu after "
		   "the close)", how, imported ? ", imported and freed" : "", result, (ull)trimmed, imported ? "" : " and a trim",
		   (ull)ended, (ull)closed);
	else
		ok(!result && trimmed < 4,
		   "pools: release threshold %s, only the pool was exported: a block comes back by its free and a trim (%d; taken: "
		   "%llu MiB)", how, result, (ull)trimmed);
	dismiss(&x);
}

void pool_memory_of_exported(struct worker *unused, struct worker *b)
{
	for (int keeps = 0; keeps < 2; keeps++) {
		back_when(b, keeps ? KEEP_ALL : 0, false, false);
		back_when(b, keeps ? KEEP_ALL : 0, true, false);
		back_when(b, keeps ? KEEP_ALL : 0, true, true);
	}
}

/* A free of an import in a stream that is busy: what does it wait for, and what of an import made meanwhile? */
void pool_pending(struct worker *a, struct worker *b)
{
	uint64_t d, p = 0, q = 0;
	unsigned char data[64];
	struct answer free, again;
	int first, second, known;

	if (!share_pool(a, b, KEEP_ALL))
		return;
	d = pool_alloc(a, 4 * MIB);
	set_word(a, d, 41);
	pool_export(a, d, data);
	pool_import(b, data, &p);
	ask(b, POOL_FREE, p, 1, 0, 0); /* the first free of a process takes some ms */
	pool_import(b, data, &p);
	ask(b, FILL, p, 1, 42, 200 * MS);
	free = ask(b, POOL_FREE, p, 0, 0, 0);
	known = ask(b, RANGE, p, 0, 0, 0).result;
	ok(!free.result && free.ns < 100 * MS && known,
	   "pools: cuMemFreeAsync of an import behind a kernel of 200 ms returns at once (%d, %.1f ms), and the address is unknown "
	   "from then on (%d)", free.result, (double)free.ns / 1e6, known);
	again = ask_handle(b, POOL_IMPORT, data);
	q = again.v[0];
	ok(!again.result && q == p && again.ns < 100 * MS,
	   "pools: while that is pending it can be imported again (%d, %.1f ms), at the same address", again.result,
	   (double)again.ns / 1e6);
	ask(b, SYNC, 0, 0, 0, 0);
	ok(get(a, d) == 42, "pools: the kernel before the free has written into the block (%u)", get(a, d));
	ok(get(b, q) == 42, "pools: the new import is good when the stream has passed the free (%u)", get(b, q));
	first = release(b, q);
	second = release(b, q);
	ok(!first && second == 1, "pools: its free gives %d, a second one 1 (%d)", first, second);

	pool_import(b, data, &p);
	ask(b, SPIN, 200 * MS, 0, 0, 0);
	first = ask(b, POOL_FREE, p, 0, 0, 0).result;
	second = ask(b, POOL_FREE, p, 0, 0, 0).result;
	ok(!first && second == 1, "pools: freed twice in a busy stream, the second free gives 1 (%d, %d)", first, second);
	ask(b, SYNC, 0, 0, 0, 0);
	pool_free(a, d);
	end_pool(a);
}
