/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader of exporter files: it reports what a file has, and no contents of a file can make it fail.
 *
 * Promise 5.  The test writes the files by hand; the code that writes real ones is tested with its
 * writers.
 */
#include "tests/unit/child.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "shim/base/options.h"
#include "shim/report/place.h"
#include "shim/shm/slot.h"
#include "shim/shm/view.h"

static char folder[64];
static int folder_fd;
static struct cl_identity me;

/* ----------------------------------------------------------------- helpers */
static struct cl_region make_region(void)
{
	struct cl_region r;

	assert_int_equal(cl_region_create(&r, folder_fd, &me), 0);
	return r;
}

static void drop_region(struct cl_region *r)
{
	cl_region_unlink(r, folder_fd);
	cl_region_close(r);
}

static uint32_t publish(struct cl_region *r, uint32_t record, uint64_t now)
{
	uint8_t handle[64] = { 0 };
	struct cl_export what = { .kind = CL_MEMORY, .base = 0x7f0000000000u + record * 4096u,
				  .size = 1024, .device = 3, .handle = handle, .now = now };

	memset(handle, (int)record + 1, 56);
	return cl_record_publish(r, record, &what);
}

static void put(struct cl_region *r, uint64_t at, const void *what, size_t n)
{
	assert_int_equal(pwrite(r->fd, what, n, (off_t)at), n);
}

static long long blocks_of(const struct cl_region *r)
{
	struct stat st;

	assert_int_equal(fstat(r->fd, &st), 0);
	return st.st_blocks;
}

/* The reader's view of @r.  It uses the descriptor of @r, because closing a second one would drop the locks. */
static struct cl_view view_of(struct cl_region *r)
{
	return (struct cl_view){ .region = *r, .state = CL_ALIVE, .borrowed = true, .now = cl_now() };
}

/* As cl_view_holder_slots(), and says who has each of these slots. */
static unsigned int holders_of(const struct cl_view *view, uint32_t record, struct cl_view_holder *to, unsigned int max)
{
	uint16_t slot[4];
	unsigned int n = cl_view_holder_slots(view, record, slot, max);

	for (unsigned int i = 0; i < n && i < max; i++)
		CHECK(cl_view_slot(view, slot[i], &to[i]));
	return n;
}

/* Reads everything that there is to read. */
static void ask_all(const struct cl_view *view)
{
	struct cl_view_process process;
	struct cl_view_block block;
	struct cl_view_holder holders[4];
	struct cl_view_import import;
	struct cl_finding finding;
	struct cl_view_frame frame;
	struct cl_view_python python;
	static const uint32_t odd[] = { 0, 1, 2, 511, 512, 1023, CL_RECORDS - 1, CL_RECORDS,
					CL_STACK_WORDS - 1, CL_STACK_WORDS, UINT32_MAX };

	cl_view_process(view, &process);
	CHECK(memchr(process.command, 0, sizeof process.command) != NULL);
	CHECK(cl_view_records(view) <= CL_RECORDS);
	CHECK(cl_view_imports(view) <= CL_IMPORTS);
	CHECK(cl_view_findings(view) <= CL_FINDINGS);
	for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
		unsigned int depth = cl_view_stack_depth(view, odd[i]);

		CHECK(depth <= CL_STACK_FRAMES);
		for (unsigned int f = 0; f < depth; f++)
			CHECK(cl_view_stack_frame(view, odd[i], f, &frame) &&
			      memchr(frame.path, 0, sizeof frame.path) && frame.build_id_length <= 20);
		CHECK(!cl_view_stack_frame(view, odd[i], depth, &frame));
		depth = cl_view_python_depth(view, odd[i], NULL);
		CHECK(depth <= CL_PYTHON_FRAMES);
		for (unsigned int f = 0; f < depth; f++)
			CHECK(cl_view_python_frame(view, odd[i], f, &python) &&
			      memchr(python.function, 0, sizeof python.function) &&
			      memchr(python.file, 0, sizeof python.file));
		if (cl_view_block(view, odd[i], &block))
			CHECK(block.class < CL_VIEW_CLASSES && block.holders <= CL_SLOTS);
		holders_of(view, odd[i], holders, 4);
		cl_view_import(view, odd[i], &import);
		if (cl_view_finding(view, odd[i], &finding))
			CHECK(memchr(finding.name, 0, sizeof finding.name) != NULL);
		cl_view_finding_count(view, (enum cl_finding_kind)odd[i]);
	}
	cl_view_import_of(view, 1, 1, 1, &import);
}

