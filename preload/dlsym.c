/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What our dlsym answers for the names in the hook table.  All other names
 * never come here: the thunk (dlsym_thunk_*.S) jumps on, so that the next
 * dlsym sees the program's own return address, which RTLD_NEXT and
 * RTLD_DEFAULT are resolved by.
 *
 * What must hold:
 *  - Found or not found, and what dlerror() says, are as without us.  Only an
 *    address of the driver is ever replaced, by its hook.  Where we can't tell,
 *    we jump on.
 *  - Nothing here calls the exported dlsym: only cl_real_dlsym() and
 *    cl_next_dlsym().
 *  - The last call into the dynamic linker before we answer with an address is
 *    one that succeeded: it leaves dlerror() as a success does.
 *
 * Our own exported cu* symbols never show up in a look-up, here or in libc:
 * they have a hidden version, which only the binding of a linked program takes
 * (doors.c).
 */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include "preload/dlsym.h"
#include "preload/hook_table.h"
#include "preload/process.h"

/* The first version each architecture's glibc ever had; all glibcs still answer to it. */
#if defined(__x86_64__)
#define FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FIRST_GLIBC "GLIBC_2.17"
#endif

_Atomic(cl_dlsym_fn *) cl_next_dlsym_found;
static _Atomic(cl_dlsym_fn *) real_dlsym_found;

/* The sanitizers' own libraries call dlsym before code that they have instrumented can run. */
#if defined(__has_attribute)
#if __has_attribute(disable_sanitizer_instrumentation)
#define UNINSTRUMENTED __attribute__((disable_sanitizer_instrumentation))
#endif
#endif
#ifndef UNINSTRUMENTED
#define UNINSTRUMENTED __attribute__((no_sanitize_address, no_sanitize_thread))
#endif

/* Both finders may run in several threads at once: they store the same. */
UNINSTRUMENTED cl_dlsym_fn *cl_real_dlsym(void)
{
	/* relaxed, here and below: a pointer to code that was mapped before any thread ran it */
	cl_dlsym_fn *real = atomic_load_explicit(&real_dlsym_found, memory_order_relaxed);

	if (real)
		return real;
	/* a version is what tells libc's from other interposers', which have none */
	real = (cl_dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", FIRST_GLIBC);
	atomic_store_explicit(&real_dlsym_found, real, memory_order_relaxed);
	return real;
}

UNINSTRUMENTED cl_dlsym_fn *cl_next_dlsym(void)
{
	cl_dlsym_fn *next = atomic_load_explicit(&cl_next_dlsym_found, memory_order_relaxed);

	if (next)
		return next;
	next = (cl_dlsym_fn *)cl_real_dlsym()(RTLD_NEXT, "dlsym");
	if (!next)
		next = cl_real_dlsym();
	atomic_store_explicit(&cl_next_dlsym_found, next, memory_order_relaxed);
	return next;
}

/* ------------------------------------------- does one object define a name? */
/*
 * Read from the object's own tables, because this is asked while
 * dl_iterate_phdr() holds the list of objects still, where dlsym() would wait
 * for a lock that its holder may be waiting for us with.
 */
struct object_tables {
	const ElfW(Sym) *symbols;
	const char *strings;
	const ElfW(Versym) *versions;
	const uint32_t *gnu_hash;
	const Elf_Symndx *hash;
};

/* glibc makes the addresses in a dynamic section absolute, but not in those it can't write to. */
static const void *absolute(const struct dl_phdr_info *object, ElfW(Addr) address)
{
	return (const void *)(address < object->dlpi_addr ? address + object->dlpi_addr : address);
}

static bool tables_read(struct object_tables *tables, const struct dl_phdr_info *object)
{
	const ElfW(Dyn) *entry = NULL;

	memset(tables, 0, sizeof(*tables));
	for (int i = 0; i < object->dlpi_phnum; i++)
		if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
			entry = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
	for (; entry && entry->d_tag != DT_NULL; entry++) {
		const void *address = absolute(object, entry->d_un.d_ptr);

		if (entry->d_tag == DT_SYMTAB)
			tables->symbols = address;
		else if (entry->d_tag == DT_STRTAB)
			tables->strings = address;
		else if (entry->d_tag == DT_VERSYM)
			tables->versions = address;
		else if (entry->d_tag == DT_GNU_HASH)
			tables->gnu_hash = address;
		else if (entry->d_tag == DT_HASH)
			tables->hash = address;
	}
	return tables->symbols && tables->strings;
}

/* The symbol as dlsym() would take it: defined here, visible, not of a hidden version. */
static bool symbol_counts(const struct object_tables *tables, uint32_t at, const char *name)
{
	const ElfW(Sym) *symbol = &tables->symbols[at];
	unsigned int binding = symbol->st_info >> 4;

	return symbol->st_shndx != SHN_UNDEF && symbol->st_value &&
	       (binding == STB_GLOBAL || binding == STB_WEAK || binding == STB_GNU_UNIQUE) &&
	       (!tables->versions || !(tables->versions[at] & 0x8000)) &&
	       !strcmp(tables->strings + symbol->st_name, name);
}

static bool object_defines(const struct dl_phdr_info *object, const char *name)
{
	struct object_tables tables;

	if (!tables_read(&tables, object))
		return false;
	if (tables.gnu_hash) {
		uint32_t buckets = tables.gnu_hash[0], first = tables.gnu_hash[1];
		uint32_t bloom_words = tables.gnu_hash[2], wanted = 5381;
		const uint32_t *bucket = tables.gnu_hash + 4 +
					 bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
		const uint32_t *chain = bucket + buckets;
		uint32_t at;

		for (const char *c = name; *c; c++)
			wanted = wanted * 33 + (unsigned char)*c;
		at = buckets ? bucket[wanted % buckets] : 0;
		if (at < first)
			return false;
		for (;; at++) {
			uint32_t hash = chain[at - first];

			/* the lowest bit marks the end of a chain */
			if ((hash | 1) == (wanted | 1) && symbol_counts(&tables, at, name))
				return true;
			if (hash & 1)
				return false;
		}
	}
	if (tables.hash)
		for (uint32_t at = 1; at < tables.hash[1]; at++)
			if (symbol_counts(&tables, at, name))
				return true;
	return false;
}

/* --------------------------------------------------------------- RTLD_NEXT */
/*
 * How many objects the program was started with.  They come first in the list
 * of objects, and are never unloaded.  0: our constructor has not run yet.
 */
static unsigned long long started_with;

static int count_step(struct dl_phdr_info *object, size_t size, void *unused)
{
	started_with = object->dlpi_adds;
	return 1;
}

void cl_dlsym_begin(void)
{
	dl_iterate_phdr(count_step, NULL);
}

struct next_search {
	const void *caller, *real; /* addresses in the caller (NULL: not known), of the driver's own */
	const char *name;
	unsigned long long seen;
	bool past_caller, caller_opened, reached;
};

static bool object_holds(const struct dl_phdr_info *object, const void *address)
{
	ElfW(Addr) at = (ElfW(Addr))address - object->dlpi_addr;

	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];

		if (part->p_type == PT_LOAD && at - part->p_vaddr < part->p_memsz)
			return true;
	}
	return false;
}

