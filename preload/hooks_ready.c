/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the driver and fills the hook table: see hooks_ready.h.
 *
 * What must hold: several threads may do this at once, and each does all of it.  Only the
 * warnings are written once.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include "preload/copies.h"
#include "preload/environment.h"
#include "preload/hook_table.h"
#include "preload/hooks_ready.h"
#include "preload/real_dlsym.h"

static cl_stub_fn *const stubs[CL_HOOKS_N] = {
#define X(symbol, ...) (cl_stub_fn *)cl_stub_##symbol,
	CL_HOOKED_CALLS(X)
#undef X
};

/* Warns of wrong options and of a second copy, but not in programs that load no driver. */
static void say_what_is_wrong(void)
{
	if (cl_environment_disables())
		return;
	cl_environment_complain();
	cl_copies_say();
}

bool cl_hooks_ready(void)
{
	static atomic_bool told;

	if (cl_hook_table_is_filled())
		return true;
	bool found = cl_driver_find(cl_real_dlsym());

	/* clear our errors: an older driver lacks some of the symbols */
	dlerror();
	if (!found)
		return false;
	cl_hook_table_fill(stubs);
	if (!atomic_exchange_explicit(&told, true, memory_order_relaxed))
		say_what_is_wrong();
	return true;
}
