/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides what our dlsym() answers for a name that begins like a driver call.  For any other name
 * the thunk (dlsym_thunk_*.S) jumps to the next dlsym at once.  A jump keeps the
 * program's return address, which libc needs to resolve RTLD_NEXT and
 * RTLD_DEFAULT.
 *
 * What must hold:
 *  - Whether a symbol is found, and what dlerror() says, are the same as without us.
 *    We only ever replace an address of the driver, by its hook.  In doubt the thunk
 *    jumps to the next dlsym.
 *  - Nothing here calls the exported dlsym: only cl_real_dlsym() and
 *    cl_next_dlsym().
 *  - Before we answer with an address, our last call into the dynamic linker
 *    has succeeded, so that dlerror() reports no error.
 *
 * Neither we nor libc ever find our own exported cu* symbols by a look-up: they
 * have a hidden version, which only the binding of a linked program takes
 * (link_stubs.c).
 */
#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include "preload/dlsym.h"
#include "preload/elf_symbols.h"
#include "preload/environment.h"
#include "preload/hook_table.h"
#include "preload/hooks_ready.h"
#include "preload/real_dlsym.h"

/* --------------------------------------------------------------- RTLD_NEXT */
/*
 * How many objects the program was started with, or 0 before our constructor has run.
 * They come first in the list of objects, and are never unloaded.
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
	const void *caller; /* an address in the caller's object, or NULL if that is not known */
	const void *real;   /* the driver's function */
	const char *name;
	unsigned long long seen;
	bool past_caller, caller_opened, reached;
};

/* dl_iterate_phdr() calls this for each object, in the order in which RTLD_NEXT searches them. */
static int next_step(struct dl_phdr_info *object, size_t size, void *data)
{
	struct next_search *search = data;

	search->seen++;
	if (!search->past_caller) {
		/* like glibc, take an unknown caller for the main program, which comes first */
		search->past_caller = !search->caller || cl_object_holds(object, search->caller);
		search->caller_opened = started_with && search->seen > started_with;
		return 0;
	}
	if (cl_object_holds(object, search->real)) {
		search->reached = true;
		return 1;
	}
	/* nonzero ends the search: another interposer defines the name before the driver does */
	return cl_object_defines(object, search->name);
}

/*
 * Returns true if the driver is in @scope, the objects that RTLD_NEXT searches.  For a caller that
 * the program was started with, that is the global scope; for one that was opened later, what was
 * loaded with it.  The driver is in @scope if one of its calls is found there at its own address.
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

/* Returns the link map of the object with @address, or NULL.  glibc takes it as a handle. */
static struct link_map *map_of(const void *address)
{
	struct link_map *map = NULL;
	Dl_info info;

	if (!dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP))
		return NULL;
	return map;
}

/*
 * Answers for RTLD_NEXT: returns the hook, or NULL to jump to the next dlsym.  libc resolves
 * RTLD_NEXT by the caller's return address, which only a jump keeps, but after a jump we can't
 * replace the answer.  So we find out beforehand whether the answer would be the driver's: it is
 * if the driver is in the caller's scope, comes after the caller, and no object between them
 * defines the name.
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
/* Answers for RTLD_DEFAULT: returns the hook, or NULL to jump to the next dlsym. */
static void *route_default(const struct cl_hook *row, const void *caller)
{
	/* a call from here searches the global scope, which comes first for every caller */
	void *address = cl_next_dlsym()(RTLD_DEFAULT, row->symbol);
	struct link_map *caller_map;

	if (!address) {
		/* then search the caller's own scope */
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

	if (!row || cl_environment_disables())
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
	/* for a handle of dlopen() the answer does not depend on the caller */
	answer.address = cl_next_dlsym()(handle, name);
	answer.jump_on = false;
	hook = answer.address && cl_hooks_ready() ? cl_hook_for(answer.address) : NULL;
	if (hook)
		answer.address = hook;
	return answer;
}
