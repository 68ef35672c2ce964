/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hook table, and the map from an address of the driver to its hook.  The
 * map is filled once, right after the driver was found, and never changes.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include "preload/dlsym.h"
#include "preload/hook_table.h"
#include "preload/process.h"

const struct cl_hook cl_hooks[CL_HOOKS_N] = {
#define X(symbol, base, since, flags, type, params, args) \
	{#symbol, base, since, flags, (void (*)(void))cl_hook_##symbol, \
	 offsetof(struct cl_driver, symbol)},
	CL_HOOKED_CALLS(X)
#undef X
};

/* Open addressing.  More than twice the rows, so that a miss soon meets an empty place. */
enum { map_bits = 7, map_size = 1 << map_bits };
_Static_assert(2 * CL_HOOKS_N < map_size, "give the map of hooks one bit more");

static struct {
	const void *address;
	void *hook;
} map[map_size];

static atomic_bool ready;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static unsigned int map_start(const void *address)
{
	/* Fibonacci hashing: functions are aligned, so their low bits say little */
	return (unsigned int)((uint64_t)(uintptr_t)address * UINT64_C(0x9e3779b97f4a7c15) >>
			      (64 - map_bits));
}

void *cl_hook_real(const struct cl_hook *hook)
{
	void *real;

	memcpy(&real, (const char *)&cl_driver + hook->real, sizeof(real));
	return real;
}

static void *hook_of(const struct cl_hook *row)
{
	void *hook;

	memcpy(&hook, &row->hook, sizeof(hook));
	return hook;
}

static void fill(void)
{
	for (const struct cl_hook *row = cl_hooks; row < cl_hooks + CL_HOOKS_N; row++) {
		const void *real = cl_hook_real(row);
		unsigned int at = map_start(real);

		if (!real)
			continue;
		while (map[at].address && map[at].address != real)
			at = (at + 1) % map_size;
		if (map[at].address) /* two names for one function: the first hook listed wins */
			continue;
		map[at].address = real;
		map[at].hook = hook_of(row);
	}
	cl_process_uses_driver();
	/* release: whoever sees ready sees the whole map */
	atomic_store_explicit(&ready, true, memory_order_release);
}

bool cl_hooks_ready(void)
{
	if (__builtin_expect(atomic_load_explicit(&ready, memory_order_acquire), 1))
		return true;
	bool found = cl_driver_find(cl_real_dlsym());

	/* an older driver lacks some names: the program must not find our errors in dlerror() */
	dlerror();
	if (!found)
		return false;
	pthread_once(&once, fill);
	return true;
}

const struct cl_hook *cl_hook_named(const char *symbol)
{
	for (const struct cl_hook *row = cl_hooks; row < cl_hooks + CL_HOOKS_N; row++)
		if (!strcmp(row->symbol, symbol))
			return row;
	return NULL;
}

void *cl_hook_for(const void *address)
{
	if (!address)
		return NULL;
	for (unsigned int at = map_start(address); map[at].address; at = (at + 1) % map_size)
		if (map[at].address == address)
			return map[at].hook;
	return NULL;
}

/* What the driver itself says for one row, through whichever form it has. */
static const void *asked(const struct cl_hook *row)
{
	void *address = NULL;
	CUresult result = CUDA_ERROR_NOT_FOUND;

	if (cl_driver.cuGetProcAddress_v2)
		result = cl_driver.cuGetProcAddress_v2(row->base, &address, row->since, row->flags,
						       NULL);
	else if (cl_driver.cuGetProcAddress)
		result = cl_driver.cuGetProcAddress(row->base, &address, row->since, row->flags);
	return result == CUDA_SUCCESS ? address : NULL;
}

void *cl_hook_for_asked(const char *base, const void *address)
{
	void *hook = cl_hook_for(address);

	if (hook || !address || !base)
		return hook;
	for (const struct cl_hook *row = cl_hooks; row < cl_hooks + CL_HOOKS_N; row++)
		if (!strcmp(row->base, base) && cl_hook_real(row) && asked(row) == address)
			return hook_of(row);
	return NULL;
}
