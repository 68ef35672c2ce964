/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inverts every byte of a living exporter's file in turn, while the file is in use.
 *
 * Whichever byte is damaged, this must hold.  No process that reads the file crashes, hangs
 * or reads outside the mapping.  The file of a living exporter is not removed.  A living
 * importer is not reaped, and a block that it holds is not released.  The report data
 * are damaged, too; that can only make a report wrong.  One exception is allowed: bytes that
 * say who holds a block may release it.  The test finds these bytes and compares them with
 * what doc/security.md says.
 *
 * Processes and locks are real.  P makes the file and keeps its lock.  C holds records of
 * it.  The judge is a third process and opens the file as an importer does.  It also does
 * P's part, on the same shared memory.
 *
 * FLIPS=all also inverts unused bytes one by one, which takes minutes.  Without it, each
 * unused cache line is inverted at once, which takes seconds.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim/shm/gc.h"
#include "shim/base/options.h"
#include "shim/shm/slot.h"
#include "shim/shm/view.h"

enum { RECORDS = 16, HELD = 8, HANG_SECONDS = 20, SHOWN = 12 };
#define SETTLE 50000000ull

static char folder[64];
static int folder_fd, tests, failures;

static void ok(bool holds, const char *what)
{
	failures += !holds;
	printf("%sok %d - %s\n", holds ? "" : "not ", ++tests, what);
}

static void must(bool holds, const char *what)
{
	if (holds)
		return;
	printf("Bail out! %s: %s\n", what, strerror(errno));
	exit(1);
}

/* --------------------------------------------------------------- P, and C */
static void handle_of(uint32_t record, uint8_t handle[64])
{
	memset(handle, 0, 64); /* a record leaves out the last 8 bytes */
	memset(handle, (int)record + 1, 56);
}

__attribute__((noreturn)) static void rest(void)
{
	for (;;)
		pause();
}

/* Starts @body, which sends one number when it is ready. */
static pid_t start(void (*body)(int to, uint32_t id), uint32_t id, uint32_t *said)
{
	int ends[2];
	pid_t pid;

	must(pipe2(ends, O_CLOEXEC) == 0, "pipe");
	fflush(stdout);
	pid = fork();
	must(pid >= 0, "fork");
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		body(ends[1], id);
		rest();
	}
	close(ends[1]);
	must(read(ends[0], said, sizeof *said) == sizeof *said, "a process of the setting");
	close(ends[0]);
	return pid;
}

/* Writes two entries of each part, and a stack that leads through both modules. */
static int write_report_data(struct cl_region *r)
{
	char *at = (char *)r->header;
	struct cl_module module = { .start = 0x1000, .end = 0x2000, .bias = 0x1000, .build_id_length = 20,
				    .path = "/usr/lib/one.so" };
	struct cl_import_entry import = { .opens = 1, .key = 4096, .size = 1024, .since = 1, .file_id = 1,
					 .stack = 1, .kind = CL_MEMORY };
	struct cl_finding finding = { .kind = CL_FINDING_FREED_TWICE, .stack = 1, .other_stack = 1,
				      .name = "somebody", .block_kind = CL_MEMORY };
	/* the stack at word 1, with a Python frame in line 7; its text is at word 6 */
	uint64_t stack[] = { 0, 3 | 1 << CL_PYTHON_SHIFT, 0x1100, 0x2100, 0x9000, 6 | 7ull << 32,
			     1 << CL_TEXT_WORDS_SHIFT | 2ull << CL_TEXT_FUNCTION_SHIFT | 4ull << CL_TEXT_FILE_SHIFT,
			     0x79702e616766 /* "fg" and "a.py" */ };

	if (cl_region_get(r, CL_AT_MODULES, CL_PAGE) || cl_region_get(r, CL_AT_STACKS, CL_PAGE) ||
	    cl_region_get(r, CL_AT_IMPORTS, CL_PAGE) || cl_region_get(r, CL_AT_FINDINGS, CL_PAGE))
		return -1;
	for (uint64_t i = 0; i < 2; i++) {
		memcpy(at + CL_AT_MODULES + i * sizeof module, &module, sizeof module);
		memcpy(at + CL_AT_IMPORTS + i * sizeof import, &import, sizeof import);
		memcpy(at + CL_AT_FINDINGS + i * sizeof finding, &finding, sizeof finding);
		module.start += 0x1000;
		module.end += 0x1000;
	}
	memcpy(at + CL_AT_STACKS, stack, sizeof stack);
	atomic_store(&r->header->modules, 2);
	atomic_store(&r->header->imports, 2);
	atomic_store(&r->header->findings, 2);
	atomic_store(&r->header->stack_words, sizeof stack / sizeof stack[0]);
	r->record[0].export_stack = 1;
	r->record[1].free_stack = 1;
	return 0;
}

