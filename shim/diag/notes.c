/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the notes: see notes.h.  Private memory has the place and size of each part, since other
 * processes can damage the file, and we must touch only what has memory.  A part grows by pages.
 * The header counts an entry only after it is written, so readers never see half of one.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shim/base/hash.h"
#include "shim/base/list.h"
#include "shim/base/log.h"
#include "shim/diag/notes.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"
#include "shim/diag/stack.h"
#include "shim/shm/view.h"

/* -------------------------------------------------------------------- growing */
struct growing {
	uint64_t at;	  /* of the part, in the file */
	uint32_t entry;	  /* bytes of one entry */
	uint32_t most;	  /* entries that the part can have */
	uint32_t used;	  /* entries */
	uint64_t got;	  /* bytes that have memory */
	bool full;
};

static struct {
	struct growing modules, words, findings;
	bool begun;
} notes;

/* Under cl_imports_lock; where the part grows, under cl_exports_lock, too. */
#define IMPORTS_BEGIN { { CL_AT_IMPORTS, sizeof(struct cl_import_note), CL_IMPORTS, 0, 0, false }, NULL, 0, 0 }
static struct imports {
	struct growing part;
	uint32_t *free; /* entries that can be used again, the last one first */
	uint32_t free_n, free_size;
} imports = IMPORTS_BEGIN;

/* Makes our region ready.  Nothing is cleared here: memory that fallocate() or mmap() gets is zeros. */
static void begin_locked(bool importer)
{
	cl_own_need_locked(importer);
	if (notes.begun)
		return;
	notes.begun = true;
	notes.modules = (struct growing){ CL_AT_MODULES, sizeof(struct cl_module), CL_MODULES, 0, 0, false };
	/* word 0 names no stack */
	notes.words = (struct growing){ CL_AT_STACKS, 8, CL_STACK_WORDS, 1, 0, false };
	notes.findings = (struct growing){ CL_AT_FINDINGS, sizeof(struct cl_finding), CL_FINDINGS, 0, 0, false };
}

static void *entry_of(const struct growing *part, uint32_t index)
{
	return cl_region_at(&cl_own, part->at + (uint64_t)index * part->entry);
}

/* Gets memory for @n more entries behind those in use.  Returns the first, or NULL. */
static void *grow_locked(struct growing *part, uint32_t n)
{
	uint64_t end = ((uint64_t)part->used + n) * part->entry;
	int err;

	if (n > part->most - part->used)
		part->full = true;
	if (part->full)
		return NULL;
	if (end > part->got) {
		uint64_t more = (end - part->got + CL_PAGE - 1) / CL_PAGE * CL_PAGE;

		cl_self_keep_descriptor(&cl_own, CL_LOCK_EXPORTER);
		err = cl_region_get(&cl_own, part->at + part->got, more);
		if (err) {
			/* for good: to ask the file again at each call would cost a system call each */
			part->full = cl_own.file_id != 0;
			cl_log_once(CL_LOG_INFO,
				    "no room to note more for reports (%s): what is shared is as safe as "
				    "before",
				    strerror(-err));
			return NULL;
		}
		/* a file that is made later has got nothing yet */
		if (cl_own.file_id)
			part->got += more;
	}
	return entry_of(part, part->used);
}

static void count_locked(struct growing *part, uint32_t n, _Atomic uint32_t *count)
{
	part->used += n;
	/* release: who sees the count reads the entry whole */
	atomic_store_explicit(count, part->used, memory_order_release);
}

/* --------------------------------------------------------------------- stacks */
/* A stack that our file has; found by a hash of its frames. */
struct noted {
	UT_hash_handle hh;
	uint64_t hash;
	uint32_t word, n;
	uint64_t frame[];
};
static struct noted *noted;

/* Copies of the modules that our file has. */
struct known_module {
	struct cl_node node; /* of known_modules, the last one first */
	uint32_t index;
	struct cl_module module;
};
static struct cl_list known_modules;

static uint64_t hash_of(const struct cl_stack *stack)
{
	uint64_t hash = stack->n;

	for (uint32_t i = 0; i < stack->n; i++) {
		hash = (hash ^ stack->frame[i]) * 0x9e3779b97f4a7c15u;
		hash ^= hash >> 29;
	}
	return hash;
}

