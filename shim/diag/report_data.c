/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the report data: see report_data.h.
 *
 * Each kind of data is a part of the region, which grows by pages.  Where a part lies and how much of it has memory
 * are kept in private memory: other processes can damage the file, and to touch a page without memory would kill
 * the program.  The header counts an entry only after it is written, so readers never see half of one.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shim/base/hash.h"
#include "shim/base/hot.h"
#include "shim/base/list.h"
#include "shim/base/log.h"
#include "shim/diag/report_data.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"
#include "shim/diag/python.h"
#include "shim/diag/stack.h"
#include "shim/shm/view.h"

/* -------------------------------------------------------------------- growing */
struct growing {
	uint64_t at;	  /* of the part, in the file */
	uint32_t entry;	  /* bytes of one entry */
	uint32_t most;	  /* entries that the part can have */
	uint32_t used;	  /* entries in use */
	uint64_t got;	  /* bytes that have memory */
	bool full;
};

static struct {
	struct growing modules, words, findings;
	bool begun;
} parts;

/* The import log.  It is under cl_imports_lock, and its growth under cl_exports_lock as well. */
#define IMPORTS_BEGIN { { CL_AT_IMPORTS, sizeof(struct cl_import_entry), CL_IMPORTS, 0, 0, false }, NULL, 0, 0 }
static CL_HOT_SHARING_LOCKED struct imports {
	struct growing part;
	uint32_t *free; /* entries that can be used again, the last one first */
	uint32_t free_n, free_size;
} imports = IMPORTS_BEGIN;

/* Makes our region ready.  Nothing is cleared here: memory that fallocate() or mmap() gets is zeros. */
static void begin_locked(bool importer)
{
	cl_own_need_locked(importer);
	if (parts.begun)
		return;
	parts.begun = true;
	parts.modules = (struct growing){ CL_AT_MODULES, sizeof(struct cl_module), CL_MODULES, 0, 0, false };
	/* word 0 names no stack */
	parts.words = (struct growing){ CL_AT_STACKS, 8, CL_STACK_WORDS, 1, 0, false };
	parts.findings = (struct growing){ CL_AT_FINDINGS, sizeof(struct cl_finding), CL_FINDINGS, 0, 0, false };
}

static void *entry_of(const struct growing *part, uint32_t index)
{
	return cl_region_at(&cl_own, part->at + (uint64_t)index * part->entry);
}

/* Gets memory for the entries of @part up to @end bytes.  Returns false if there is none. */
static bool get_locked(struct growing *part, uint64_t end)
{
	uint64_t more = (end - part->got + CL_PAGE - 1) / CL_PAGE * CL_PAGE;
	int err;

	if (end <= part->got)
		return true;
	cl_self_keep_descriptor(&cl_own, CL_LOCK_EXPORTER);
	err = cl_region_get(&cl_own, part->at + part->got, more);
	if (err) {
		/* a file that is full stays so for us: to ask it again would cost a system call at each entry */
		part->full = cl_own.file_id != 0;
		cl_log_once(CL_LOG_INFO,
			    "no room for more call stacks and findings in reports (%s); sharing stays "
			    "protected",
			    strerror(-err));
		return false;
	}
	/* without a file this is our anonymous region: a file that is made later has no memory for the part yet */
	if (cl_own.file_id)
		part->got += more;
	return true;
}

/*
 * Returns how many entries of @part can be read, of those in use.  A file that was made after entries were written to
 * memory may have no room for them: to touch their place in it would kill the program.
 */
static uint32_t entries_locked(struct growing *part)
{
	return get_locked(part, (uint64_t)part->used * part->entry) ? part->used : (uint32_t)(part->got / part->entry);
}

/* Gets memory for @n more entries behind those in use.  Returns the first, or NULL. */
static void *grow_locked(struct growing *part, uint32_t n)
{
	if (n > part->most - part->used)
		part->full = true;
	if (part->full || !get_locked(part, ((uint64_t)part->used + n) * part->entry))
		return NULL;
	return entry_of(part, part->used);
}

