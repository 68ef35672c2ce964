/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of importers on another device, and of blocks so big that the driver names them twice in a handle (4, 10): the
 * last bytes of a handle are the driver's own there, and matter to a process on another device.
 */
#include <stdio.h>
#include <string.h>

#include "stage.h"

#define DEVICES "CULIMBO_SIM_DEVICES=2 CULIMBO_SIM_MEMORY=4GiB"
#define SEEN UINT64_C(4096) /* bytes that are written and read of a block */
#define SLACK (8 * MIB) /* a context may grow by as much meanwhile */
#define SOON_MS 5000

static const uint64_t sizes[] = { SMALL, 2 * MIB, 64 * MIB, 512 * MIB, 1024 * MIB };

/* @who opens the block of @handle, and reads @value there. */
static void opens_rightly(struct actor *who, const char *says, const struct handle *handle, unsigned char value, uint64_t bytes)
{
	uint64_t seen = bytes < SEEN ? bytes : SEEN, import;
	int result = try_open(who, handle, &import);

	ok(!result && reads(who, import, seen, value, NULL), "10 %s opens a block of %llu KiB of a process with culimbo, and reads it (%d)",
	   says, (unsigned long long)(bytes >> 10), result);
	if (!result)
		close_block(who, import);
}

/* A process without culimbo opens what one with culimbo shares, on each device, and where the block's device is hidden. */
static void bare_importers(void)
{
	struct actor *p = ENTER("P", .env = DEVICES), *b[2], *h, *c;
	unsigned char value = OWN;

	if (ASK(p, devices)->v[0] < 2) {
		ok(true, "10 another device # SKIP there is one device");
		leave(p);
		return;
	}
	for (int device = 0; device < 2; device++) {
		b[device] = ENTER(device ? "B1" : "B0", .bare = true, .env = DEVICES);
		ASK(b[device], device, device);
	}
	h = ENTER("H", .bare = true, .env = DEVICES " CUDA_VISIBLE_DEVICES=1");
	c = ENTER("C", .env = DEVICES);
	ASK(c, device, 1);
	for (unsigned int i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++, value++) {
		uint64_t block = alloc(p, sizes[i]);
		struct handle handle = export_block(p, block);

		fill(p, block, sizes[i] < SEEN ? sizes[i] : SEEN, value);
		ok(!is_unstamped(&handle), "10 the handle of a block of %llu KiB has a stamp", (unsigned long long)(sizes[i] >> 10));
		opens_rightly(b[0], "bare, a process on the same device", &handle, value, sizes[i]);
		opens_rightly(b[1], "bare, a process on another device", &handle, value, sizes[i]);
		opens_rightly(h, "bare, a process that does not see the block's device", &handle, value, sizes[i]);
		opens_rightly(c, "with culimbo, a process on another device", &handle, value, sizes[i]);
		free_block(p, block);
	}
	ok(!*said(p) && !*said(c), "P, C: a clean run says nothing on stderr");
	leave(c);
	leave(h);
	leave(b[1]);
	leave(b[0]);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* A block of 512 MiB is kept while C has it open, comes back when C closes it, and its old handle is refused. */
static void big_block(void)
{
	struct actor *p = ENTER("P", .env = DEVICES), *c = ENTER("C", .env = DEVICES), *q = ENTER("Q", .bare = true, .env = DEVICES);
	uint64_t bytes = 512 * MIB, block, import, before, held;
	struct handle handle, again;
	int result;

	free_block(p, alloc(p, bytes));
	before = free_memory(q);
	block = alloc(p, bytes);
	fill(p, block, SEEN, OWN);
	handle = export_block(p, block);
	again = export_block(p, block);
	ok(same_handle(&handle, &again), "4 a block of 512 MiB: asked twice, its handle is the same");
	import = open_block(c, &handle);
	held = free_memory(q);
	ok(before >= bytes + held, "4 it takes its size of the device");
	free_block(p, block);
	ok(reads(c, import, SEEN, OWN, NULL), "4 P frees it while C has it open: C reads its own bytes");
	ok(free_memory(q) <= held, "4 and its memory is not given to others");
	close_block(c, import);
	ok(free_within(q, held + bytes - SLACK, SOON_MS, NULL), "4 C closes it: the memory is back");
	result = try_open(c, &handle, &import);
	ok(refused(result), "4 the old handle is refused (%d)", result);
	/* one that nobody opens comes back, too, although it is larger than what may wait for an importer */
	block = alloc(p, bytes);
	handle = export_block(p, block);
	free_block(p, block);
	ok(free_within(q, held + bytes - SLACK, SOON_MS, NULL), "4 one that nobody has opened comes back");
	note("P said: %.200s", said(p));
	ok(!*said(p), "4 and P says nothing");
	leave(q);
	leave(c);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

const struct scene device_scenes[] = {
	{ "device-bare-importers", bare_importers, 0 },
	{ "device-big-block", big_block, SCENE_ALONE },
	{ .name = NULL },
};
