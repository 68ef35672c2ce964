/* SPDX-License-Identifier: Apache-2.0 */
/* Mirrors of reservations (importer/mirror.h): what is mapped where, and for whom. */
#include "tests/unit/mirrors.h"

#include "shim/importer/mappings.h"

/* ------------------------------------------------------------------ opens and closes */
IN_A_CHILD(an_allocation_is_mapped_at_its_offset)
{
	CUdeviceptr p;
	CUresult result;

	start_mirrors();
	CHECK(!cl_mirrors_any());
	p = opened(1, "..A.", 2);
	CHECK(cl_mirrors_any());
	CHECK_READS(p - 2 * PAGE, "..A.");
	CHECK_EQUAL(vm.page[(p - VM_BASE) / PAGE].devices, 1);
	CHECK_EQUAL(vm.calls, 5); /* reserve, import, map, release, access */
	CHECK_EQUAL(vm.handles, 0);
	CHECK(!cl_mirror_close(p + PAGE, &result) && !cl_mirror_close(p - 2 * PAGE, &result));
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	CHECK_EQUAL(vm.told, 1);
	CHECK_NOTHING_IS_LEFT();
	CHECK(!cl_mirror_close(p, &result));
}

IN_A_CHILD(what_is_mapped_side_by_side_after_it_is_opened_too)
{
	CUdeviceptr p;

	start_mirrors();
	p = opened(1, "ABCC.DE", 1);
	CHECK_READS(p - PAGE, ".BCC...");
	CHECK_EQUAL(vm.accesses, 1);
	/* an interior pointer, of an allocation of two pages */
	p = opened(2, "ABCC.DE", 3);
	CHECK_READS(p - 3 * PAGE, "..CC...");
	CHECK_EQUAL(vm.page[(p - VM_BASE) / PAGE].offset, PAGE);
	struct opening o; /* of a part of an allocation */
	describe(&o, 3, "A", 0);
	o.piece[0].from = 5 * PAGE;
	CHECK_EQUAL(cl_mirror_open(&o.want, &o.p), CUDA_SUCCESS);
	CHECK_EQUAL(vm.page[(o.p - VM_BASE) / PAGE].offset, 5 * PAGE);
	/* another part of it is not the same */
	p = o.p;
	o.piece[0].from = 6 * PAGE;
	CHECK_EQUAL(cl_mirror_open(&o.want, &o.p), CUDA_SUCCESS);
	CHECK(o.p != p);
}

IN_A_CHILD(from_its_beginning_all_of_a_reservation_is_opened)
{
	CUdeviceptr p;

	start_mirrors();
	p = opened(1, ".AB..C.", 0);
	CHECK_READS(p, ".AB..C.");
	CHECK_EQUAL(vm.accesses, 2); /* each run */
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	CHECK_NOTHING_IS_LEFT();
}

IN_A_CHILD(opens_are_counted_per_allocation)
{
	CUdeviceptr all, b, again;

	start_mirrors();
	b = opened(1, "ABC.", 1);
	all = opened(1, "ABC.", 0);
	CHECK_EQUAL(b, all + PAGE);
	again = opened(1, "ABC.", 1);
	CHECK_EQUAL(again, b);
	CHECK_EQUAL(vm.reserves, 1);
	CHECK_EQUAL(vm.maps, 3); /* each once */
	CHECK_EQUAL(closed(all), CUDA_SUCCESS);
	CHECK_READS(all, ".BC.");
	CHECK_EQUAL(closed(b), CUDA_SUCCESS);
	CHECK_READS(all, ".BC.");
	CHECK_EQUAL(closed(b), CUDA_SUCCESS);
	CHECK_EQUAL(vm.told, 3);
	CHECK_NOTHING_IS_LEFT();
}

IN_A_CHILD(what_is_mapped_later_goes_into_the_same_mirror)
{
	CUdeviceptr p, d;

	start_mirrors();
	p = opened(1, "A....", 0);
	CHECK_EQUAL(opened(1, "AB..E", 0), p);
	CHECK_READS(p, "AB..E");
	d = opened(1, "ABCDE", 3);
	CHECK_EQUAL(d, p + 3 * PAGE);
	CHECK_READS(p, "AB.DE");
	CHECK_EQUAL(vm.reserves, 1);
	CHECK_EQUAL(vm.maps, 4);
	/* nobody can tell which of the opens at p is closed first: what they took stays */
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	CHECK_READS(p, "AB.DE");
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	CHECK_READS(p, "...DE");
	CHECK_EQUAL(closed(d), CUDA_SUCCESS);
	CHECK_NOTHING_IS_LEFT();
}