static void count_locked(struct growing *part, uint32_t n, _Atomic uint32_t *count)
{
	part->used += n;
	/* release: a reader that sees the count reads the entry whole */
	atomic_store_explicit(count, part->used, memory_order_release);
}

/* --------------------------------------------------------------------- stacks */
/* A stack or a text that our file has: the first word, its head, and the words behind it.  Its key is a hash of all. */
struct known_words {
	UT_hash_handle hh;
	uint64_t hash, head;
	uint32_t at, n;
	uint64_t word[];
};
static struct known_words *all_words;

/* Copies of the modules that our file has. */
struct known_module {
	struct cl_node node; /* of known_modules, the last one first */
	uint32_t index;
	struct cl_module module;
};
static struct cl_list known_modules;

static uint64_t hash_of(uint64_t head, const uint64_t *word, uint32_t n)
{
	uint64_t hash = head;

	for (uint32_t i = 0; i < n; i++) {
		hash = (hash ^ word[i]) * 0x9e3779b97f4a7c15u;
		hash ^= hash >> 29;
	}
	return hash;
}

/* Finds the @n words behind @head.  Returns NULL if our file does not have them; then *hash is the key for them. */
static struct known_words *find_words_locked(uint64_t head, const uint64_t *word, uint32_t n, uint64_t *hash)
{
	struct known_words *found;

	for (*hash = hash_of(head, word, n);; ++*hash) {
		HASH_FIND(hh, all_words, hash, sizeof *hash, found);
		if (!found || (found->head == head && found->n == n && !memcmp(found->word, word, n * sizeof *word)))
			return found;
	}
}

/* Returns the index of @module, which it adds if it is new, or CL_NO_LOG_ENTRY. */
static uint32_t add_module_locked(const struct cl_module *module)
{
	struct known_module *known;
	struct cl_module *to;

	CL_LIST_EACH (known, &known_modules, struct known_module, node)
		if (!memcmp(&known->module, module, sizeof *module))
			return known->index;
	/* modules of other processes' stacks, whose end is 0, take at most half the room */
	if (!module->end && parts.modules.used >= CL_MODULES / 2)
		return CL_NO_LOG_ENTRY;
	known = malloc(sizeof *known);
	to = known ? grow_locked(&parts.modules, 1) : NULL;
	if (!to) {
		free(known);
		return CL_NO_LOG_ENTRY;
	}
	known->module = *to = *module;
	known->index = parts.modules.used;
	cl_list_add_front(&known_modules, &known->node);
	count_locked(&parts.modules, 1, &cl_own.header->modules);
	return known->index;
}

/* Finds or adds @head and the @n words behind it.  Returns the index of the first, or 0. */
static uint32_t add_words_locked(uint64_t head, const uint64_t *word, uint32_t n)
{
	uint64_t hash, *to;
	struct known_words *new = find_words_locked(head, word, n, &hash);

	if (new) /* another thread has added it meanwhile */
		return new->at;
	new = malloc(sizeof *new + n * sizeof *word);
	to = new ? grow_locked(&parts.words, n + 1) : NULL;
	if (!to) {
		free(new);
		return 0;
	}
	new->hash = hash;
	new->head = head;
	new->at = parts.words.used;
	new->n = n;
	memcpy(new->word, word, n * sizeof *word);
	HASH_ADD(hh, all_words, hash, sizeof new->hash, new);
	if (!new->hh.tbl) { /* uthash had no memory */
		free(new);
		return 0;
	}
	to[0] = head;
	memcpy(to + 1, word, n * sizeof *word);
	count_locked(&parts.words, n + 1, &cl_own.header->stack_words);
	return new->at;
}

