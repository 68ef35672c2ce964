/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes: see notes.h.  What is where in the file is known here privately: others
 * can write into it, and what we touch must be there.  Each part is got by the
 * page, and counted in the header last, so that a reader finds whole entries.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shim/blocks.h"
#include "shim/log.h"
#include "shim/notes.h"
#include "shim/self.h"
#include "shim/stack.h"

/* -------------------------------------------------------------------- growing */
struct growing {
	uint64_t at;	  /* in the file */
	uint32_t entry;	  /* bytes */
	uint32_t most;	  /* entries */
	uint32_t used;	  /* entries */
	uint64_t got;	  /* bytes */
	bool full;
};

static struct {
	struct growing modules, words, imports, findings;
	bool begun;
	uint32_t *free_imports; /* entries that were closed, the last one first */
	uint32_t free_n, free_size;
} notes;

/* What was there before us in memory got by fallocate() is zeros. */
static void begin_locked(void)
{
	if (notes.begun)
		return;
	notes.begun = true;
	notes.modules = (struct growing){ CL_AT_MODULES, sizeof(struct cl_module), CL_MODULES, 0, 0, false };
	/* word 0 names no stack */
	notes.words = (struct growing){ CL_AT_STACKS, 8, CL_STACK_WORDS, 1, 0, false };
	notes.imports = (struct growing){ CL_AT_IMPORTS, sizeof(struct cl_import_note), CL_IMPORTS, 0, 0, false };
	notes.findings = (struct growing){ CL_AT_FINDINGS, sizeof(struct cl_finding), CL_FINDINGS, 0, 0, false };
}

static void *entry_of(const struct growing *part, uint32_t index)
{
	return (char *)cl_own.header + part->at + (uint64_t)index * part->entry;
}

/* Room for @n entries more, behind those in use; NULL: none. */
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
			/* once and for all: asking again at each call would cost a system call each */
			part->full = true;
			cl_log_once(CL_LOG_INFO,
				    "no room to note more for reports (%s): what is shared is as safe as "
				    "before",
				    strerror(-err));
			return NULL;
		}
		part->got += more;
	}
	return entry_of(part, part->used);
}

static void count_locked(struct growing *part, uint32_t n, _Atomic uint32_t *count)
{
	part->used += n;
	/* release: whoever sees it counted reads it whole */
	atomic_store_explicit(count, part->used, memory_order_release);
}

/* --------------------------------------------------------------------- stacks */
/* A stack that is noted; found by a hash of its frames. */
struct noted {
	UT_hash_handle hh;
	uint64_t hash;
	uint32_t word, n;
	uint64_t frame[];
};
static struct noted *noted;

/* The modules that are noted, as we wrote them. */
struct known_module {
	struct known_module *older;
	struct cl_module module;
};
static struct known_module *known_modules;

static uint64_t hash_of(const struct cl_stack *stack)
{
	uint64_t hash = stack->n;

	for (uint32_t i = 0; i < stack->n; i++) {
		hash = (hash ^ stack->frame[i]) * 0x9e3779b97f4a7c15u;
		hash ^= hash >> 29;
	}
	return hash;
}

/* *hash: the key that it has, or is to have. */
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

static void note_module_locked(const struct cl_module *module)
{
	struct known_module *known;
	struct cl_module *to;

	for (known = known_modules; known; known = known->older)
		if (!memcmp(&known->module, module, sizeof *module))
			return;
	known = malloc(sizeof *known);
	to = known ? grow_locked(&notes.modules, 1) : NULL;
	if (!to) {
		free(known);
		return;
	}
	known->module = *to = *module;
	known->older = known_modules;
	known_modules = known;
	count_locked(&notes.modules, 1, &cl_own.header->modules);
}

static uint32_t note_stack_locked(const struct cl_stack *stack)
{
	uint64_t hash, *to;
	struct noted *new = find_noted_locked(stack, &hash);

	if (new) /* another thread was faster */
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
	to[0] = stack->n;
	memcpy(to + 1, stack->frame, stack->n * sizeof stack->frame[0]);
	count_locked(&notes.words, stack->n + 1, &cl_own.header->stack_words);
	return new->word;
}

uint32_t cl_notes_stack(bool importer)
{
	enum { AT_ONCE = 4 };
	struct cl_module modules[AT_ONCE];
	struct cl_stack stack;
	struct noted *known;
	unsigned int n = AT_ONCE;
	uint32_t word = 0;
	uint64_t hash;
	bool full;

	cl_stack_take(&stack);
	if (!stack.n)
		return 0;
	pthread_mutex_lock(&cl_exports_lock);
	if (!cl_own_need_locked(importer)) {
		pthread_mutex_unlock(&cl_exports_lock);
		return 0;
	}
	begin_locked();
	known = find_noted_locked(&stack, &hash);
	if (known)
		word = known->word;
	full = notes.words.full;
	pthread_mutex_unlock(&cl_exports_lock);
	if (word || full)
		return word;
	/* the first time: what it leads through, without our lock (see stack.h) */
	for (unsigned int seen = 0; n == AT_ONCE; seen += n) {
		n = cl_stack_modules(&stack, seen, modules, AT_ONCE);
		pthread_mutex_lock(&cl_exports_lock);
		for (unsigned int i = 0; i < n && cl_own.header; i++)
			note_module_locked(&modules[i]);
		if (n < AT_ONCE && cl_own.header)
			word = note_stack_locked(&stack);
		pthread_mutex_unlock(&cl_exports_lock);
	}
	return word;
}