/* ------------------------------------------------------------------- blocks */
static void a_block_is_told_with_its_class(void **state)
{
	struct cl_region r = make_region();
	struct cl_view view;
	struct cl_view_block b;
	/* the clock starts with the machine, which may have been started just now */
	uint64_t now = cl_now(), old = 1;
	uint8_t handle[64] = { 0 };

	r.header->grace = now / 2;
	for (uint32_t record = 0; record < 8; record++)
		publish(&r, record, record == 1 ? now : old);
	cl_record_export_again(&r, 0, old + 5);
	r.record[0].export_stack = 7;
	for (uint32_t record = 1; record < 5; record++)
		cl_record_to_limbo(&r, record, now - 1);
	for (uint32_t record = 3; record < 8; record++) {
		memset(handle, (int)record + 1, 56);
		if (record == 3 || record == 5 || record == 6)
			assert_int_equal(cl_record_hold(&r, 65, record, 0, handle), 0);
		if (record == 4)
			assert_int_equal(cl_record_pin(&r, record, 0, handle), 0);
	}
	assert_false(cl_record_orphan(&r, 6));
	assert_true(cl_record_orphan(&r, 7));
	view = view_of(&r);
	assert_int_equal(cl_view_records(&view), CL_CHUNK);

	assert_true(cl_view_block(&view, 0, &b));
	assert_int_equal(b.class, CL_VIEW_LIVE);
	assert_int_equal(b.base, 0x7f0000000000u);
	assert_int_equal(b.size, 1024);
	assert_int_equal(b.device, 3);
	assert_int_equal(b.exports, 2);
	assert_int_equal(b.exported, old + 5);
	assert_int_equal(b.freed, 0);
	assert_int_equal(b.export_stack, 7);
	assert_int_equal(b.kind, CL_MEMORY);
	assert_true(cl_view_block(&view, 1, &b));
	assert_int_equal(b.class, CL_VIEW_GRACE);
	assert_int_equal(b.freed, now - 1);
	r.header->grace = 0; /* its exporter's counts, not the reader's */
	assert_true(cl_view_block(&view, 1, &b));
	assert_int_equal(b.class, CL_VIEW_LIMBO);
	assert_true(cl_view_block(&view, 2, &b));
	assert_int_equal(b.class, CL_VIEW_LIMBO);
	assert_true(cl_view_block(&view, 3, &b));
	assert_int_equal(b.class, CL_VIEW_HELD_LIMBO);
	assert_int_equal(b.holders, 1);
	assert_true(cl_view_block(&view, 4, &b));
	assert_int_equal(b.class, CL_VIEW_HELD_LIMBO);
	assert_int_equal(b.holders, 0);
	assert_true(b.pinned);
	assert_true(cl_view_block(&view, 5, &b));
	assert_int_equal(b.class, CL_VIEW_HELD);
	assert_true(cl_view_block(&view, 6, &b));
	assert_int_equal(b.class, CL_VIEW_ORPHANED);
	assert_false(cl_view_block(&view, 7, &b)); /* the next generation, free */
	assert_false(cl_view_block(&view, CL_CHUNK, &b));
	drop_region(&r);
}