/* The exporter has unmapped an allocation, and opens of what is left have fewer than those before. */
IN_A_CHILD(an_open_that_takes_less_takes_nothing_from_another)
{
	CUdeviceptr p;

	start_mirrors();
	p = opened(1, "ABC", 0);
	CHECK_EQUAL(opened(1, "A.C", 0), p);
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	CHECK_READS(p, "ABC");
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	CHECK_NOTHING_IS_LEFT();
}

IN_A_CHILD(what_is_mapped_anew_gets_a_second_mirror)
{
	CUdeviceptr old, old_b, new, b;

	start_mirrors();
	old = opened(1, "AB.", 0);
	new = opened(1, "XB.", 0);
	CHECK(new != old);
	CHECK_READS(old, "AB.");
	CHECK_READS(new, "XB.");
	/* the same handles again: the same addresses */
	CHECK_EQUAL(opened(1, "XB.", 0), new);
	old_b = opened(1, "XB.", 1);
	CHECK_EQUAL(old_b, old + PAGE);
	/* in pieces of another size, or in another reservation of that name: as if it were another */
	b = opened(1, "XBB", 1);
	CHECK_EQUAL(vm.reservations, 3);
	CHECK_EQUAL(closed(old), CUDA_SUCCESS);
	CHECK_READS(old, ".B.");
	CHECK_EQUAL(closed(old_b), CUDA_SUCCESS);
	CHECK_EQUAL(vm.reservations, 2);
	CHECK_EQUAL(closed(new), CUDA_SUCCESS);
	CHECK_EQUAL(closed(new), CUDA_SUCCESS);
	CHECK_EQUAL(closed(b), CUDA_SUCCESS);
	CHECK_NOTHING_IS_LEFT();
}

/* An allocation that is open in the second mirror is opened there again, though the first has room by now. */
IN_A_CHILD(a_handle_leads_to_the_mirror_that_has_its_allocation)
{
	CUdeviceptr old, new, keep;

	start_mirrors();
	keep = opened(1, "..C", 2);
	old = opened(1, "A.C", 0);
	new = opened(1, "X..", 0);
	CHECK(new != old);
	CHECK_EQUAL(closed(old), CUDA_SUCCESS);
	CHECK_EQUAL(opened(1, "X..", 0), new);
	CHECK_EQUAL(closed(new), CUDA_SUCCESS);
	CHECK_EQUAL(closed(new), CUDA_SUCCESS);
	CHECK_EQUAL(opened(1, "X..", 0), old);
	CHECK_EQUAL(closed(old), CUDA_SUCCESS);
	CHECK_EQUAL(closed(keep), CUDA_SUCCESS);
	CHECK_NOTHING_IS_LEFT();
}

/* Its allocation is mapped in both mirrors, and is open by itself in the second one. */
IN_A_CHILD(a_handle_leads_to_the_address_that_it_had)
{
	CUdeviceptr old, new, b;

	start_mirrors();
	old = opened(1, "A.", 0);
	new = opened(1, "XB", 0);
	b = opened(1, "XB", 1);
	CHECK_EQUAL(b, new + PAGE);
	CHECK_EQUAL(opened(1, "AB", 0), old);
	CHECK_READS(old, "AB");
	CHECK_EQUAL(opened(1, "XB", 1), b);
}

IN_A_CHILD(reservations_have_mirrors_of_their_own)
{
	struct opening o;
	CUdeviceptr a;

	start_mirrors();
	a = opened(1, "A", 0);
	CHECK(opened(2, "A", 0) != a);
	describe(&o, 1, "A", 0);
	o.want.name.exporter = 2;
	CHECK_EQUAL(cl_mirror_open(&o.want, &o.p), CUDA_SUCCESS);
	CHECK_EQUAL(vm.reservations, 3);
	/* two names that the table gives one key */
	o.want.name.exporter = 3;
	o.want.name.reservation = 1 ^ cl_hash_word(1) ^ cl_hash_word(3);
	CHECK_EQUAL(cl_mirror_open(&o.want, &o.p), CUDA_SUCCESS);
	CHECK_EQUAL(vm.reservations, 4);
	/* and a reservation of another size is not the one that had the name */
	CHECK(opened(1, "A.", 0) != a);
}

