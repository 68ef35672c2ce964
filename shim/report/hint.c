/* SPDX-License-Identifier: Apache-2.0 */
/* What a user should do about a group of the report: see hint.h. */
#include <stdio.h>

#include "shim/base/options.h"
#include "shim/diag/note_words.h"
#include "shim/report/exporter_side.h"
#include "shim/report/hint.h"
#include "shim/report/peer_files.h"

/*
 * Names the group's living holders in @to or, if none lives, one that has left.  *@called_exec: that one called exec.
 * Returns how many live.
 */
static unsigned int name_holders(struct cl_report *report, const struct cl_report_group *g, char *to, size_t size,
				 bool *called_exec)
{
	struct cl_view_holder h;
	unsigned int alive = 0;
	uint32_t pid = 0;

	for (unsigned int i = 0; i < g->holders; i++) {
		if (!cl_view_slot(report->view, g->holder[i].slot, &h))
			continue;
		if (h.who.pid && (!pid || (h.alive && !alive))) {
			pid = h.who.pid;
			*called_exec = h.called_exec;
		}
		alive += h.alive;
	}
	if (alive > 1 && g->other_holds)
		snprintf(to, size, "process %u and others", pid);
	else if (alive > 1)
		snprintf(to, size, "process %u and %u more", pid, alive - 1);
	else if (pid)
		snprintf(to, size, "process %u", pid);
	return alive;
}

