/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: an exporter file whose bytes change while it is in use.
 *
 * The input is a list of steps.  Some write anywhere into the file.  The others do what an
 * exporter P, an importer C, a reaper, a collector of dead files and a report do with it, in
 * any order.  C holds records by a lock that it never loses.
 *
 * Promised: no crash, no hang, no access outside the mapping, no invalid index.  Every
 * refusal has a reason.  C is not reaped.  Unless the input wrote to the holder bits, P
 * releases no block that C holds.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/shm/gc.h"
#include "shim/base/options.h"
#include "shim/shm/slot.h"
#include "shim/shm/view.h"
#include "tests/fuzz/fuzz.h"

enum { RECORDS = 24, STEPS = 200, WRITTEN = 16 };
#define SETTLE 1000000ull

/* ----------------------------------------------------- locks among three actors */
enum actor { NOBODY, P, C, OTHER };
static enum actor owner[1 + CL_SLOTS], acting;

static int try_lock(struct cl_region *r, off_t byte)
{
	(void)r;
	PROMISE(byte >= 0 && byte <= CL_SLOTS);
	if (owner[byte] && owner[byte] != acting)
		return -EAGAIN;
	owner[byte] = acting;
	return 0;
}
static int unlock(struct cl_region *r, off_t byte)
{
	(void)r;
	PROMISE(byte >= 0 && byte <= CL_SLOTS);
	if (owner[byte] == acting)
		owner[byte] = NOBODY;
	return 0;
}
static int is_locked(struct cl_region *r, off_t byte)
{
	(void)r;
	PROMISE(byte >= 0 && byte <= CL_SLOTS);
	return owner[byte] && owner[byte] != acting;
}
static const struct cl_lock_ops fake_locks = { try_lock, unlock, is_locked };

/* -------------------------------------------------------------- the setting */
static int folder_fd = -1;
static struct cl_identity self;
static struct cl_slot_watch watch[CL_SLOTS];

static struct cl_region own, seen; /* the mappings of P and of C */
static bool seen_open, counting_damaged, life_damaged;
static int slot;
static uint32_t exported; /* records that P has published */
static bool held[RECORDS], released[RECORDS];

static void handle_of(uint32_t record, uint8_t handle[64])
{
	memset(handle, 0, 64); /* a record leaves out the last 8 bytes */
	memset(handle, (int)(record % 250) + 1, 56);
}

static void close_seen(void)
{
	if (seen_open)
		cl_region_close(&seen);
	seen_open = false;
}

static void open_seen(void)
{
	const char *why = NULL;
	int err;

	if (seen_open)
		return;
	acting = C;
	err = cl_region_open(&seen, folder_fd, own.file_id, &why);
	PROMISE(err <= 0 && !err == !why);
	PROMISE(err || seen.header);
	PROMISE(!err || (!seen.header && seen.fd == -1));
	seen_open = !err;
	if (!err)
		seen.locks = &fake_locks;
}

static void publish(void)
{
	uint8_t handle[64];
	struct cl_export what = { .kind = CL_MEMORY, .size = 1024, .handle = handle, .now = 1000 };

	if (exported == RECORDS)
		return;
	handle_of(exported, handle);
	what.base = 4096ull * exported;
	cl_record_publish(&own, exported++, &what);
}

/* ------------------------------------------------------------------ the steps */
static const struct part {
	uint64_t at, size;
	bool counts; /* this part has the holder bits */
} parts[] = {
	{ CL_AT_HEADER, sizeof(struct cl_header), false },
	{ CL_AT_HEADER + offsetof(struct cl_header, record_chunks), 8, false },
	{ CL_AT_WORD_PAGES, CL_PAGE, true },
	{ CL_AT_READY_TOP, sizeof(struct cl_ready_top), false },
	{ CL_AT_SLOTS, CL_SLOTS * sizeof(struct cl_slot), false },
	{ CL_AT_SLOTS, 4 * sizeof(struct cl_slot), false },
	{ CL_AT_READY, CL_PAGE, false },
	{ CL_AT_RECORDS, RECORDS * sizeof(struct cl_record), false },
	{ CL_AT_RECORDS, CL_CHUNK * sizeof(struct cl_record), false },
	{ CL_AT_HOLDERS, CL_PAGE, true },
	{ CL_AT_HEADER + offsetof(struct cl_header, modules), 16 + 4 * CL_FINDING_KINDS, false },
	{ CL_AT_MODULES, WRITTEN * sizeof(struct cl_module), false },
	{ CL_AT_STACKS, CL_PAGE, false },
	{ CL_AT_IMPORTS, CL_PAGE, false },
	{ CL_AT_FINDINGS, CL_PAGE, false },
	{ CL_AT_LOCK_FREE, CL_SLOTS * 8, false },
};
enum { PARTS = sizeof parts / sizeof parts[0] };