static void exporter(int to, uint32_t unused)
{
	struct cl_identity self;
	struct cl_region r;
	uint8_t handle[64];

	(void)unused;
	cl_identity_self(&self);
	if (cl_region_create(&r, folder_fd, &self) || cl_region_grow(&r) ||
	    cl_region_need_word(&r, 0, CL_CHUNK))
		_exit(1);
	for (uint32_t i = 0; i < RECORDS; i++) {
		struct cl_export what = { .kind = CL_MEMORY, .base = 4096u * (i + 1), .size = 1024,
					  .handle = handle, .now = cl_now() };

		handle_of(i, handle);
		cl_record_publish(&r, i, &what);
	}
	if (write_report_data(&r))
		_exit(1);
	if (write(to, &r.file_id, 4) != 4)
		_exit(1);
}

static void importer(int to, uint32_t id)
{
	struct cl_identity self;
	struct cl_region r;
	uint8_t handle[64];
	uint32_t slot;

	cl_identity_self(&self);
	if (cl_region_open(&r, folder_fd, id, NULL))
		_exit(1);
	slot = (uint32_t)cl_holder_claim(&r, &self, cl_now(), SETTLE);
	for (uint32_t i = 0; i < HELD; i++) {
		handle_of(i, handle);
		if (cl_record_hold(&r, slot, i, 0, handle))
			_exit(1);
	}
	if (write(to, &slot, 4) != 4)
		_exit(1);
}

/* ------------------------------------------------------------------ the judge */
static uint32_t id, slot_of_c;
static struct cl_region master; /* the mapping in which bytes are damaged */

/* Shared with the judging child, which writes it. */
static struct progress {
	_Atomic uint64_t at;	 /* the place in the list of damages that is being tried */
	_Atomic uint64_t step;	 /* which step of that damage */
	uint64_t tried, name_lost, reaped, released, released_at[SHOWN];
	/* The most memory that the file has used.  The kernel may drop pages that were never written, so a
	   file can take less than it did, and as much again when somebody reads. */
	blkcnt_t blocks;
} *progress;

struct area {
	const char *name;
	uint64_t at, used, size; /* where in the file; bytes in use; bytes allocated */
} areas[] = {
	{ "the header", CL_AT_HEADER, sizeof(struct cl_header), CL_PAGE },
	{ "which holder pages there are", CL_AT_WORD_PAGES, CL_PAGE, CL_PAGE },
	{ "the ready map's upper levels", CL_AT_READY_TOP, sizeof(struct cl_ready_top), CL_PAGE },
	{ "the slots", CL_AT_SLOTS, 4 * sizeof(struct cl_slot), CL_SLOTS * sizeof(struct cl_slot) },
	{ "since when slots' locks are free", CL_AT_LOCK_FREE, 4 * 8, CL_SLOTS * 8 },
	{ "the ready map", CL_AT_READY, CL_PAGE, CL_PAGE },
	{ "the records", CL_AT_RECORDS, RECORDS * sizeof(struct cl_record),
	  2 * CL_CHUNK * sizeof(struct cl_record) },
	{ "the holders", CL_AT_HOLDERS, RECORDS * 8, 2 * CL_PAGE },
	{ "the report data's modules", CL_AT_MODULES, 2 * sizeof(struct cl_module), CL_PAGE },
	{ "the report data's stacks", CL_AT_STACKS, 8 * 8, CL_PAGE },
	{ "the report data's imports", CL_AT_IMPORTS, 2 * sizeof(struct cl_import_entry), CL_PAGE },
	{ "the report data's findings", CL_AT_FINDINGS, 2 * sizeof(struct cl_finding), CL_PAGE },
};
enum { AREAS = sizeof areas / sizeof areas[0] };
static const unsigned char patterns[] = { 0xff, 0x01, 0x80 };

