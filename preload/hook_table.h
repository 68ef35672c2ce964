/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hook table: which hook replaces which address of the driver.
 *
 * The table is made from CL_HOOKED_CALLS (shim/driver/calls.h).  What must hold:
 * a hook replaces a pointer only if the pointer is exactly an address that this
 * process's libcuda gave us for a listed symbol.  The name alone is not enough: a form
 * of a call that is newer than the list has the same name and another address,
 * and gets no hook.
 *
 * Any thread may call these functions; they take no lock.  A forked child keeps the table.
 */
#ifndef CL_HOOK_TABLE_H
#define CL_HOOK_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include "shim/driver/driver.h"

struct cl_hook {
	const char *symbol, *base; /* these four as in CL_HOOKED_CALLS */
	int since;
	cuuint64_t flags;
	size_t real;	    /* offset in cl_driver of the driver's function */
};

/* The rows, in the order of CL_HOOKED_CALLS.  CL_HOOK_<symbol> is the index of each. */
enum {
#define X(symbol, ...) CL_HOOK_##symbol,
	CL_HOOKED_CALLS(X)
#undef X
	CL_HOOKS_N
};
extern const struct cl_hook cl_hooks[CL_HOOKS_N];

/*
 * The hooks, in hook_*.c, and the stubs, which programs get in their place: a stub jumps to its
 * hook and can be patched (stubs_hook.S).  Programs get stubs only once the table is filled.
 */
#define X(symbol, base, since, flags, type, params, args) \
	CUresult CUDAAPI cl_hook_##symbol params;         \
	CUresult CUDAAPI cl_stub_##symbol params;
CL_HOOKED_CALLS(X)
#undef X

/*
 * Fills the table, after the driver was found.  @stubs has the stub of each row and must stay valid for
 * good.  It is a parameter because the hook of cuGetProcAddress uses this file, so this file must not
 * use the hooks.  Several threads may call this at once.
 */
typedef void cl_stub_fn(void);
void cl_hook_table_fill(cl_stub_fn *const stubs[CL_HOOKS_N]);
/* Returns true if the table is filled; costs one load.  If false, call cl_hooks_ready(). */
bool cl_hook_table_is_filled(void);

/* Returns the row of @symbol, or NULL. */
const struct cl_hook *cl_hook_named(const char *symbol);

/* Returns the driver's function for @hook, or NULL if this driver, once found, has none. */
void *cl_hook_real(const struct cl_hook *hook);

/* Returns the stub whose hook replaces @address, or NULL.  The table must be filled. */
void *cl_hook_for(const void *address);

/*
 * The same for an @address that the driver's cuGetProcAddress has returned for the
 * name @base.  A driver may return other addresses there than dlsym() finds.  So
 * for an unknown address this asks the driver for each listed form of that name, and
 * returns a stub only if the driver answers with this very address.
 */
void *cl_hook_for_asked(const char *base, const void *address);

#endif