/* Finds or adds a stack that the cache has no name for.  Not inlined: it needs much stack itself. */
static __attribute__((noinline)) uint32_t add_stack(const struct cl_stack *stack, bool importer)
{
	enum { AT_ONCE = 4 };
	struct cl_module modules[AT_ONCE];
	struct known_words *known;
	unsigned int n = AT_ONCE;
	uint32_t word = 0;
	uint64_t hash, head = stack->n | (cl_stack_is_from_start(stack) ? CL_STACK_FROM_START : 0);
	bool full;

	cl_lock(&cl_exports_lock);
	begin_locked(importer);
	known = find_words_locked(head, stack->frame, stack->n, &hash);
	if (known)
		word = known->at;
	full = parts.words.full;
	cl_unlock(&cl_exports_lock);
	if (word)
		cl_stack_name(stack, word);
	if (word || full)
		return word;
	/* the first time: find its modules, and Python, without our lock (see stack.h) */
	if (cl_options.python.number)
		cl_python_look();
	for (unsigned int seen = 0; n == AT_ONCE; seen += n) {
		n = cl_stack_modules(stack, seen, modules, AT_ONCE);
		cl_lock(&cl_exports_lock);
		for (unsigned int i = 0; i < n; i++)
			add_module_locked(&modules[i]);
		if (n < AT_ONCE)
			word = add_words_locked(head, stack->frame, stack->n);
		cl_unlock(&cl_exports_lock);
	}
	if (word)
		cl_stack_name(stack, word);
	return word;
}

/* ------------------------------------------------------------------ Python's frames */
/*
 * A cache of the names of stacks with Python frames.  The key is made of the stack without these frames, and of the
 * places where the thread's Python frames stand; the value is the stack with them.  No lock guards the two words of an
 * entry.  So `value` repeats the upper half of `key`, by which a reader sees whether the two belong together.
 */
enum { PYTHON_NAMES = 1024, PYTHON_STACKS = 16384 };
static struct {
	_Atomic uint64_t key, value;
} python_names[PYTHON_NAMES];
/* ns that all reads of names together may take: a program may make each call at another line. */
uint64_t cl_python_limit = 500 * 1000000ull;
/* written under cl_exports_lock */
static _Atomic uint64_t python_took;
static _Atomic uint32_t python_stacks; /* whose names were read; no more than PYTHON_STACKS are, others are said to be unread */
#define UPPER_HALF 0xffffffff00000000u

/* Returns the index of the text that has @function and @file, or 0 if there is no room. */
static uint32_t add_text_locked(const char *function, const char *file)
{
	uint64_t words[(2 * CL_PYTHON_TEXT + 7) / 8] = { 0 };
	size_t first = strlen(function), second = strlen(file);
	uint64_t n = (first + second + 7) / 8;

	/* texts leave room for stacks */
	if (!n || first > CL_PYTHON_TEXT || second > CL_PYTHON_TEXT || parts.words.used >= CL_STACK_WORDS / 2)
		return 0;
	memcpy(words, function, first);
	memcpy((char *)words + first, file, second);
	return add_words_locked(n << CL_TEXT_WORDS_SHIFT | (uint64_t)first << CL_TEXT_FUNCTION_SHIFT |
				 (uint64_t)second << CL_TEXT_FILE_SHIFT, words, (uint32_t)n);
}

static uint64_t python_word_locked(const char *function, const char *file, unsigned int line)
{
	uint32_t text = add_text_locked(function, file);

	return text ? text | (uint64_t)line << 32 : 0;
}

/*
 * Finds or adds the stack @stack, which has none, with the @n Python frames at @python.  Returns 0 if
 * there is no room.
 */
static uint32_t add_with_python_locked(uint32_t stack, const uint64_t *python, uint32_t n, bool unread)
{
	uint64_t words[CL_STACK_FRAMES + CL_PYTHON_FRAMES], head, start;
	uint32_t readable = entries_locked(&parts.words);
	const uint64_t *from = stack < readable ? entry_of(&parts.words, stack) : NULL;

	/* other processes can write there */
	head = from ? *from : 0;
	start = head & CL_STACK_FROM_START;
	head -= start;
	if (!head || head > CL_STACK_FRAMES || head >= readable - stack)
		return 0;
	memcpy(words, from + 1, head * sizeof words[0]);
	memcpy(words + head, python, n * sizeof words[0]);
	return add_words_locked(head | start | (uint64_t)n << CL_PYTHON_SHIFT | (unread ? CL_PYTHON_UNREAD : 0),
				 words, (uint32_t)head + n);
}