static unsigned char *bytes(void)
{
	return (unsigned char *)master.header;
}

/* As P does: reaps, then checks C's blocks.  True: none could be released. */
static bool p_keeps(void)
{
	static struct cl_slot_watch watch[CL_SLOTS];
	struct cl_reaped sum;
	uint32_t ready[256];
	bool kept = true;

	memset(watch, 0, sizeof watch);
	sum = cl_holder_reap(&master, watch, cl_now(), SETTLE, NULL, NULL);
	progress->reaped += sum.slots != 0;
	progress->step = 11;
	for (int i = 0; i < 64 && cl_record_take_ready(&master, ready, 256); i++)
		;
	progress->step = 12;
	for (uint32_t i = 0; i < HELD; i++) {
		if (i % 2)
			cl_record_to_limbo(&master, i, cl_now());
		kept = !cl_record_try_release(&master, i) && kept;
	}
	return kept;
}

/* As an importer does: makes every use of the file, in a slot of its own. */
static void import(void)
{
	static struct cl_identity self;
	struct cl_region r;
	const char *why = NULL;
	uint16_t slots[4];
	uint8_t handle[64];
	int err, slot;

	if (!self.pid)
		cl_identity_self(&self);
	progress->step = 1;
	err = cl_region_open(&r, folder_fd, id, &why);
	if (err) {
		if (!why)
			abort(); /* refused, and the log could not say why */
		return;
	}
	progress->step = 2;
	slot = cl_holder_claim(&r, &self, cl_now(), SETTLE);
	for (uint32_t i = 0; i < RECORDS; i++) {
		progress->step = 3;
		handle_of(i, handle);
		if (slot >= 0 && cl_record_hold(&r, (unsigned int)slot, i, 0, handle) == 0 && i % 2)
			cl_record_unhold(&r, (unsigned int)slot, i);
		progress->step = 4;
		if (i == RECORDS - 1)
			cl_record_pin(&r, i, 0, handle);
		progress->step = 41;
		cl_record_held(&r, i);
		cl_record_holders(&r, i, slots, 4);
	}
	progress->step = 5;
	if (slot >= 0) {
		cl_record_clear_slot(&r, (unsigned int)slot, NULL, NULL);
		cl_holder_release(&r, (unsigned int)slot);
	}
	progress->step = 6;
	cl_region_close(&r);
}

static void must_be_text(const char *text, size_t size)
{
	if (!memchr(text, 0, size))
		abort();
	for (; *text; text++)
		if ((unsigned char)*text < ' ')
			abort();
}

static void read_stack(const struct cl_view *view, uint32_t stack)
{
	struct cl_view_frame frame;
	struct cl_view_python python;

	for (unsigned int i = 0; i < cl_view_stack_depth(view, stack); i++)
		if (cl_view_stack_frame(view, stack, i, &frame))
			must_be_text(frame.path, sizeof frame.path);
	for (unsigned int i = 0; i < cl_view_python_depth(view, stack, NULL); i++)
		if (cl_view_python_frame(view, stack, i, &python)) {
			must_be_text(python.function, sizeof python.function);
			must_be_text(python.file, sizeof python.file);
		}
}

