/* SPDX-License-Identifier: Apache-2.0 */
/* Takes back the holds of dead processes: see reap.h. */
#include <string.h>

#include "shim/base/log.h"
#include "shim/base/options.h"
#include "shim/diag/happened.h"
#include "shim/limbo/reap.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"
#include "shim/shm/slot.h"

static struct cl_slot_watch watch[CL_SLOTS];
static struct cl_lock reap_lock = CL_LOCK_INIT(CL_RANK_REAP);

/* @data: whether cl_exports_lock is held. */
static void tell_reaped(void *data, unsigned int slot, uint32_t record)
{
	const struct cl_slot *s = &cl_own.slot[slot];
	const struct cl_record *of = &cl_own.record[record];
	struct cl_about about = {
		.pid = s->who.pid,
		.key = of->base,
		.size = of->size,
		.stack = of->free_stack,
		.when = atomic_load_explicit(&of->freed, memory_order_relaxed),
		.file_id = cl_own.file_id,
		.record = record,
		.generation = cl_life_generation(cl_record_life(&cl_own, record)),
		.kind = of->kind,
		.device = of->device,
	};

	memcpy(about.name, s->name, sizeof about.name);
	if (*(const bool *)data)
		cl_happened_locked(CL_FOUND_HOLD_RECLAIMED, &about);
	else
		cl_happened(CL_FOUND_HOLD_RECLAIMED, &about, 0);
}

/* The caller holds reap_lock.  @locked: and cl_exports_lock. */
static unsigned int reap(bool locked)
{
	struct cl_reaped sum = cl_holder_reap(&cl_own, watch, cl_now(), cl_options.settle.number,
					      tell_reaped, &locked);

	if (sum.holds)
		cl_log(CL_LOG_INFO,
		       "%u processes that imported from this one have died: culimbo has taken back their %u holds",
		       sum.slots, sum.holds);
	cl_count_add(dead_holders, sum.slots);
	return sum.settling;
}

unsigned int cl_limbo_reap(void)
{
	unsigned int settling = 0;
	bool ours;

	cl_lock(&reap_lock);
	cl_lock(&cl_exports_lock);
	ours = cl_self_keep_descriptor(&cl_own, CL_LOCK_EXPORTER);
	cl_unlock(&cl_exports_lock);
	if (ours)
		settling = reap(false);
	cl_unlock(&reap_lock);
	return settling;
}

void cl_limbo_reap_at_end_locked(void)
{
	if (!cl_try_lock(&reap_lock))
		return;
	if (cl_region_fd_intact(&cl_own))
		reap(true);
	cl_unlock(&reap_lock);
}

void cl_reap_forget(void)
{
	memset(watch, 0, sizeof watch);
	cl_lock_reset(&reap_lock);
}
