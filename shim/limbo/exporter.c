/* SPDX-License-Identifier: Apache-2.0 */
/* An exporter: see exporter.h. */
#include <string.h>

#include "shim/limbo/exporter.h"

static struct cl_exporter_room room;

/* What has to be there from the start, beside zeros; cl_exporter_begin() sets the same. */
struct cl_exporter cl_exporter = {
	.blocks = CL_BLOCKS_BEGIN(cl_exporter.blocks, &cl_own, &room.bits),
	.file_id = &cl_own_id,
	.grace.wheel = room.wheel,
	.grace.pages = CL_TABLE_BEGIN(cl_exporter.grace.pages),
	.fences.lists = CL_TABLE_BEGIN(cl_exporter.fences.lists),
	.reap.lock = CL_LOCK_INIT(CL_RANK_REAP),
	.collector.lock = CL_LOCK_INIT(CL_RANK_COLLECTOR),
	.still_mapped.entries = CL_TABLE_BEGIN(cl_exporter.still_mapped.entries),
	.pool_imports.filter.bits = &room.imported,
};

void cl_exporter_begin(struct cl_exporter *ex, struct cl_region *region,
		       const _Atomic uint32_t *file_id, struct cl_exporter_room *its)
{
	/* only what was used, or all of it would take memory */
	if (ex->grace.wheel)
		memset(ex->grace.wheel, 0, ex->grace.wheels_n * sizeof ex->grace.wheel[0]);
	memset(ex, 0, sizeof *ex);
	cl_blocks_begin(&ex->blocks, region, &its->bits);
	ex->file_id = file_id;
	ex->grace.wheel = its->wheel;
	ex->grace.pages = (struct cl_table)CL_TABLE_BEGIN(ex->grace.pages);
	ex->fences.lists = (struct cl_table)CL_TABLE_BEGIN(ex->fences.lists);
	ex->reap.lock = (struct cl_lock)CL_LOCK_INIT(CL_RANK_REAP);
	ex->collector.lock = (struct cl_lock)CL_LOCK_INIT(CL_RANK_COLLECTOR);
	ex->still_mapped.entries = (struct cl_table)CL_TABLE_BEGIN(ex->still_mapped.entries);
	cl_address_filter_begin(&ex->pool_imports.filter, &its->imported);
}

void cl_exporter_forget(void)
{
	cl_lock_reset(&cl_exporter.reap.lock);
	cl_lock_reset(&cl_exporter.collector.lock);
	cl_own_pools_forget(&cl_exporter.blocks.own_pools);
	cl_exporter_begin(&cl_exporter, &cl_own, &cl_own_id, &room);
}