static void write_bytes(struct input *in, bool invert)
{
	const struct part *part = &parts[eat(in, 1) % PARTS];
	uint64_t at = eat(in, 3) % part->size, n = 1 + eat(in, 1) % 16;
	unsigned char *byte = (unsigned char *)own.header + part->at;

	counting_damaged |= part->counts;
	for (; n && at < part->size; n--, at++)
		byte[at] = invert ? byte[at] ^ 0xff : (unsigned char)eat(in, 1);
	life_damaged = true;
}

static void hold(struct input *in)
{
	uint32_t record = (uint32_t)eat(in, 3), generation = 0;
	uint8_t handle[64];
	int err;

	/* small numbers are existing records */
	if (record < 0x800000)
		record %= RECORDS;
	else
		generation = (uint32_t)eat(in, 3);
	if (!seen_open || slot < 0 || (record < RECORDS && held[record]))
		return;
	handle_of(record, handle);
	acting = C;
	err = cl_record_hold(&seen, (unsigned int)slot, record, generation, handle);
	PROMISE(err == 0 || err == -ESTALE || err == -EAGAIN || err == -EBADMSG || err == -ENOSPC);
	PROMISE(err || record < CL_RECORDS);
	if (!err && record < RECORDS) {
		held[record] = true;
		/* a released record's generation may be damaged back to life: then it holds nothing of P's */
		if (released[record])
			held[record] = !life_damaged;
	}
}

static void unhold(struct input *in)
{
	uint32_t record = (uint32_t)eat(in, 1) % RECORDS;

	if (!seen_open || slot < 0 || !held[record])
		return;
	acting = C;
	held[record] = false;
	cl_record_unhold(&seen, (unsigned int)slot, record);
}

static void look(struct input *in)
{
	uint32_t record = (uint32_t)eat(in, 1) % RECORDS;
	struct cl_region *r = seen_open && eat(in, 1) % 2 ? &seen : &own;
	uint16_t slots[8];
	unsigned int n = cl_record_holders(r, record, slots, 8);

	PROMISE(n <= CL_SLOTS);
	for (unsigned int i = 0; i < n && i < 8; i++)
		PROMISE(slots[i] < CL_SLOTS);
	cl_record_held(r, record);
	PROMISE(counting_damaged || n || !held[record]);
}

static void release(struct input *in)
{
	uint32_t record = (uint32_t)eat(in, 1) % RECORDS;

	acting = P;
	if (record >= exported || released[record])
		return;
	if (eat(in, 1) % 2)
		cl_record_to_limbo(&own, record, 2000);
	if (eat(in, 1) % 8 == 0 ? cl_record_orphan(&own, record) : cl_record_try_release(&own, record)) {
		PROMISE(counting_damaged || !held[record]);
		released[record] = true;
	}
}

static void take_ready(struct input *in)
{
	uint32_t out[256];
	unsigned int max = 64 + (unsigned int)eat(in, 1) % 193, n;

	acting = P;
	for (int i = 0; i < 4; i++) {
		n = cl_record_take_ready(&own, out, max);
		PROMISE(n <= max);
		for (unsigned int k = 0; k < n; k++)
			PROMISE(out[k] < CL_RECORDS);
	}
	cl_record_any_ready(&own);
}

static void told(void *data, unsigned int which, uint32_t record)
{
	(void)data;
	PROMISE(which < CL_SLOTS && record < CL_RECORDS);
	PROMISE((int)which != slot);
}

