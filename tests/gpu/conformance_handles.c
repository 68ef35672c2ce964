/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles of memory and of events: which bytes matter, and how opens are counted.
 */
#include "conformance.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

/* Opens @handle with byte @i changed; true when that gave the right block. */
static bool opens_rightly(struct worker *b, const unsigned char *handle, int i, uint32_t right)
{
	unsigned char changed[64];
	struct answer r;
	uint64_t p;
	bool same;

	if (!b->pid)
		spawn(b);
	memcpy(changed, handle, 64);
	if (i >= 0)
		changed[i] ^= 0xff;
	if (import(b, changed, &p))
		return false;
	r = ask(b, READ, p, 0, 0, 0);
	same = !r.result && r.v[0] == right;
	if (r.result != CRASHED)
		drop(b, p);
	/* A failed context cannot be used any more: replace the worker. */
	if (ask(b, SYNC, 0, 0, 0, 0).result)
		dismiss(b);
	return same;
}

static void list_bytes(const char *what, const bool *matter)
{
	char text[256] = "";
	size_t used = 0;

	for (int i = 0; i < 64; i++) {
		int j = i;

		if (!matter[i])
			continue;
		while (j < 63 && matter[j + 1])
			j++;
		used += (size_t)snprintf(text + used, sizeof(text) - used, i == j ? " %d" : " %d-%d", i, j);
		i = j;
	}
	note("measured: %s: bytes that matter:%s", what, text);
}

static bool none(const bool *matter, int from, int to)
{
	for (int i = from; i <= to; i++)
		if (matter[i])
			return false;
	return true;
}

static bool every(const bool *matter, int from, int to)
{
	for (int i = from; i <= to; i++)
		if (!matter[i])
			return false;
	return true;
}

void handle_bytes(struct worker *a, struct worker *unused)
{
	unsigned char h[64], other[64], again[64];
	uint64_t keep = alloc(a, KIB), d = alloc(a, KIB), big = alloc(a, 64 * MIB), p, size;
	struct worker b = { 0 };
	bool matter[64];
	uint32_t pid;

	/* Neighbours have different contents, so that a wrong offset shows. */
	set(a, keep, 70, KIB);
	set(a, d, 7, 4);
	set(a, d + 4, 71, KIB - 4);
	set(a, big, 72, KIB);
	export(a, d, h);
	export(a, d, again);
	ok(!memcmp(h, again, 64), "handle: asked twice it is the same");
	export(a, d + 512, again);
	ok(!memcmp(h, again, 64), "handle: an interior pointer gives the handle of its block");
	memcpy(&pid, h + 8, 4);
	ok(pid == (uint32_t)a->pid, "handle: bytes 8-11 are the exporter's pid");
	ok(!memcmp(h + 6, "\0", 2) && !memcmp(h + 12, "\0\0\0", 4), "handle: bytes 6, 7 and 12-15 are zero, whatever was there");
	export(a, big, other);
	memcpy(&size, other + 16, 8);
	ok(size == 64 * MIB, "handle: bytes 16-23 hold the size (%llu)", (unsigned long long)size);

	spawn(&b);
	ok(opens_rightly(&b, h, -1, 7), "handle: unchanged, it opens");
	for (int i = 0; i < 64; i++)
		matter[i] = !opens_rightly(&b, h, i, 7);
	list_bytes("memory handle, fresh open", matter);
	ok(none(matter, 0, 15), "handle: bytes 0-15 are ignored on a fresh open");
	ok(none(matter, 56, 63), "handle: bytes 56-63 are ignored on a fresh open");
	ok(every(matter, 24, 36), "handle: bytes 24-36 matter");
	ok(every(matter, 48, 55), "handle: bytes 48-55 matter");

	/* The same with another block of that exporter open. */
	for (int i = 0; i < 64; i++) {
		if (!b.pid)
			spawn(&b);
		if (import(&b, other, &p)) {
			note("the other block does not open");
			break;
		}
		matter[i] = !opens_rightly(&b, h, i, 7);
		if (b.pid)
			drop(&b, p);
	}
	/* Bytes 40-47 gave different results in two measurements, so they are not asserted. */
	list_bytes("memory handle, another block of the exporter open", matter);
	ok(none(matter, 0, 15) && none(matter, 56, 63), "handle: bytes 0-15 and 56-63 are ignored then, too");
	if (b.pid)
		dismiss(&b);
	release(a, big);
	release(a, d);
	release(a, keep);
}

