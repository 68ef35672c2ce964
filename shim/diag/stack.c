/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Call stacks: see stack.h.
 *
 * The library has its own copy of the unwinder, libgcc's, linked statically.  So it works in programs without
 * one.  In the preloaded library it ends at the first address for which it has no data:
 * see preload/unwind.c.
 */
#include <link.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>
#include <unwind.h>

#include "shim/base/hot.h"
#include "shim/base/options.h"
#include "shim/diag/stack.h"
#include "shim/diag/stack_cache.h"

/* -------------------------------------------------------------------- unwinding */
/* Where the preloaded library lies.  In unit tests this code is part of the program: then nowhere. */
static struct {
	_Atomic uint64_t start, end;
} ours;

static void extent(const struct dl_phdr_info *object, uint64_t *start, uint64_t *end)
{
	*start = UINT64_MAX;
	*end = 0;
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];

		if (part->p_type != PT_LOAD)
			continue;
		if (object->dlpi_addr + part->p_vaddr < *start)
			*start = object->dlpi_addr + part->p_vaddr;
		if (object->dlpi_addr + part->p_vaddr + part->p_memsz > *end)
			*end = object->dlpi_addr + part->p_vaddr + part->p_memsz;
	}
}

static int is_ours(struct dl_phdr_info *object, size_t size, void *found)
{
	uint64_t here = (uint64_t)(uintptr_t)&ours, start, end;

	(void)size;
	extent(object, &start, &end);
	if (here < start || here >= end)
		return 0;
	if (!object->dlpi_name || !*object->dlpi_name) /* the program itself */
		start = end = 1;
	atomic_store_explicit(&ours.start, start, memory_order_relaxed);
	/* release: a reader that sees the end sees the start */
	atomic_store_explicit(&ours.end, end, memory_order_release);
	*(bool *)found = true;
	return 1;
}

static void find_ours(void)
{
	bool found = false;

	/* acquire: for the start; threads that search at the same time find the same */
	if (!atomic_load_explicit(&ours.end, memory_order_acquire))
		dl_iterate_phdr(is_ours, &found);
}

struct walk {
	struct cl_stack *stack;
	struct cl_cached_stack *entry; /* the cache's entry to fill in; NULL: none */
	uint32_t max;
	unsigned int steps;
	bool whole;
};

static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *data)
{
	struct walk *walk = data;
	uint64_t address = _Unwind_GetIP(context);
	bool wanted;

	/* the first frame is that of cl_stack_take() itself */
	if (!walk->steps++)
		return _URC_NO_REASON;
	/* too many frames: one may lead to itself, in a stack that is damaged or is none */
	if (walk->steps > 8 * CL_STACK_FRAMES)
		return _URC_END_OF_STACK;
	wanted = address && (address < atomic_load_explicit(&ours.start, memory_order_relaxed) ||
			     address >= atomic_load_explicit(&ours.end, memory_order_relaxed) ||
			     walk->stack->n);
	if (walk->entry)
		cl_stack_cache_frame(walk->entry, context, wanted);
	if (wanted)
		walk->stack->frame[walk->stack->n++] = address;
	walk->whole = !address || walk->stack->n == walk->max;
	return walk->whole ? _URC_END_OF_STACK : _URC_NO_REASON;
}

CL_HOT_SHARING __attribute__((noinline)) void cl_stack_take(struct cl_stack *stack)
{
	struct walk walk = { .stack = stack, .max = (uint32_t)cl_options.stack.number };

	stack->n = 0;
	if (!walk.max)
		return;
	if (walk.max > CL_STACK_FRAMES)
		walk.max = CL_STACK_FRAMES;
	if (cl_stack_cache_find((uint64_t)(uintptr_t)__builtin_frame_address(0),
			  (uint64_t)(uintptr_t)__builtin_return_address(0), walk.max, stack, &walk.entry))
		return;
	find_ours();
	if (_Unwind_Backtrace(step, &walk) == _URC_END_OF_STACK)
		walk.whole = true;
	if (walk.entry)
		cl_stack_cache_end(walk.entry, walk.whole, stack);
}

