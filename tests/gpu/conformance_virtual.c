/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts 20 to 28: virtual memory, descriptors, and processes with the same pid number.
 */
#include "conformance.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <cuda.h>

typedef unsigned long long ull;

void virtual_handles(struct worker *a, struct worker *unused)
{
	struct answer made, r;
	unsigned char h[64];

	for (uint64_t with = 0; with < 2; with++) {
		const char *what = with ? "POSIX_FILE_DESCRIPTOR" : "no handle type";
		int result;

		made = ask(a, VIRTUAL_NEW, 2 * MIB, 1, with, 0);
		if (!ok(!made.result, "fact 20: memory can be made with %s (%d)", what, made.result))
			return;
		note("measured: reserved, created, mapped, access set, with %s: %.0f us", what, (double)made.ns / 1e3);
		result = export(a, made.v[0], h);
		ok(result == 1, "fact 20: with %s cuIpcGetMemHandle gives 1 (%d)", what, result);
		r = ask(a, ATTRIBUTE, made.v[0], CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 0, 0);
		ok(!r.result && !(r.v[0] & 1), "fact 20: with %s IS_LEGACY_CUDA_IPC_CAPABLE is 0 (%llu, result %d)", what,
		   (ull)r.v[0], r.result);
		r = ask(a, VIRTUAL_EXPORT, 0, 0, 0, 0);
		ok(with ? !r.result : r.result != 0, "fact 22: with %s an export gives %d", what, r.result);
		if (!r.result) {
			note("measured: export to a descriptor %.0f us", (double)r.ns / 1e3);
			close_descriptor(a, r.v[0]);
		}
		ask(a, VIRTUAL_END, 0, 0, 0, 0);
	}
}

void virtual_ranges(struct worker *a, struct worker *unused)
{
	uint64_t each = 4 * MIB, base;
	struct answer r = ask(a, VIRTUAL_NEW, each, 3, 1, 0), start, size;

	base = r.v[0];
	if (!ok(!r.result, "fact 21: three allocations side by side in one reservation (%d)", r.result))
		return;
	for (uint64_t i = 0; i < 3; i++) {
		uint64_t inside = base + i * each + MIB;

		r = ask(a, RANGE, inside, 0, 0, 0);
		ok(!r.result && r.v[0] == base + i * each && r.v[1] == each,
		   "fact 21: cuMemGetAddressRange gives the allocation that the pointer lies in (%llu)", (ull)i);
		start = ask(a, ATTRIBUTE, inside, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 0, 0);
		size = ask(a, ATTRIBUTE, inside, CU_POINTER_ATTRIBUTE_RANGE_SIZE, 0, 0);
		ok(!start.result && !size.result && start.v[0] == base && size.v[0] == 3 * each,
		   "fact 21: RANGE_START_ADDR and RANGE_SIZE give the whole reservation (%llu)", (ull)i);
		r = ask(a, VIRTUAL_RETAIN, inside, i, 0, 0);
		ok(!r.result && r.v[0], "fact 23: cuMemRetainAllocationHandle of an interior pointer gives the allocation's "
		   "handle (%llu, result %d)", (ull)i, r.result);
	}
	ask(a, SPIN, 200 * MS, 0, 0, 0);
	r = ask(a, VIRTUAL_UNMAP, 1, 0, 0, 0);
	ok(!r.result && r.ns < 100 * MS, "fact 33: cuMemUnmap does not wait for a kernel (%.1f ms, result %d)",
	   (double)r.ns / 1e6, r.result);
	ask(a, SYNC, 0, 0, 0, 0);
	start = ask(a, ATTRIBUTE, base + each, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 0, 0);
	note("measured: where nothing is mapped any more RANGE_START_ADDR gives %d%s", start.result,
	     !start.result && start.v[0] == base ? ", the reservation" : "");
	ask(a, VIRTUAL_END, 0, 0, 0, 0);
}

