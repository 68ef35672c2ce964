/* SPDX-License-Identifier: Apache-2.0 */
/* What the exporter's file says of imports: see exporter_side.h. */
#include "shim/report/exporter_side.h"

void cl_report_ends_there(const struct cl_report_group *g, const struct cl_view *its, struct cl_report_ends *ends)
{
	bool lives = its && its->state != CL_DEAD && its->state != CL_LEAVING;
	struct cl_view_block block;

	*ends = (struct cl_report_ends){ .is_virtual = true, .waits = !its && g->stays };
	for (unsigned int i = 0; its && i < g->items; i++) {
		bool left;

		if (!cl_view_block(its, g->item[i].record, &block) || block.generation != g->item[i].generation)
			continue;
		left = block.given_back || block.freed_observed;
		if (left && !ends->given_back++)
			ends->why = block.freed_observed   ? "CULIMBO_MODE=observe" :
				    block.kind == CL_EVENT ? "CULIMBO_MAX_EVENTS" : "CULIMBO_HELD_BYTES";
		ends->gone += block.class == CL_VIEW_ORPHANED && !left && !block.is_virtual;
		if (!block.freed)
			continue;
		ends->is_virtual &= block.is_virtual;
		/* what was unmapped or given back is ORPHANED, too */
		ends->waits |= lives && block.class != CL_VIEW_ORPHANED;
		if (!ends->freed++ || block.freed < ends->first)
			ends->first = block.freed;
	}
	ends->is_virtual &= ends->freed != 0;
}
