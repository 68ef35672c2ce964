/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs get of us, for every call in the list: functions that can be
 * patched (shim/base/patchable.h).
 *
 * cl_stub_<symbol>: what dlsym and cuGetProcAddress give in place of the
 * driver's address.  It jumps to the hook.
 * <symbol>@CULIMBO_DOOR: what the binding of a linked program finds.  It jumps
 * to where cl_door_to_<symbol> points (doors.c), as a rule to the stub: whoever
 * patches what dlsym gave sees the linked program's calls as well, as without us.
 */
#include "shim/base/patchable.h"
#include "shim/driver/calls.h"

	.macro stub name, hook
	.globl	\name
	.hidden	\name
	.hidden	\hook
	patchable \name, \hook
	.endm

	.macro door name, symbol, variable
	.globl	\name
	.hidden	\variable
	patchable_to \name, \variable
	.symver	\name, \symbol@CULIMBO_DOOR
	.endm

#define X(symbol, ...) stub cl_stub_##symbol, cl_hook_##symbol;
	CL_HOOKED_CALLS(X)
#undef X

#define X(symbol, ...) door cl_door_##symbol, symbol, cl_door_to_##symbol;
	CL_HOOKED_CALLS(X)
#undef X
