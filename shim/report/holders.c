/* SPDX-License-Identifier: Apache-2.0 */
/* The holders of blocks in a report: see report_table.h. */
#include "shim/report/report_table.h"

void cl_report_add_holders(struct cl_report_group *g, const struct cl_view_block *block,
			   const uint16_t *slots, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++) {
		unsigned int h = 0;

		while (h < g->holders && g->holder[h].slot != slots[i])
			h++;
		if (h == CL_REPORT_HOLDERS) {
			g->other_holds++;
			continue;
		}
		if (h == g->holders) {
			g->holder[h].slot = slots[i];
			g->holder[h].record = block->record;
			g->holder[h].generation = block->generation;
			g->holder[h].n = 0;
			g->holders++;
		}
		g->holder[h].n++;
	}
}

bool cl_report_holders_have_told(const struct cl_report *report, const uint16_t *slots, unsigned int n)
{
	struct cl_view_holder h;

	for (unsigned int i = 0; i < n; i++)
		if (!cl_view_slot(report->view, slots[i], &h) || !(h.told & CL_TOLD_BY_HOLDER))
			return false;
	return n > 0;
}
