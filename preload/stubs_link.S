/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For every call in the list, <symbol>@CULIMBO_DOOR: a function that can be patched
 * (shim/base/patchable.h).  A linked program is bound to it.  It jumps to where
 * cl_door_to_<symbol> points (link_stubs.c), as a rule to the stub of stubs_hook.S.  So a library
 * that patches the address from dlsym() sees the linked program's calls as well, as without us.
 */
#include "shim/base/patchable.h"
#include "shim/driver/calls.h"

	.macro door name, symbol, variable
	.globl	\name
	.hidden	\variable
	patchable_to \name, \variable
	.symver	\name, \symbol@CULIMBO_DOOR
	.endm

#define X(symbol, ...) door cl_door_##symbol, symbol, cl_door_to_##symbol;
	CL_HOOKED_CALLS(X)
#undef X