/* As /proc tells of another process: under qemu-user a process reads another one of itself. */
static uint64_t start_time_of(pid_t pid)
{
	char path[32], line[512];
	unsigned long long start;
	const char *after;
	FILE *file;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	assert_non_null(file);
	assert_non_null(fgets(line, sizeof line, file));
	fclose(file);
	after = strrchr(line, ')');
	assert_non_null(after);
	for (int field = 2; field < 22; field++) {
		after = strchr(after + 1, ' ');
		assert_non_null(after);
	}
	assert_int_equal(sscanf(after, " %llu", &start), 1);
	return start;
}

static void a_holder_is_named_and_told_dead_or_alive(void **state)
{
	struct cl_region r = make_region();
	struct cl_view view = view_of(&r);
	struct cl_view_holder h[2];
	int ready[2], go[2];
	char byte;
	pid_t child;

	publish(&r, 0, 1);
	assert_int_equal(pipe(ready) | pipe(go), 0);
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		struct cl_region seen;
		struct cl_identity self;
		uint8_t handle[64] = { 0 };

		child_begins();
		close(go[1]);
		cl_identity_self(&self);
		memset(handle, 1, 56);
		CHECK_EQUAL(cl_region_open(&seen, folder_fd, r.file_id, NULL), 0);
		CHECK_EQUAL(cl_holder_claim(&seen, &self, cl_now(), 1), 0);
		memcpy(seen.slot[0].name, "na\033me", 6);
		CHECK_EQUAL(cl_record_hold(&seen, 0, 0, 0, handle), 0);
		CHECK_EQUAL(write(ready[1], "", 1), 1);
		CHECK_EQUAL(read(go[0], &byte, 1), 0);
		_exit(0);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	assert_int_equal(holders_of(&view, 0, h, 2), 1);
	assert_int_equal(h[0].slot, 0);
	assert_int_equal(h[0].who.pid, child);
	assert_string_equal(h[0].name, "na?me");
	assert_true(h[0].alive);
	assert_true(h[0].since > 0);
	assert_int_equal(holders_of(&view, 0, NULL, 0), 1);
	/* its next program says so, and maps the file as well */
	assert_false(h[0].called_exec);
	r.slot[0].who.start_time = start_time_of(child);
	atomic_fetch_add(&r.slot[0].claim, CL_SLOT_LEFT - CL_SLOT_CLAIMED);
	assert_int_equal(holders_of(&view, 0, h, 2), 1);
	assert_false(h[0].alive);
	assert_true(h[0].called_exec);
	close(go[1]);
	child_judge(child);
	assert_int_equal(holders_of(&view, 0, h, 2), 1);
	assert_false(h[0].alive);
	assert_false(h[0].called_exec);
	assert_int_equal(holders_of(&view, CL_CHUNK, h, 2), 0);
	close(go[0]), close(ready[0]), close(ready[1]);
	drop_region(&r);
}

