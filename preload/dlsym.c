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

/* Called for each object, in the order in which RTLD_NEXT goes through them. */
static int next_step(struct dl_phdr_info *object, size_t size, void *data)
{
	struct next_search *search = data;

	search->seen++;
	if (!search->past_caller) {
		/* glibc, too, takes an unknown caller for the main program, which comes first */
		search->past_caller = !search->caller || cl_object_holds(object, search->caller);
		search->caller_opened = started_with && search->seen > started_with;
		return 0;
	}
	if (cl_object_holds(object, search->real)) {
		search->reached = true;
		return 1;
	}
	/* not 0: another interposer's comes first */
	return cl_object_defines(object, search->name);
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
	/* a true handle: the answer does not depend on who asks */
	answer.address = cl_next_dlsym()(handle, name);
	answer.jump_on = false;
	hook = answer.address && cl_hooks_ready() ? cl_hook_for(answer.address) : NULL;
	if (hook)
		answer.address = hook;
	return answer;
}
