/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the exporter files say, for people: see view.h.
 *
 * The part of a file that has memory from the start (header, slots, page bits) is read where it is
 * mapped.  All that grows is read with pread() into a buffer: a hole reads as zeros and takes no
 * memory, and a damaged count, or a file that was cut short, is a short read, never SIGBUS.  SEEK_DATA
 * would not do: another process may just be filling a hole, and memory that was allocated and never
 * written counts as a hole.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/base/options.h"
#include "shim/shm/view.h"

/* ------------------------------------------------------------------- reading */
/* Reads @n bytes at @at.  What lies behind the end of the file is read as zeros. */
static void read_at(const struct cl_view *view, uint64_t at, void *to, size_t n)
{
	ssize_t got;

	if (!view->region.file_id) {
		memcpy(to, cl_region_at(&view->region, at), n);
		return;
	}
	do
		got = pread(view->region.fd, to, n, (off_t)at);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		got = 0;
	memset((char *)to + got, 0, n - (size_t)got);
}

/* As read_at(), of one moment: reads until two reads agree, eight times at most. */
static void read_whole(const struct cl_view *view, uint64_t at, void *to, size_t n)
{
	char again[128];

	read_at(view, at, to, n);
	for (int tries = 0; tries < 8; tries++) {
		read_at(view, at, again, n);
		if (memcmp(to, again, n) == 0)
			break;
		memcpy(to, again, n);
	}
}

static uint32_t count_of(_Atomic uint32_t *count, uint32_t most)
{
	/* acquire: a reader that sees the count reads what was written before it */
	uint32_t n = atomic_load_explicit(count, memory_order_acquire);

	return n < most ? n : most;
}

/* Copies at most @n bytes of text from a file.  Control bytes, which it may have, become '?'. */
static void copy_text(char *to, const char *from, size_t n)
{
	size_t i;

	for (i = 0; i < n && from[i]; i++)
		to[i] = (unsigned char)from[i] >= ' ' && from[i] != 0x7f ? from[i] : '?';
	to[i] = 0;
}

/* ------------------------------------------------------------------- opening */
static void look(struct cl_view *view)
{
	const struct cl_header *h = view->region.header;
	/* a copy: a reader does not write to the file */
	uint64_t since = atomic_load_explicit(&h->exporter_lock_free, memory_order_relaxed);

	view->now = cl_now();
	if (since > view->now)
		since = 0;
	view->state = view->own ? CL_ALIVE :
				  cl_liveness_judge(&view->region, CL_LOCK_EXPORTER, &h->exporter,
						    &since, view->now, cl_options.settle.number);
	view->called_exec = view->state != CL_ALIVE && cl_liveness_called_exec(&view->region, CL_LOCK_EXPORTER, &h->exporter, false);
}

static bool borrow(struct cl_view *view, uint32_t file_id, cl_view_has_open_fn *has_open)
{
	bool own = false;
	const struct cl_region *open = has_open ? has_open(file_id, &own) : NULL;

	if (!open)
		return false;
	*view = (struct cl_view){ .region = *open, .own = own, .borrowed = true };
	look(view);
	return true;
}

int cl_view_open(struct cl_view *view, int dirfd, uint32_t file_id, cl_view_has_open_fn *has_open,
		 const char **why)
{
	int err;

	*view = (struct cl_view){ .region.fd = -1 };
	if (why)
		*why = NULL;
	if (borrow(view, file_id, has_open))
		return 0;
	err = cl_region_open(&view->region, dirfd, file_id, why);
	if (!err)
		look(view);
	return err;
}

static bool same_process(const struct cl_identity *a, const struct cl_identity *b)
{
	return a->pid == b->pid && a->pid_ns == b->pid_ns && a->start_time == b->start_time;
}

/* Returns true if @who made file @name.  Reads the header only: mapping costs, and most are not its. */
static bool is_file_of(int dirfd, const char *name, const struct cl_identity *who)
{
	struct cl_identity exporter;
	struct stat st;
	int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	bool is;

	if (fd < 0)
		return false;
	is = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	     pread(fd, &exporter, sizeof exporter, offsetof(struct cl_header, exporter)) ==
		     sizeof exporter &&
	     same_process(&exporter, who);
	close(fd);
	return is;
}