/* -------------------------------------------------------------------- report data */
static void imports_findings_and_stacks_are_read_back(void **state)
{
	struct cl_region r = make_region();
	struct cl_view view = view_of(&r);
	struct cl_import_entry entry = { .opens = 2, .key = 0x7f0012340000u, .size = 2048, .since = 5,
				       .file_id = 9, .record = 8, .generation = 7, .stack = 1,
				       .exporter_pid = 77, .kind = CL_MEMORY, .device = 1 };
	struct cl_finding finding = { .kind = CL_FINDING_FREED_TWICE, .when = 11, .key = 12, .stack = 1,
				      .other_stack = 1, .name = "a\nname that is", .block_kind = 9 };
	struct cl_module modules[2] = {
		{ .start = 0x1000, .end = 0x2000, .bias = 0x800, .path = "/bin/\033x" },
		{ .start = 0x4000, .end = 0x5000, .bias = 0x4000, .build_id_length = 3,
		  .build_id = { 1, 2, 3 } },
	};
	uint64_t words[] = { 0, 3, 0x1100, 0x5000, 0x9000 };
	struct cl_view_import import;
	struct cl_view_frame frame;
	struct cl_finding found;

	memset(modules[1].path, 'p', sizeof modules[1].path); /* without an end */
	put(&r, CL_AT_IMPORTS + 100 * sizeof entry, &entry, sizeof entry);
	put(&r, CL_AT_FINDINGS + sizeof finding, &finding, sizeof finding);
	put(&r, CL_AT_MODULES, modules, sizeof modules);
	put(&r, CL_AT_STACKS, words, sizeof words);

	/* nothing is counted yet */
	assert_int_equal(cl_view_imports(&view) + cl_view_findings(&view), 0);
	assert_false(cl_view_import(&view, 100, &import));
	assert_false(cl_view_finding(&view, 1, &found));
	assert_int_equal(cl_view_stack_depth(&view, 1), 0);
	atomic_store(&r.header->imports, 101);
	atomic_store(&r.header->findings, 2);
	atomic_store(&r.header->modules, 2);
	atomic_store(&r.header->stack_words, 5);
	atomic_store(&r.header->finding_counts[CL_FINDING_FREED_TWICE], 600);

	assert_int_equal(cl_view_imports(&view), 101);
	assert_false(cl_view_import(&view, 99, &import)); /* not in use */
	assert_true(cl_view_import(&view, 100, &import));
	assert_int_equal(import.index, 100);
	assert_int_equal(import.opens, 2);
	assert_int_equal(import.key, entry.key);
	assert_int_equal(import.size, 2048);
	assert_int_equal(import.since, 5);
	assert_int_equal(import.exporter_pid, 77);
	assert_int_equal(import.device, 1);
	memset(&import, 0, sizeof import);
	assert_true(cl_view_import_of(&view, 9, 8, 7, &import));
	assert_int_equal(import.index, 100);
	assert_int_equal(import.generation, 7);
	assert_false(cl_view_import_of(&view, 9, 7, 7, &import));
	assert_false(cl_view_import_of(&view, 8, 8, 7, &import));
	/* of another block, which had that record before */
	assert_false(cl_view_import_of(&view, 9, 8, 8, &import));

	assert_false(cl_view_finding(&view, 0, &found)); /* being written */
	assert_true(cl_view_finding(&view, 1, &found));
	assert_int_equal(found.key, 12);
	assert_string_equal(found.name, "a?name that is");
	assert_int_equal(found.block_kind, CL_MEMORY);
	assert_int_equal(cl_view_finding_count(&view, CL_FINDING_FREED_TWICE), 600);

	assert_int_equal(cl_view_stack_depth(&view, 1), 3);
	assert_int_equal(cl_view_stack_depth(&view, 0), 0);
	assert_true(cl_view_stack_frame(&view, 1, 0, &frame));
	assert_int_equal(frame.address, 0x1100);
	assert_int_equal(frame.offset, 0x900);
	assert_string_equal(frame.path, "/bin/?x");
	assert_int_equal(frame.build_id_length, 0);
	/* the last call of a module returns to an address behind the module */
	assert_true(cl_view_stack_frame(&view, 1, 1, &frame));
	assert_int_equal(frame.offset, 0x1000);
	assert_int_equal(strlen(frame.path), sizeof modules[1].path);
	assert_int_equal(frame.build_id_length, 3);
	assert_int_equal(frame.build_id[2], 3);
	assert_true(cl_view_stack_frame(&view, 1, 2, &frame));
	assert_int_equal(frame.offset, 0);
	assert_string_equal(frame.path, "");
	assert_false(cl_view_stack_frame(&view, 1, 3, &frame));
	/* it would reach beyond what is there */
	atomic_store(&r.header->stack_words, 4);
	assert_int_equal(cl_view_stack_depth(&view, 1), 0);
	drop_region(&r);
}