IN_A_CHILD(what_is_mapped_needs_no_descriptor)
{
	struct opening o;
	CUdeviceptr p;

	start_mirrors();
	CHECK_EQUAL(try_open(&o, 1, "a..", 0), CUDA_ERROR_NOT_FOUND);
	CHECK_EQUAL(vm.calls, 0);
	CHECK_NOTHING_IS_LEFT();
	p = opened(1, "A..", 0);
	CHECK_EQUAL(opened(1, "a..", 0), p);
	CHECK_EQUAL(try_open(&o, 1, "ab.", 0), CUDA_ERROR_NOT_FOUND);
	CHECK_EQUAL(try_open(&o, 1, "abC", 0), CUDA_ERROR_NOT_FOUND);
	CHECK_EQUAL(opened(1, "aB.", 0), p);
	CHECK_READS(p, "AB");
	CHECK_EQUAL(vm.maps, 2);
	/* which ones are new, for whoever counts */
	CHECK_EQUAL(try_open(&o, 1, "abC", 0), CUDA_SUCCESS);
	CHECK(o.piece[2].mapped);
	CHECK_EQUAL(try_open(&o, 2, "A", 0), CUDA_SUCCESS);
	CHECK(o.piece[0].mapped);
	CHECK_EQUAL(try_open(&o, 2, "A", 0), CUDA_SUCCESS);
	CHECK(!o.piece[0].mapped);
}

IN_A_CHILD(what_cannot_be_right_is_refused)
{
	struct opening o;

	start_mirrors();
	CHECK_EQUAL(try_open(&o, 1, "A.C", 1), CUDA_ERROR_NOT_MAPPED); /* a hole */
	CHECK_EQUAL(try_open(&o, 1, "A..", 1), CUDA_ERROR_NOT_MAPPED); /* behind all */
	CHECK_EQUAL(try_open(&o, 1, "...", 0), CUDA_ERROR_NOT_MAPPED);
	CHECK_EQUAL(try_open(&o, 1, "A", 9), CUDA_ERROR_NOT_MAPPED);
	for (int what = 0; what < 7; what++) {
		describe(&o, 1, "ABC", 1);
		if (what == 0)
			o.piece[0].size += PAGE; /* overlaps the next one */
		else if (what == 1)
			o.piece[2].offset = 0;
		else if (what == 2)
			o.piece[2].size += PAGE; /* leaves the reservation */
		else if (what == 3)
			o.piece[2].offset += PAGE;
		else if (what == 4)
			o.piece[2].size = 0 - PAGE;
		else if (what == 5)
			o.piece[2].size = 0;
		else
			o.piece[2].offset += 2 * PAGE;
		CHECK_EQUAL(cl_mirror_open(&o.want, &o.p), CUDA_ERROR_NOT_MAPPED);
	}
	CHECK_EQUAL(vm.calls, 0);
	CHECK_NOTHING_IS_LEFT();
	cl_driver.cuMemUnmap = NULL; /* an old driver */
	CHECK_EQUAL(try_open(&o, 1, "A", 0), CUDA_ERROR_NOT_SUPPORTED);
}

/* -------------------------------------------------------------------------- bounds */
IN_A_CHILD(there_may_be_as_many_mirrors_as_there_is_memory_for)
{
	enum { MANY = 1100 };
	static CUdeviceptr p[MANY];

	start_mirrors();
	for (uint64_t i = 0; i < MANY; i++)
		p[i] = opened(i, "A.", 0);
	CHECK_EQUAL(opened(1, "AB", 0), p[1]);
	CHECK_EQUAL(closed(p[7]), CUDA_SUCCESS);
	p[7] = opened(MANY, "A.", 0);
	CHECK_EQUAL(closed(p[1]), CUDA_SUCCESS);
	for (uint64_t i = 0; i < MANY; i++)
		CHECK_RANGE(p[i], p[i], i == 1 ? 2 : 1);
	for (uint64_t i = 0; i < MANY; i++)
		CHECK_EQUAL(closed(p[(i * 7) % MANY]), CUDA_SUCCESS);
	CHECK_NOTHING_IS_LEFT();
}