/* Opens the directory entry @name if it is the file of @who.  Returns 0 or -errno. */
static int try_entry(struct cl_view *view, int dirfd, const char *name, const struct cl_identity *who,
		     cl_view_has_open_fn *has_open)
{
	uint32_t id = cl_region_name_id(name);

	if (!id)
		return -ENOENT;
	/* opening and closing a file that we have would drop our locks on it */
	if (borrow(view, id, has_open))
		return same_process(&view->region.header->exporter, who) ? 0 : -ENOENT;
	if (!is_file_of(dirfd, name, who))
		return -ENOENT;
	return cl_view_open(view, dirfd, id, has_open, NULL);
}

int cl_view_open_process(struct cl_view *view, int dirfd, const struct cl_identity *who,
			 cl_view_has_open_fn *has_open)
{
	return cl_view_open_process_among(view, dirfd, who, has_open, UINT_MAX);
}

int cl_view_open_process_among(struct cl_view *view, int dirfd, const struct cl_identity *who,
			       cl_view_has_open_fn *has_open, unsigned int most)
{
	_Alignas(8) char buffer[2048];
	int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), err = -ENOENT;
	long n;

	*view = (struct cl_view){ .region.fd = -1 };
	if (fd < 0)
		return -errno;
	/* not opendir(), which needs malloc.  An entry: ino 8, off 8, reclen 2, type 1, name */
	while (err && most && (n = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0)
		for (long at = 0; err && at < n && most; most--) {
			uint16_t length;

			memcpy(&length, buffer + at + 16, sizeof length);
			err = try_entry(view, dirfd, buffer + at + 19, who, has_open);
			at += length;
		}
	close(fd);
	if (err)
		*view = (struct cl_view){ .region.fd = -1 };
	return err ? -ENOENT : 0;
}

void cl_view_close(struct cl_view *view)
{
	if (!view->borrowed && view->region.header)
		cl_region_close(&view->region);
	view->region = (struct cl_region){ .fd = -1 };
}

void cl_view_process(const struct cl_view *view, struct cl_view_process *process)
{
	const struct cl_header *h = view->region.header;
	struct stat st;

	*process = (struct cl_view_process){
		.who = h->exporter,
		.file_id = view->region.file_id,
		.uid = h->uid,
		.state = view->state,
		.called_exec = view->called_exec,
		.collects = atomic_load_explicit(&h->serving, memory_order_relaxed),
		.created = h->created,
		.live_blocks = atomic_load_explicit(&h->live_blocks, memory_order_relaxed),
		.limbo_blocks = atomic_load_explicit(&h->limbo_blocks, memory_order_relaxed),
		.limbo_bytes = atomic_load_explicit(&h->limbo_bytes, memory_order_relaxed),
	};
	copy_text(process->command, h->command, sizeof h->command);
	if (fstat(view->region.fd, &st) == 0)
		process->shared_bytes = (uint64_t)st.st_blocks * 512;
}

bool cl_view_was_opened(const struct cl_view *view)
{
	/* an importer claims its slot before its first open, and the count never goes down */
	return atomic_load_explicit(&view->region.header->slots_used, memory_order_relaxed);
}

/* -------------------------------------------------------------------- blocks */
uint32_t cl_view_records(const struct cl_view *view)
{
	if (view->knows_records)
		return view->records;
	return count_of(&view->region.header->record_chunks, CL_CHUNKS) * CL_CHUNK;
}

static void read_record(const struct cl_view *view, uint32_t record, struct cl_record *r)
{
	if (view->knows_records)
		memcpy(r, &view->region.record[record], sizeof *r);
	else
		read_whole(view, CL_AT_RECORDS + (uint64_t)record * sizeof *r, r, sizeof *r);
}

static uint64_t word_of(const struct cl_view *view, unsigned int word, uint32_t record)
{
	uint64_t bits = 0;

	if (!cl_region_has_word(&view->region, word, record))
		return 0;
	if (view->knows_records)
		bits = atomic_load_explicit(cl_region_word(&view->region, word, record), memory_order_acquire);
	else
		read_at(view, CL_AT_HOLDERS + ((uint64_t)word * CL_RECORDS + record) * 8u, &bits,
			sizeof bits);
	return bits;
}

/* The grace is that of the exporter, not the reader's. */
static enum cl_view_class class_of(const struct cl_view *view, enum cl_state state, bool held,
				   uint64_t exported)
{
	switch (state) {
	case CL_EXPORTED:
		return held ? CL_VIEW_HELD : CL_VIEW_LIVE;
	case CL_ORPHANED:
		return CL_VIEW_ORPHANED;
	default:
		if (held)
			return CL_VIEW_HELD_LIMBO;
		return exported + view->region.header->grace > view->now && state == CL_LIMBO ?
			       CL_VIEW_GRACE :
			       CL_VIEW_LIMBO;
	}
}

