/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exported calls.  Like NVIDIA's, they begin with instructions that other
 * libraries can patch (shim/base/patchable.h).  The calls themselves are SIM_CALL()s.
 *
 * The symbols are protected: a call within this library never goes to a preloaded
 * symbol of the same name.  culimbo_sim_thunk_<call> is another address of the same
 * call (CULIMBO_SIM_PROC_ADDRESS=thunk).
 *
 * Built with -imacros cuda.h, since the list of calls depends on CUDA_VERSION.
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
