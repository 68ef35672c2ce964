/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a context: tells the importer, the limbo and the collector, in that order.
 * See context_end.h.
 */
#include "shim/context_end.h"
#include "shim/driver/context.h"
#include "shim/driver/gate.h"
#include "shim/importer/mappings.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/context_loss.h"
#include "shim/self/self.h"

void cl_context_end_begin(CUcontext ctx, CUdevice device)
{
	CL_UNCANCELLED;
	uint64_t end = cl_now() + 5 * CL_END_WAIT;

	cl_contexts_changed();
	if (cl_self_is_copy()) {
		cl_self_begin_anew();
		return;
	}
	/* (first, for others wait for us after that; no new such call begins) */
	if (!ctx)
		cl_gate_await_unwatched(device, end);
	cl_gate_await_unwatched(-1, end);
	cl_imports_context_ends(ctx, device);
	cl_gate_close(ctx, device);
}

void cl_context_end_done(CUcontext ctx, CUdevice device, bool gone)
{
	CL_UNCANCELLED;

	if (cl_self_is_copy()) /* it has nothing that could go with a context */
		return;
	cl_imports_context_ended(ctx, device, gone);
	if (gone)
		cl_contexts_gone(ctx, device);
	/* a program may release a primary context around each of its calls (UCX does): that costs no wake-up */
	if (cl_limbo_context_go_on(ctx, device, gone))
		cl_collector_wake();
}

void cl_context_end_lost(CUdevice device)
{
	cl_context_end_done(NULL, device, true);
}
