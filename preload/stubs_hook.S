/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For every call in the list, cl_stub_<symbol>: a function that can be patched
 * (shim/base/patchable.h) and jumps to the hook.  Programs get its address from dlsym() and
 * cuGetProcAddress() in place of the driver's.
 */
#include "shim/base/patchable.h"
#include "shim/driver/calls.h"

	.macro stub name, hook
	.globl	\name
	.hidden	\name
	.hidden	\hook
	patchable \name, \hook
	.endm

#define X(symbol, ...) stub cl_stub_##symbol, cl_hook_##symbol;
	CL_HOOKED_CALLS(X)
#undef X