/* As a report does: reads everything in the file. */
static void report(void)
{
	struct cl_view view;
	struct cl_view_process process;
	struct cl_view_block block;
	struct cl_view_holder holder;
	uint16_t slot[1];
	struct cl_view_import open;
	struct cl_finding finding;
	struct stat st;

	progress->step = 7;
	if (cl_view_open(&view, folder_fd, id, NULL, NULL))
		return;
	if (fstat(view.region.fd, &st))
		abort();
	if (st.st_blocks > progress->blocks)
		progress->blocks = st.st_blocks;
	cl_view_process(&view, &process);
	must_be_text(process.command, sizeof process.command);
	for (uint32_t i = 0; i < RECORDS; i++) {
		if (!cl_view_block(&view, i, &block))
			continue;
		if (block.class >= CL_VIEW_CLASSES || block.holders > CL_SLOTS)
			abort();
		read_stack(&view, block.export_stack);
		read_stack(&view, block.free_stack);
		/* each read asks /proc who lives */
		if (i == 0 && cl_view_holder_slots(&view, i, slot, 1) && cl_view_slot(&view, slot[0], &holder))
			must_be_text(holder.name, sizeof holder.name);
	}
	progress->step = 8;
	for (uint32_t i = 0; i < 4; i++) {
		if (cl_view_import(&view, i, &open))
			read_stack(&view, open.stack);
		if (cl_view_finding(&view, i, &finding)) {
			must_be_text(finding.name, sizeof finding.name);
			read_stack(&view, finding.stack);
		}
	}
	progress->step = 9;
	if (fstat(view.region.fd, &st) || st.st_blocks > progress->blocks)
		abort(); /* a reader has taken memory */
	cl_view_close(&view);
}

static void try_damage(uint64_t place)
{
	char name[16];
	bool kept;

	progress->tried++;
	/* P's part comes first, and again after an importer, which may have repaired something */
	progress->step = 10;
	kept = p_keeps();
	import();
	report();
	progress->step = 10;
	if (!p_keeps() || !kept) {
		if (progress->released < SHOWN)
			progress->released_at[progress->released] = place;
		progress->released++;
	}
	progress->step = 20;
	cl_gc_directory(folder_fd, NULL);
	cl_region_name(name, id);
	if (faccessat(folder_fd, name, F_OK, AT_SYMLINK_NOFOLLOW)) {
		progress->name_lost++;
		/* O_TMPFILE allows one link only, so the parent starts P and C again */
		_exit(2);
	}
	progress->step = 0;
}

static unsigned char *before; /* a copy of all allocated bytes, by area */
static uint64_t offset_in_copy(unsigned int area)
{
	uint64_t at = 0;

	for (unsigned int i = 0; i < area; i++)
		at += areas[i].size;
	return at;
}
static void as_before(void)
{
	for (unsigned int i = 0; i < AREAS; i++)
		memcpy(bytes() + areas[i].at, before + offset_in_copy(i), areas[i].size);
}

/* Does damage number @n of @area.  False: there is no such number. */
static bool damage(const struct area *area, uint64_t n, bool all, bool do_it, uint64_t *place)
{
	uint64_t single = all ? area->size : area->used, length = 1, at;
	unsigned char pattern = 0xff;

	if (n < area->used * sizeof patterns) {
		at = n / sizeof patterns;
		pattern = patterns[n % sizeof patterns];
	} else if (n < area->used * sizeof patterns + (single - area->used)) {
		at = n - area->used * sizeof patterns + area->used;
	} else {
		length = 64;
		at = single + (n - area->used * sizeof patterns - (single - area->used)) * 64;
		if (at >= area->size)
			return false;
		if (at + length > area->size)
			length = area->size - at;
	}
	*place = area->at + at;
	for (uint64_t i = 0; do_it && i < length; i++)
		bytes()[area->at + at + i] ^= pattern;
	return true;
}

/* In a child: does the damages from number @from on, until one is fatal. */
__attribute__((noreturn)) static void judge(const struct area *area, uint64_t from, bool all)
{
	uint64_t place;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* mappings are not inherited */
	must(cl_region_open(&master, folder_fd, id, NULL) == 0, "the file before damage");
	for (uint64_t n = from; damage(area, n, all, true, &place); n++) {
		progress->at = n;
		alarm(HANG_SECONDS);
		try_damage(place);
		as_before();
	}
	_exit(0);
}

static void put_right(void)
{
	must(cl_region_open(&master, folder_fd, id, NULL) == 0, "the file after a crash");
	as_before();
	cl_region_close(&master);
}

/* True if the byte says who holds a record that C holds. */
static bool says_who_holds(uint64_t place)
{
	return (place >= CL_AT_HOLDERS && place < CL_AT_HOLDERS + HELD * 8) ||
	       place == CL_AT_WORD_PAGES;
}