/* What a file says may be anything. */
static enum cl_kind kind_of(uint8_t kind)
{
	return kind == CL_EVENT || kind == CL_POOL ? (enum cl_kind)kind : CL_MEMORY;
}

bool cl_view_block(const struct cl_view *view, uint32_t record, struct cl_view_block *block)
{
	struct cl_record r;
	enum cl_state state;

	if (record >= cl_view_records(view))
		return false;
	read_record(view, record, &r);
	state = cl_life_state(r.life);
	if (state == CL_FREE || state > CL_ORPHANED)
		return false;
	*block = (struct cl_view_block){
		.record = record,
		.generation = cl_life_generation(r.life),
		.kind = kind_of(r.kind),
		.base = r.base,
		.size = r.kind == CL_EVENT ? 0 : r.size,
		.device = r.device,
		.exports = r.exports,
		.exported = r.exported,
		/* an unmap writes .freed before its record is ORPHANED */
		.freed = state == CL_EXPORTED ? 0 : r.freed,
		.export_stack = r.export_stack,
		.free_stack = state == CL_EXPORTED ? 0 : r.free_stack,
		.is_virtual = r.kind == CL_VIRTUAL,
		.pinned = r.pinned != 0,
		.given_back = r.given_back == CL_FORCED_OUT &&
			      (state == CL_ORPHANED || (state != CL_EXPORTED && r.kind == CL_EVENT)),
		.unmapped = state == CL_ORPHANED && r.kind == CL_VIRTUAL,
		.freed_observed = state == CL_ORPHANED && r.given_back == CL_FREED_OBSERVED,
	};
	for (unsigned int w = 0; w < CL_WORDS; w++)
		block->holders += (unsigned int)__builtin_popcountll(word_of(view, w, record));
	block->class = block->given_back ? CL_VIEW_ORPHANED :
					   class_of(view, state, block->holders || block->pinned, r.exported);
	return true;
}

bool cl_view_freed(const struct cl_view *view, uint32_t record, uint32_t generation,
		   const uint8_t handle[56], uint64_t *when, uint32_t *stack)
{
	struct cl_record r;
	bool back;

	if (record >= cl_view_records(view))
		return false;
	read_record(view, record, &r);
	/* a record that was given back has the next generation, and all else as it was */
	back = cl_life_state(r.life) == CL_FREE;
	/* as cl_record_is(), without the first 8 bytes, which are of the context */
	if (cl_life_generation(r.life) != generation + back ||
	    memcmp(r.handle + 8, handle + 8, sizeof r.handle - 8) ||
	    !r.freed)
		return false;
	*when = r.freed;
	*stack = r.free_stack;
	return true;
}

static void fill_holder(const struct cl_view *view, unsigned int slot, struct cl_view_holder *to)
{
	/* cl_liveness_judge() writes to *free_since only, although it wants a region that is not const */
	struct cl_region *region = (struct cl_region *)&view->region;
	struct cl_slot *s = &region->slot[slot];
	uint64_t claim = atomic_load_explicit(&s->claim, memory_order_acquire), since = 0;
	bool left = (claim & 0xff) == CL_SLOT_LEFT;

	*to = (struct cl_view_holder){ .slot = slot, .since = s->since, .told = s->told };
	if (atomic_load_explicit(&s->known, memory_order_acquire) == (uint32_t)(claim >> 8))
		to->who = s->who;
	copy_text(to->name, s->name, sizeof s->name);
	/* a holder with its lock is alive at once; one without may be we, or had its descriptor closed */
	to->alive = !left && cl_liveness_judge(region, CL_LOCK_SLOT(slot), &to->who, &since, view->now,
					       cl_options.settle.number) == CL_ALIVE;
	to->called_exec = !to->alive && cl_liveness_called_exec(region, CL_LOCK_SLOT(slot), &to->who, left);
}

unsigned int cl_view_holder_slots(const struct cl_view *view, uint32_t record, uint16_t *slots,
				  unsigned int max)
{
	unsigned int n = 0;

	if (record >= cl_view_records(view))
		return 0;
	for (unsigned int w = 0; w < CL_WORDS; w++)
		for (uint64_t bits = word_of(view, w, record); bits; bits &= bits - 1, n++)
			if (n < max)
				slots[n] = (uint16_t)(w * 64 + (unsigned int)__builtin_ctzll(bits));
	return n;
}

bool cl_view_slot(const struct cl_view *view, unsigned int slot, struct cl_view_holder *to)
{
	if (slot >= CL_SLOTS)
		return false;
	fill_holder(view, slot, to);
	return true;
}