static void python_frames_are_read_back(void **state)
{
	struct cl_region r = make_region();
	struct cl_view view = view_of(&r);
	/* word 1: a stack with a frame of C, two of Python and an unread one; word 5: the text of the first */
	const uint64_t text = 2 << CL_TEXT_WORDS_SHIFT | 3ull << CL_TEXT_FUNCTION_SHIFT | 6ull << CL_TEXT_FILE_SHIFT;
	uint64_t words[] = { 0, 1 | 2 << CL_PYTHON_SHIFT | CL_PYTHON_UNREAD, 0x1100, 5 | 12ull << 32, 77, text, 0, 0 };
	static const uint64_t lies[] = {
		text | 1, text | 256ull << CL_TEXT_FUNCTION_SHIFT, text | 0xffffull << CL_TEXT_FILE_SHIFT,
		text + (16ull << CL_TEXT_FILE_SHIFT), UINT64_MAX,
	};
	struct cl_view_python frame;
	bool unread = false;

	(void)state;
	memcpy(&words[6], "f\ng/b\x1b.py", 9);
	put(&r, CL_AT_STACKS, words, sizeof words);
	atomic_store(&r.header->stack_words, 8);
	assert_int_equal(cl_view_stack_depth(&view, 1), 1);
	assert_int_equal(cl_view_python_depth(&view, 1, &unread), 2);
	assert_true(unread);
	assert_true(cl_view_python_frame(&view, 1, 0, &frame));
	assert_string_equal(frame.function, "f?g");
	assert_string_equal(frame.file, "/b?.py");
	assert_int_equal(frame.line, 12);
	/* its text is not there */
	assert_true(cl_view_python_frame(&view, 1, 1, &frame));
	assert_string_equal(frame.function, "");
	assert_false(cl_view_python_frame(&view, 1, 2, &frame));
	/* a text is no stack */
	assert_int_equal(cl_view_stack_depth(&view, 5) + cl_view_python_depth(&view, 5, NULL), 0);
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
		put(&r, CL_AT_STACKS + 5 * 8, &lies[i], 8);
		assert_true(cl_view_python_frame(&view, 1, 0, &frame));
		assert_string_equal(frame.function, "");
		assert_string_equal(frame.file, "");
	}
	/* it would reach beyond what is there */
	atomic_store(&r.header->stack_words, 4);
	assert_int_equal(cl_view_stack_depth(&view, 1) + cl_view_python_depth(&view, 1, NULL), 0);
	drop_region(&r);
}