/* Changes the bytes of @handle in which a stamp has its place; @tail: those of another place, 56 to 63. */
static void change(unsigned char *handle, const unsigned char *was, bool tail, unsigned char with)
{
	memcpy(handle, was, 64);
	for (int i = 0; i < 4; i++) {
		handle[tail ? 56 + i : 4 + i] ^= (unsigned char)(with + i);
		handle[tail ? 60 + i : 12 + i] ^= (unsigned char)(with + 16 * i);
	}
}

/* @b, which has no open block, opens two blocks of @bytes with changed handles, one of them twice. */
static void handles_changed(struct worker *a, struct worker *b, const char *where, uint64_t bytes, bool far, bool fabric)
{
	uint64_t d[2] = { alloc(a, bytes), alloc(a, bytes) }, p[3] = { 0 };
	unsigned char was[2][64], changed[64];
	int result;

	for (int i = 0; i < 2; i++) {
		set(a, d[i], 7 + (uint32_t)i, 4);
		export(a, d[i], was[i]);
	}
	change(changed, was[0], true, 0x5a);
	result = import(b, changed, &p[0]);
	note("measured: %s, %llu KiB: bytes 56-63 are %s; changed, it gives %d", where, (unsigned long long)(bytes >> 10),
	     memcmp(was[0] + 56, "\0\0\0\0\0\0\0\0", 8) ? "in use" : "zero", result);
	if (!result)
		drop(b, p[0]);
	if (!far)
		ok(!result, "handle: %s, %llu KiB: bytes 56-63 are ignored", where, (unsigned long long)(bytes >> 10));
	else if (fabric)
		ok(result == CUDA_ERROR_INVALID_VALUE, "handle: %s, %llu KiB, on a fabric: with other bytes 56-63 it is refused (%d)",
		   where, (unsigned long long)(bytes >> 10), result);
	result = 0;
	for (int i = 0; i < 3; i++) {
		change(changed, was[i % 2], false, (unsigned char)(0x81 + i));
		result |= import(b, changed, &p[i]);
	}
	ok(!result && p[0] == p[2] && get(b, p[0]) == 7 && get(b, p[1]) == 8,
	   "handle: %s, %llu KiB: bytes 4-7 and 12-15 are ignored: two blocks open at once, and one of them twice",
	   where, (unsigned long long)(bytes >> 10));
	for (int i = 0; i < 3; i++)
		drop(b, p[i]);
	for (int i = 0; i < 2; i++)
		release(a, d[i]);
}

/* The same of an event, and of a block of a pool: @far, on another device, gets them with other bytes where a stamp has its place. */
static void others_changed(struct worker *a, struct worker *far)
{
	struct answer e = ask(a, EVENT_NEW, 0, 0, 0, 0), h = ask(a, EVENT_HANDLE, e.v[0], 0, 0, 0), r;
	unsigned char data[64];
	uint64_t d, p;

	memset(h.handle + 56, 0x5a, 8);
	r = ask_handle(far, EVENT_OPEN, h.handle);
	ok(!r.result && !ask(far, EVENT_QUERY, r.v[0], 0, 0, 0).result,
	   "event handle: from another device bytes 56-63 are ignored (%d)", r.result);
	ask(far, EVENT_END, r.v[0], 0, 0, 0);
	ask(a, EVENT_END, e.v[0], 0, 0, 0);
	for (uint64_t bytes = MIB; bytes <= 512 * MIB; bytes *= 512) {
		ask(a, POOL_NEW, KEEP_ALL, 0, 0, 0);
		r = ask(a, POOL_SHARE, 0, 0, 0, 0);
		ask(far, POOL_TAKE, (uint64_t)a->pid, r.v[0], 0, 0);
		close_descriptor(a, r.v[0]);
		ask(far, POOL_ACCESS, 0, 0, 0, 0);
		d = pool_alloc(a, bytes);
		set(a, d, 21, 4);
		pool_export(a, d, data);
		memset(data + 48, 0x5a, 16);
		r.result = pool_import(far, data, &p);
		ok(!r.result && get(far, p) == 21, "pools: of %llu MiB, from another device bytes 48-63 are ignored (%d)",
		   (unsigned long long)(bytes >> 20), r.result);
		pool_free(far, p);
		pool_free(a, d);
		end_pool(a);
	}
}

