/* SPDX-License-Identifier: Apache-2.0 */
/* The titles of groups: see title.h. */
#include <stdio.h>

#include "shim/diag/note_words.h"
#include "shim/report/peer_files.h"
#include "shim/report/title.h"

bool cl_report_is_fault(const struct cl_report *report, const struct cl_report_group *g)
{
	int what = cl_report_classes[g->class].what;

	return (what & CL_REPORT_FOUND) && ((what & CL_REPORT_A_FINDING) || report->at_exit ||
					    report->process.state == CL_DEAD || report->process.state == CL_LEAVING);
}

const char *cl_report_kind_name(int kind)
{
	return kind == CL_EVENT ? "event" : kind == CL_POOL ? "pool" : "memory";
}

const char *cl_report_what(const struct cl_report_group *g, bool many)
{
	if (g->kind == CL_EVENT)
		return many ? "events" : "event";
	if (g->kind == CL_POOL)
		return many ? "blocks of pools" : "block of a pool";
	return many ? "blocks" : "block";
}

/*
 * Writes "process 12" or "process 12 and 2 more" to @to: the holders of @g, a living one first.  Returns
 * true if they are several.  *@past: all of them are known, and none lives.
 */
static bool name_holders(struct cl_report *report, const struct cl_report_group *g, char to[64], bool *past)
{
	struct cl_view_holder h;
	unsigned int n = 0;
	uint32_t pid = 0;
	bool alive = false;

	for (unsigned int i = 0; i < g->holders; i++) {
		if (!cl_view_slot(report->view, g->holder[i].slot, &h) || !h.who.pid)
			continue;
		n++;
		if (!pid || (h.alive && !alive))
			pid = h.who.pid;
		alive = alive || h.alive;
	}
	*past = pid && !alive && !g->other_holds && !g->own_opens && !g->pinned;
	if (!pid && g->own_opens && !g->pinned)
		snprintf(to, 64, "process %u itself", report->process.who.pid);
	else if (!pid)
		snprintf(to, 64, "another process");
	else if (g->other_holds)
		snprintf(to, 64, "process %u and others", pid);
	else if (n > 1)
		snprintf(to, 64, "process %u and %u more", pid, n - 1);
	else
		snprintf(to, 64, "process %u", pid);
	return pid && (g->other_holds || n > 1);
}

/* Writes "2 blocks (2 MiB)"; events have no size, and the size of a stale handle's block is not known. */
static void make_sum(const struct cl_report_group *g, char to[80])
{
	char size[32];

	if (g->kind == CL_EVENT || !g->bytes)
		snprintf(to, 80, "%llu %s", (unsigned long long)g->n, cl_report_what(g, g->n != 1));
	else
		snprintf(to, 80, "%llu %s (%s)", (unsigned long long)g->n, cl_report_what(g, g->n != 1),
			 cl_emit_format_bytes(size, g->bytes));
}

static void make_refused_title(const struct cl_report_group *g, const char *other, unsigned int pid, char to[512])
{
	char size[32], sum[64] = "", times[32] = "once";

	if (g->n > 1)
		snprintf(times, sizeof(times), "%llu times", (unsigned long long)g->n);
	if (g->bytes)
		snprintf(sum, sizeof(sum), " (%s)", cl_emit_format_bytes(size, g->bytes));
	if (g->others)
		snprintf(to, 512, "REFUSED: process %u could not share or open memory %s%s", pid, times, sum);
	else if (g->call == CL_CALL_OPEN_HANDLE && g->made != CL_MADE_ALLOC)
		snprintf(to, 512, "REFUSED: %s of %s was not opened by its handle: process %u asked %s%s, error %u",
			 cl_made_words(g->made), other, pid, times, sum, g->result);
	else if (g->call == CL_CALL_OPEN_HANDLE)
		snprintf(to, 512, "REFUSED: CUDA did not open memory of %s: process %u asked %s%s, error %u", other, pid,
			 times, sum, g->result);
	else
		snprintf(to, 512, "REFUSED: CUDA makes no legacy handle of %s: process %u asked %s%s, error %u",
			 cl_made_words(g->made), pid, times, sum, g->result);
}