/* ------------------------------------------------------------------- imports */
uint32_t cl_view_imports(const struct cl_view *view)
{
	return count_of(&view->region.header->imports, CL_IMPORTS);
}

static uint64_t at_import(uint32_t index)
{
	return CL_AT_IMPORTS + (uint64_t)index * sizeof(struct cl_import_entry);
}

static bool tell_import(uint32_t index, const struct cl_import_entry *entry,
			struct cl_view_import *import)
{
	if (!entry->opens || kind_of(entry->kind) != entry->kind)
		return false;
	*import = (struct cl_view_import){
		.index = index,
		.kind = (enum cl_kind)entry->kind,
		.key = entry->key,
		.size = entry->size,
		.opens = entry->opens,
		.since = entry->since,
		.file_id = entry->file_id,
		.record = entry->record,
		.generation = entry->generation,
		.exporter_pid = entry->exporter_pid,
		.stack = entry->stack,
		.device = entry->device,
	};
	return true;
}

bool cl_view_import(const struct cl_view *view, uint32_t index, struct cl_view_import *import)
{
	struct cl_import_entry entry;

	if (index >= cl_view_imports(view))
		return false;
	read_whole(view, at_import(index), &entry, sizeof entry);
	return tell_import(index, &entry, import);
}

bool cl_view_import_of(const struct cl_view *holder, uint32_t file_id, uint32_t record,
		       uint32_t generation, struct cl_view_import *import)
{
	struct cl_import_entry some[64];
	uint32_t n = cl_view_imports(holder);

	for (uint32_t first = 0; first < n; first += 64) {
		uint32_t here = n - first < 64 ? n - first : 64;

		read_at(holder, at_import(first), some, here * sizeof some[0]);
		for (uint32_t i = 0; i < here; i++)
			if (some[i].opens && some[i].file_id == file_id && some[i].record == record &&
			    some[i].generation == generation &&
			    /* read again by itself: the entry may have changed while it was read */
			    cl_view_import(holder, first + i, import) && import->file_id == file_id &&
			    import->record == record && import->generation == generation)
				return true;
	}
	return false;
}

/* ------------------------------------------------------------------ findings */
uint32_t cl_view_findings(const struct cl_view *view)
{
	return count_of(&view->region.header->findings, CL_FINDINGS);
}

bool cl_view_finding(const struct cl_view *view, uint32_t index, struct cl_finding *finding)
{
	char name[sizeof finding->name + 1];

	if (index >= cl_view_findings(view))
		return false;
	read_whole(view, CL_AT_FINDINGS + (uint64_t)index * sizeof *finding, finding, sizeof *finding);
	if (finding->kind == CL_FINDING_NONE || finding->kind >= CL_FINDING_KINDS)
		return false;
	copy_text(name, finding->name, sizeof finding->name - 1);
	memcpy(finding->name, name, sizeof finding->name);
	finding->name[sizeof finding->name - 1] = 0;
	if (finding->block_kind == CL_VIRTUAL)
		finding->made = CL_MADE_VIRTUAL;
	finding->block_kind = (uint8_t)kind_of(finding->block_kind);
	if (finding->made >= CL_MADE_KINDS)
		finding->made = CL_MADE_UNKNOWN;
	if (finding->why >= CL_WHYS)
		finding->why = CL_WHY_RESULT_ALONE;
	/* an unknown call's words would be wrong ones */
	return !cl_finding_is_note(finding->kind) || finding->call < CL_CALLS;
}

uint64_t cl_view_finding_count(const struct cl_view *view, enum cl_finding_kind kind)
{
	if ((unsigned int)kind >= CL_FINDING_KINDS)
		return 0;
	return atomic_load_explicit(&view->region.header->finding_counts[kind], memory_order_relaxed);
}

/* -------------------------------------------------------------------- stacks */
/* The first word of a stack, taken apart.  n 0: it is none, or damaged. */
struct head {
	unsigned int n, python;
	bool foreign, unread, from_start;
};

static struct head head_of(const struct cl_view *view, uint32_t stack)
{
	uint32_t words = count_of(&view->region.header->stack_words, CL_STACK_WORDS);
	struct head head = { .n = 0 };
	uint64_t word;