static void reap(struct input *in)
{
	struct cl_region *r = seen_open && eat(in, 1) % 2 ? &seen : &own;
	struct cl_reaped sum;

	acting = OTHER;
	for (uint64_t now = 10 * SETTLE; now < 13 * SETTLE; now += SETTLE) {
		sum = cl_holder_reap(r, watch, now, SETTLE, told, NULL);
		PROMISE(sum.slots + sum.settling + sum.alive <= CL_SLOTS);
	}
	for (unsigned int i = 0; i <= CL_SLOTS; i++)
		PROMISE(owner[i] != OTHER);
}

static void claim(struct input *in)
{
	struct cl_identity other = self;
	int got;

	if (!seen_open)
		return;
	/* another process; with C's own identity it would be C before an exec */
	other.pid ^= 1;
	acting = OTHER;
	got = cl_holder_claim(&seen, &other, 20 * SETTLE, SETTLE);
	PROMISE(got == -EUSERS || (got >= 0 && got < (int)CL_SLOTS && got != slot));
	if (got < 0)
		return;
	if (eat(in, 1) % 2) {
		uint32_t record = (uint32_t)eat(in, 1) % RECORDS;
		uint8_t handle[64];

		handle_of(record, handle);
		cl_record_hold(&seen, (unsigned int)got, record, 0, handle);
		owner[1 + got] = NOBODY; /* and dies */
		return;
	}
	cl_record_clear_slot(&seen, (unsigned int)got, NULL, NULL);
	cl_holder_release(&seen, (unsigned int)got);
}

static void grow(struct input *in)
{
	int err;

	acting = P;
	/* each growth takes 64 KiB */
	err = eat(in, 1) % 2 ? cl_region_grow(&own) :
			       cl_region_need_word(&own, (unsigned int)eat(in, 1) % CL_WORDS, 0);
	PROMISE(err == 0 || err == -ENOSPC || err == -ENFILE);
}

static void collect_files(void)
{
	acting = OTHER;
	/* P has the lock, so its exporter lives, whatever the file says */
	PROMISE(cl_gc_file(&own, folder_fd) == -EBUSY);
}

static void pin(struct input *in)
{
	uint32_t record = (uint32_t)eat(in, 1) % RECORDS;
	uint8_t handle[64];

	if (!seen_open)
		return;
	handle_of(record, handle);
	acting = C;
	cl_record_pin(&seen, record, 0, handle);
}

/* ------------------------------------------------------------ what people are told */
static const struct cl_region *has_open(uint32_t file_id, bool *is_own)
{
	*is_own = file_id == own.file_id;
	return *is_own ? &own : NULL;
}

static bool is_text(const char *text, size_t size)
{
	const char *end = memchr(text, 0, size);

	for (; end && *text; text++)
		if ((unsigned char)*text < ' ' || *text == 0x7f)
			return false;
	return end != NULL;
}

static void view_stack(const struct cl_view *view, uint32_t stack)
{
	struct cl_view_frame frame;
	struct cl_view_python python;
	unsigned int depth = cl_view_stack_depth(view, stack);

	PROMISE(depth <= CL_STACK_FRAMES && (stack || !depth));
	for (unsigned int i = 0; i < depth; i++) {
		PROMISE(cl_view_stack_frame(view, stack, i, &frame));
		PROMISE(is_text(frame.path, sizeof frame.path) &&
			frame.build_id_length <= sizeof frame.build_id);
	}
	PROMISE(!cl_view_stack_frame(view, stack, depth, &frame));
	depth = cl_view_python_depth(view, stack, NULL);
	PROMISE(depth <= CL_PYTHON_FRAMES);
	for (unsigned int i = 0; i < depth; i++) {
		PROMISE(cl_view_python_frame(view, stack, i, &python));
		PROMISE(is_text(python.function, sizeof python.function) && is_text(python.file, sizeof python.file));
	}
	PROMISE(!cl_view_python_frame(view, stack, depth, &python));
}