/* -------------------------------------------------------------------- imports */
uint32_t cl_notes_import(const struct cl_import_note *note)
{
	struct cl_import_note *to = NULL;
	uint32_t index = CL_NO_NOTE;

	pthread_mutex_lock(&cl_exports_lock);
	if (!cl_own_need_locked(true))
		goto out;
	begin_locked();
	if (notes.free_n) {
		index = notes.free_imports[--notes.free_n];
		to = entry_of(&notes.imports, index);
	} else if ((to = grow_locked(&notes.imports, 1)) != NULL) {
		index = notes.imports.used;
	} else {
		goto out;
	}
	to->key = note->key;
	to->size = note->size;
	to->since = note->since;
	to->file_id = note->file_id;
	to->record = note->record;
	to->generation = note->generation;
	to->stack = note->stack;
	to->exporter_pid = note->exporter_pid;
	to->kind = note->kind;
	to->device = note->device;
	/* release: it is in use when it is whole */
	atomic_store_explicit(&to->opens, 1, memory_order_release);
	if (index == notes.imports.used)
		count_locked(&notes.imports, 1, &cl_own.header->imports);
out:
	pthread_mutex_unlock(&cl_exports_lock);
	return index;
}

static void free_import_locked(uint32_t index)
{
	if (notes.free_n == notes.free_size) {
		uint32_t size = notes.free_size ? notes.free_size * 2 : 64;
		uint32_t *more = realloc(notes.free_imports, size * sizeof *more);

		if (!more)
			return; /* that entry is not used again: 64 bytes */
		notes.free_imports = more;
		notes.free_size = size;
	}
	notes.free_imports[notes.free_n++] = index;
}

void cl_notes_import_opens(uint32_t index, uint64_t opens)
{
	struct cl_import_note *note;

	if (index == CL_NO_NOTE)
		return;
	pthread_mutex_lock(&cl_exports_lock);
	if (cl_own.header && index < notes.imports.used) {
		note = entry_of(&notes.imports, index);
		/* release: what follows in that entry is another import */
		atomic_store_explicit(&note->opens, opens, memory_order_release);
		if (!opens)
			free_import_locked(index);
	}
	pthread_mutex_unlock(&cl_exports_lock);
}

/* ------------------------------------------------------------------- findings */
void cl_notes_finding_locked(const struct cl_finding *finding)
{
	struct cl_finding *to, copy = *finding;
	uint32_t kind = finding->kind;

	if (!cl_own_need_locked(true))
		return;
	begin_locked();
	atomic_fetch_add_explicit(&cl_own.header->found[kind], 1, memory_order_relaxed);
	to = grow_locked(&notes.findings, 1);
	if (!to)
		return;
	copy.kind = CL_FOUND_NOTHING;
	copy.when = cl_now();
	memcpy(to, &copy, sizeof copy);
	/* release: who sees its kind reads it whole */
	atomic_store_explicit(&to->kind, kind, memory_order_release);
	count_locked(&notes.findings, 1, &cl_own.header->findings);
}

void cl_notes_finding(const struct cl_finding *finding)
{
	pthread_mutex_lock(&cl_exports_lock);
	cl_notes_finding_locked(finding);
	pthread_mutex_unlock(&cl_exports_lock);
}

/* ------------------------------------------------------------------ last closes */
enum { CLOSED = 1024 };
struct closed {
	UT_hash_handle hh; /* by key; the kinds' do not meet (an event's is a pointer of the host) */
	struct cl_closed what;
};
static struct closed *closed, *by_age[CLOSED]; /* a ring */
static uint32_t next_closed;

void cl_notes_closed(const struct cl_closed *what)
{
	struct closed *entry;

	pthread_mutex_lock(&cl_exports_lock);
	HASH_FIND(hh, closed, &what->key, sizeof what->key, entry);
	if (entry) {
		entry->what = *what;
		goto out;
	}
	entry = by_age[next_closed];
	if (entry) {
		HASH_DELETE(hh, closed, entry);
	} else {
		entry = malloc(sizeof *entry);
		if (!entry)
			goto out;
	}
	entry->what = *what;
	HASH_ADD(hh, closed, what.key, sizeof entry->what.key, entry);
	if (!entry->hh.tbl) { /* uthash had no memory */
		free(entry);
		entry = NULL;
	}
	by_age[next_closed] = entry;
	next_closed = (next_closed + 1) % CLOSED;
out:
	pthread_mutex_unlock(&cl_exports_lock);
}

bool cl_notes_find_closed(enum cl_kind kind, uint64_t key, struct cl_closed *what)
{
	struct closed *entry;

	pthread_mutex_lock(&cl_exports_lock);
	HASH_FIND(hh, closed, &key, sizeof key, entry);
	if (entry && entry->what.kind == kind)
		*what = entry->what;
	else
		entry = NULL;
	pthread_mutex_unlock(&cl_exports_lock);
	return entry != NULL;
}

void cl_notes_forget(void)
{
	/* their memory is left: another thread of the parent may have been in the middle of it */
	memset(&notes, 0, sizeof notes);
	noted = NULL;
	known_modules = NULL;
	closed = NULL;
	memset(by_age, 0, sizeof by_age);
	next_closed = 0;
}
