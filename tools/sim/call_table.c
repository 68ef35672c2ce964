/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of calls: see call_table.h.  calls.h must list every exported call: a call that is
 * missing there does not compile, and one that is only there does not link.
 */
#include <cuda.h>

#include "names.h"
#include "calls.h"
#include "call_table.h"

/* The table needs only addresses, so it declares no prototypes, which would clash with cuda.h's. */
#define X(base, symbol, version, flags)                                                            \
	extern const char address_of_##symbol[] __asm__(#symbol)                                   \
		__attribute__((visibility("protected")));                                          \
	extern const char thunk_of_##symbol[] __asm__("culimbo_sim_thunk_" #symbol)                \
		__attribute__((visibility("hidden")));
SIM_CALLS(X)
#undef X

__attribute__((used, section(SIM_CALLS_SECTION))) static const struct sim_listed_call calls[] = {
#define X(base, symbol, version, flags)                                                            \
	{ #base, address_of_##symbol, thunk_of_##symbol, version, flags },
	SIM_CALLS(X)
#undef X
};
