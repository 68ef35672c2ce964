/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hook table, and the map from an address of the driver to its hook.
 *
 * What must hold: the map is filled right after the driver was found, and then never
 * changes.  Every thread that comes early fills it, without a lock.  Each adds
 * the same rows in the same order, so the result is the same whichever thread
 * adds a row, and a child that was forked in the middle completes the map.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include "preload/hook_table.h"

const struct cl_hook cl_hooks[CL_HOOKS_N] = {
#define X(symbol, base, since, flags, type, params, args) \
	{#symbol, base, since, flags, offsetof(struct cl_driver, symbol)},
	CL_HOOKED_CALLS(X)
#undef X
};

/*
 * The map uses open addressing.  A slot holds a row's number plus one, or 0 if empty.  There are more
 * than twice as many slots as rows, so that a search soon meets an empty slot.
 */
enum { map_bits = 8, map_size = 1 << map_bits };
_Static_assert(2 * CL_HOOKS_N < map_size, "give the map of hooks one bit more");
static atomic_uchar map[map_size];

/* The stubs that cl_hook_table_fill() was given. */
static cl_stub_fn *const *_Atomic stubs;
static atomic_bool filled;

static unsigned int map_start(const void *address)
{
	/* Fibonacci hashing, because functions are aligned and their low bits are mostly equal */
	return (unsigned int)((uint64_t)(uintptr_t)address * UINT64_C(0x9e3779b97f4a7c15) >>
			      (64 - map_bits));
}

void *cl_hook_real(const struct cl_hook *hook)
{
	void *real;

	memcpy(&real, (const char *)&cl_driver + hook->real, sizeof(real));
	return real;
}

static void *stub_of(const struct cl_hook *row)
{
	/* relaxed: stored before .filled, which the caller has seen */
	cl_stub_fn *stub = atomic_load_explicit(&stubs, memory_order_relaxed)[row - cl_hooks];
	void *address;

	memcpy(&address, &stub, sizeof(address));
	return address;
}

/* Returns the row in slot @at, or NULL.  relaxed, here and below: the rows never change. */
static const struct cl_hook *row_at(unsigned int at)
{
	unsigned char number = atomic_load_explicit(&map[at], memory_order_relaxed);

	return number ? &cl_hooks[number - 1] : NULL;
}

static void map_fill(void)
{
	for (unsigned int i = 0; i < CL_HOOKS_N; i++) {
		const void *real = cl_hook_real(&cl_hooks[i]);
		unsigned int at = map_start(real);
		unsigned char none = 0;

		if (!real)
			continue;
		while (!atomic_compare_exchange_strong_explicit(&map[at], &none,
								(unsigned char)(i + 1),
								memory_order_relaxed,
								memory_order_relaxed)) {
			/* two names of one function: the first in the list gets it */
			if (cl_hook_real(&cl_hooks[none - 1]) == real)
				break;
			at = (at + 1) % map_size;
			none = 0;
		}
	}
}

void cl_hook_table_fill(cl_stub_fn *const given[CL_HOOKS_N])
{
	atomic_store_explicit(&stubs, given, memory_order_relaxed);
	map_fill();
	/* release: a thread that sees this sees the whole map */
	atomic_store_explicit(&filled, true, memory_order_release);
}

bool cl_hook_table_is_filled(void)
{
	return __builtin_expect(atomic_load_explicit(&filled, memory_order_acquire), 1);
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
	for (unsigned int at = map_start(address);; at = (at + 1) % map_size) {
		const struct cl_hook *row = row_at(at);

		if (!row || cl_hook_real(row) == address)
			return row ? stub_of(row) : NULL;
	}
}

/* Returns what the driver's cuGetProcAddress(), in the form that it has, answers for @row, or NULL. */
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
			return stub_of(row);
	return NULL;
}