static void view_all(struct input *in)
{
	struct cl_view view;
	struct cl_view_process process;
	struct cl_view_block block;
	struct cl_view_holder holder;
	uint16_t held_by[1];
	struct cl_view_import import;
	struct cl_finding finding;
	uint32_t some = (uint32_t)eat(in, 2), n;
	struct stat before, after;

	acting = OTHER;
	PROMISE(fstat(own.fd, &before) == 0);
	PROMISE(cl_view_open(&view, folder_fd, own.file_id, has_open, NULL) == 0 && view.borrowed);
	cl_view_process(&view, &process);
	PROMISE(is_text(process.command, sizeof process.command));
	n = cl_view_records(&view);
	PROMISE(n <= CL_RECORDS);
	for (uint32_t record = 0; record < RECORDS + 2; record++)
		if (cl_view_block(&view, record == RECORDS ? some : record, &block)) {
			PROMISE(record < n && block.class < CL_VIEW_CLASSES && block.holders <= CL_SLOTS);
			view_stack(&view, block.export_stack);
			view_stack(&view, block.free_stack);
		}
	if (cl_view_holder_slots(&view, some % RECORDS, held_by, 1))
		PROMISE(cl_view_slot(&view, held_by[0], &holder) && holder.slot < CL_SLOTS &&
			is_text(holder.name, sizeof holder.name));
	PROMISE(cl_view_imports(&view) <= CL_IMPORTS && cl_view_findings(&view) <= CL_FINDINGS);
	for (uint32_t i = 0; i < CL_PAGE / sizeof(struct cl_import_entry); i++)
		if (cl_view_import(&view, i, &import)) {
			PROMISE(i < cl_view_imports(&view) && import.opens);
			view_stack(&view, import.stack);
		}
	/* a count may be a million holes */
	if (cl_view_imports(&view) < 1u << 14)
		cl_view_import_of(&view, some, 0, 0, &import);
	for (uint32_t i = 0; i < CL_PAGE / sizeof finding; i++)
		if (cl_view_finding(&view, i, &finding)) {
			PROMISE(i < cl_view_findings(&view) && finding.kind &&
				finding.kind < CL_FINDING_KINDS && is_text(finding.name, sizeof finding.name));
			view_stack(&view, finding.stack);
		}
	cl_view_import(&view, some * 64, &import);
	view_stack(&view, some);
	cl_view_close(&view);
	/* a look changes nothing */
	PROMISE(fstat(own.fd, &after) == 0 && before.st_blocks == after.st_blocks);
}

static void step(struct input *in)
{
	switch (eat(in, 1) % 17) {
	case 0:
	case 1:
		write_bytes(in, false);
		break;
	case 2:
		write_bytes(in, true);
		break;
	case 3:
		close_seen();
		open_seen();
		break;
	case 4:
	case 5:
		hold(in);
		break;
	case 6:
		unhold(in);
		break;
	case 7:
		look(in);
		break;
	case 8:
		release(in);
		break;
	case 9:
		take_ready(in);
		break;
	case 10:
		reap(in);
		break;
	case 11:
		claim(in);
		break;
	case 12:
		grow(in);
		break;
	case 13:
		collect_files();
		break;
	case 14:
		pin(in);
		break;
	case 16:
		view_all(in);
		break;
	default:
		publish();
		break;
	}
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	char *none[] = { NULL };

	(void)argc, (void)argv;
	cl_options_read(&cl_options, none, NULL);
	cl_options.settle.number = SETTLE;
	cl_identity_self(&self);
	folder_fd = open(fuzz_folder(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	PROMISE(folder_fd >= 0);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };

	if (folder_fd < 0)
		LLVMFuzzerInitialize(NULL, NULL);
	memset(owner, 0, sizeof owner);
	memset(watch, 0, sizeof watch);
	memset(held, 0, sizeof held);
	memset(released, 0, sizeof released);
	exported = 0;
	counting_damaged = life_damaged = false;
	acting = P;
	PROMISE(cl_region_create(&own, folder_fd, &self) == 0);
	own.locks = &fake_locks;
	owner[CL_LOCK_EXPORTER] = P;
	while (exported < RECORDS / 2)
		publish();
	open_seen();
	PROMISE(seen_open);
	slot = cl_holder_claim(&seen, &self, SETTLE, SETTLE);
	PROMISE(slot == 0 && owner[1] == C);
	for (int i = 0; i < STEPS && in.left; i++)
		step(&in);
	close_seen();
	acting = P;
	PROMISE(cl_region_unlink(&own, folder_fd) == 0);
	cl_region_close(&own);
	return 0;
}