/* Stacks of the same Python frames are of one place, whatever way the interpreter took. */
static void a_place_does_not_depend_on_the_interpreter(void **state)
{
	enum { FRAMES = 4, WORDS = 1 + FRAMES + 1, N = 7, TEXT = 1 + N * WORDS };
	enum { EXTENSION = 0x1100, PYTHON = 0x2100, PYTHON_2 = 0x2200, LIBC = 0x3100, JIT = 0x9000 };
	static const struct {
		uint64_t frame[FRAMES], line, more;
		bool python;
	} of[N] = {
		{ { EXTENSION, PYTHON, PYTHON_2, LIBC }, 12, 0, true },
		{ { EXTENSION, PYTHON_2, LIBC, LIBC + 4 }, 12, 0, true },
		{ { EXTENSION, PYTHON, PYTHON_2, LIBC }, 13, 0, true },		       /* another line */
		{ { EXTENSION + 4, PYTHON, PYTHON_2, LIBC }, 12, 0, true },	       /* other code of C */
		{ { JIT, PYTHON, PYTHON_2, LIBC }, 12, 0, true },
		{ { EXTENSION, PYTHON, PYTHON_2, LIBC }, 12, CL_PYTHON_UNREAD, true }, /* more, which is not known */
		{ { EXTENSION, PYTHON, PYTHON_2, LIBC }, 0, 0, false },
	};
	struct cl_module modules[] = {
		{ .start = 0x1000, .end = 0x2000, .path = "/usr/lib/python3/extension.so" },
		{ .start = 0x2000, .end = 0x3000, .path = "/usr/lib/libpython3.13.so.1.0" },
		{ .start = 0x3000, .end = 0x4000, .path = "/lib/libc.so.6" },
	};
	uint64_t words[TEXT + 3] = { 0 };
	struct cl_region r = make_region();
	struct cl_view view = view_of(&r);

	for (unsigned int i = 0; i < N; i++) {
		uint64_t *at = words + 1 + i * WORDS;

		at[0] = FRAMES | of[i].more | (of[i].python ? 1 << CL_PYTHON_SHIFT : 0);
		memcpy(at + 1, of[i].frame, sizeof of[i].frame);
		at[1 + FRAMES] = of[i].python ? TEXT | of[i].line << 32 : 0;
	}
	words[TEXT] = 2 << CL_TEXT_WORDS_SHIFT | 4ull << CL_TEXT_FUNCTION_SHIFT | 5ull << CL_TEXT_FILE_SHIFT;
	memcpy(&words[TEXT + 1], "loada.pyx", 9);
	put(&r, CL_AT_MODULES, modules, sizeof modules);
	put(&r, CL_AT_STACKS, words, sizeof words);
	atomic_store(&r.header->modules, 3);
	atomic_store(&r.header->stack_words, TEXT + 3);
	for (unsigned int i = 0; i < N; i++)
		for (unsigned int j = 0; j < N; j++)
			assert_true((cl_report_place_of(&view, 1 + i * WORDS) == cl_report_place_of(&view, 1 + j * WORDS)) ==
				    (i == j || i + j == 1));
	assert_int_equal(cl_report_place_of(&view, 0), 0);
	/* what is remembered is of one view */
	assert_true(cl_report_place(&view, 1) == cl_report_place_of(&view, 1));
	words[1 + WORDS - 1] += 1ull << 32;
	put(&r, CL_AT_STACKS, words, sizeof words);
	assert_false(cl_report_place(&view, 1) == cl_report_place_of(&view, 1));
	cl_report_place_forget();
	assert_true(cl_report_place(&view, 1) == cl_report_place_of(&view, 1));
	drop_region(&r);
}

/* --------------------------------------------------------------- trusting nothing */
static void lies_in_a_file_lead_nowhere_and_take_no_memory(void)
{
	static const uint32_t lies[] = { 1, 600, CL_RECORDS, UINT32_MAX };
	struct cl_region r = make_region();
	struct cl_view view = view_of(&r);
	long long before = blocks_of(&r);

	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
		atomic_store(&r.header->record_chunks, lies[i]);
		atomic_store(&r.header->slots_used, lies[i]);
		atomic_store(&r.header->modules, lies[i]);
		atomic_store(&r.header->stack_words, lies[i]);
		atomic_store(&r.header->imports, lies[i]);
		atomic_store(&r.header->findings, lies[i]);
		ask_all(&view);
	}
	/* a question about a missing block has created nothing */
	CHECK_EQUAL(blocks_of(&r), before);
	/* everything that grows, and the fixed part behind the magic, full of ones */
	memset(r.word_pages, 0xff, CL_PAGE);
	memset(r.slot, 0xff, CL_SLOTS * sizeof *r.slot);
	memset(r.record, 0xff, CL_CHUNK * sizeof *r.record);
	memset(r.header->command, 0xff, sizeof r.header->command);
	for (uint64_t at = CL_AT_MODULES; at < CL_FILE_SIZE; at += 997 * 4096) {
		static char ones[4096];

		memset(ones, 0xff, sizeof ones);
		CHECK(pwrite(r.fd, ones, sizeof ones, (off_t)at) > 0);
	}
	ask_all(&view);
	/* cut short behind its fixed part */
	CHECK_EQUAL(ftruncate(r.fd, CL_AT_FIXED_END), 0);
	ask_all(&view);
	drop_region(&r);
}
static void lies_lead_nowhere(void **state)
{
	in_a_child(lies_in_a_file_lead_nowhere_and_take_no_memory);
}