void cl_report_make_hint(struct cl_report *report, const struct cl_report_group *g, char to[512])
{
	const char *close = g->kind == CL_EVENT ? "cudaEventDestroy" :
			    g->kind == CL_POOL	? "cudaFree or cudaFreeAsync (cudaIpcCloseMemHandle if a handle opened it)" :
						  "cudaIpcCloseMemHandle";
	const char *free = g->kind == CL_EVENT ? "cudaEventDestroy" :
			   g->kind == CL_POOL  ? "cudaFree or cudaFreeAsync" : "cudaFree";
	const struct cl_view *its;
	struct cl_report_ends ends;
	char pid[64] = "its importer";
	bool has_left = report->process.called_exec, its_holder_has = false;
	bool dead = !report->at_exit && (has_left || report->process.state == CL_DEAD);
	/* until a block is freed, no process has a collector */
	bool by_a_call = !report->at_exit && !report->process.collects && g->class != CL_REPORT_HELD;
	const char *ended = has_left ? "called exec" : "ended";
	unsigned int alive = 0;
	size_t n = 512;

	/* the switch has every class, so that the compiler names a new one that is missing */
	switch ((enum cl_report_class)g->class) {
	case CL_REPORT_HELD_LIMBO:
	case CL_REPORT_HELD:
	case CL_REPORT_ORPHANED:
		alive = name_holders(report, g, pid, sizeof(pid), &its_holder_has);
		if (!g->holders && g->own_opens) {
			snprintf(to, n, "the process has opened it itself: call %s there after the last use",
				 close);
		} else if (!g->holders && g->pinned) {
			snprintf(to, n, "an importer could not register as its holder: a warning in its log or the exporter's says why");
		} else if (!alive && g->holders && its_holder_has) {
			snprintf(to, n, "%s called exec without closing: call %s before it calls exec; %s", pid, close,
				 dead ? "nothing is left to free" :
				 report->at_exit ? "its holds are taken back when somebody looks next" :
				 by_a_call ? "its holds are taken back in the exporter's next CUDA call (it has no collector)" :
					     "its holds are taken back when the exporter looks next");
		} else if (!alive && g->holders) {
			snprintf(to, n,
				 dead && has_left ? "%s ended without closing: find why it ended; nothing is left to free" :
				 dead ? "both are dead: nothing is left to free; find why %s ended without closing" :
				 report->at_exit ? "%s ended without closing: find why it ended; its holds are taken back "
						   "when somebody looks next" :
				 by_a_call ? "%s ended without closing: find why it ended; its holds are taken back "
					     "in the exporter's next CUDA call (it has no collector)" :
						   "%s ended without closing: find why it ended; its holds are taken back "
						   "when the exporter looks next", pid);
		} else if (g->class == CL_REPORT_HELD_LIMBO) {
			snprintf(to, n,
				 "%s %s: call %s there after the last use; until then %s", pid,
				 alive > 1 ? "do not close what they opened" : "does not close what it opened", close,
				 g->kind == CL_EVENT && !g->freed_observed ? "the event is kept" :
				 g->kind == CL_EVENT ? "it is the driver's alone" :
				 g->freed_observed	 ? "it may read what others write there" :
							   "the memory cannot be reused");
		} else if (g->class == CL_REPORT_HELD) {
			snprintf(to, n,
				 dead && alive > 1 ?
					 "its exporter has %3$s: the driver keeps the memory until %1$s close it (%2$s), or end" :
				 dead ?
					 "its exporter has %3$s: the driver keeps the memory until %1$s closes it (%2$s), or ends" :
				 report->at_exit ?
					 "%1$s should close it (%2$s) before its exporter ends: wait for it there" :
				 alive > 1 ?
					 "nothing to do while %1$s use it; they should call %2$s after the last use" :
					 "nothing to do while %1$s uses it; it should call %2$s after the last use",
				 pid, close, ended);
		} else if (g->made == CL_MADE_VIRTUAL) {
			snprintf(to, n,
				 "%s %s what was there before: it should close it (%s) before its exporter unmaps it, and "
				 "open a new handle after", pid, alive > 1 ? "read" : "reads", close);
		} else {
			snprintf(to, n,
				 "%s should close it (%s) before the exporter destroys or resets the context",
				 pid, close);
		}
		break;
	case CL_REPORT_GRACE:
	case CL_REPORT_LIMBO:
		if (report->at_exit || (report->process.state == CL_LEAVING && !has_left))
			snprintf(to, n, "nothing to do: its process ends, and the driver has %s back then",
				 g->kind == CL_EVENT ? "the event" : "the memory");
		else if (dead)
			snprintf(to, n, "nothing to do: its process has %s, and the driver has %s back", ended,
				 g->kind == CL_EVENT ? "the event" : "the memory");
		else if (by_a_call && g->class == CL_REPORT_LIMBO)
			snprintf(to, n, "nothing to do: the process has no collector (CULIMBO_COLLECTOR=inline, or no thread)");
		else if (g->class == CL_REPORT_LIMBO)
			snprintf(to, n, "nothing to do");
		else if (by_a_call)
			snprintf(to, n, "nothing to do: a handle of it may be on its way; the first CUDA call of its program "
					"after CULIMBO_GRACE gives it back (it has no collector)");
		else
			snprintf(to, n, "nothing to do: a handle of it may be on its way; CULIMBO_GRACE sets how long it waits");
		break;
	case CL_REPORT_UNTRACKED:
		snprintf(to, n, report->dir_refused ?
			 "others may write to the directory of exporter files (CULIMBO_DIR), or it is another "
			 "user's, so it is not used: `culimbo doctor` says what to do" :
			 "make room in the directory of exporter files (CULIMBO_DIR)");
		break;
	case CL_REPORT_NOT_CLOSED:
		its = g->file_id ? cl_report_peer(report, NULL, g->file_id) : NULL;
		cl_report_ends_there(g, its, &ends);
		if (ends.given_back && !cl_observes())
			snprintf(to, n,
				 g->kind == CL_EVENT ?
					 "destroy it now (%s): its exporter has given it back, and what is waited for here may be "
					 "another event by now" :
					 "close it now (%s): its exporter has given it back, and what is read here may be another "
					 "block's by now", close);
		else if (report->process.state == CL_ALIVE && !report->at_exit)
			snprintf(to, n, "nothing to do while it is used; call %s after that", close);
		else if (!report->at_exit)
			snprintf(to, n, has_left ?
				 "call %3$s before exec: with its program process %1$u lost what it had open%2$s" :
				 "process %1$u ended with it open, without a report of its own: find what killed it%2$s",
				 report->process.who.pid,
				 !its || its->state == CL_DEAD || cl_observes() ? "" : /* the driver has it back */
				 g->kind == CL_EVENT ? "; its exporter takes the event back" :
						       "; its exporter takes the memory back", close);
		else
			snprintf(to, n, "call %s when done with it%s%s", close,
				 g->stack[0] ? ", in the code that opened it" : "",
				 cl_observes() || (its ? its->state == CL_DEAD || its->state == CL_LEAVING || ends.gone ||
							 ends.is_virtual :
							 !g->stays) ? "" :
				 g->kind == CL_EVENT ? "; its exporter keeps the event until then" :
						       "; its exporter cannot reuse the memory before");
		break;
	case CL_REPORT_UNMANAGED:
		snprintf(to, n,
			 "call %s when done with it, and start its exporter under culimbo too: without, it may free "
			 "what is mapped here. If it runs under culimbo, see there why it could not make its file", close);
		break;
	case CL_REPORT_RECLAIMED:
		snprintf(to, n,
			 "process %u was killed, or ended, or called exec, without closing what it opened: find why, or "
			 "call %s before it does", g->pid, close);
		break;
	case CL_REPORT_FREED_TWICE:
		snprintf(to, n, "remove one of the two %s calls: by the second one another block may be there", free);
		break;
	case CL_REPORT_FREED_WHILE_MAPPED:
		if (g->pid)
			snprintf(pid, sizeof(pid), "process %u", g->pid);
		snprintf(to, n, g->made == CL_MADE_VIRTUAL ?
				"%s could read what was there before: it should call %s before its exporter unmaps it, and open a new "
				"handle after" :
				"free it only after %s has called %s: have it say so", pid, close);
		break;
	case CL_REPORT_OPENED_AFTER_FREE:
		snprintf(to, n,
			 g->made == CL_MADE_VIRTUAL ?
				 "process %u unmapped it before this open: unmap it only after the last consumer has closed it%s%s" :
				 "process %u freed it before this open: free it only after the last consumer has closed it%s%s",
			 g->pid, g->result ? "" : cl_observes() ? "; " : "; without culimbo ",
			 g->result ? "" : "another block may be there by now");
		break;
	case CL_REPORT_EXPORTED_AFTER_FREE:
		snprintf(to, n, "export it before %s, or keep it until its importers are done", free);
		break;
	case CL_REPORT_IMPORT_FREED:
		snprintf(to, n, "call cudaIpcCloseMemHandle for what cudaIpcOpenMemHandle opened, instead of freeing it");
		break;
	case CL_REPORT_CLOSED_TWICE:
		snprintf(to, n, g->kind == CL_POOL ? "free it once for each cudaMemPoolImportPointer: here is one free too many" :
						     "call cudaIpcCloseMemHandle once for each cudaIpcOpenMemHandle: here is one too many");
		break;
	case CL_REPORT_STALE_REFUSED:
		if (g->pid)
			snprintf(pid, sizeof(pid), "process %u", g->pid);
		if (g->exporter_gone) {
			snprintf(to, n, "keep %s running until the last consumer has opened what it shares",
				 g->pid ? pid : "its exporter");
			break;
		}
		snprintf(to, n,
			 g->made == CL_MADE_VIRTUAL ?
				 "unmap it in %s only after the last consumer has opened it, and make a new handle of what is "
				 "mapped there next" :
			 g->kind == CL_EVENT ?
				 "destroy it in %s only after the last consumer has opened it; or raise CULIMBO_GRACE there" :
				 "free it in %s only after the last consumer has opened it; or raise CULIMBO_GRACE or "
				 "CULIMBO_GRACE_BYTES there",
			 g->pid ? pid : "its exporter");
		break;
	case CL_REPORT_EVENT_DESTROYED_TWICE:
		snprintf(to, n, "remove one of the two cudaEventDestroy calls");
		break;
	case CL_REPORT_EVENT_FORCED_OUT:
		snprintf(to, n, "raise CULIMBO_MAX_EVENTS, or have importers destroy the events that they opened");
		break;
	case CL_REPORT_HELD_FORCED_OUT:
		if (g->pid)
			snprintf(pid, sizeof(pid), "process %u", g->pid);
		snprintf(to, n,
			 "a process that still maps it may read another block's bytes since then: have %s close what "
			 "it opened (%s), or raise CULIMBO_HELD_BYTES",
			 g->pid ? pid : "that process", close);
		break;
	case CL_REPORT_REFUSED:
	case CL_REPORT_DESCRIPTOR:
		snprintf(to, n, "%s", g->others || !g->n ? "nothing need be done" :
							   cl_note_hint(g->made, g->call, g->result, g->why));
		break;
	case CL_REPORT_CLASSES:
		snprintf(to, n, "nothing to do");
		break;
	}
}