/* Finds a stack.  Returns NULL if our file does not have it; then *hash is the key for it. */
static struct noted *find_noted_locked(const struct cl_stack *stack, uint64_t *hash)
{
	struct noted *found;

	for (*hash = hash_of(stack);; ++*hash) {
		HASH_FIND(hh, noted, hash, sizeof *hash, found);
		if (!found || (found->n == stack->n &&
			       !memcmp(found->frame, stack->frame, stack->n * sizeof stack->frame[0])))
			return found;
	}
}

/* Returns the index of @module, which it adds if it is new, or CL_NO_LOG_ENTRY. */
static uint32_t note_module_locked(const struct cl_module *module)
{
	struct known_module *known;
	struct cl_module *to;

	CL_LIST_EACH (known, &known_modules, struct known_module, node)
		if (!memcmp(&known->module, module, sizeof *module))
			return known->index;
	/* modules of other processes' stacks (end 0) leave room for our own */
	if (!module->end && notes.modules.used >= CL_MODULES / 2)
		return CL_NO_LOG_ENTRY;
	known = malloc(sizeof *known);
	to = known ? grow_locked(&notes.modules, 1) : NULL;
	if (!to) {
		free(known);
		return CL_NO_LOG_ENTRY;
	}
	known->module = *to = *module;
	known->index = notes.modules.used;
	cl_list_add_front(&known_modules, &known->node);
	count_locked(&notes.modules, 1, &cl_own.header->modules);
	return known->index;
}

/* Adds a stack.  @foreign is CL_FOREIGN_SHIFT if it is another process's, else 0. */
static uint32_t note_stack_locked(const struct cl_stack *stack, unsigned int foreign)
{
	uint64_t hash, *to;
	struct noted *new = find_noted_locked(stack, &hash);

	if (new) /* another thread has added it meanwhile */
		return new->word;
	new = malloc(sizeof *new + stack->n * sizeof stack->frame[0]);
	to = new ? grow_locked(&notes.words, stack->n + 1) : NULL;
	if (!to) {
		free(new);
		return 0;
	}
	new->hash = hash;
	new->word = notes.words.used;
	new->n = stack->n;
	memcpy(new->frame, stack->frame, stack->n * sizeof stack->frame[0]);
	HASH_ADD(hh, noted, hash, sizeof new->hash, new);
	if (!new->hh.tbl) { /* uthash had no memory */
		free(new);
		return 0;
	}
	to[0] = (uint64_t)stack->n << foreign;
	memcpy(to + 1, stack->frame, stack->n * sizeof stack->frame[0]);
	count_locked(&notes.words, stack->n + 1, &cl_own.header->stack_words);
	return new->word;
}

/* Finds or adds a stack that the cache has no name for.  Not inlined: it needs much stack itself. */
static __attribute__((noinline)) uint32_t note_stack(const struct cl_stack *stack, bool importer)
{
	enum { AT_ONCE = 4 };
	struct cl_module modules[AT_ONCE];
	struct noted *known;
	unsigned int n = AT_ONCE;
	uint32_t word = 0;
	uint64_t hash;
	bool full;

	cl_lock(&cl_exports_lock);
	begin_locked(importer);
	known = find_noted_locked(stack, &hash);
	if (known)
		word = known->word;
	full = notes.words.full;
	cl_unlock(&cl_exports_lock);
	if (word)
		cl_stack_name(stack, word);
	if (word || full)
		return word;
	/* the first time: find its modules, without our lock (see stack.h) */
	for (unsigned int seen = 0; n == AT_ONCE; seen += n) {
		n = cl_stack_modules(stack, seen, modules, AT_ONCE);
		cl_lock(&cl_exports_lock);
		for (unsigned int i = 0; i < n; i++)
			note_module_locked(&modules[i]);
		if (n < AT_ONCE)
			word = note_stack_locked(stack, 0);
		cl_unlock(&cl_exports_lock);
	}
	if (word)
		cl_stack_name(stack, word);
	return word;
}

uint32_t cl_stack_write(bool importer)
{
	struct cl_stack stack;

	if (!cl_options.stack.number)
		return 0;
	cl_stack_take(&stack);
	if (!stack.n)
		return 0;
	/* a stack with a name is in our file: it got the name when it was written there */
	return stack.name ? stack.name : note_stack(&stack, importer);
}

