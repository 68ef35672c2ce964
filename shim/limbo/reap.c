/* SPDX-License-Identifier: Apache-2.0 */
/* Takes back the holds of dead processes: see reap.h. */
#include <string.h>

#include "shim/limbo/exporter.h"
#include "shim/base/log.h"
#include "shim/base/options.h"
#include "shim/diag/happened.h"
#include "shim/limbo/reap.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"
#include "shim/shm/slot.h"

struct told {
	struct cl_exporter *ex;
	bool locked; /* the caller holds cl_exports_lock */
};

/* @data: a struct told. */
static void tell_reaped(void *data, unsigned int slot, uint32_t record)
{
	const struct told *told = data;
	struct cl_exporter *ex = told->ex;
	const struct cl_slot *s = &ex->blocks.region->slot[slot];
	const struct cl_record *of = &ex->blocks.region->record[record];
	struct cl_block *block = told->locked ? cl_block_of_record(&ex->blocks, record) : NULL;
	struct cl_about about = {
		.pid = s->who.pid,
		.key = of->base,
		.size = of->size,
		.stack = atomic_load_explicit(&of->free_stack, memory_order_relaxed),
		.when = atomic_load_explicit(&of->freed, memory_order_relaxed),
		.file_id = ex->blocks.region->file_id,
		.record = record,
		.generation = cl_life_generation(cl_record_life(ex->blocks.region, record)),
		.kind = of->kind,
		.device = of->device,
		/* relaxed: its process has ended since */
		.told = atomic_load_explicit(&s->told, memory_order_relaxed) & CL_TOLD_BY_HOLDER,
	};

	memcpy(about.name, s->name, sizeof s->name);
	if (cl_options.strict.number || cl_observes() || cl_shares_all()) {
		if (!told->locked)
			cl_lock(&cl_exports_lock);
		cl_still_died_locked(ex, record, slot);
		if (!told->locked)
			cl_unlock(&cl_exports_lock);
	}
	/* at the end: no collection takes the ready map any more */
	if (block)
		cl_still_count_kept(ex->blocks.region, block);
	if (told->locked)
		cl_happened_locked(CL_FINDING_HOLD_RECLAIMED, &about, 0);
	else
		cl_happened(CL_FINDING_HOLD_RECLAIMED, &about, 0);
}

/* The caller holds ex->reap.lock.  @locked: and cl_exports_lock. */
static unsigned int reap(struct cl_exporter *ex, bool locked)
{
	struct told told = { ex, locked };
	struct cl_reaped sum = cl_holder_reap(ex->blocks.region, ex->reap.watch, cl_now(),
					      cl_options.settle.number,
					      tell_reaped, &told);

	if (sum.holds)
		cl_log(CL_LOG_INFO,
		       "%u process%s ended and left %u block%s of this process open: culimbo counts %s as closed", sum.slots,
		       sum.slots == 1 ? "" : "es", sum.holds, sum.holds == 1 ? "" : "s", sum.holds == 1 ? "it" : "them");
	if (sum.outlived)
		cl_log_once(CL_LOG_WARN,
			    "process %u has ended with blocks of this process open, but a process that it forked keeps its "
			    "CUDA contexts alive, and its GPU work may go on: culimbo keeps these blocks until the "
			    "forked process ends or calls exec",
			    sum.outlived_pid);
	cl_count_add(dead_holders, sum.slots);
	return sum.settling;
}

unsigned int cl_limbo_reap(struct cl_exporter *ex)
{
	unsigned int settling = 0;
	bool ours;

	cl_lock(&ex->reap.lock);
	cl_lock(&cl_exports_lock);
	ours = cl_self_keep_descriptor(ex->blocks.region, CL_LOCK_EXPORTER);
	cl_unlock(&cl_exports_lock);
	if (ours)
		settling = reap(ex, false);
	cl_unlock(&ex->reap.lock);
	return settling;
}

void cl_limbo_reap_at_end_locked(struct cl_exporter *ex)
{
	if (!cl_try_lock(&ex->reap.lock))
		return;
	if (cl_region_fd_intact(ex->blocks.region))
		reap(ex, true);
	cl_unlock(&ex->reap.lock);
}