/* Returns true if culimbo would have refused all opens of @g, as far as they are listed. */
static bool would_be_refused(const struct cl_report_group *g)
{
	if (g->exporter_gone)
		return true;
	for (unsigned int i = 0; i < g->items; i++)
		if (g->item[i].after_free <= cl_options.grace.number) /* 0: not known */
			return false;
	return g->items > 0;
}

void cl_report_make_would(struct cl_report *report, const struct cl_report_group *g, char to[256])
{
	bool many = g->n != 1, sized = g->kind != CL_EVENT && g->bytes;
	bool ended = report->at_exit || report->process.state == CL_DEAD || report->process.state == CL_LEAVING;
	const char *them = many || sized ? "them" : "it", *these = many || sized ? "these" : "this";
	unsigned int pid = report->process.who.pid;
	char what[64], holder[64] = "its holders";
	bool called_exec;
	size_t n = 256;

	to[0] = 0;
	if (!(cl_observes() || g->freed_observed) || g->others)
		return;
	if (sized)
		cl_emit_format_bytes(what, g->bytes);
	else
		snprintf(what, sizeof(what), "%s", g->kind == CL_EVENT ? many ? "events" : "event" : many ? "blocks" : "block");
	if (g->pid)
		snprintf(holder, sizeof(holder), "process %u", g->pid);
	switch ((enum cl_report_class)g->class) {
	case CL_REPORT_HELD_LIMBO:
		name_holders(report, g, holder, sizeof(holder), &called_exec);
		snprintf(to, n, ended ? "culimbo would have kept %s %s until %s closed %s" :
					"culimbo would keep %s %s until %s closed %s", these, what, holder, them);
		break;
	case CL_REPORT_FREED_WHILE_MAPPED:
		snprintf(to, n, "culimbo would have kept %s %s until %s closed %s", these, what, holder, them);
		break;
	case CL_REPORT_RECLAIMED:
		snprintf(to, n, "culimbo would have kept %s %s, once freed, until %s ended", these, what, holder);
		break;
	case CL_REPORT_NOT_CLOSED:
		snprintf(to, n, ended ? "culimbo would have kept %s %s, once freed, until process %u ended" :
					"culimbo would keep %s %s, once freed, until process %u closes %s", these, what, pid, them);
		break;
	case CL_REPORT_OPENED_AFTER_FREE:
		if (would_be_refused(g))
			snprintf(to, n, "culimbo would have refused %s", many ? "these opens" : "this open");
		else
			snprintf(to, n, "culimbo would have kept %s %s for CULIMBO_GRACE after the last export, and refused %s "
					"after that", these, what, many ? "these opens" : "this open");
		break;
	case CL_REPORT_EVENT_DESTROYED_TWICE:
		snprintf(to, n, "culimbo would have refused the second destroy");
		break;
	case CL_REPORT_FREED_TWICE:
	case CL_REPORT_EXPORTED_AFTER_FREE:
	case CL_REPORT_IMPORT_FREED:
	case CL_REPORT_CLOSED_TWICE:
		snprintf(to, n, "culimbo would have given the driver's error, too");
		break;
	case CL_REPORT_HELD:
	case CL_REPORT_ORPHANED:
	case CL_REPORT_UNMANAGED:
		snprintf(to, n, "culimbo would have done nothing about it");
		break;
	default:
		break;
	}
}