	if (!stack || stack >= words)
		return head;
	read_at(view, CL_AT_STACKS + (uint64_t)stack * 8u, &word, sizeof word);
	head.foreign = !(word & 0xff);
	head.n = (head.foreign ? word >> CL_FOREIGN_SHIFT : word) & 0xff;
	head.python = word >> CL_PYTHON_SHIFT & 0xff;
	head.unread = word & CL_PYTHON_UNREAD;
	head.from_start = word & CL_STACK_FROM_START;
	if (head.n > CL_STACK_FRAMES || head.python > CL_PYTHON_FRAMES || head.n + head.python >= words - stack)
		head = (struct head){ .n = 0 };
	return head;
}

unsigned int cl_view_stack_depth(const struct cl_view *view, uint32_t stack)
{
	return head_of(view, stack).n;
}

static void take_module(struct cl_view_frame *frame, const struct cl_module *m)
{
	frame->offset = frame->address - m->bias;
	copy_text(frame->path, m->path, sizeof m->path);
	frame->build_id_length = m->build_id_length <= sizeof m->build_id ? m->build_id_length : 0;
	memcpy(frame->build_id, m->build_id, sizeof m->build_id);
}

/* Finds the module of a frame.  The newest wins: another library may lie where one was unloaded. */
static void find_module(const struct cl_view *view, struct cl_view_frame *frame)
{
	struct cl_module some[4];
	/* a return address lies behind its call, which may be the last instruction of its function */
	uint64_t call = frame->address - 1;

	for (uint32_t left = count_of(&view->region.header->modules, CL_MODULES); left;) {
		uint32_t here = left < 4 ? left : 4;

		left -= here;
		read_at(view, CL_AT_MODULES + (uint64_t)left * sizeof some[0], some,
			here * sizeof some[0]);
		for (uint32_t i = here; i > 0; i--) {
			const struct cl_module *m = &some[i - 1];

			if (call < m->start || call >= m->end)
				continue;
			take_module(frame, m);
			return;
		}
	}
}

bool cl_view_stack_frame(const struct cl_view *view, uint32_t stack, unsigned int index,
			 struct cl_view_frame *frame)
{
	struct head head = head_of(view, stack);
	struct cl_module module;
	uint64_t number;

	*frame = (struct cl_view_frame){ 0 };
	if (index >= head.n)
		return false;
	read_at(view, CL_AT_STACKS + ((uint64_t)stack + 1 + index) * 8u, &frame->address,
		sizeof frame->address);
	frame->foreign = head.foreign;
	frame->is_start = head.from_start && index == head.n - 1;
	if (!head.foreign) {
		find_module(view, frame);
		return true;
	}
	number = frame->address >> CL_FOREIGN_ADDRESS_BITS;
	frame->address &= (UINT64_C(1) << CL_FOREIGN_ADDRESS_BITS) - 1;
	if (number && number <= count_of(&view->region.header->modules, CL_MODULES)) {
		read_at(view, CL_AT_MODULES + (number - 1) * sizeof module, &module, sizeof module);
		take_module(frame, &module);
	}
	return true;
}

unsigned int cl_view_python_depth(const struct cl_view *view, uint32_t stack, bool *unread)
{
	struct head head = head_of(view, stack);

	if (unread)
		*unread = head.unread;
	return head.n ? head.python : 0;
}

bool cl_view_python_frame(const struct cl_view *view, uint32_t stack, unsigned int index,
			  struct cl_view_python *frame)
{
	uint32_t words = count_of(&view->region.header->stack_words, CL_STACK_WORDS), text;
	struct head head = head_of(view, stack);
	char both[2 * CL_PYTHON_TEXT + 1];
	uint64_t word, function, file;

	*frame = (struct cl_view_python){ .line = 0 };
	if (!head.n || index >= head.python)
		return false;
	read_at(view, CL_AT_STACKS + ((uint64_t)stack + 1 + head.n + index) * 8u, &word, sizeof word);
	text = (uint32_t)word;
	frame->line = (unsigned int)(word >> 32);
	if (!text || text >= words)
		return true; /* damaged: a frame without a name */
	read_at(view, CL_AT_STACKS + (uint64_t)text * 8u, &word, sizeof word);
	function = word >> CL_TEXT_FUNCTION_SHIFT & 0xffff;
	file = word >> CL_TEXT_FILE_SHIFT;
	if (word & 0xffff || function > CL_PYTHON_TEXT || file > CL_PYTHON_TEXT ||
	    (function + file + 7) / 8 >= words - text)
		return true;
	read_at(view, CL_AT_STACKS + (text + 1ull) * 8u, both, function + file);
	both[function + file] = 0;
	copy_text(frame->file, both + function, file);
	copy_text(frame->function, both, function);
	return true;
}