void handles_elsewhere(struct worker *a, struct worker *b)
{
	static const uint64_t sizes[] = { KIB, 2 * MIB, 64 * MIB, 512 * MIB };
	struct worker far = { 0 };
	bool two = !ask(a, POOL_NEW, KEEP_ALL, 1, 0, 0).result, fabric;
	uint64_t big = alloc(a, 512 * MIB);
	unsigned char h[64];

	/* where GPUs are joined by a fabric the driver uses these bytes of big blocks (measured) */
	export(a, big, h);
	fabric = memcmp(h + 56, "\0\0\0\0\0\0\0\0", 8);
	release(a, big);
	for (int i = 0; i < 4; i++)
		handles_changed(a, b, "the same device", sizes[i], false, fabric);
	if (!two) {
		ok(true, "handle: from another device # SKIP there is one device");
		return;
	}
	end_pool(a);
	setenv("CUDA_VISIBLE_DEVICES", "1", 1);
	spawn(&far);
	unsetenv("CUDA_VISIBLE_DEVICES");
	for (int i = 0; i < 4; i++)
		handles_changed(a, &far, "another device", sizes[i], true, fabric);
	others_changed(a, &far);
	dismiss(&far);
}

/* One block has a handle in each of two contexts, and either handle opens it. */
static void handle_of_two_contexts(struct worker *a, struct worker *b, uint64_t bytes)
{
	uint64_t d = alloc(a, bytes), p1 = 0, p2 = 0;
	struct answer beside;
	unsigned char h[64];
	int first, last;

	set(a, d, 9, 4);
	export(a, d, h);
	beside = ask(a, HANDLE_BESIDE, d, 0, 0, 0);
	differing(h, beside.handle, &first, &last);
	ok(!beside.result && first >= 0 && last < 8,
	   "handle: of %llu bytes, asked for in another context, the handle differs only in bytes 0-7 (%d to %d)",
	   (unsigned long long)bytes, first, last);
	ok(!import(b, h, &p1) && !import(b, beside.handle, &p2) && p1 == p2 && get(b, p1) == 9,
	   "handle: both handles open and give the same pointer");
	drop(b, p1);
	drop(b, p2);
	release(a, d);
}

void counting(struct worker *a, struct worker *b)
{
	uint64_t keep = alloc(a, KIB), d = alloc(a, KIB), p1, p2;
	unsigned char h[64], tail[64];

	set(a, d, 9, KIB);
	export(a, d, h);
	memcpy(tail, h, 64);
	memset(tail + 56, 0x5a, 8);
	ok(!import(b, h, &p1) && !import(b, tail, &p2) && p1 == p2,
	   "handle: a second open with other bytes 56-63 gives the same pointer");
	ok(release(b, p1) == 1 && get(b, p1) == 9,
	   "handle: cuMemFree of an imported pointer gives 1, and it stays mapped");
	ok(!drop(b, p1) && get(b, p1) == 9, "handle: after one of two closes it is still mapped");
	ok(!drop(b, p1), "handle: the second close succeeds");
	note("measured: one close too many gives %d", drop(b, p1));
	release(a, d);
	release(a, keep);
	handle_of_two_contexts(a, b, KIB);
	handle_of_two_contexts(a, b, 4 * MIB);
}