/*
 * Returns the name of @stack with the Python frames at @places, whose names it reads, or @stack if there is no room.
 * Not inlined, because it needs much stack.
 */
static __attribute__((noinline)) uint32_t add_python(uint32_t stack, const struct cl_python_places *places)
{
	uint64_t python[CL_PYTHON_FRAMES];
	struct cl_python_name name;
	bool unread = places->unread;
	uint64_t from = unread ? 0 : cl_now();
	uint32_t n = 0, with;

	/* counts the stack also if there was no room for it: the names were read all the same, which takes the time */
	cl_lock(&cl_exports_lock);
	atomic_store_explicit(&python_stacks, python_stacks + !unread, memory_order_relaxed);
	cl_unlock(&cl_exports_lock);
	for (; n < places->n && !unread; n++) {
		/* without our lock: it makes system calls */
		if (!cl_python_name(&places->place[n], &name)) {
			unread = true;
			break;
		}
		cl_lock(&cl_exports_lock);
		python[n] = python_word_locked(name.function, name.file, name.line);
		cl_unlock(&cl_exports_lock);
		if (!python[n])
			return stack;
	}
	cl_lock(&cl_exports_lock);
	if (from)
		atomic_store_explicit(&python_took, python_took + (cl_now() - from), memory_order_relaxed);
	with = add_with_python_locked(stack, python, n, unread);
	cl_unlock(&cl_exports_lock);
	return with ? with : stack;
}

/* Returns the name of @stack with the Python frames that this thread has now. */
static __attribute__((noinline)) uint32_t with_python(uint32_t stack)
{
	struct cl_python_places places;
	uint64_t key, value;
	uint32_t at, with;

	cl_python_places(&places, (unsigned int)cl_options.stack.number);
	if (!places.n && !places.unread)
		return stack;
	for (;;) {
		key = cl_mix((places.unread ? 0 : places.hash) + stack) | 1;
		at = (uint32_t)key >> 1 & (PYTHON_NAMES - 1);
		value = atomic_load_explicit(&python_names[at].value, memory_order_relaxed);
		if (atomic_load_explicit(&python_names[at].key, memory_order_relaxed) == key &&
		    !((value ^ key) & UPPER_HALF))
			return (uint32_t)value;
		if (places.unread || (atomic_load_explicit(&python_stacks, memory_order_relaxed) < PYTHON_STACKS &&
				       atomic_load_explicit(&python_took, memory_order_relaxed) < cl_python_limit))
			break;
		places.n = 0;
		places.unread = true;
	}
	with = add_python(stack, &places);
	atomic_store_explicit(&python_names[at].value, (key & UPPER_HALF) | with, memory_order_relaxed);
	atomic_store_explicit(&python_names[at].key, key, memory_order_relaxed);
	return with;
}

CL_HOT_SHARING uint32_t cl_stack_write(bool importer)
{
	struct cl_stack stack;
	uint32_t word;

	if (!cl_options.stack.number)
		return 0;
	cl_stack_take(&stack);
	if (!stack.n)
		return 0;
	/* a stack with a name is in our file: it got the name when it was written there */
	word = stack.name ? stack.name : add_stack(&stack, importer);
	return word && cl_python_is_there() ? with_python(word) : word;
}

/* Not inlined: it needs much stack itself.  Of @frame only the lengths are known to be right. */
__attribute__((noinline)) static uint32_t add_foreign_module_locked(const struct cl_view_frame *frame)
{
	struct cl_module module = { .bias = frame->address - frame->offset,
				    .build_id_length = (uint8_t)frame->build_id_length };

	memcpy(module.build_id, frame->build_id, sizeof module.build_id);
	memcpy(module.path, frame->path, sizeof module.path); /* zeros follow the text */
	return frame->path[0] ? add_module_locked(&module) : CL_NO_LOG_ENTRY;
}

