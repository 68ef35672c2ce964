/* SPDX-License-Identifier: Apache-2.0 */
/* Leaves marks for other processes' reports: see told.h. */
#include <string.h>

#include "shim/importer/peers.h"
#include "shim/report/report_table.h"
#include "shim/report/told.h"

static void mark_own_slot(struct cl_peer *peer, void *data)
{
	(void)data;
	/* relaxed: the exporter reads the mark after this process has ended */
	if (cl_peer_has_slot(peer))
		atomic_fetch_or_explicit(&peer->region.slot[peer->slot].told, CL_TOLD_BY_HOLDER, memory_order_relaxed);
}

static bool is_of_holders(const struct cl_report_group *g)
{
	return g->class == CL_REPORT_HELD_LIMBO || g->class == CL_REPORT_HELD || g->class == CL_REPORT_ORPHANED;
}

/*
 * Returns true if the report surely lists each group with holders, and names all holders of each.  It counts suppressed
 * groups, and those of all classes together, so it can be false though all are listed.
 */
static bool names_all_holders(const struct cl_report *report)
{
	const struct cl_report_table *table = report->table;
	unsigned int n = 0;

	for (unsigned int i = 0; i < table->n; i++) {
		const struct cl_report_group *g = &table->group[i];

		if (!is_of_holders(g))
			continue;
		if (g->others || g->other_holds || g->holders > CL_REPORT_HOLDERS_IN_TEXT)
			return false;
		n++;
	}
	/* no class can have more groups than a report lists of it */
	return !report->top || n <= report->top;
}

/* Leaves a mark for each process if all that it holds is in groups that are listed. */
static void mark_holders(struct cl_report *report)
{
	static uint8_t not_told[CL_SLOTS]; /* static: a process ends only once */
	const struct cl_report_table *table = report->table;

	for (unsigned int i = 0; i < table->n; i++)
		for (unsigned int h = 0; is_of_holders(&table->group[i]) && h < table->group[i].holders; h++)
			not_told[table->group[i].holder[h].slot] |= table->group[i].suppressed;
	for (unsigned int i = 0; i < table->n; i++)
		for (unsigned int h = 0; is_of_holders(&table->group[i]) && h < table->group[i].holders; h++) {
			unsigned int slot = table->group[i].holder[h].slot;

			/* relaxed: the holder reads the mark after this process has ended */
			if (!not_told[slot])
				atomic_fetch_or_explicit(&report->view->region.slot[slot].told, CL_TOLD_BY_EXPORTER,
							 memory_order_relaxed);
		}
}

void cl_told_locked(struct cl_report *report, bool written)
{
	if (!report->once || report->sums.young)
		return;
	cl_peer_each(mark_own_slot, NULL);
	if (written && names_all_holders(report))
		mark_holders(report);
}