/* ------------------------------------------------------------------ whose it is */
static void what_is_open_already_is_not_opened_again(void **state)
{
	struct cl_region other = make_region();
	struct cl_view view;
	struct cl_view_process process;
	struct cl_identity stranger = me;
	pid_t child;
	const char *why = "unset";

	child = fork();
	assert_true(child >= 0);
	if (!child) {
		struct cl_view seen;

		child_begins();
		CHECK_EQUAL(cl_view_open(&seen, folder_fd, other.file_id, NULL, NULL), 0);
		CHECK_EQUAL(seen.state, CL_ALIVE);
		CHECK(!seen.own && !seen.borrowed);
		cl_view_process(&seen, &process);
		CHECK_EQUAL(process.who.pid, getppid());
		CHECK_EQUAL(process.file_id, other.file_id);
		CHECK_EQUAL(process.uid, geteuid());
		CHECK(process.shared_bytes >= CL_AT_FIXED_END && process.shared_bytes < 1u << 20);
		CHECK(strstr(process.command, "test_view"));
		cl_view_close(&seen);
		CHECK(!seen.region.header);
		/* found by its process, among other files */
		CHECK_EQUAL(cl_view_open_process(&seen, folder_fd, &me, NULL), 0);
		CHECK_EQUAL(seen.region.file_id, other.file_id);
		cl_view_close(&seen);
		stranger.start_time++;
		CHECK_EQUAL(cl_view_open_process(&seen, folder_fd, &stranger, NULL), -ENOENT);
		CHECK(!seen.region.header);
		cl_view_close(&seen);
		_exit(0);
	}
	child_judge(child);
	assert_int_equal(cl_view_open(&view, folder_fd, other.file_id ^ 1, NULL, &why), -ENOENT);
	assert_non_null(why);
	drop_region(&other);
}

/* Reading changes nothing in the file. */
static void a_look_at_the_dead_writes_nothing(void **state)
{
	struct cl_view view;
	static uint8_t before[CL_PAGE];
	uint32_t id;
	int at[2];
	pid_t child;

	assert_int_equal(pipe(at), 0);
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		struct cl_identity self;
		struct cl_region r;

		child_begins();
		cl_identity_self(&self);
		CHECK_EQUAL(cl_region_create(&r, folder_fd, &self), 0);
		publish(&r, 3, 1);
		CHECK_EQUAL(write(at[1], &r.file_id, sizeof r.file_id), sizeof r.file_id);
		_exit(0);
	}
	assert_int_equal(read(at[0], &id, sizeof id), sizeof id);
	child_judge(child);
	assert_int_equal(cl_view_open(&view, folder_fd, id, NULL, NULL), 0);
	memcpy(before, view.region.header, sizeof before);
	cl_view_close(&view);
	assert_int_equal(cl_view_open(&view, folder_fd, id, NULL, NULL), 0);
	assert_int_equal(view.state, CL_DEAD);
	ask_all(&view);
	assert_memory_equal(before, view.region.header, sizeof before);
	drop_region(&view.region);
	close(at[0]), close(at[1]);
}

static int set_up(void **state)
{
	char *none[] = { NULL };

	cl_options_read(&cl_options, none, NULL);
	cl_identity_self(&me);
	if (make_folder_at(folder))
		return -1;
	folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return folder_fd < 0 ? -1 : 0;
}

static int tear_down(void **state)
{
	close(folder_fd);
	return remove_folder_at(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_is_told_with_its_class),
		cmocka_unit_test(a_holder_is_named_and_told_dead_or_alive),
		cmocka_unit_test(imports_findings_and_stacks_are_read_back),
		cmocka_unit_test(python_frames_are_read_back),
		cmocka_unit_test(a_place_does_not_depend_on_the_interpreter),
		cmocka_unit_test(lies_lead_nowhere),
		cmocka_unit_test(what_is_open_already_is_not_opened_again),
		cmocka_unit_test(a_look_at_the_dead_writes_nothing),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