bool cl_stack_is_from_start(const struct cl_stack *stack)
{
	/* _start is the program's entry, and short: it returns to just behind its only call */
	enum { LONGEST = 64 };
	uint64_t entry = getauxval(AT_ENTRY);

	return stack->n && entry && stack->frame[stack->n - 1] - entry < LONGEST;
}

/* --------------------------------------------------------------------- modules */
static bool leads_through(const struct cl_stack *stack, uint64_t start, uint64_t end)
{
	/* a return address lies behind its call */
	for (uint32_t i = 0; i < stack->n; i++)
		if (stack->frame[i] - 1 >= start && stack->frame[i] - 1 < end)
			return true;
	return false;
}

/* Reads the build id from a PT_NOTE segment: the note with name "GNU" and type 3. */
static void read_build_id(struct cl_module *module, const char *at, uint64_t size)
{
	while (size >= sizeof(ElfW(Nhdr))) {
		const ElfW(Nhdr) *note = (const void *)at;
		uint64_t name = (note->n_namesz + 3ull) & ~3ull, text = (note->n_descsz + 3ull) & ~3ull;
		const char *content = at + sizeof *note;

		if (name + text > size - sizeof *note)
			return;
		if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && !memcmp(content, "GNU", 4)) {
			module->build_id_length = (uint8_t)(note->n_descsz <= sizeof module->build_id ?
								    note->n_descsz :
								    sizeof module->build_id);
			memcpy(module->build_id, content + name, module->build_id_length);
			return;
		}
		size -= sizeof *note + name + text;
		at = content + name + text;
	}
}

static bool is_loaded(const struct dl_phdr_info *object, const ElfW(Phdr) *notes)
{
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];

		if (part->p_type == PT_LOAD && (part->p_flags & PF_R) && notes->p_vaddr >= part->p_vaddr &&
		    notes->p_vaddr + notes->p_filesz <= part->p_vaddr + part->p_filesz)
			return true;
	}
	return false;
}

static void name_module(struct cl_module *module, const char *name)
{
	char self[1024];
	size_t n = strlen(name), room = sizeof module->path - 1;

	if (!n) { /* the program */
		ssize_t got = readlink("/proc/self/exe", self, sizeof self);

		name = self;
		n = got > 0 ? (size_t)got : 0;
	}
	if (n <= room) {
		memcpy(module->path, name, n);
	} else {
		memcpy(module->path, "...", 3);
		memcpy(module->path + 3, name + n - (room - 3), room - 3);
	}
}

struct modules {
	const struct cl_stack *stack;
	struct cl_module *to;
	unsigned int skip, max, n;
};

static int collect_module(struct dl_phdr_info *object, size_t size, void *data)
{
	struct modules *modules = data;
	struct cl_module *module = &modules->to[modules->n];
	uint64_t start, end;

	(void)size;
	extent(object, &start, &end);
	if (!leads_through(modules->stack, start, end))
		return 0;
	if (modules->skip) {
		modules->skip--;
		return 0;
	}
	*module = (struct cl_module){ .start = start, .end = end, .bias = object->dlpi_addr };
	for (int i = 0; i < object->dlpi_phnum && !module->build_id_length; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];

		if (part->p_type == PT_NOTE && is_loaded(object, part))
			read_build_id(module, (const char *)(object->dlpi_addr + part->p_vaddr),
				      part->p_filesz);
	}
	name_module(module, object->dlpi_name ? object->dlpi_name : "");
	return ++modules->n == modules->max;
}

unsigned int cl_stack_modules(const struct cl_stack *stack, unsigned int skip,
			      struct cl_module *to, unsigned int max)
{
	struct modules modules = { stack, to, skip, max, 0 };

	dl_iterate_phdr(collect_module, &modules);
	return modules.n;
}