/* Not inlined: it needs much stack itself.  Of @frame only the lengths are known to be right. */
__attribute__((noinline)) static uint32_t note_foreign_module_locked(const struct cl_view_frame *frame)
{
	struct cl_module module = { .bias = frame->address - frame->offset,
				    .build_id_length = (uint8_t)frame->build_id_length };

	memcpy(module.build_id, frame->build_id, sizeof module.build_id);
	memcpy(module.path, frame->path, sizeof module.path); /* zeros follow the text */
	return frame->path[0] ? note_module_locked(&module) : CL_NO_LOG_ENTRY;
}

uint32_t cl_stack_copy_locked(const struct cl_view *view, uint32_t stack)
{
	struct cl_view_frame frame;
	struct cl_stack copy = { 0 };

	if (!cl_options.stack.number)
		return 0;
	begin_locked(true);
	/* a finding that is only counted has no stack */
	if (notes.findings.used == CL_FINDINGS || notes.words.full)
		return 0;
	while (copy.n < CL_STACK_FRAMES && cl_view_stack_frame(view, stack, copy.n, &frame)) {
		uint64_t module;

		if (frame.address >> CL_FOREIGN_ADDRESS_BITS)
			return 0;
		module = (uint64_t)note_foreign_module_locked(&frame) + 1;
		if (module > CL_FOREIGN_NO_MODULE)
			module = CL_FOREIGN_NO_MODULE;
		/* so it equals no stack of ours, whose addresses have no bits up there */
		copy.frame[copy.n++] = frame.address | module << CL_FOREIGN_ADDRESS_BITS;
	}
	return copy.n ? note_stack_locked(&copy, CL_FOREIGN_SHIFT) : 0;
}

/* -------------------------------------------------------------------- imports */
/*
 * Gets memory for another import log entry.  Returns false if there is none.  It takes
 * cl_exports_lock for our region, of which only the descriptor may change.
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

static struct cl_import_note *import_entry(uint32_t index)
{
	return (struct cl_import_note *)((char *)cl_own.header + CL_AT_IMPORTS) + index;
}

struct cl_import_note *cl_import_log_begin(uint32_t *index)
{
	*index = imports.part.used;
	if (imports.free_n)
		*index = imports.free[--imports.free_n];
	else if ((*index + 1ull) * sizeof(struct cl_import_note) > imports.part.got && !need_import_entry())
		return NULL;
	return import_entry(*index);
}

void cl_import_log_end(uint32_t index, struct cl_import_note *to)
{
	/* release: who sees the entry in use reads all of it */
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

void cl_import_log_opens(uint32_t index, uint64_t opens)
{
	struct cl_import_note *note;

	if (index >= imports.part.used) /* CL_NO_LOG_ENTRY */
		return;
	note = import_entry(index);
	/* release: the next import is written into the entry after this */
	atomic_store_explicit(&note->opens, opens, memory_order_release);
	if (!opens)
		free_import(index);
}

/* ------------------------------------------------------------------- findings */
void cl_finding_add_locked(const struct cl_finding *finding)
{
	struct cl_finding *to, copy = *finding;
	uint32_t kind = finding->kind;

	begin_locked(true);
	atomic_fetch_add_explicit(&cl_own.header->found[kind], 1, memory_order_relaxed);
	to = grow_locked(&notes.findings, 1);
	if (!to)
		return;
	copy.kind = CL_FOUND_NOTHING;
	if (!copy.when)
		copy.when = cl_now();
	memcpy(to, &copy, sizeof copy);
	/* release: who sees the kind reads all of the finding */
	atomic_store_explicit(&to->kind, kind, memory_order_release);
	count_locked(&notes.findings, 1, &cl_own.header->findings);
}

void cl_finding_add(const struct cl_finding *finding)
{
	cl_lock(&cl_exports_lock);
	cl_finding_add_locked(finding);
	cl_unlock(&cl_exports_lock);
}

void cl_notes_forget(void)
{
	/* not freed: a thread of the parent may have been changing them when it forked */
	memset(&notes, 0, sizeof notes);
	noted = NULL;
	cl_stack_forget_names();
	known_modules = (struct cl_list){ 0 };
	imports = (struct imports)IMPORTS_BEGIN;
}
