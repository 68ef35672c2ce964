/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the files of the other processes that a report names: see peer_files.h. */
#include <limits.h>
#include <string.h>

#include "shim/report/peer_files.h"
#include "shim/report/place.h"

/* A report at exit looks through so many files at most for one importer's: files of others must not delay an end. */
enum { MOST_AT_EXIT = 1024 };

const char *cl_report_state_name(enum cl_liveness state)
{
	switch (state) {
	case CL_ALIVE:
		return "alive";
	case CL_DEAD:
		return "dead";
	default: /* its lock is free, but it is not known to be dead yet */
		return "ending";
	}
}

const char *cl_report_state_words(enum cl_liveness state, bool called_exec)
{
	return called_exec ? "called exec" : cl_report_state_name(state);
}

uint64_t cl_report_age(const struct cl_report *report, uint64_t since)
{
	return report->now > since ? report->now - since : 0;
}

const struct cl_view *cl_report_peer(struct cl_report *report, const struct cl_identity *who,
				     uint32_t file_id)
{
	unsigned int i;

	if (report->dirfd < 0)
		return NULL;
	for (i = 0; i < report->peers; i++)
		if (who ? !memcmp(&report->peer_who[i], who, sizeof(*who)) :
			  !report->peer[i].err && report->peer[i].view.region.file_id == file_id)
			return report->peer[i].err ? NULL : &report->peer[i].view;
	if (i == CL_REPORT_PEERS) /* the report has the details of the first ones only */
		return NULL;
	report->peer[i].err = who ? cl_view_open_process_among(&report->peer[i].view, report->dirfd, who,
								 report->has_open,
								 report->at_exit ? MOST_AT_EXIT : UINT_MAX) :
				    cl_view_open(&report->peer[i].view, report->dirfd, file_id,
						 report->has_open, NULL);
	memset(&report->peer_who[i], 0, sizeof(report->peer_who[i]));
	if (who)
		report->peer_who[i] = *who;
	else if (!report->peer[i].err)
		report->peer_who[i] = report->peer[i].view.region.header->exporter;
	else
		return NULL;
	report->peers++;
	return report->peer[i].err ? NULL : &report->peer[i].view;
}

uint32_t cl_report_holder_stack(struct cl_report *report, const struct cl_report_group *g, unsigned int index,
				const struct cl_view **view)
{
	struct cl_view_holder h;
	struct cl_view_import import;

	*view = NULL;
	if (!cl_view_slot(report->view, g->holder[index].slot, &h) || !h.who.pid)
		return 0;
	*view = cl_report_peer(report, &h.who, 0);
	if (!*view || !cl_view_import_of(*view, report->process.file_id, g->holder[index].record,
					 g->holder[index].generation, &import))
		return 0;
	return import.stack;
}

bool cl_report_holder_has_more_stacks(struct cl_report *report, const struct cl_report_group *g, unsigned int index)
{
	const struct cl_view *its;
	uint32_t stack = cl_report_holder_stack(report, g, index, &its);
	struct cl_view_import import;
	struct cl_view_block block;
	uint32_t n, same = stack;
	uint64_t place;

	if (!stack || g->holder[index].n < 2)
		return false;
	n = cl_view_imports(its);
	if (n > report->imports_left)
		return true;
	report->imports_left -= n;
	place = cl_report_place_of(its, stack);
	for (uint32_t i = 0; i < n; i++) {
		if (!cl_view_import(its, i, &import) || import.file_id != report->process.file_id ||
		    import.stack == stack || import.stack == same ||
		    !cl_view_block(report->view, import.record, &block) ||
		    block.generation != import.generation || block.kind != g->kind ||
		    cl_report_place(report->view, block.export_stack) != g->place[0] ||
		    cl_report_place(report->view, block.free_stack) != g->place[1])
			continue;
		if (cl_report_place_of(its, import.stack) != place)
			return true;
		same = import.stack;
	}
	return false;
}