/* Where an address lies is found without a look at each import: a program asks of all its memory, often. */
IN_A_CHILD(few_imports_are_looked_at)
{
	enum { N = 200 };
	static CUdeviceptr p[N];
	CUdeviceptr base, other;
	uint64_t size, before;

	start_mirrors();
	for (uint64_t i = 0; i < N; i++) {
		struct cl_mirror_piece piece = { 2 * i * PAGE, PAGE, 0, 1 + i, 1 + (int)i, 0, false };
		struct cl_mirror_want want = { .name = { 1, 1 }, .size = 2 * N * PAGE, .offset = 2 * i * PAGE,
					       .devices = 1, .piece = &piece, .pieces = 1 };

		CHECK_EQUAL(cl_mirror_open(&want, &p[i]), CUDA_SUCCESS);
	}
	before = cl_mirror_steps;
	for (int i = 0; i < N; i++)
		CHECK(cl_mirror_find(p[i], &base, &size, NULL) && base == p[i] && size == PAGE);
	CHECK_EQUAL(cl_mirror_steps, before + N);
	/* memory of the program's own, above the mirror; and holes in it */
	CHECK(!cl_mirror_find(p[0] + 2 * N * PAGE, &base, &size, NULL));
	for (int i = 0; i < N; i++)
		CHECK(!cl_mirror_find(p[i] + PAGE, &base, &size, NULL));
	CHECK_EQUAL(cl_mirror_steps, before + N);
	/* an import that reaches over others is found behind them, until it is closed */
	{
		struct cl_mirror_piece piece[2] = { { 2 * PAGE, PAGE, 0, 2, -1, 0, false }, { 3 * PAGE, PAGE, 0, 999, 9, 0, false } };
		struct cl_mirror_want want = { .name = { 1, 1 }, .size = 2 * N * PAGE, .offset = 2 * PAGE,
					       .devices = 1, .piece = piece, .pieces = 2 };

		CHECK_EQUAL(cl_mirror_open(&want, &other), CUDA_SUCCESS);
	}
	CHECK_EQUAL(other, p[1]);
	CHECK(cl_mirror_find(p[1] + PAGE, &base, &size, NULL) && base == p[1] && size == 2 * PAGE);
	CHECK_EQUAL(closed(p[1]), CUDA_SUCCESS);
	CHECK_EQUAL(closed(p[1]), CUDA_SUCCESS);
	CHECK(!cl_mirror_find(p[1] + PAGE, &base, &size, NULL));
	for (int i = 0; i < N; i++)
		if (i != 1)
			CHECK_EQUAL(closed(p[i]), CUDA_SUCCESS);
	CHECK_NOTHING_IS_LEFT();
}