/* The outcome of opening the event handle with byte @i changed. */
static const char *event_outcome(struct worker *b, const unsigned char *handle, int i,
				 bool *right, bool *crash)
{
	static char text[32];
	unsigned char changed[64];
	struct answer r;

	if (!b->pid)
		spawn(b);
	memcpy(changed, handle, 64);
	if (i >= 0)
		changed[i] ^= 0xff;
	r = ask_handle(b, EVENT_OPEN, changed);
	*crash = r.result == CRASHED;
	*right = !r.result;
	if (*crash) {
		snprintf(text, sizeof(text), "signal %d", b->signal);
		dismiss(b);
	} else {
		snprintf(text, sizeof(text), "%d", r.result);
		if (!r.result && ask(b, EVENT_END, r.v[0], 0, 0, 0).result == CRASHED)
			dismiss(b);
	}
	return text;
}

/* An event belongs to its context: its handle must not be requested in another one. */
void event_of_another_context(struct worker *unused_a, struct worker *unused_b)
{
	struct worker w = { 0 };
	struct answer e, beside;

	spawn(&w);
	e = ask(&w, EVENT_NEW, 0, 0, 0, 0);
	beside = ask(&w, EVENT_BESIDE, e.v[0], 0, 0, 0);
	ok(!e.result && beside.result == CRASHED,
	   "event handle: asked for in another context, the driver crashes (%d, signal %d)", beside.result,
	   w.signal);
	dismiss(&w);
}

void event_handle_bytes(struct worker *a, struct worker *unused)
{
	struct answer e, h, busy;
	struct worker b = { 0 };
	bool matter[64], crash[64], right;
	char line[64 * 16] = "";
	size_t used = 0;
	uint32_t pid;

	e = ask(a, EVENT_NEW, 0, 0, 0, 0);
	h = ask(a, EVENT_HANDLE, e.v[0], 0, 0, 0);
	ok(!e.result && !h.result, "event handle: can be had");
	memcpy(&pid, h.handle, 4);
	ok(pid == (uint32_t)a->pid, "event handle: bytes 0-3 are the pid");
	ok(!memcmp(h.handle + 24, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16) &&
		   !memcmp(h.handle + 40, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24),
	   "event handle: bytes 24-63 are zero");
	spawn(&b);
	event_outcome(&b, h.handle, -1, &right, &crash[0]);
	ok(right, "event handle: unchanged, it opens");
	for (int i = 0; i < 64; i++) {
		const char *text = event_outcome(&b, h.handle, i, &right, &crash[i]);

		matter[i] = !right;
		if (matter[i])
			used += (size_t)snprintf(line + used, sizeof(line) - used, " %d:%s", i, text);
	}
	list_bytes("event handle", matter);
	note("measured: event handle, byte:outcome:%s", line);
	ok(every(matter, 0, 3), "event handle: bytes 0-3 matter");
	ok(every(matter, 8, 15), "event handle: bytes 8-15 matter");
	/* Bytes 16-19 gave different results in two measurements: ignored, or a segmentation fault in the importer. */
	note("measured: event handle: a change of byte 17, 18 or 19 %s",
	     every(crash, 17, 19)     ? "crashes the importer"
	     : none(matter, 17, 19) ? "is ignored"
				      : "matters");
	ok(none(matter, 24, 63), "event handle: bytes 24-63 are ignored");

	/* Both handles name one event: the importer sees what the exporter records. */
	if (!b.pid)
		spawn(&b);
	busy = ask_handle(&b, EVENT_OPEN, h.handle);
	ask(a, SPIN, 150 * MS, 0, 0, 0);
	ask(a, EVENT_RECORD, e.v[0], 0, 0, 0);
	ok(ask(&b, EVENT_QUERY, busy.v[0], 0, 0, 0).result == CUDA_ERROR_NOT_READY,
	   "event handle: the importer sees that the exporter's work is not done");
	ask(a, SYNC, 0, 0, 0, 0);
	nap(20 * MS);
	ok(ask(&b, EVENT_QUERY, busy.v[0], 0, 0, 0).result == 0, "event handle: the importer sees that the exporter's work is done");
	note("measured: opening one's own event handle gives %d", ask_handle(a, EVENT_OPEN, h.handle).result);
	if (a->pid)
		ask(a, EVENT_END, e.v[0], 0, 0, 0);
	dismiss(&b);
}