/* Called for each object, in the order in which RTLD_NEXT goes through them. */
static int next_step(struct dl_phdr_info *object, size_t size, void *data)
{
	struct next_search *search = data;

	search->seen++;
	if (!search->past_caller) {
		/* glibc, too, takes an unknown caller for the main program, which comes first */
		search->past_caller = !search->caller || object_holds(object, search->caller);
		search->caller_opened = started_with && search->seen > started_with;
		return 0;
	}
	if (object_holds(object, search->real)) {
		search->reached = true;
		return 1;
	}
	/* not 0: another interposer's comes first */
	return object_defines(object, search->name);
}

/*
 * Whether the driver is among what RTLD_NEXT goes through: for what the program
 * was started with, all that is loaded for all; for what was opened later, what
 * came with it.  Asked by any name that nobody before the driver defines.
 */
static bool driver_in_scope(void *scope)
{
	for (const struct cl_hook *row = cl_hooks; row < cl_hooks + CL_HOOKS_N; row++) {
		const void *real = cl_hook_real(row);

		if (real && cl_real_dlsym()(scope, row->symbol) == real)
			return true;
	}
	return false;
}

/* In glibc a link map is a handle as well. */
static struct link_map *map_of(const void *address)
{
	struct link_map *map = NULL;
	Dl_info info;

	if (!dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP))
		return NULL;
	return map;
}

/*
 * RTLD_NEXT is resolved by who calls, and only a jump keeps that; but then the
 * answer can't be replaced.  So we find out beforehand whether it would be the
 * driver's: the driver is in the caller's scope, comes after the caller, and
 * nobody between them defines the name.
 */
static void *route_next(const struct cl_hook *row, const void *caller)
{
	struct link_map *caller_map = map_of(caller);
	struct next_search search = {
		.caller = caller_map ? caller : NULL,
		.name = row->symbol,
	};

	if (!cl_hooks_ready())
		return NULL;
	search.real = cl_hook_real(row);
	if (!search.real)
		return NULL;
	dl_iterate_phdr(next_step, &search);
	if (!search.reached ||
	    !driver_in_scope(search.caller_opened ? (void *)caller_map : RTLD_DEFAULT))
		return NULL;
	return cl_hook_for(cl_real_dlsym()(cl_driver.libcuda, row->symbol));
}

/* ------------------------------------------------------------ RTLD_DEFAULT */
static void *route_default(const struct cl_hook *row, const void *caller)
{
	/* asked by us, this goes through what is loaded for all, which comes first for everyone */
	void *address = cl_next_dlsym()(RTLD_DEFAULT, row->symbol);
	struct link_map *caller_map;

	if (!address) {
		/* then through what the caller brought in for itself */
		caller_map = map_of(caller);
		address = caller_map ? cl_next_dlsym()(caller_map, row->symbol) : NULL;
	}
	return address && cl_hooks_ready() ? cl_hook_for(address) : NULL;
}

struct cl_dlsym_answer cl_dlsym_route(void *handle, const char *name, const void *caller)
{
	const struct cl_hook *row = cl_hook_named(name);
	struct cl_dlsym_answer answer = {NULL, true};
	void *hook;

	if (!row || cl_process_disabled())
		return answer;
	if (handle == RTLD_NEXT) {
		answer.address = route_next(row, caller);
		answer.jump_on = !answer.address;
		return answer;
	}
	if (handle == RTLD_DEFAULT) {
		answer.address = route_default(row, caller);
		answer.jump_on = !answer.address;
		return answer;
	}
	/* a true handle: the answer does not depend on who asks */
	answer.address = cl_next_dlsym()(handle, name);
	answer.jump_on = false;
	hook = answer.address && cl_hooks_ready() ? cl_hook_for(answer.address) : NULL;
	if (hook)
		answer.address = hook;
	return answer;
}
