/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of streams: a stream-ordered free waits for its stream and for no other.
 */
#include <stdlib.h>
#include <string.h>

#include "stage.h"

#define MS UINT64_C(1000000) /* ns */
#define SOON_MS 5000
/* A block that no process holds is released when its grace period ends, or at once when the limbo is over budget. */
#define GRACE "CULIMBO_GRACE=100ms CULIMBO_GRACE_BYTES=1GiB"
#define LEGACY 0
#define PER_THREAD 2
#define CAPTURE_RELAXED 2
#define MISSING (2 * MIB) /* of free memory; a small block's page stays allocated */

/* Shares @block and frees it within its grace period. */
static void free_on(struct actor *p, uint64_t block, uint64_t stream, bool per_thread)
{
	export_block(p, block);
	if (ASK(p, stream_free, block, stream, per_thread)->result)
		break_off("a free in a stream's order failed with %d", p->reply.result);
}

/*
 * So many streams that some have equal hash bits.  On a GPU the kernel takes longer, because each
 * free takes milliseconds while other processes create contexts.
 */
static void streams_apart(void)
{
	enum { IDLE = 192 };
	struct actor *o, *p;
	uint64_t stream[IDLE], block[IDLE], small, before;
	const double kernel_ms = on_real_driver() ? 4000 : 800;
	double took;
	bool back;

	setenv("CULIMBO_SIM_MEMORY", "1GiB", 1);
	o = ENTER("O", .bare = true);
	p = ENTER("P", .env = GRACE);
	ASK(p, spin, 1 * MS); /* The first launch loads the kernels. */
	ASK(p, kernel_wait);
	for (int i = 0; i < IDLE; i++)
		stream[i] = ASK(p, stream_create, 1)->v[0];
	small = alloc(p, SMALL);
	before = free_memory(o);
	for (int i = 0; i < IDLE; i++)
		block[i] = alloc(p, 4 * MIB);
	export_block(p, small);
	ASK(p, spin, (uint64_t)kernel_ms * MS);
	ASK(p, free_async, small, 0);
	for (int i = 0; i < IDLE; i++)
		free_on(p, block[i], stream[i], false);
	back = free_within(o, before - MISSING, kernel_ms - 100, &took);
	ok(back && ASK(p, kernel_query)->result == NOT_READY,
	   "15 blocks freed on %d idle streams are released while another stream is busy (%.0f ms)", IDLE, took);
	ASK(p, kernel_wait);
	leave(o);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

static void devices_apart(void)
{
	const uint64_t large = 700 * MIB, wanted = 600 * MIB;
	uint64_t small, block, what;
	struct actor *p;
	int result;

	setenv("CULIMBO_SIM_MEMORY", "1GiB", 1);
	setenv("CULIMBO_SIM_DEVICES", "2", 1);
	p = ENTER("P", .env = GRACE);
	small = alloc(p, SMALL);
	ASK(p, device, 1);
	block = alloc(p, large);
	ASK(p, device, 0);
	ASK(p, stream_spin, LEGACY, 1500 * MS);
	free_on(p, small, LEGACY, false);
	ASK(p, device, 1);
	free_on(p, block, LEGACY, false);
	result = try_alloc(p, wanted, &what);
	note("the allocation took %.2f ms", (double)p->reply.ns * 1e-6);
	ASK(p, device, 0);
	ok(!result && ASK(p, stream_query, LEGACY)->result == NOT_READY,
	   "15 memory freed on device 1 serves an allocation while device 0 is busy (%d)", result);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* A thread's own default stream waits neither for another thread's nor for the program's streams. */
static void per_thread_stream(const char *door)
{
	struct actor *o = ENTER("O", .bare = true);
	struct actor *p = ENTER("P", .env = GRACE, .door = door);
	uint64_t before, other, block;
	double start, took;
	bool back;

	other = ASK(p, stream_create, 0)->v[0];
	ASK(p, stream_spin, PER_THREAD, 1 * MS); /* The first launch loads the kernels. */
	ASK(p, kernel_wait);
	before = free_memory(o);
	block = alloc(p, BIG);
	start = now_ms();
	ASK(p, stream_spin, PER_THREAD, 400 * MS);
	free_on(p, block, LEGACY, true);
	back = free_within(o, before - MISSING, SOON_MS, NULL);
	took = now_ms() - start;
	ok(back && took > 350, "15 %s: a block freed on a thread's own stream waits for that stream (%.0f ms)", door, took);

	block = alloc(p, BIG);
	ASK(p, stream_spin, other, 1500 * MS);
	free_on(p, block, LEGACY, true);
	back = free_within(o, before - MISSING, 1000, &took);
	ok(back && ASK(p, stream_query, other)->result == NOT_READY,
	   "15 %s: and not for other streams, unlike on the legacy stream (%.0f ms)", door, took);
	leave(o);
	leave(p);
}

/*
 * A free on a thread's own stream while a stream captures with which only the legacy stream synchronises: on the
 * legacy one such a free is refused (906), and ends the capture.  Blocks that nobody shared, and that were shared.
 */
static void per_thread_free(const char *door)
{
	int answer[2][5];

	for (int bare = 1; bare >= 0; bare--) {
		struct actor *p = ENTER("P", .bare = bare, .env = GRACE, .door = door);
		uint64_t other = ASK(p, stream_create, 0)->v[0], own = alloc(p, SMALL), shared = alloc(p, SMALL);

		export_block(p, shared);
		ASK(p, stream_capture, other, CAPTURE_RELAXED);
		answer[bare][0] = ASK(p, stream_free, own, LEGACY, 1)->result;
		answer[bare][1] = ASK(p, stream_free, shared, LEGACY, 1)->result;
		answer[bare][2] = ASK(p, stream_captured, other)->result;
		own = alloc(p, SMALL);
		ASK(p, stream_capture, other, CAPTURE_RELAXED);
		answer[bare][3] = ASK(p, stream_free, own, LEGACY, 0)->result;
		answer[bare][4] = ASK(p, stream_captured, other)->result;
		leave_by(p, END_EXIT, 0);
	}
	ok(!answer[0][0] && !answer[0][1] && !answer[0][2] && !memcmp(answer[0], answer[1], sizeof(answer[0])),
	   "15 %s: a block of its own, and a shared one, freed on a thread's own stream while another captures: 0, as bare (%d, %d, %d)",
	   door, answer[0][0], answer[0][1], answer[0][2]);
	ok(answer[1][3] && answer[1][4], "15 %s: control: bare, on the legacy stream it is refused (%d, %d)", door, answer[1][3],
	   answer[1][4]);
}

static void per_thread_streams(void)
{
	per_thread_stream("dlsym");
	per_thread_stream("getproc");
	per_thread_free("dlsym");
	per_thread_free("getproc");
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* P frees a block that C has open, on a device without a free byte, while a stream of P captures. */
static void free_on_a_full_device(bool bare, int answer[2])
{
	struct actor *p = ENTER("P", .bare = bare, .env = "CULIMBO_GRACE=1h CULIMBO_REPORT=off"),
		     *c = ENTER("C", .bare = bare);
	uint64_t stream = ASK(p, stream_create, 1)->v[0], block = alloc(p, SMALL), byte;
	struct handle handle = export_block(p, block);
	uint64_t import = open_block(c, &handle);

	ASK(p, hog, 0);
	while (!try_alloc(p, MIB / 2, &byte) || !try_alloc(p, 1, &byte))
		;
	ASK(p, stream_mode, CAPTURE_RELAXED);
	ASK(p, stream_capture, stream, CAPTURE_RELAXED);
	answer[0] = try_free(p, block);
	answer[1] = ASK(p, stream_captured, stream)->result;
	close_block(c, import);
	leave(c);
	leave(p);
}

static void captured_and_full(void)
{
	int answer[2];

	for (int bare = 1; bare >= 0; bare--) {
		free_on_a_full_device(bare, answer);
		ok(!answer[0] && !answer[1], "15 %sa free on a full device spoils no capture (%d, %d)", bare ? "control: bare, " : "",
		   answer[0], answer[1]);
	}
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/*
 * P frees pinned memory of a kind, then a block that C has open, and asks about the pinned memory and frees it again.
 * What culimbo makes for the free of the block must not lie where the program's memory was.  @beside: P has other such
 * memory on both sides, so that the driver keeps the place.
 */
static void pinned_freed_twice(bool bare, enum alloc_kind kind, bool beside, int answer[4])
{
	struct actor *p = ENTER("P", .bare = bare, .env = GRACE), *c = ENTER("C", .bare = bare);
	uint64_t block = alloc(p, SMALL), next = alloc(p, SMALL), import, own;
	struct handle handle = export_block(p, block);

	export_block(p, next);
	import = open_block(c, &handle);
	if (beside)
		ASK(p, alloc_kind, kind, 8192);
	own = ASK(p, alloc_kind, kind, 64)->v[0];
	if (beside)
		ASK(p, alloc_kind, kind, 64);
	answer[0] = ASK(p, free_kind, kind, own)->result;
	free_block(p, block);
	answer[1] = ASK(p, is_known, own)->result;
	answer[2] = ASK(p, free_kind, kind, own)->result;
	answer[3] = try_free(p, next);
	close_block(c, import);
	leave(c);
	leave(p);
}
static void nothing_in_pinned_memorys_place(void)
{
	static const enum alloc_kind kinds[] = { ALLOC_PINNED, ALLOC_COMBINED };

	for (int i = 0; i < 8; i++) {
		enum alloc_kind kind = kinds[i / 4];
		bool beside = i / 2 % 2, bare = i % 2 == 0;
		int answer[4];

		pinned_freed_twice(bare, kind, beside, answer);
		ok(!answer[0] && answer[1] == INVALID_VALUE && answer[2] == INVALID_VALUE && !answer[3],
		   "15 %s%s memory%s that was freed is unknown after a free of a block, and refused (%d, %d, %d; %d)",
		   bare ? "control: bare, " : "", kind == ALLOC_PINNED ? "pinned" : "write-combined",
		   beside ? " beside other" : "", answer[0], answer[1], answer[2], answer[3]);
	}
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* Where a free in a stream waits for the legacy stream, the program sees that its stream is not done. */
static void waits_for_the_legacy_stream(void)
{
	for (int bare = 1; bare >= 0; bare--) {
		struct actor *p = ENTER("P", .bare = bare, .env = GRACE);
		uint64_t stream = ASK(p, stream_create, 0)->v[0], block = alloc(p, BIG);
		int result;

		ASK(p, stream_spin, LEGACY, 500 * MS);
		free_on(p, block, stream, false);
		result = ASK(p, stream_query, stream)->result;
		ok(result == NOT_READY && ASK(p, stream_query, LEGACY)->result == NOT_READY,
		   "15 %sa free in a stream that waits for the legacy stream: the stream is not done (%d)",
		   bare ? "control: bare, " : "", result);
		leave(p);
	}
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

const struct scene stream_scenes[] = {
	{ "captured-and-full", captured_and_full, SCENE_ALONE },
	{ "pinned-freed-twice", nothing_in_pinned_memorys_place, 0 },
	{ "waits-for-legacy", waits_for_the_legacy_stream, SCENE_ALONE },
	{ "streams-apart", streams_apart, SCENE_ALONE },
	{ "devices-apart", devices_apart, SCENE_ALONE | SCENE_SIMULATED },
	{ "per-thread-streams", per_thread_streams, SCENE_ALONE },
	{ .name = NULL },
};