IN_A_CHILD(the_number_of_pieces_is_bounded)
{
	struct opening o;
	CUdeviceptr p;

	start_mirrors();
	cl_mirror_pieces_most = 5;
	p = opened(1, "ABC.", 0);
	CHECK_EQUAL(try_open(&o, 2, "ABC", 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(try_open(&o, 1, "A.BC", 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(vm.calls, 1 + 3 * 3 + 1);
	/* what failed counts no more */
	vm.fail_from = vm.fail_to = vm.calls + 5;
	CHECK_EQUAL(try_open(&o, 2, "AB", 0), CUDA_ERROR_UNKNOWN);
	vm.fail_from = vm.fail_to = vm.calls + 1;
	CHECK_EQUAL(try_open(&o, 2, "AB", 0), CUDA_ERROR_UNKNOWN);
	opened(2, "AB", 0);
	CHECK_EQUAL(try_open(&o, 1, "ABCD", 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_READS(p, "ABC.");
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	opened(3, "ABC", 0);
}

/* ------------------------------------------------------------------------- devices */
static CUdeviceptr opened_for(uint64_t devices, uint64_t reservation, const char *text)
{
	struct opening o;

	describe(&o, reservation, text, 0);
	o.want.device = __builtin_ctzll(devices);
	o.want.devices = devices;
	CHECK_EQUAL(cl_mirror_open(&o.want, &o.p), CUDA_SUCCESS);
	return o.p;
}

/* The opener's device must reach the memory.  One that it lets reach its own need not. */
IN_A_CHILD(a_peer_that_cannot_reach_it_is_no_matter)
{
	struct opening o;
	CUdeviceptr p;

	start_mirrors();
	vm.no_access = 1 << 2 | 1 << 4;
	p = opened_for(1 << 0 | 1 << 2 | 1 << 3, 1, "A.C");
	CHECK_EQUAL(devices_at(p), 1 << 0 | 1 << 3);
	CHECK_EQUAL(devices_at(p + 2 * PAGE), 1 << 0 | 1 << 3);
	/* the same handle in a context of that device: what is mapped already is asked for again */
	describe(&o, 1, "A.C", 0);
	o.want.device = 2;
	CHECK_EQUAL(cl_mirror_open(&o.want, &o.p), CUDA_ERROR_INVALID_DEVICE);
	vm.no_access = 1 << 4;
	CHECK_EQUAL(opened_for(1 << 2, 1, "A.C"), p);
	CHECK_EQUAL(devices_at(p), 1 << 0 | 1 << 2 | 1 << 3);
	CHECK_EQUAL(devices_at(p + 2 * PAGE), 1 << 0 | 1 << 2 | 1 << 3);
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	describe(&o, 2, "A", 0);
	o.want.device = 4;
	o.want.devices = 1;
	CHECK_EQUAL(cl_mirror_open(&o.want, &o.p), CUDA_ERROR_INVALID_DEVICE);
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	CHECK_NOTHING_IS_LEFT();
}

IN_A_CHILD(devices_get_access)
{
	CUdeviceptr p, q, other;
	unsigned int calls;

	start_mirrors();
	p = opened_for(5, 1, "A....");
	CHECK_EQUAL(devices_at(p), 5);
	/* another device opens it, and what was there is for it, too; what is new is for all */
	CHECK_EQUAL(opened_for(1ull << 63, 1, "A.C.E"), p);
	CHECK_EQUAL(devices_at(p), 1ull << 63 | 5);
	CHECK_EQUAL(devices_at(p + 2 * PAGE), 1ull << 63 | 5);
	CHECK_EQUAL(devices_at(p + 4 * PAGE), 1ull << 63 | 5);
	calls = vm.accesses;
	CHECK_EQUAL(opened_for(4, 1, "A.C.E"), p);
	CHECK_EQUAL(vm.accesses, calls);
	q = opened_for(1, 2, "A.C");
	other = opened_for(2, 3, "A");
	CHECK_EQUAL(cl_mirrors_add_device(0, 3), CUDA_SUCCESS);
	CHECK_EQUAL(devices_at(p), 1ull << 63 | 13);
	CHECK_EQUAL(devices_at(q + 2 * PAGE), 9);
	CHECK_EQUAL(devices_at(other), 2);
	calls = vm.accesses;
	CHECK_EQUAL(cl_mirrors_add_device(0, 3), CUDA_SUCCESS);
	CHECK_EQUAL(vm.accesses, calls);
	CHECK_EQUAL(opened_for(1, 2, "ABC"), q);
	CHECK_EQUAL(devices_at(q + PAGE), 9);
	CHECK_EQUAL(cl_mirrors_add_device(0, 64), CUDA_ERROR_INVALID_DEVICE);
	CHECK_EQUAL(cl_mirrors_add_device(-1, 1), CUDA_ERROR_INVALID_DEVICE);
}

IN_A_CHILD(the_other_mirrors_get_access_when_one_fails)
{
	CUdeviceptr p[3];

	start_mirrors();
	for (uint64_t i = 0; i < 3; i++)
		p[i] = opened(i, "A", 0);
	vm.fail_from = vm.fail_to = vm.calls + 2;
	CHECK_EQUAL(cl_mirrors_add_device(0, 1), CUDA_ERROR_UNKNOWN);
	CHECK_EQUAL(devices_at(p[0]) + devices_at(p[1]) + devices_at(p[2]), 3 + 1 + 3);
	CHECK_EQUAL(cl_mirrors_add_device(0, 1), CUDA_SUCCESS);
	for (uint64_t i = 0; i < 3; i++)
		CHECK_EQUAL(devices_at(p[i]), 3);
}

/* ------------------------------------------------------------------------- look-ups */
IN_A_CHILD(the_range_of_an_import_is_what_was_opened)
{
	CUdeviceptr all, b, base;
	uint64_t size;

	start_mirrors();
	b = opened(1, "ABC.E.", 1);
	CHECK_RANGE(b, b, 2);
	CHECK_RANGE(b + 2 * PAGE - 1, b, 2);
	CHECK(!cl_mirror_find(b - 1, &base, &size, NULL));
	CHECK(!cl_mirror_find(b + 2 * PAGE, &base, &size, NULL));
	all = opened(1, "ABC.E.", 0);
	CHECK_RANGE(all, all, 5);
	CHECK_RANGE(b - 1, all, 5);
	CHECK_RANGE(b + PAGE, b, 2); /* it begins last */
	CHECK_RANGE(b + 2 * PAGE, all, 5); /* a hole, and what lies behind */
	CHECK_RANGE(all + 4 * PAGE, all, 5);
	CHECK(!cl_mirror_find(all + 5 * PAGE, &base, &size, NULL));
	CHECK_EQUAL(closed(b), CUDA_SUCCESS);
	CHECK_RANGE(b, all, 5);
	CHECK_EQUAL(closed(all), CUDA_SUCCESS);
	CHECK(!cl_mirror_find(b, &base, &size, NULL));
	CHECK(!cl_mirror_find(0, &base, &size, NULL) && !cl_mirror_find(UINT64_MAX, &base, &size, NULL));
	/* where nothing is mapped at the beginning any more */
	all = opened(2, ".B", 0);
	CHECK_RANGE(all, all, 2);
}

IN_A_CHILD(in_a_hole_of_an_import_the_next_memory_is_found)
{
	uint64_t size, next[] = { 2, 2, 2, 3, 5, 5, 9, 9, 9, 9, 10 };
	CUdeviceptr all, base, mapped;

	start_mirrors();
	all = opened(1, "..AB.C...DD", 0);
	for (uint64_t i = 0; i < 22; i++)
		CHECK(cl_mirror_find(all + i / 2 * PAGE + i % 2 * 5, &base, &size, &mapped) && base == all &&
		      mapped == all + next[i / 2] * PAGE + (next[i / 2] == i / 2 ? i % 2 * 5 : 0));
}

/* ---------------------------------------------------------------------------- many */
static struct cl_mirror_piece many[1 << 16];

/* Opens @n allocations at once and closes them; returns the time of the processor that this took. */
static uint64_t time_of(uint64_t n)
{
	struct cl_mirror_want want = { .name = { 1, 1 }, .size = n * PAGE, .devices = 1, .piece = many, .pieces = n };
	struct timespec from, to;
	CUdeviceptr p;

	for (uint64_t i = 0; i < n; i++)
		many[i] = (struct cl_mirror_piece){ i * PAGE, PAGE, 0, 1 + i, 1 + (int)i, 0, false };
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
	CHECK_EQUAL(cl_mirror_open(&want, &p), CUDA_SUCCESS);
	for (uint64_t i = 0; i < n; i++)
		CHECK_EQUAL(bytes_at(p + i * PAGE), 1 + i);
	CHECK_EQUAL(closed(p), CUDA_SUCCESS);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
	CHECK_NOTHING_IS_LEFT();
	return (uint64_t)(to.tv_sec - from.tv_sec) * 1000000000u + (uint64_t)(to.tv_nsec - from.tv_nsec);
}

IN_A_CHILD(a_thousand_allocations_take_a_thousand_times_as_long)
{
	uint64_t few = UINT64_MAX, took;

	start_mirrors();
	time_of(1000);
	CHECK_EQUAL(vm.calls, 1 + 3 * 1000 + 1 + 1000 + 1);
	for (int i = 0; i < 5; i++) {
		took = time_of(2048);
		few = took < few ? took : few;
	}
	took = time_of(1 << 16); /* 32 times as many: a pass over all for each would take 1,024 times as long */
	CHECK(took < few * 32 * 8);
}

/* In any order, by one handle each: as many calls of the driver's. */
IN_A_CHILD(a_thousand_handles_of_a_thousand_allocations)
{
	enum { N = 1000 };
	static CUdeviceptr p[N];

	start_mirrors();
	for (uint64_t i = 0; i < N; i++) {
		uint64_t at = 2 * (i * 7 % N);
		struct cl_mirror_piece piece = { at * PAGE, PAGE, 0, 1 + at, 1 + (int)at, 0, false };
		struct cl_mirror_want want = { .name = { 1, 1 }, .size = 2 * N * PAGE, .offset = at * PAGE,
					       .devices = 1, .piece = &piece, .pieces = 1 };

		CHECK_EQUAL(cl_mirror_open(&want, &p[at / 2]), CUDA_SUCCESS);
	}
	CHECK_EQUAL(vm.calls, 1 + N * 4);
	for (uint64_t i = 0; i < N; i++) {
		CHECK_EQUAL(p[i], p[0] + 2 * i * PAGE);
		CHECK_EQUAL(bytes_at(p[i]), 1 + 2 * i);
		CHECK_RANGE(p[i] + PAGE - 1, p[i], 1);
	}
	for (uint64_t i = 0; i < N; i++)
		CHECK_EQUAL(closed(p[i * 11 % N]), CUDA_SUCCESS);
	CHECK_EQUAL(vm.calls, 1 + N * 4 + N + 1);
	CHECK_NOTHING_IS_LEFT();
}

/* ------------------------------------------------------------------------- a context's end */
static CUresult unmap_relaxed(CUdeviceptr p, size_t size)
{
	CHECK_EQUAL(fake_mode, CU_STREAM_CAPTURE_MODE_RELAXED);
	return vm_unmap(p, size);
}

/* The program unmaps nothing, so a capture of it must not become invalid. */
IN_A_CHILD(the_end_of_a_context_closes_what_is_open_in_it_and_spoils_no_capture)
{
	struct cl_opening o = { .device = 0 };
	struct cl_context_name name;
	CUdeviceptr p;

	start_mirrors();
	cl_driver.cuMemUnmap = unmap_relaxed;
	name = cl_context_name_current();
	p = opened(1, "AB", 1);
	CHECK_EQUAL(opened(1, "AB", 1), p);
	cl_lock(&cl_imports_lock);
	o.context = cl_context_get_locked(&name, &cl_imports_lock);
	for (int i = 0; i < 2; i++)
		CHECK(cl_mapping_add_locked(CL_VIRTUAL, p, cl_mapping_find_locked(CL_VIRTUAL, p), &o, 1));
	cl_unlock(&cl_imports_lock);
	context_ends(name.handle, -1);
	CHECK_EQUAL(vm.unmaps, 0);
	context_ended(name.handle, -1, true);
	CHECK_EQUAL(fake_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
	CHECK_NOTHING_IS_LEFT();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_allocation_is_mapped_at_its_offset),
		cmocka_unit_test(what_is_mapped_side_by_side_after_it_is_opened_too),
		cmocka_unit_test(from_its_beginning_all_of_a_reservation_is_opened),
		cmocka_unit_test(opens_are_counted_per_allocation),
		cmocka_unit_test(what_is_mapped_later_goes_into_the_same_mirror),
		cmocka_unit_test(an_open_that_takes_less_takes_nothing_from_another),
		cmocka_unit_test(what_is_mapped_anew_gets_a_second_mirror),
		cmocka_unit_test(a_handle_leads_to_the_mirror_that_has_its_allocation),
		cmocka_unit_test(a_handle_leads_to_the_address_that_it_had),
		cmocka_unit_test(reservations_have_mirrors_of_their_own),
		cmocka_unit_test(what_is_mapped_needs_no_descriptor),
		cmocka_unit_test(what_cannot_be_right_is_refused),
		cmocka_unit_test(there_may_be_as_many_mirrors_as_there_is_memory_for),
		cmocka_unit_test(few_imports_are_looked_at),
		cmocka_unit_test(the_number_of_pieces_is_bounded),
		cmocka_unit_test(devices_get_access),
		cmocka_unit_test(a_peer_that_cannot_reach_it_is_no_matter),
		cmocka_unit_test(the_other_mirrors_get_access_when_one_fails),
		cmocka_unit_test(the_range_of_an_import_is_what_was_opened),
		cmocka_unit_test(in_a_hole_of_an_import_the_next_memory_is_found),
		cmocka_unit_test(a_thousand_allocations_take_a_thousand_times_as_long),
		cmocka_unit_test(a_thousand_handles_of_a_thousand_allocations),
		cmocka_unit_test(the_end_of_a_context_closes_what_is_open_in_it_and_spoils_no_capture),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
