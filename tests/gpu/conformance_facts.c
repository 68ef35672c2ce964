/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asserts facts 1 to 10 about the driver.
 */
#include "conformance.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <cuda.h>

void fact_1(struct worker *a, struct worker *b)
{
	unsigned char h1[64], h2[64];
	uint64_t d1 = alloc(a, KIB), d2 = alloc(a, KIB), p1, p2;
	int first, last;

	set(a, d1, 1, KIB);
	set(a, d2, 2, KIB);
	ok(!export(a, d1, h1) && !export(a, d2, h2), "fact 1: small blocks have IPC handles");
	differing(h1, h2, &first, &last);
	note("measured: handles of two small blocks differ in bytes %d to %d", first, last);
	ok(first >= 0 && first / 8 == last / 8, "fact 1: handles differ in one field only");
	if (ok(!import(b, h1, &p1) && !import(b, h2, &p2), "fact 1: both can be opened")) {
		ok(p2 - p1 == d2 - d1, "fact 1: both are mapped as parts of one chunk");
		ok(get(b, p1) == 1 && get(b, p2) == 2, "fact 1: each at its own place");
		drop(b, p1);
		ok(get(b, p2) == 2, "fact 1: closing one leaves the other");
		drop(b, p2);
	}
	release(a, d1);
	release(a, d2);
}

static void fact_2(struct worker *a, struct worker *b, bool async)
{
	const char *how = async ? "cuMemFreeAsync" : "cuMemFree";
	unsigned char h[64];
	uint64_t keep = alloc(a, KIB), d = alloc(a, KIB), e, p;
	struct answer r = { 0 };
	int result;

	set(a, d, 17, KIB);
	export(a, d, h);
	if (ok(!import(b, h, &p) && get(b, p) == 17, "fact 2: %s: the importer reads the block", how)) {
		if (async)
			r = ask(a, FREE_ASYNC, d, 0, 0, 0);
		result = async ? r.result : release(a, d);
		ok(!result, "fact 2: %s of a block that is open elsewhere succeeds", how);
		if (async) {
			ok(!r.v[0], "fact 2: %s: until its stream is waited for, the block can be exported (%llu)",
			   how, (unsigned long long)r.v[0]);
			note("measured: after that, cuIpcGetMemHandle of it gives %llu", (unsigned long long)r.v[1]);
		}
		e = alloc(a, KIB);
		ok(e == d, "fact 2: %s: the next allocation gets the same address", how);
		set(a, e, 238, KIB);
		ok(get(b, p) == 238, "fact 2: %s: the importer reads the new owner's bytes", how);
		drop(b, p);
		release(a, e);
	}
	release(a, keep);
}

void fact_3(struct worker *a, struct worker *b)
{
	unsigned char h1[64], h2[64];
	uint64_t keep = alloc(a, KIB), d = alloc(a, KIB), e, p;
	int first, last;
	unsigned int n;

	export(a, d, h1);
	release(a, d);
	e = alloc(a, KIB);
	export(a, e, h2);
	ok(d == e && !memcmp(h1, h2, 64),
	   "fact 3: a small block, freed and allocated again, has the identical handle");
	release(a, e);
	release(a, keep);

	d = alloc(a, 64 * MIB);
	set(a, d, 31, KIB);
	export(a, d, h1);
	release(a, d);
	e = alloc(a, 64 * MIB);
	set(a, e, 32, KIB);
	export(a, e, h2);
	n = differing(h1, h2, &first, &last);
	note("measured: handles of two 64 MiB blocks at the same address differ in %u byte(s), from %d to %d",
	     n, first, last);
	ok(d == e && n == 1, "fact 3: a 64 MiB block's handle differs in one byte");
	ok(!import(b, h1, &p) && get(b, p) == 32,
	   "fact 3: the old handle opens, and maps the new block");
	drop(b, p);
	release(a, e);
}

void fact_4(struct worker *a, struct worker *b)
{
	unsigned char h[64];
	struct worker fresh;
	uint64_t d, keep, p;
	int result;

	d = alloc(a, 64 * MIB);
	export(a, d, h);
	release(a, d);
	result = import(b, h, &p);
	ok(result == 1 || result == 800, "fact 4: a freed 64 MiB block's handle does not open (%d)", result);

	spawn(&fresh);
	d = alloc(&fresh, KIB);
	export(&fresh, d, h);
	release(&fresh, d);
	result = import(b, h, &p);
	ok(result == 1 || result == 800, "fact 4: a small block's, with its chunk gone, neither (%d)",
	   result);
	if (!result)
		drop(b, p);

	keep = alloc(&fresh, KIB);
	d = alloc(&fresh, KIB);
	export(&fresh, d, h);
	release(&fresh, d);
	result = import(b, h, &p);
	note("measured: a freed small block's handle, with its chunk alive, opens with %d", result);
	if (!result)
		drop(b, p);
	release(&fresh, keep);
	export(&fresh, alloc(&fresh, 64 * MIB), h);
	dismiss(&fresh);
	result = import(b, h, &p);
	note("measured: a handle of a process that has ended opens with %d", result);
	if (!result)
		drop(b, p);
}

void fact_5(struct worker *a, struct worker *b)
{
	uint64_t d = alloc(a, 64 * MIB), p, before, between, after;
	unsigned char h[64];

	set(a, d, 55, 64 * MIB);
	export(a, d, h);
	if (!ok(!import(b, h, &p), "fact 5: a 64 MiB block can be opened"))
		return;
	before = free_memory(a);
	ok(!release(a, d), "fact 5: and freed while it is open");
	between = free_memory(a);
	ok(between < before + 32 * MIB, "fact 5: its memory is not returned");
	ok(get(b, p) == 55 && get(b, p + 64 * MIB - 4) == 55, "fact 5: the importer reads the old bytes");
	drop(b, p);
	after = free_memory(a);
	ok(after >= before + 62 * MIB, "fact 5: it is returned when the importer closes");
	note("measured: free memory %llu MiB open, %llu freed, %llu closed",
	     (unsigned long long)(before / MIB), (unsigned long long)(between / MIB),
	     (unsigned long long)(after / MIB));
}