static pid_t p, c;

static void set_the_stage(void)
{
	struct cl_region r;

	p = start(exporter, 0, &id);
	c = start(importer, id, &slot_of_c);
	must(cl_region_open(&r, folder_fd, id, NULL) == 0, "the file");
	master = r;
	for (unsigned int i = 0; i < AREAS; i++)
		memcpy(before + offset_in_copy(i), bytes() + areas[i].at, areas[i].size);
	cl_region_close(&master);
}
static void clear_the_stage(void)
{
	char name[16];

	kill(p, SIGKILL);
	kill(c, SIGKILL);
	waitpid(p, NULL, 0);
	waitpid(c, NULL, 0);
	cl_region_name(name, id);
	unlinkat(folder_fd, name, 0);
}

static void flip_area(struct area *area)
{
	bool all = getenv("FLIPS") && !strcmp(getenv("FLIPS"), "all"), only_counting = true;
	unsigned int crashes = 0, hangs = 0;
	uint64_t from = 0, place = 0;
	char line[160];

	memset(progress, 0, sizeof *progress);
	while (crashes + hangs + progress->name_lost < SHOWN && damage(area, from, all, false, &place)) {
		pid_t child;
		int status;

		fflush(stdout);
		child = fork();
		must(child >= 0, "fork");
		if (!child)
			judge(area, from, all);
		must(waitpid(child, &status, 0) == child, "waitpid");
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
			break;
		from = progress->at + 1;
		damage(area, progress->at, all, false, &place);
		if (WIFEXITED(status) && WEXITSTATUS(status) == 2) {
			printf("# byte %#llx: the living exporter's file was taken away\n",
			       (unsigned long long)place);
			clear_the_stage();
			set_the_stage();
			continue;
		}
		if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
			hangs++;
		else
			crashes++;
		printf("# byte %#llx, step %llu: status %#x\n", (unsigned long long)place,
		       (unsigned long long)progress->step, (unsigned int)status);
		put_right();
	}
	for (uint64_t i = 0; i < progress->released && i < SHOWN; i++)
		if (!says_who_holds(progress->released_at[i])) {
			printf("# byte %#llx: a held block was released\n",
			       (unsigned long long)progress->released_at[i]);
			only_counting = false;
		}
	if (progress->released > SHOWN)
		only_counting = only_counting && area->at == CL_AT_HOLDERS;
	printf("# %s: %llu damages, %llu of which release a held block\n", area->name,
	       (unsigned long long)progress->tried, (unsigned long long)progress->released);
	snprintf(line, sizeof line, "%s: no byte makes a reader crash or hang", area->name);
	ok(!crashes && !hangs && progress->tried > 100, line);
	snprintf(line, sizeof line, "%s: the living exporter's file stays, the living importer is not reaped",
		 area->name);
	ok(!progress->name_lost && !progress->reaped, line);
	snprintf(line, sizeof line, "%s: no held block is released but by the bytes that say who holds it",
		 area->name);
	ok(only_counting && (area->at != CL_AT_HOLDERS || progress->released > 0), line);
}

static void clean(void)
{
	char name[16];

	cl_region_name(name, id);
	unlinkat(folder_fd, name, 0);
	rmdir(folder);
}

int main(void)
{
	char *none[] = { NULL };

	cl_options_read(&cl_options, none, NULL);
	snprintf(folder, sizeof folder, "/dev/shm/culimbo-flips-XXXXXX");
	if (!mkdtemp(folder)) {
		snprintf(folder, sizeof folder, "/tmp/culimbo-flips-XXXXXX");
		must(mkdtemp(folder) != NULL, "a folder");
	}
	folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	must(folder_fd >= 0, folder);
	progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	before = malloc(offset_in_copy(AREAS));
	must(progress != MAP_FAILED && before, "memory");
	set_the_stage();
	for (unsigned int i = 0; i < AREAS; i++)
		flip_area(&areas[i]);
	clear_the_stage();
	clean();
	printf("1..%d\n", tests);
	return failures != 0;
}