uint32_t cl_stack_copy_locked(const struct cl_view *view, uint32_t stack)
{
	struct cl_view_frame frame;
	struct cl_view_python python;
	uint64_t copy[CL_STACK_FRAMES + CL_PYTHON_FRAMES];
	uint32_t n = 0, more = 0;
	bool unread, start = false;

	if (!cl_options.stack.number)
		return 0;
	begin_locked(true);
	/* a finding that is only counted has no stack */
	if (parts.findings.used == CL_FINDINGS || parts.words.full)
		return 0;
	while (n < CL_STACK_FRAMES && cl_view_stack_frame(view, stack, n, &frame)) {
		uint64_t module;

		if (frame.address >> CL_FOREIGN_ADDRESS_BITS)
			return 0;
		module = (uint64_t)add_foreign_module_locked(&frame) + 1;
		if (module > CL_FOREIGN_NO_MODULE)
			module = CL_FOREIGN_NO_MODULE;
		/* equals no stack of ours: the module's number is in the upper bits, where our addresses have zeros */
		copy[n++] = frame.address | module << CL_FOREIGN_ADDRESS_BITS;
		start = frame.is_start;
	}
	cl_view_python_depth(view, stack, &unread);
	while (more < CL_PYTHON_FRAMES && cl_view_python_frame(view, stack, more, &python))
		copy[n + more++] = python_word_locked(python.function, python.file, python.line);
	return n ? add_words_locked((uint64_t)n << CL_FOREIGN_SHIFT | (uint64_t)more << CL_PYTHON_SHIFT |
				     (unread ? CL_PYTHON_UNREAD : 0) | (start ? CL_STACK_FROM_START : 0),
				     copy, n + more) : 0;
}

/* -------------------------------------------------------------------- imports */
/*
 * Gets memory for one more entry of the import log.  Returns false if there is none.  Takes cl_exports_lock, because
 * the part grows by the region's descriptor, which may change.
 */
static bool need_import_entry(void)
{
	bool there = false;

	cl_lock(&cl_exports_lock);
	if (cl_own_need_locked(true))
		there = grow_locked(&imports.part, 1) != NULL;
	cl_unlock(&cl_exports_lock);
	return there;
}

static struct cl_import_entry *import_entry(uint32_t index)
{
	return (struct cl_import_entry *)((char *)cl_own.header + CL_AT_IMPORTS) + index;
}

CL_HOT_SHARING struct cl_import_entry *cl_import_log_begin(uint32_t *index)
{
	*index = imports.part.used;
	if (imports.free_n)
		*index = imports.free[--imports.free_n];
	else if ((*index + 1ull) * sizeof(struct cl_import_entry) > imports.part.got && !need_import_entry())
		return NULL;
	return import_entry(*index);
}

CL_HOT_SHARING void cl_import_log_end(uint32_t index, struct cl_import_entry *to)
{
	/* release: a reader that sees the entry in use sees all of it */
	atomic_store_explicit(&to->opens, 1, memory_order_release);
	if (index == imports.part.used)
		count_locked(&imports.part, 1, &cl_own.header->imports);
}

static void free_import(uint32_t index)
{
	if (imports.free_n == imports.free_size) {
		uint32_t size = imports.free_size ? imports.free_size * 2 : 64;
		uint32_t *more = realloc(imports.free, size * sizeof *more);

		if (!more)
			return; /* the entry, 64 bytes, is not used again */
		imports.free = more;
		imports.free_size = size;
	}
	imports.free[imports.free_n++] = index;
}