void virtual_descriptors(struct worker *a, struct worker *b)
{
	struct answer made = ask(a, VIRTUAL_NEW, 2 * MIB, 1, 1, 0), r;
	uint64_t fd;

	set(a, made.v[0], 24, KIB);
	r = ask(a, VIRTUAL_EXPORT, 0, 0, 0, 0);
	fd = r.v[0];
	if (!ok(!made.result && !r.result, "fact 24: memory is exported as a descriptor (%d, %d)", made.result, r.result))
		return;
	r = ask(a, SEND_DESCRIPTOR, fd, 0, 0, 0);
	if (!r.result)
		r = ask(b, VIRTUAL_TAKE, 0, 0, 2 * MIB, BY_MESSAGE);
	ok(!r.result && get(b, r.v[0]) == 24, "fact 24: sent by SCM_RIGHTS it is imported (%d)", r.result);
	if (!r.result)
		ask(b, VMM_END, 0, 0, 0, 0);
	r = ask(b, VIRTUAL_TAKE, (uint64_t)a->pid, fd, 2 * MIB, BY_PIDFD);
	ok(!r.result && get(b, r.v[0]) == 24, "fact 24: taken by pidfd_getfd it is imported (%d)", r.result);
	if (!r.result)
		ask(b, VMM_END, 0, 0, 0, 0);
	r = ask(b, VIRTUAL_TAKE, (uint64_t)a->pid, fd, 2 * MIB, BY_PROC);
	ok(r.result == CUDA_ERROR_UNKNOWN, "fact 24: opened through /proc/PID/fd it is refused with 999 (%d)", r.result);
	close_descriptor(a, fd);
	ask(a, VIRTUAL_END, 0, 0, 0, 0);
}

/* Creates one allocation of @bytes in @a, maps it in @b as well, and closes its descriptors. */
static bool map_of_another(struct worker *a, struct worker *b, uint64_t bytes, uint32_t value, uint64_t *import)
{
	struct answer r = ask(a, VIRTUAL_NEW, bytes, 1, 1, 0);
	uint64_t fd;

	if (r.result)
		return false;
	set(a, r.v[0], value, 4);
	set(a, r.v[0] + bytes - 4, value, 4);
	r = ask(a, VIRTUAL_EXPORT, 0, 0, 0, 0);
	if (r.result)
		return false;
	fd = r.v[0];
	r = ask(b, VIRTUAL_TAKE, (uint64_t)a->pid, fd, bytes, BY_PIDFD);
	close_descriptor(a, fd);
	*import = r.v[0];
	return !r.result;
}

static uint64_t freed_mib(uint64_t before, uint64_t after)
{
	return after > before ? (after - before) / MIB : 0;
}

/* Returns the free memory once it is stable for 50 ms: the driver removes a dead process's context with a delay. */
static uint64_t settled_memory(struct worker *w)
{
	uint64_t now = free_memory(w), before = now + 1;

	for (int i = 0; i < 20 && now != before; i++) {
		nap(50 * MS);
		before = now;
		now = free_memory(w);
	}
	return now;
}

/* Fact 25, and fact 26 as far as a program can see it: who holds the memory of a dead exporter. */
void virtual_lifetime(struct worker *a, struct worker *b)
{
	uint64_t with, between, after, p;
	struct worker x;
	int result;

	if (!ok(map_of_another(a, b, 64 * MIB, 25, &p), "fact 25: an importer maps 64 MiB of another's"))
		return;
	with = free_memory(b);
	result = ask(a, VIRTUAL_END, 0, 0, 0, 0).result;
	between = free_memory(b);
	ok(!result && freed_mib(with, between) < 32, "fact 25: the exporter unmaps and releases it (%d): nothing comes back "
	   "(%llu MiB)", result, (ull)freed_mib(with, between));
	ok(get(b, p) == 25 && get(b, p + 64 * MIB - 4) == 25, "fact 25: the bytes stay");
	result = ask(b, VMM_END, 0, 0, 0, 0).result;
	after = free_memory(b);
	ok(!result && freed_mib(between, after) >= 62, "fact 25: it comes back when the importer unmaps (%llu MiB)",
	   (ull)freed_mib(between, after));

	spawn(&x);
	if (!ok(map_of_another(&x, b, 64 * MIB, 26, &p), "fact 26: an importer maps 64 MiB of a process")) {
		dismiss(&x);
		return;
	}
	kill(x.pid, SIGKILL);
	bury(&x);
	dismiss(&x);
	between = settled_memory(b);
	ok(get(b, p) == 26 && get(b, p + 64 * MIB - 4) == 26, "fact 26: the exporter is killed: the importer reads on");
	result = ask(b, VMM_END, 0, 0, 0, 0).result;
	after = free_memory(b);
	ok(!result && freed_mib(between, after) >= 62, "fact 26: the memory was taken until the importer unmaps (%llu MiB)",
	   (ull)freed_mib(between, after));
}

