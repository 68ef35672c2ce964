/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a context: tells the importer, the limbo and the collector of it, in that order.
 * See context_end.h.
 */
#include "shim/context_end.h"
#include "shim/driver/gate.h"
#include "shim/importer/mappings.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/context_loss.h"
#include "shim/limbo/exporter.h"
#include "shim/self/self.h"

struct cl_context_end cl_context_end_begin(CUcontext ctx, CUdevice device)
{
	CL_GUARD(ours);
	uint64_t until = cl_now() + 5 * CL_END_WAIT;

	if (!ours)
		return (struct cl_context_end){ .handle = ctx, .device = device };
	/* before cl_context_close(), because after it others wait for us */
	if (!ctx)
		cl_gate_await_unwatched(device, until);
	cl_gate_await_unwatched(-1, until);
	return cl_context_close(ctx, device);
}

void cl_context_end_done(const struct cl_context_end *end, bool gone)
{
	CL_GUARD(ours);
	struct cl_list dead = { 0 };
	struct cl_context *context;

	if (!ours) /* the child has nothing that belongs to a context */
		return;
	cl_context_open(end, gone, &dead);
	CL_LIST_EACH (context, &dead, struct cl_context, node)
		cl_imports_context_ended(context);
	/* not at each end: UCX retains and releases a primary context around each of its calls */
	if (cl_limbo_contexts_ended(&cl_exporter, &dead, gone))
		cl_collector_wake(&cl_exporter);
}

void cl_context_end_lost(const struct cl_context_end *end)
{
	cl_gate_drop_references(end->handle ? -1 : end->device);
	cl_context_end_done(end, true);
}

void cl_primary_ended_past_us(CUdevice device, uint64_t last)
{
	cl_context_end_lost(&(struct cl_context_end){ .device = device, .last = last });
}