CL_HOT_SHARING void cl_import_log_opens(uint32_t index, uint64_t opens)
{
	struct cl_import_entry *entry;

	if (index >= imports.part.used) /* CL_NO_LOG_ENTRY */
		return;
	entry = import_entry(index);
	/* release: the next import is written into the entry after this */
	atomic_store_explicit(&entry->opens, opens, memory_order_release);
	if (!opens)
		free_import(index);
}

/* ------------------------------------------------------------------- findings */
bool cl_finding_add_locked(const struct cl_finding *finding)
{
	struct cl_finding *to, copy = *finding;
	uint32_t kind = finding->kind;

	begin_locked(true);
	atomic_fetch_add_explicit(&cl_own.header->finding_counts[kind], 1, memory_order_relaxed);
	to = grow_locked(&parts.findings, 1);
	if (!to)
		return false;
	copy.kind = CL_FINDING_NONE;
	if (!copy.when)
		copy.when = cl_now();
	memcpy(to, &copy, sizeof copy);
	/* release: a reader that sees the kind reads all of the finding */
	atomic_store_explicit(&to->kind, kind, memory_order_release);
	count_locked(&parts.findings, 1, &cl_own.header->findings);
	return true;
}

/* The notes that have an entry, and its index.  In private memory, because others can damage the file. */
enum { TALLIES = CL_FINDINGS / 8 };
static struct tally {
	uint32_t kind, stack, result, index;
	uint8_t made, call, device, why;
} tallies[TALLIES];
static unsigned int tallies_n;

void cl_finding_tally_locked(const struct cl_finding *note)
{
	struct tally *t = tallies, *end = tallies + tallies_n;
	struct cl_finding *entry;

	while (t < end && (t->kind != note->kind || t->stack != note->stack || t->result != note->result ||
			   t->made != note->made || t->call != note->call || t->device != note->device ||
			   t->why != note->why))
		t++;
	/* @note only adds bytes to an earlier note, and that one has no entry */
	if (t == end && !note->times)
		return;
	if (t == end && tallies_n < TALLIES) {
		if (!cl_finding_add_locked(note))
			return;
		tallies_n++;
		*t = (struct tally){ note->kind, note->stack, note->result, parts.findings.used - 1,
				     note->made, note->call,  note->device, note->why };
		return;
	}
	begin_locked(true);
	atomic_fetch_add_explicit(&cl_own.header->finding_counts[note->kind], note->times != 0, memory_order_relaxed);
	/* a file that was made after the entry may have no room for it */
	if (t == end || !get_locked(&parts.findings, (t->index + 1ull) * sizeof *entry))
		return;
	entry = entry_of(&parts.findings, t->index);
	if (entry->pid != note->pid) /* memory of several processes was not opened there */
		entry->pid = 0;
	atomic_fetch_add_explicit(&entry->times, note->times, memory_order_relaxed);
	atomic_fetch_add_explicit(&entry->bytes, note->size, memory_order_relaxed);
}

void cl_report_data_copy_stacks_locked(char *to, uint64_t size, uint32_t *modules, uint32_t *words)
{
	const uint64_t entry = sizeof(struct cl_module);

	*modules = entries_locked(&parts.modules);
	if (*modules > size / 2 / entry)
		*modules = (uint32_t)(size / 2 / entry);
	*words = entries_locked(&parts.words);
	if (*words > (size - *modules * entry) / 8)
		*words = (uint32_t)((size - *modules * entry) / 8);
	if (*modules)
		memcpy(to, cl_region_at(&cl_own, CL_AT_MODULES), *modules * entry);
	if (*words)
		memcpy(to + *modules * entry, cl_region_at(&cl_own, CL_AT_STACKS), *words * 8ull);
}

void cl_report_data_forget(void)
{
	/* not freed: a thread of the parent may have been changing them when it forked */
	memset(&parts, 0, sizeof parts);
	all_words = NULL;
	memset(python_names, 0, sizeof python_names);
	python_stacks = 0;
	cl_stack_forget_names();
	known_modules = (struct cl_list){ 0 };
	imports = (struct imports)IMPORTS_BEGIN;
	tallies_n = 0;
}