static void make_descriptor_title(const struct cl_report_group *g, unsigned int pid, char to[512])
{
	char size[32], sum[64] = "", times[32] = "once";

	if (g->n > 1)
		snprintf(times, sizeof(times), "%llu times", (unsigned long long)g->n);
	if (g->bytes)
		snprintf(sum, sizeof(sum), " (%s)", cl_emit_format_bytes(size, g->bytes));
	if (g->others)
		snprintf(to, 512, "SHARED: process %u shared memory by descriptors or fabric handles %s%s", pid, times, sum);
	else
		snprintf(to, 512, "SHARED: process %u %s %s by %s %s%s", pid,
			 cl_call_is_import(g->call) ? "imported" : "exported",
			 g->made == CL_MADE_POOL ? "a memory pool" : cl_made_words(g->made),
			 cl_call_is_by_fabric(g->call) ? "fabric handle, which culimbo does not cover," : "descriptor",
			 times, sum);
}

void cl_report_make_title(struct cl_report *report, const struct cl_report_group *g, char to[512])
{
	bool ended = report->process.state == CL_DEAD || report->process.called_exec;
	bool leaves = report->process.state == CL_LEAVING;
	bool is_event = g->kind == CL_EVENT, fault = cl_report_is_fault(report, g), many = g->n != 1;
	const char *freed = cl_ended_word((enum cl_kind)g->kind, g->made == CL_MADE_VIRTUAL), *them = many ? "them" : "it";
	const struct cl_report_class_row *row = &cl_report_classes[g->class];
	unsigned int pid = report->process.who.pid;
	char sum[80], who[64], other[64];
	const char *have, *map, *still;
	bool they; /* several processes hold it */
	bool past; /* none of them does any more */

	make_sum(g, sum);
	they = name_holders(report, g, who, &past);
	have = past ? "had" : they ? "have" : "has";
	map = past ? "mapped" : they ? "map" : "maps";
	still = past ? "" : "still ";
	if (g->pid)
		snprintf(other, sizeof(other), "process %u", g->pid);
	else
		snprintf(other, sizeof(other), "another process");
	switch ((enum cl_report_class)g->class) {
	case CL_REPORT_HELD_LIMBO:
		snprintf(to, 512, is_event ? "%s: %s %s%s %s open that process %u has %s" :
					     "%s: %s %s%s %s that process %u has %s",
			 fault ? "LEAK" : "HELD", who, still, is_event ? have : map, sum, pid, freed);
		break;
	case CL_REPORT_HELD:
		if (fault)
			snprintf(to, 512, is_event ? "ENDED: process %u %s while %s %s %s of it open" :
						     "ENDED: process %u %s while %s %s %s of it",
				 pid, report->at_exit ? "ends" : report->process.called_exec ? "called exec" : "has ended", who, is_event ? have : map, sum);
		else
			snprintf(to, 512, is_event ? "MAPPED: %s %s %s of process %u open" :
						     "MAPPED: %s %s %s of process %u", who, is_event ? have : map, sum, pid);
		break;
	case CL_REPORT_ORPHANED:
		if (g->made == CL_MADE_VIRTUAL)
			snprintf(to, 512, "UNMAPPED: process %u unmapped %s that %s %s%s", pid, sum, who, still, map);
		else
			snprintf(to, 512,
				 is_event ? "CONTEXT: process %u ended the context of %s that %s %s%s open" :
					    "CONTEXT: process %u ended the context of %s that %s %s%s",
				 pid, sum, who, still, is_event ? have : map);
		break;
	case CL_REPORT_UNTRACKED:
		snprintf(to, 512, "KEPT: process %u %s %s that could not be tracked: kept to its end", pid,
			 freed, sum);
		break;
	case CL_REPORT_NOT_CLOSED:
		if (!fault)
			snprintf(to, 512, "OPEN: process %u has %s of %s open", pid, sum, other);
		else if (report->at_exit)
			snprintf(to, 512, "LEAK: process %u never %s %s of %s", pid,
				 is_event ? "destroyed" : g->kind == CL_POOL ? "freed" : "closed", sum, other);
		else if (report->process.called_exec)
			snprintf(to, 512, "EXEC: process %u called exec with %s of %s open", pid, sum, other);
		else
			snprintf(to, 512, "KILLED: process %u ended with %s of %s open", pid, sum, other);
		break;
	case CL_REPORT_UNMANAGED:
		snprintf(to, 512, fault ? "LEAK: process %u never closed %s of a process without culimbo or its file (unmanaged)" :
					  "OPEN: process %u has %s of a process without culimbo or its file open (unmanaged)",
			 pid, sum);
		break;
	case CL_REPORT_RECLAIMED:
		snprintf(to, 512, "LEAK: %s ended without %s %s of process %u", other,
			 is_event ? "destroying" : g->kind == CL_POOL ? "freeing" : "closing", sum, pid);
		break;
	case CL_REPORT_FREED_TWICE:
		snprintf(to, 512, "MISUSE: process %u freed %s twice", pid, sum);
		break;
	case CL_REPORT_EXPORTED_AFTER_FREE:
		snprintf(to, 512, "MISUSE: process %u exported %s after it had %s %s", pid, sum, freed, them);
		break;
	case CL_REPORT_IMPORT_FREED:
		snprintf(to, 512, "MISUSE: process %u freed %s of %s instead of closing %s", pid, sum, other, them);
		break;
	case CL_REPORT_CLOSED_TWICE:
		snprintf(to, 512, g->kind == CL_POOL ? "MISUSE: process %u freed %s once more than it had imported %s" :
						       "MISUSE: process %u closed %s once more than it had opened %s",
			 pid, sum, them);
		break;
	case CL_REPORT_STALE_REFUSED:
		if (g->exporter_gone)
			snprintf(to, 512, "STALE: %s had ended before process %u opened %s of it", other, pid, sum);
		else
			snprintf(to, 512, "STALE: %s had %s %s before process %u opened %s", other, freed, sum, pid, them);
		break;
	case CL_REPORT_FREED_WHILE_MAPPED:
		snprintf(to, 512, g->made == CL_MADE_VIRTUAL ?
				  "UNMAPPED: process %u unmapped %s and mapped other memory there while %s had %s mapped" :
				  "MISUSE: process %u freed %s while %s had %s mapped", pid, sum, other, them);
		break;
	case CL_REPORT_OPENED_AFTER_FREE:
		if (g->exporter_gone)
			snprintf(to, 512, "STALE: %s had ended before process %u opened %s of it", other, pid, sum);
		else
			snprintf(to, 512, "STALE: %s had %s %s before process %u opened %s", other, freed, sum, pid, them);
		break;
	case CL_REPORT_EVENT_DESTROYED_TWICE:
		snprintf(to, 512, "MISUSE: process %u destroyed %s twice (without culimbo the driver can crash)", pid, sum);
		break;
	case CL_REPORT_EVENT_FORCED_OUT:
		snprintf(to, 512, "FORCED: process %u gave %s back before importers were done (CULIMBO_MAX_EVENTS)", pid,
			 sum);
		break;
	case CL_REPORT_HELD_FORCED_OUT:
		snprintf(to, 512, "FORCED: process %u gave %s back while %s mapped %s (CULIMBO_HELD_BYTES)", pid, sum,
			 other, them);
		break;
	case CL_REPORT_GRACE:
	case CL_REPORT_LIMBO:
		/* nobody holds it: the end of its process, not of its wait, gives it back */
		if (report->at_exit || ended || leaves)
			snprintf(to, 512, "WAITED: %s %s by process %u, whose %s %s back to the driver", sum, freed, pid,
				 report->process.called_exec ? "exec gave" :
				 report->at_exit || leaves ? "end gives" : "end gave", them);
		else if (g->class == CL_REPORT_GRACE)
			snprintf(to, 512, "WAITS: %s %s by process %u, waiting out the grace of the last export", sum, freed, pid);
		else if (report->process.collects)
			snprintf(to, 512, "WAITS: %s %s by process %u, on the way back to the driver", sum, freed, pid);
		else
			snprintf(to, 512, "WAITS: %s %s by process %u, whose next CUDA call gives %s back", sum, freed, pid, them);
		break;
	case CL_REPORT_REFUSED:
		make_refused_title(g, other, pid, to);
		break;
	case CL_REPORT_DESCRIPTOR:
		make_descriptor_title(g, pid, to);
		break;
	default:
		/* the words of its row will do */
		snprintf(to, 512, "FOUND: process %u: %s: %s", pid, row->title, sum);
		break;
	}
}
