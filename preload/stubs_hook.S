/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What dlsym and cuGetProcAddress give programs in place of the driver's address, for every call
 * in the list: cl_stub_<symbol>, a function that can be patched (shim/base/patchable.h).  It
 * jumps to the hook.
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
