/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exported calls: NVIDIA's begin so that other libraries can patch them, and
 * so do these (shim/base/patchable.h).  The calls themselves are SIM_CALL()s.
 *
 * Protected: what this library has of its own never goes to a preloaded namesake.
 * culimbo_sim_thunk_<call>: another address of the same (CULIMBO_SIM_PROC_ADDRESS=thunk).
 *
 * Built with -imacros cuda.h: which calls there are depends on CUDA_VERSION.
 */
#include "shim/base/patchable.h"
#include "names.h"
#include "calls.h"

	.macro exported name, call
	.globl	\name
	.protected \name
	.hidden	\call
	patchable \name, \call
	.endm

	.macro thunk name, call
	.globl	\name
	.hidden	\name
	patchable \name, \call
	.endm

#define X(base, symbol, version, flags) exported symbol, sim_call_##symbol;
SIM_CALLS(X)
#undef X

#define X(base, symbol, version, flags) thunk culimbo_sim_thunk_##symbol, symbol;
SIM_CALLS(X)
#undef X