/*
 * Memory that is shared by a fabric handle.  A device may say that it has these, and the driver refuse them all the same, as
 * where no IMEX channel is open to the process.
 */
void fabric(struct worker *a, struct worker *b)
{
	struct answer made = ask(a, FABRIC_NEW, 0, 0, 0, 0), taken;
	int released;

	note("measured: fabric handles: the device says %llu, memory with one can be made: %d", (ull)made.v[1], made.result);
	if (made.result) {
		ok(true, "fabric: memory by a fabric handle # SKIP the driver makes none here");
		return;
	}
	set(a, made.v[0], 90, MIB);
	taken = ask_handle(b, FABRIC_TAKE, made.handle);
	ok(!taken.result && get(b, taken.v[0]) == 90, "fabric: another process imports it, and reads it (%d)", taken.result);
	if (taken.result)
		return;
	released = ask(a, VMM_END, 0, 0, 0, 0).result;
	ok(!released && get(b, taken.v[0]) == 90, "fabric: the exporter unmaps and releases it: the importer reads it still (%d)", released);
	ask(b, VMM_END, 0, 0, 0, 0);
	taken = ask_handle(b, FABRIC_TAKE, made.handle);
	ok(taken.result, "fabric: when nobody has the memory any more, its handle is refused (%d)", taken.result);
	if (!taken.result)
		ask(b, VMM_END, 0, 0, 0, 0);
	made = ask(a, FABRIC_NEW, 0, 0, 0, 0);
	dismiss(a);
	taken = ask_handle(b, FABRIC_TAKE, made.handle);
	ok(taken.result, "fabric: when the exporter has ended, its handle is refused (%d)", taken.result);
	if (!taken.result)
		ask(b, VMM_END, 0, 0, 0, 0);
}

void dma_buf(struct worker *a, struct worker *unused)
{
	uint64_t small = alloc(a, 64 * KIB), d = alloc(a, 4 * MIB), before, between, after;
	struct answer r = ask(a, DMA_BUF, d, 4 * MIB, 0, 0);
	int result;

	if (r.result == CUDA_ERROR_NOT_SUPPORTED) {
		ok(true, "fact 27 # SKIP no dma-buf descriptors here");
		release(a, d);
		release(a, small);
		return;
	}
	ok(!r.result, "fact 27: a block of 4 MiB has a dma-buf descriptor (%d)", r.result);
	before = free_memory(a);
	result = release(a, d);
	between = free_memory(a);
	ok(!result && freed_mib(before, between) < 2, "fact 27: freed (%d) while it is open nothing comes back (%llu MiB)", result,
	   (ull)freed_mib(before, between));
	close_descriptor(a, r.v[0]);
	after = free_memory(a);
	ok(freed_mib(between, after) >= 4, "fact 27: until it is closed (%llu MiB)", (ull)freed_mib(between, after));
	r = ask(a, DMA_BUF, small, 64 * KIB, 0, 0);
	/* gives 1 on an H100 and 0 on an H200, with the same driver version */
	note("measured: fact 27: a dma-buf descriptor of a block of 64 KiB at %#llx: %d", (ull)small, r.result);
	if (!r.result)
		close_descriptor(a, r.v[0]);
	release(a, small);
}

/* ---- processes with the same pid number ---- */