static void fact_6(struct worker *b, bool by_kill)
{
	const char *how = by_kill ? "is killed" : "exits";
	struct worker e;
	unsigned char h[64];
	uint64_t d, p, before, after;

	spawn(&e);
	d = alloc(&e, 64 * MIB);
	set(&e, d, 66, 64 * MIB);
	export(&e, d, h);
	if (!ok(!import(b, h, &p), "fact 6: an importer opens a block whose exporter %s", how)) {
		dismiss(&e);
		return;
	}
	if (by_kill) {
		kill(e.pid, SIGKILL);
		bury(&e);
	}
	dismiss(&e);
	nap(500 * MS);
	before = free_memory(b);
	ok(get(b, p) == 66 && get(b, p + 64 * MIB - 4) == 66, "fact 6: exporter %s: the importer reads on",
	   how);
	drop(b, p);
	after = free_memory(b);
	ok(after >= before + 62 * MIB, "fact 6: exporter %s: the memory goes back on the close", how);
}

void fact_7(struct worker *a, struct worker *unused)
{
	uint64_t d = alloc(a, KIB), p;
	unsigned char h[64];

	export(a, d, h);
	ok(import(a, h, &p) == CUDA_ERROR_INVALID_CONTEXT, "fact 7: opening one's own handle gives 201");
	release(a, d);
}

void fact_8(struct worker *a, struct worker *b)
{
	struct answer r;
	unsigned char h[64];
	uint64_t p;

	r = ask(a, ALLOC_ASYNC, KIB, 0, 0, 0);
	ok(!r.result && export(a, r.v[0], h) == 1, "fact 8: no handle for cuMemAllocAsync memory");
	ask(a, FREE_ASYNC, r.v[0], 0, 0, 0);
	r = ask(a, ALLOC_HOST, 4096, 0, 0, 0);
	ok(!r.result && export(a, r.v[0], h) == 1, "fact 8: no handle for pinned host memory");
	ok(ask(a, EXPORT_POOL, 0, 0, 0, 0).result == 1, "fact 8: the default pool can't be exported");
	r = ask(a, VMM_NEW, 4 * MIB, 0, 0, 0);
	if (!ok(!r.result, "fact 8: VMM memory is exported as a descriptor (%d)", r.result))
		return;
	ok(export(a, r.v[0], h) == 1, "fact 8: no handle for VMM memory");
	set(a, r.v[0], 88, 4 * MIB);
	r = ask(b, VMM_TAKE, (uint64_t)a->pid, r.v[1], 4 * MIB, 0);
	p = r.v[0];
	if (!ok(!r.result && get(b, p) == 88, "fact 8: an importer takes it by pidfd_getfd (%d)", r.result))
		return;
	ok(!ask(a, VMM_END, 0, 0, 0, 0).result && get(b, p) == 88 && get(b, p + 4 * MIB - 4) == 88,
	   "fact 8: the bytes survive the exporter's unmap and release");
	ok(!ask(b, VMM_END, 0, 0, 0, 0).result, "fact 8: the importer unmaps and releases it");
}

static void expect_crash(const char *what, bool destroyed, enum verb verb)
{
	struct worker w;
	struct answer r;

	spawn(&w);
	r = ask(&w, EVENT_NEW, 0, 0, 0, 0);
	if (destroyed)
		ask(&w, EVENT_END, r.v[0], 0, 0, 0);
	else
		r.v[0] = 0x1230;
	r = ask(&w, verb, r.v[0], 0, 0, 0);
	ok(r.result == CRASHED && w.signal == SIGSEGV, "fact 9: %s is a segmentation fault (%d, signal %d)",
	   what, r.result, w.signal);
	dismiss(&w);
}

void fact_9(struct worker *unused_a, struct worker *unused_b)
{
	expect_crash("destroying an event twice", true, EVENT_END);
	expect_crash("destroying a bad event handle", false, EVENT_END);
	expect_crash("asking about a bad event handle", false, EVENT_QUERY);
}

void fact_10(struct worker *a, struct worker *b)
{
	struct worker w;
	struct answer r, e;

	spawn(&w);
	r = ask(&w, EVENT_MANY, 5000, 0, 0, 0);
	ok(r.result == CUDA_ERROR_OUT_OF_MEMORY && r.v[0] == 4096,
	   "fact 10: after 4,096 interprocess events the next one fails as for memory (%llu, %d)",
	   (unsigned long long)r.v[0], r.result);
	dismiss(&w);

	e = ask(a, EVENT_NEW, 0, 0, 0, 0);
	r = ask(a, EVENT_HANDLE, e.v[0], 0, 0, 0);
	ask(a, EVENT_END, e.v[0], 0, 0, 0);
	r = ask_handle(b, EVENT_OPEN, r.handle);
	ok(!r.result, "fact 10: an event's handle opens after the event was destroyed (%d)", r.result);
	if (!r.result)
		ask(b, EVENT_END, r.v[0], 0, 0, 0);
}

void fact_2_sync(struct worker *a, struct worker *b)
{
	fact_2(a, b, false);
}

void fact_2_async(struct worker *a, struct worker *b)
{
	fact_2(a, b, true);
}

void fact_6_exit(struct worker *a, struct worker *b)
{
	fact_6(b, false);
}

void fact_6_kill(struct worker *a, struct worker *b)
{
	fact_6(b, true);
}
