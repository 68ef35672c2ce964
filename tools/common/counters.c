/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the counts in a process's file: see counters.h. */
#include "config.h"

#include <stdatomic.h>

#include "shim/shm/live.h"
#include "tools/common/counters.h"

/*
 * A record begins the next generation when its block is given back.  So its generation says how
 * many blocks it had before, and the file needs no count of exports.
 */
static uint64_t exports_of(const struct cl_view *view)
{
	uint32_t records = cl_view_records(view);
	uint64_t n = 0;

	for (uint32_t record = 0; record < records; record++) {
		uint64_t life = cl_record_life(&view->region, record);

		n += cl_life_generation(life) + (cl_life_state(life) != CL_FREE);
	}
	return n;
}

static void read_notes(struct cu_counters *counters, const struct cl_view *view)
{
	uint32_t findings = cl_view_findings(view);
	struct cl_finding note;

	for (uint32_t i = 0; i < findings; i++) {
		if (!cl_view_finding(view, i, &note) || !cl_finding_is_note(note.kind))
			continue;
		if (cl_call_is_by_fabric(note.call)) {
			counters->fabric += note.times;
		} else if (cl_call_is_by_descriptor(note.call) && cl_call_is_import(note.call)) {
			counters->fd_imports += note.times;
			counters->fd_import_bytes += note.bytes;
		} else if (cl_call_is_by_descriptor(note.call)) {
			counters->fd_exports += note.times;
			counters->fd_export_bytes += note.bytes;
		} else if (note.call == CL_CALL_OPEN_HANDLE) {
			counters->opens_refused += note.times;
		} else {
			counters->handles_refused[note.made] += note.times;
		}
	}
}

void cu_counters_read(struct cu_counters *counters, const struct cl_view *view)
{
	const struct cl_header *header = view->region.header;
	uint32_t devices = atomic_load_explicit(&header->devices, memory_order_acquire);

	*counters = (struct cu_counters){
		.exports = exports_of(view),
		.refused = cl_view_finding_count(view, CL_FINDING_STALE_REFUSED),
		.reclaimed = cl_view_finding_count(view, CL_FINDING_HOLD_RECLAIMED),
		.forced_out = cl_view_finding_count(view, CL_FINDING_EVENT_FORCED_OUT) +
			      cl_view_finding_count(view, CL_FINDING_HELD_FORCED_OUT),
		.misuse = cl_view_finding_count(view, CL_FINDING_FREED_TWICE) +
			  cl_view_finding_count(view, CL_FINDING_EXPORTED_AFTER_FREE) +
			  cl_view_finding_count(view, CL_FINDING_IMPORT_FREED) +
			  cl_view_finding_count(view, CL_FINDING_CLOSED_TWICE) +
			  cl_view_finding_count(view, CL_FINDING_EVENT_DESTROYED_TWICE),
		.refused_by_cuda = cl_view_finding_count(view, CL_FINDING_REFUSED),
		.asked = atomic_load_explicit(&header->pressure_asked, memory_order_relaxed),
		.has_live = cl_live_is_kept(&view->region, CL_LIVE_WAITED),
	};
	if (counters->has_live) {
		counters->handles = cl_live_get(&view->region, CL_LIVE_HANDLES);
		counters->opens = cl_live_get(&view->region, CL_LIVE_OPENS);
		counters->closes = cl_live_get(&view->region, CL_LIVE_CLOSES);
		counters->kept = cl_live_get(&view->region, CL_LIVE_KEPT);
		counters->kept_mapped = cl_live_get(&view->region, CL_LIVE_KEPT_MAPPED);
		counters->memory_waits = cl_live_get(&view->region, CL_LIVE_SHORT);
		counters->memory_wait_ns = cl_live_get(&view->region, CL_LIVE_WAITED);
	}
	for (uint32_t i = 0; i < devices && i < CL_DEVICE_LIMBOS; i++) {
		counters->entered_bytes += atomic_load_explicit(&header->device[i].entered, memory_order_relaxed);
		counters->returned_bytes += atomic_load_explicit(&header->device[i].returned, memory_order_relaxed);
	}
	read_notes(counters, view);
}
