/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hook table: which address of the driver is answered by which hook.
 *
 * All of it comes from CL_HOOKED_CALLS (shim/driver/calls.h).  What must hold:
 * a pointer turns into a hook only when it is exactly an address that this
 * process's libcuda gave us for a listed symbol.  Never by name alone: a form
 * of a call that is newer than the list has the same name and another address,
 * and passes.
 *
 * Any thread may call what is here.
 */
#ifndef CL_HOOK_TABLE_H
#define CL_HOOK_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include "shim/driver/driver.h"

struct cl_hook {
	const char *symbol, *base; /* as in CL_HOOKED_CALLS */
	int since;
	cuuint64_t flags;
	size_t real;	    /* where cl_driver holds the driver's own */
};

/* In the order of CL_HOOKED_CALLS; CL_HOOK_<symbol> is the place of each. */
enum {
#define X(symbol, ...) CL_HOOK_##symbol,
	CL_HOOKED_CALLS(X)
#undef X
	CL_HOOKS_N
};
extern const struct cl_hook cl_hooks[CL_HOOKS_N];

/*
 * The hooks themselves, in hook_*.c, and what programs get of them: stubs that lead there
 * and can be patched (stubs_hook.S).  Entered only when the table is filled.
 */
#define X(symbol, base, since, flags, type, params, args) \
	CUresult CUDAAPI cl_hook_##symbol params;         \
	CUresult CUDAAPI cl_stub_##symbol params;
CL_HOOKED_CALLS(X)
#undef X

/*
 * The driver was found: fills the map.  @stubs, one a row, stays where it is for good; the table
 * is given them because they lead to the hooks, and the hook of cuGetProcAddress asks the table.
 * Any thread, several at once.
 */
typedef void cl_stub_fn(void);
void cl_hook_table_fill(cl_stub_fn *const stubs[CL_HOOKS_N]);
/* One load.  Where it is not, cl_hooks_ready() (hooks_ready.h) looks for the driver. */
bool cl_hook_table_is_filled(void);

/* The row of the symbol with this name, or NULL. */
const struct cl_hook *cl_hook_named(const char *symbol);

/* What the driver has for this row, or NULL.  When it is filled. */
void *cl_hook_real(const struct cl_hook *hook);

/* The stub of the hook that answers for this address of the driver, or NULL.  When it is filled. */
void *cl_hook_for(const void *address);

/*
 * The same for a pointer that the driver's cuGetProcAddress gave out for the
 * name @base: a driver may hand out other addresses there than dlsym finds.  So
 * where the address is not known, each listed form of that name is asked for,
 * and a hook answers only if one of them is this very address.
 */
void *cl_hook_for_asked(const char *base, const void *address);

#endif