static void set_pid(unsigned char *handle, int at, uint32_t pid)
{
	memcpy(handle + at, &pid, 4);
}

/* Opens @h in @y, which has the exporter's pid number; then with other pid numbers in the handle. */
static void one_number(struct worker *x, struct worker *y, uint64_t bytes, const char *what)
{
	static const uint32_t others[] = { 0, 2, 0x7fff, (1u << 22) + 5 };
	uint64_t d = alloc(x, bytes), p;
	unsigned char h[64];
	uint32_t pid;
	int result;

	set(x, d, 28, 4);
	set(x, d + bytes - 4, 29, 4);
	export(x, d, h);
	memcpy(&pid, h + 8, 4);
	result = import(y, h, &p);
	ok(pid == 1 && result == CUDA_ERROR_INVALID_CONTEXT,
	   "fact 28: %s: with the pid number of the exporter (%u) an importer gets 201 (%d)", what, pid, result);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		set_pid(h, 8, others[i]);
		result = import(y, h, &p);
		ok(!result && get(y, p) == 28 && get(y, p + bytes - 4) == 29,
		   "fact 28: %s: with %#x in bytes 8-11 it opens (%d), with the right bytes", what, others[i], result);
		if (!result)
			drop(y, p);
	}
	release(x, d);
}

static void events_of_one_number(struct worker *x, struct worker *y)
{
	struct answer e = ask(x, EVENT_NEW, 0, 0, 0, 0), h = ask(x, EVENT_HANDLE, e.v[0], 0, 0, 0), r;

	r = ask_handle(y, EVENT_OPEN, h.handle);
	ok(!e.result && !h.result && r.result == CUDA_ERROR_INVALID_CONTEXT,
	   "fact 28: an event of a process with the same pid number gives 201 (%d)", r.result);
	set_pid(h.handle, 0, 2);
	r = ask_handle(y, EVENT_OPEN, h.handle);
	ok(r.result == CUDA_ERROR_MAP_FAILED, "fact 28: with another number in bytes 0-3 it gives 205 (%d)", r.result);
}

/* Two exporters are both process 1; @c opens a block of the same size from each.  @numbers: both handles get other pids. */
static void two_exporters(struct worker *x, struct worker *y, struct worker *c, uint64_t bytes, bool numbers)
{
	uint64_t of_x = alloc(x, bytes), of_y = alloc(y, bytes), p = 0, q = 0;
	unsigned char h[64], g[64];
	int first, second;

	set(x, of_x, 31, 4);
	set(y, of_y, 32, 4);
	export(x, of_x, h);
	export(y, of_y, g);
	if (numbers) {
		set_pid(h, 8, (1u << 22) + 1);
		set_pid(g, 8, (1u << 22) + 2);
	}
	first = import(c, h, &p);
	second = import(c, g, &q);
	ok(!first && !second && p != q && get(c, p) == 31 && get(c, q) == 32,
	   "fact 28: two exporters that are both process 1, %llu KiB each, %s: both open (%d, %d), with the right bytes",
	   (ull)(bytes / KIB), numbers ? "with numbers above 2^22" : "the handles as they are", first, second);
	if (!first)
		drop(c, p);
	if (!second)
		drop(c, q);
	release(x, of_x);
	release(y, of_y);
}

void containers(struct worker *unused, struct worker *b)
{
	struct worker x, y;

	if (!spawn_apart(&x)) {
		ok(true, "fact 28 # SKIP no process can begin in a PID namespace of its own here");
		dismiss(&x);
		return;
	}
	if (spawn_apart(&y)) {
		one_number(&x, &y, KIB, "1 KiB");
		one_number(&x, &y, 64 * MIB, "64 MiB");
		events_of_one_number(&x, &y);
		two_exporters(&x, &y, b, KIB, false);
		two_exporters(&x, &y, b, KIB, true);
		two_exporters(&x, &y, b, 64 * MIB, false);
		two_exporters(&x, &y, b, 64 * MIB, true);
	} else {
		ok(false, "fact 28: a second PID namespace");
	}
	dismiss(&y);
	dismiss(&x);
}
