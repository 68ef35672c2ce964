/* SPDX-License-Identifier: Apache-2.0 */
/* The report, second half: saying what was seen, as text or as JSON Lines; see report.h. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "shim/base/options.h"
#include "shim/report/report_table.h"

/* Files that are looked at for one importer's: an end takes no longer for what others left. */
enum { MOST_AT_EXIT = 1024 };

static const char *state_name(enum cl_liveness state)
{
	switch (state) {
	case CL_ALIVE:
		return "alive";
	case CL_DEAD:
		return "dead";
	default: /* its lock is gone, and it is not settled yet what it is */
		return "ending";
	}
}

static uint64_t age(const struct cl_report *report, uint64_t since)
{
	return report->now > since ? report->now - since : 0;
}

/* --------------------------------------------------------------- other processes */
/* The file of process @who, or by its @file_id when @who is NULL.  NULL: it has none. */
static const struct cl_view *peer_view(struct cl_report *report, const struct cl_witness *who,
				       uint32_t file_id)
{
	unsigned int i;

	if (report->dirfd < 0)
		return NULL;
	for (i = 0; i < report->peers; i++)
		if (who ? !memcmp(&report->peer_who[i], who, sizeof(*who)) :
			  !report->peer[i].err && report->peer[i].view.region.file_id == file_id)
			return report->peer[i].err ? NULL : &report->peer[i].view;
	if (i == CL_REPORT_PEERS) /* many: the first ones are told of in full */
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

/* ---------------------------------------------------------------------- stacks */
static void say_frame(struct cl_report *report, const struct cl_view *view, unsigned int index,
		      const struct cl_view_frame *frame)
{
	struct cl_report_symbol symbol = { .line = 0 };
	struct cl_emit *e = &report->emit;
	char id[2 * sizeof(frame->build_id) + 1] = "";
	bool known = report->resolve && report->resolve(report->data, view, frame, &symbol);

	for (unsigned int i = 0; i < frame->build_id_length && i < sizeof(frame->build_id); i++)
		snprintf(id + 2 * i, 3, "%02x", frame->build_id[i]);
	cl_emit_object(e, NULL);
	cl_emit_words(e, "        #%u", index);
	cl_emit_address(e, "address", frame->address, " ", "");
	if (known && symbol.function[0])
		cl_emit_string(e, "function", symbol.function, " in ", "");
	if (known && symbol.file[0]) {
		cl_emit_string(e, "file", symbol.file, " ", "");
		if (symbol.line)
			cl_emit_number(e, "line", symbol.line, ":", "");
	}
	if (frame->path[0]) {
		/* in the text, one of the two says enough */
		bool words = !(known && symbol.file[0]);

		cl_emit_string(e, "module", frame->path, words ? " (" : NULL, "");
		cl_emit_address(e, "offset", frame->offset, words ? "+" : NULL, ")");
		if (id[0])
			cl_emit_string(e, "build_id", id, words ? " (BuildId: " : NULL, ")");
	} else if (!known) {
		cl_emit_words(e, " (no file: code made at run time)");
	}
	cl_emit_words(e, "\n");
	cl_emit_object_end(e);
}

/* @key: of JSON; @happened: "exported", for "exported from" in the text, @indent before it. */
static void say_stack(struct cl_report *report, const struct cl_view *view, uint32_t stack,
		      const char *key, const char *indent, const char *happened)
{
	unsigned int depth = view ? cl_view_stack_depth(view, stack) : 0;
	struct cl_view_frame frame;

	if (!depth)
		return;
	cl_emit_words(&report->emit, "%s%s from\n", indent, happened);
	cl_emit_array(&report->emit, key);
	for (unsigned int i = 0; i < depth; i++)
		if (cl_view_stack_frame(view, stack, i, &frame))
			say_frame(report, view, i, &frame);
	cl_emit_array_end(&report->emit);
}

/* --------------------------------------------------------------------- holders */
static void say_holder(struct cl_report *report, const struct cl_report_group *g, unsigned int index)
{
	struct cl_emit *e = &report->emit;
	struct cl_view_holder h;
	struct cl_view_import import;
	const struct cl_view *its;

	if (!cl_view_slot(report->view, g->holder[index].slot, &h))
		return;
	its = h.who.pid ? peer_view(report, &h.who, 0) : NULL;
	cl_emit_object(e, NULL);
	cl_emit_number(e, "pid", h.who.pid, "      held by process ", "");
	cl_emit_string(e, "name", h.name, " (", ", ");
	cl_emit_string(e, "state", h.alive ? "alive" : "dead", "", ")");
	if (g->n > 1)
		cl_emit_words(e, g->kind == CL_EVENT ? ", %llu events" : ", %llu blocks",
			      (unsigned long long)g->holder[index].n);
	cl_emit_number(e, "blocks", g->holder[index].n, NULL, "");
	cl_emit_age(e, "since_ns", age(report, h.since), ", which has opened blocks of it for ", "\n");
	if (its) {
		struct cl_view_process process;

		cl_view_process(its, &process);
		if (process.command[0])
			cl_emit_string(e, "command", process.command, "        command: ", "\n");
		if (cl_view_import_of(its, report->process.file_id, g->holder[index].record,
				      g->holder[index].generation, &import)) {
			cl_emit_age(e, "opened_ns", age(report, import.since), "        opened ", " ago");
			cl_emit_number(e, "opens", import.opens, NULL, "");
			if (cl_view_stack_depth(its, import.stack))
				say_stack(report, its, import.stack, "open_stack", "", "");
			else
				cl_emit_words(e, "\n");
		}
	}
	cl_emit_object_end(e);
}

static void say_holders(struct cl_report *report, const struct cl_report_group *g)
{
	struct cl_emit *e = &report->emit;

	if (report->view) {
		cl_emit_array(e, "holders");
		for (unsigned int i = 0; i < g->holders; i++)
			say_holder(report, g, i);
		cl_emit_array_end(e);
	}
	if (g->other_holds)
		cl_emit_number(e, "other_holds", g->other_holds, "      and ",
			       g->other_holds == 1 ? " hold of another process\n" : " holds of other processes\n");
	if (g->pinned)
		cl_emit_number(e, "pinned", g->pinned,
			       "      held by a process that found no room to say so, kept to the end: ", "\n");
	if (g->own_opens)
		cl_emit_number(e, "own_opens", g->own_opens, "      opened in this process itself: ",
			       g->own_opens == 1 ? " time\n" : " times\n");
}

/* ----------------------------------------------------------------------- hints */
/* In @to, for a hint, who of the holders lives; else the first of the dead.  How many live. */
static unsigned int name_holders(struct cl_report *report, const struct cl_report_group *g, char *to, size_t size)
{
	struct cl_view_holder h;
	unsigned int alive = 0;
	uint32_t pid = 0;

	for (unsigned int i = 0; report->view && i < g->holders; i++) {
		if (!cl_view_slot(report->view, g->holder[i].slot, &h))
			continue;
		if (h.who.pid && (!pid || (h.alive && !alive)))
			pid = h.who.pid;
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

/* Says in @to what to do about @g. */
static void make_hint(struct cl_report *report, const struct cl_report_group *g, char to[512])
{
	const char *close = g->kind == CL_EVENT ? "cudaEventDestroy" : "cudaIpcCloseMemHandle";
	const char *free = g->kind == CL_EVENT ? "cudaEventDestroy" : "cudaFree";
	const struct cl_view *its;
	char pid[64] = "its importer";
	bool dead = !report->at_exit && report->process.state == CL_DEAD;
	unsigned int alive = 0;
	size_t n = 512;

	switch (g->class) {
	case CL_REPORT_HELD_LIMBO:
	case CL_REPORT_HELD:
	case CL_REPORT_GONE:
		alive = name_holders(report, g, pid, sizeof(pid));
		if (!g->holders && g->own_opens) {
			snprintf(to, n, "close the own opens (%s): this process still has what it opened itself",
				 close);
		} else if (!alive && g->holders) {
			snprintf(to, n,
				 dead ? "both are dead: nothing is left to free; find why %s ended without closing" :
				 report->at_exit ? "%s ended without closing: find why it ended; its holds are taken back "
						   "when somebody looks next" :
						   "%s ended without closing: find why it ended; its holds are taken back "
						   "when the exporter looks next", pid);
		} else if (g->class == CL_REPORT_HELD_LIMBO) {
			snprintf(to, n,
				 "%s %s: call %s there after the last use; until then %s", pid,
				 alive > 1 ? "do not close what they opened" : "does not close what it opened", close,
				 g->kind == CL_EVENT ? "the event is kept" : "the memory cannot be reused");
		} else if (g->class == CL_REPORT_HELD) {
			snprintf(to, n,
				 dead && alive > 1 ?
					 "its exporter has ended: the driver keeps the memory until %s close it (%s), or end" :
				 dead ?
					 "its exporter has ended: the driver keeps the memory until %s closes it (%s), or ends" :
				 report->at_exit ?
					 "%s should close it (%s) before its exporter ends: wait for it there" :
				 alive > 1 ?
					 "nothing to do while %s use it; they should call %s after the last use" :
					 "nothing to do while %s uses it; it should call %s after the last use",
				 pid, close);
		} else {
			snprintf(to, n,
				 "%s should close it (%s) before the exporter destroys or resets the context",
				 pid, close);
		}
		break;
	case CL_REPORT_GRACE:
	case CL_REPORT_LIMBO:
		if (dead)
			snprintf(to, n, "nothing to do: its process has ended, and the driver has the memory back");
		else if (g->class == CL_REPORT_LIMBO)
			snprintf(to, n, "nothing to do");
		else
			snprintf(to, n, "nothing to do: a handle of it may be on its way; CULIMBO_GRACE sets how long it waits");
		break;
	case CL_REPORT_KEPT:
		snprintf(to, n, "make room in the directory of exporter files (CULIMBO_DIR)");
		break;
	case CL_REPORT_NOT_CLOSED:
		its = g->file_id ? peer_view(report, NULL, g->file_id) : NULL;
		if (report->process.state == CL_ALIVE && !report->at_exit)
			snprintf(to, n, "nothing to do while it is used; call %s after that", close);
		else if (!report->at_exit)
			snprintf(to, n,
				 "process %u ended with it open, without a report of its own: find what killed it%s",
				 report->process.who.pid,
				 !its || its->state == CL_DEAD ? "" : /* (the driver has it back) */
				 g->kind == CL_EVENT ? "; its exporter takes the event back" :
						       "; its exporter takes the memory back");
		else
			snprintf(to, n, "call %s when done with it%s%s", close,
				 g->stack[0] ? ", in the code that opened it" : "",
				 !g->stays && !its ? "" : g->kind == CL_EVENT ? "; its exporter keeps the event until then" :
				 "; its exporter cannot reuse the memory before");
		break;
	case CL_REPORT_UNMANAGED:
		snprintf(to, n,
			 "call %s when done with it, and start its exporter under culimbo too: without, it may free "
			 "what is mapped here", close);
		break;
	case CL_REPORT_RECLAIMED:
		snprintf(to, n,
			 "process %u was killed, or ended, without closing what it opened: find why it ended, or "
			 "call %s before it does", g->pid, close);
		break;
	case CL_REPORT_FREED_TWICE:
		snprintf(to, n, "one of the two %s is one too many: the block may be another's by then", free);
		break;
	case CL_REPORT_EXPORTED_AFTER_FREE:
		snprintf(to, n, "export it before %s, or keep it until its importers are done", free);
		break;
	case CL_REPORT_IMPORT_FREED:
		snprintf(to, n, "what was opened by cudaIpcOpenMemHandle is closed by cudaIpcCloseMemHandle, not freed");
		break;
	case CL_REPORT_CLOSED_TWICE:
		snprintf(to, n, "each cudaIpcOpenMemHandle has one cudaIpcCloseMemHandle: one here is too many");
		break;
	case CL_REPORT_STALE_REFUSED:
		if (g->pid)
			snprintf(pid, sizeof(pid), "process %u", g->pid);
		snprintf(to, n,
			 "%s had freed it before this open: free it only after the last consumer has opened it, or, "
			 "if the handle was on its way longer than CULIMBO_GRACE, or freed blocks take more than "
			 "CULIMBO_GRACE_BYTES there, raise that",
			 g->pid ? pid : "its exporter");
		break;
	case CL_REPORT_EVENT_DESTROYED_TWICE:
		snprintf(to, n, "one of the two cudaEventDestroy is one too many");
		break;
	case CL_REPORT_EVENT_FORCED_OUT:
		snprintf(to, n, "raise CULIMBO_MAX_EVENTS, or have importers destroy the events that they opened");
		break;
	case CL_REPORT_HELD_FORCED_OUT:
		if (g->pid)
			snprintf(pid, sizeof(pid), "process %u", g->pid);
		snprintf(to, n,
			 "who still maps it may read another block's bytes since then: have %s close what "
			 "it opened (cudaIpcCloseMemHandle), or raise CULIMBO_HELD_BYTES",
			 g->pid ? pid : "that process");
		break;
	default:
		snprintf(to, n, "nothing to do");
	}
}

/* ---------------------------------------------------------------------- groups */
/* What had happened at the second stack. */
static const char *other_happened(const struct cl_report_group *g)
{
	const char *words = cl_report_classes[g->class].other_happened;

	return words && g->kind == CL_EVENT && !strcmp(words, "freed") ? "destroyed" : words;
}

static const char *what_of(const struct cl_report_group *g, bool many)
{
	if (g->kind == CL_EVENT)
		return many ? "events" : "event";
	if (cl_report_classes[g->class].what & CL_REPORT_AN_IMPORT)
		return many ? "imports" : "import";
	return many ? "blocks" : "block";
}

/* "N blocks, SIZE"; events have no size worth a word, and of a mere handle none is known. */
static void say_sum(struct cl_report *report, const struct cl_report_group *g)
{
	cl_emit_number(&report->emit, "count", g->n, "    ", "");
	cl_emit_words(&report->emit, " %s", what_of(g, g->n != 1));
	cl_emit_bytes(&report->emit, "bytes", g->bytes, g->kind == CL_EVENT || !g->bytes ? NULL : ", ", "");
}

static void say_item(struct cl_report *report, const struct cl_report_group *g,
		     const struct cl_report_item *item)
{
	int what = cl_report_classes[g->class].what;
	struct cl_emit *e = &report->emit;

	cl_emit_object(e, NULL);
	cl_emit_words(e, "%s%s", g->n == 1 ? "    " : "      ", what_of(g, false));
	if (item->key)
		cl_emit_address(e, "address", item->key, " ", "");
	else /* (nobody here has had it: a handle alone) */
		cl_emit_words(e, " %06x:%u of its exporter", g->file_id, item->record);
	cl_emit_bytes(e, "bytes", item->bytes, g->kind == CL_EVENT || !item->bytes ? NULL : ", ", "");
	if (g->n == 1 && !g->others)
		cl_emit_words(e, ", device %u", g->device);
	if (what & CL_REPORT_A_BLOCK) {
		if (item->exports) { /* (what could not be tracked has none) */
			cl_emit_number(e, "generation", item->generation, ", generation ", "");
			cl_emit_number(e, "exports", item->exports, ": exported ",
				       item->exports == 1 ? " time" : " times");
			cl_emit_age(e, "exported_ns", age(report, item->since), ", last ", " ago");
		}
		if (item->other_since)
			cl_emit_age(e, "freed_ns", age(report, item->other_since),
				    g->kind == CL_EVENT ? "; destroyed " : "; freed ", " ago");
	} else if (what & CL_REPORT_AN_IMPORT) {
		if (item->record || item->generation)
			cl_emit_number(e, "generation", item->generation, NULL, "");
		cl_emit_age(e, "opened_ns", age(report, item->since), ": opened ", " ago");
		cl_emit_number(e, "opens", item->opens, ", ",
			       item->opens == 1 ? " open not closed" : " opens not closed");
	} else {
		if (item->generation)
			cl_emit_number(e, "generation", item->generation, NULL, "");
		if (item->since) {
			cl_emit_words(e, ": %s", cl_report_classes[g->class].happened);
			cl_emit_age(e, "when_ns", age(report, item->since), " ", " ago");
		}
		if (item->other_since && cl_report_classes[g->class].other_happened) {
			cl_emit_words(e, "; %s", other_happened(g));
			cl_emit_age(e, "other_ns", age(report, item->other_since), " ", " ago");
		}
	}
	cl_emit_words(e, "\n");
	cl_emit_object_end(e);
}

/* How many of the imports that are listed of @g their exporter has freed; *first: when it began to. */
static unsigned int freed_there(const struct cl_report_group *g, const struct cl_view *its, uint64_t *first)
{
	struct cl_view_block block;
	unsigned int n = 0;

	for (unsigned int i = 0; its && i < g->items; i++)
		if (cl_view_block(its, g->item[i].record, &block) &&
		    block.generation == g->item[i].generation && block.freed && (!n++ || block.freed < *first))
			*first = block.freed;
	return n;
}

static void say_exporter(struct cl_report *report, const struct cl_report_group *g)
{
	const struct cl_view *its = g->file_id ? peer_view(report, NULL, g->file_id) : NULL;
	struct cl_emit *e = &report->emit;
	struct cl_view_process process = { .state = CL_DEAD };
	uint64_t first = 0;
	unsigned int freed = freed_there(g, its, &first);
	const char *freed_word = g->kind == CL_EVENT ? "destroyed" : "freed";
	char before[64];

	if (!g->file_id) {
		cl_emit_words(e, "      its exporter is not under culimbo\n");
		return;
	}
	cl_emit_object(e, "exporter");
	cl_emit_number(e, "pid", g->pid, "      of process ", "");
	if (its) {
		cl_view_process(its, &process);
		cl_emit_string(e, "state", state_name(process.state), " (", ")");
		cl_emit_string(e, "command", process.command, ": ", "");
	}
	if (freed < g->n) /* (the others are its own still, or not looked at) */
		snprintf(before, sizeof(before), "; %u of those listed %s there%s ", freed, freed_word,
			 freed == 1 ? "" : ", the first");
	else
		snprintf(before, sizeof(before), "; %s there ", freed_word);
	if (!its && !g->stays)
		cl_emit_words(e, report->dirfd < 0 ? "" : ", which has ended");
	if (freed)
		cl_emit_age(e, "freed_ns", age(report, first), before,
			    process.state == CL_DEAD ? " ago" : " ago: it waits for this process");
	else if (g->stays && g->n == 1)
		cl_emit_words(e, ", which has %s it and waits for this process", freed_word);
	else if (g->stays)
		cl_emit_words(e, ", which has %s %llu of them and waits for this process", freed_word,
			      (unsigned long long)g->stays);
	cl_emit_words(e, "\n");
	cl_emit_object_end(e);
}

static void say_group(struct cl_report *report, const struct cl_report_group *g, const char *hint)
{
	const struct cl_report_class_row *row = &cl_report_classes[g->class];
	struct cl_emit *e = &report->emit;

	cl_emit_line(e, "group");
	cl_emit_number(e, "pid", report->process.who.pid, NULL, "");
	cl_emit_string(e, "class", row->name, NULL, "");
	cl_emit_string(e, "kind", g->kind == CL_EVENT ? "event" : "memory", NULL, "");
	cl_emit_flag(e, "finding", row->what & CL_REPORT_FOUND);
	if (!g->others)
		cl_emit_number(e, "device", g->device, NULL, "");
	if (g->n > 1 || e->json) {
		say_sum(report, g);
		if (!g->others)
			cl_emit_words(e, ", device %u", g->device);
		if (g->others)
			cl_emit_words(e, ", of many places: the largest of them are");
		if (g->oldest)
			cl_emit_age(e, "oldest_ns", age(report, g->oldest), ", the oldest ", " old");
		cl_emit_words(e, "\n");
	}
	cl_emit_array(e, "items");
	for (unsigned int i = 0; i < g->items; i++)
		say_item(report, g, &g->item[i]);
	cl_emit_array_end(e);
	if (g->n > g->items)
		cl_emit_words(e, "      and %llu more\n", (unsigned long long)(g->n - g->items));
	if (row->what & CL_REPORT_AN_IMPORT) {
		say_exporter(report, g);
	} else if ((row->what & CL_REPORT_A_FINDING) && g->pid) {
		cl_emit_object(e, "other");
		cl_emit_number(e, "pid", g->pid, "      the other process: process ", "");
		cl_emit_string(e, "name", g->name, g->name[0] ? " (" : NULL, ")");
		cl_emit_words(e, "\n");
		cl_emit_object_end(e);
	}
	say_stack(report, report->view, g->stack[0], "stack", "      ", row->happened);
	if (row->other_happened)
		say_stack(report, report->view, g->stack[1], "other_stack", "      ", other_happened(g));
	/* (it is another process's to know) */
	if (g->class == CL_REPORT_STALE_REFUSED && !g->others && !g->stack[1])
		cl_emit_words(e, "      where it was %s is no longer known\n", other_happened(g));
	if (row->what & CL_REPORT_A_BLOCK)
		say_holders(report, g);
	cl_emit_string(e, "hint", hint, NULL, "");
	cl_emit_line_end(e);
}

bool cl_report_is_inner(const char *path)
{
	static const char *const inner[] = { "libculimbo.so", "libcuda.so", "libcudart.so",
					     "libcudart_static" };

	for (unsigned int i = 0; i < sizeof(inner) / sizeof(inner[0]); i++)
		if (strstr(path, inner[i]))
			return true;
	return false;
}

void cl_report_say_pattern(struct cl_emit *e, const struct cl_suppressible *of)
{
	const char *slash = strrchr(of->path, '/');

	if (!of->function[0] && !of->path[0]) {
		cl_emit_words(e, "# %s: %llu %s, process %u: no stack is known\n", of->class,
			      (unsigned long long)of->n, of->what, of->pid);
		return;
	}
	cl_emit_line(e, "suppression");
	cl_emit_words(e, "# %s: %llu %s, process %u\n", of->class, (unsigned long long)of->n, of->what,
		      of->pid);
	if (of->function[0])
		cl_emit_string(e, "pattern", of->function, "leak:^", "$\n");
	else
		cl_emit_string(e, "pattern", slash ? slash : of->path, "leak:", "\n");
	cl_emit_number(e, "count", of->n, NULL, "");
	cl_emit_bytes(e, "bytes", of->bytes, NULL, "");
	cl_emit_line_end(e);
}

/* A pattern that suppresses @g: the innermost function that is not CUDA's or ours, or its module; where it
   happened, or else where what it clashes with had. */
static void say_pattern(struct cl_report *report, const struct cl_report_group *g)
{
	struct cl_report_symbol symbol = { .line = 0 };
	struct cl_view_frame frame = { .offset = 0 };
	struct cl_suppressible of = { .class = cl_report_classes[g->class].name,
				      .what = what_of(g, g->n != 1), .n = g->n, .bytes = g->bytes,
				      .pid = report->process.who.pid, .function = "", .path = "" };

	for (int s = 0; s < 2 && !of.path[0] && !of.function[0]; s++) {
		unsigned int depth = report->view ? cl_view_stack_depth(report->view, g->stack[s]) : 0;

		for (unsigned int i = 0; i < depth; i++) {
			if (!cl_view_stack_frame(report->view, g->stack[s], i, &frame) ||
			    cl_report_is_inner(frame.path))
				continue;
			if (report->resolve)
				report->resolve(report->data, report->view, &frame, &symbol);
			if (!symbol.function[0] && !frame.path[0])
				continue;
			of.function = symbol.function;
			of.path = frame.path;
			break;
		}
	}
	cl_report_say_pattern(&report->emit, &of);
}

/* In both formats, one after the other, where that is wanted. */
#define SAY(report, call)                          \
	do {                                       \
		call;                              \
		if ((report)->both) {              \
			(report)->emit.json = true;  \
			call;                      \
			(report)->emit.json = false; \
		}                                  \
	} while (0)

/* Of @class: @n that are only counted. */
static void say_unlisted(struct cl_report *report, int class, uint64_t n)
{
	struct cl_emit *e = &report->emit;

	cl_emit_line(e, "more");
	cl_emit_number(e, "pid", report->process.who.pid, NULL, "");
	cl_emit_string(e, "class", cl_report_classes[class].name, NULL, "");
	cl_emit_string(e, "kind", "unknown", NULL, "");
	cl_emit_number(e, "count", n, "    ", " of which no more is noted (they found no room, or no file)\n");
	cl_emit_line_end(e);
}

/* The next group of @class and @kind after @last in the order of the report; NULL: none. */
static const struct cl_report_group *next_group(const struct cl_report_table *table, int class, int kind,
						const struct cl_report_group *last)
{
	const struct cl_report_group *best = NULL;

	for (unsigned int i = 0; i < table->n; i++) {
		const struct cl_report_group *g = &table->group[i];

		if (g->class != class || g->kind != kind || g->suppressed)
			continue;
		/* by bytes, then by number, then as they came */
		if (last && (g->bytes != last->bytes ? g->bytes > last->bytes :
			     g->n != last->n ? g->n > last->n : g <= last))
			continue;
		if (!best || (g->bytes != best->bytes ? g->bytes > best->bytes : g->n > best->n))
			best = g;
	}
	return best;
}

/* Of imports of a process that lives: that they are open is no fault yet. */
static const char *open_title(int class, bool is_event)
{
	if (class == CL_REPORT_UNMANAGED)
		return is_event ? "events imported from processes without culimbo (unmanaged), and open" :
				  "imported from processes without culimbo (unmanaged), and open";
	return is_event ? "events imported, and open" : "imported, and open";
}

static void say_kind(struct cl_report *report, int class, int kind)
{
	const struct cl_report_class_row *row = &cl_report_classes[class];
	const struct cl_report_group *g, *last = NULL;
	uint64_t groups = 0, n = 0, bytes = 0, more_groups = 0, more = 0, more_bytes = 0;
	char hint[512], before[512] = "";
	struct cl_emit *e = &report->emit;
	bool is_event = kind == CL_EVENT;
	uint64_t unlisted = is_event ? 0 : report->table->unlisted[class];

	for (unsigned int i = 0; i < report->table->n; i++) {
		g = &report->table->group[i];
		if (g->class == class && g->kind == kind && !g->suppressed) {
			groups++;
			n += g->n;
			bytes += g->bytes;
		}
	}
	if (!n && !unlisted)
		return;
	if (!report->generate) {
		char size[32];

		const char *title = is_event && row->event_title ? row->event_title : row->title;

		if (row->what & CL_REPORT_AN_IMPORT && !report->at_exit && report->process.state == CL_ALIVE)
			title = open_title(class, is_event);
		cl_emit_words(e, "  %s: %llu", title, (unsigned long long)(n + unlisted));
		if (!is_event && bytes)
			cl_emit_words(e, ", %s", cl_emit_format_bytes(size, bytes));
		cl_emit_words(e, "\n");
	}
	for (uint64_t i = 0; (g = next_group(report->table, class, kind, last)) != NULL; i++, last = g) {
		if (report->generate) {
			if (row->what & CL_REPORT_FOUND)
				say_pattern(report, g);
			continue;
		}
		if (report->top && i >= report->top)
			break;
		make_hint(report, g, hint);
		if (before[0] && strcmp(hint, before))
			cl_emit_words(e, "      HINT: %s\n", before);
		SAY(report, say_group(report, g, hint));
		memcpy(before, hint, sizeof(before));
		more++;
		n -= g->n;
		bytes -= g->bytes;
	}
	if (report->generate)
		return;
	if (before[0])
		cl_emit_words(e, "      HINT: %s\n", before);
	more_groups = groups - more;
	more = n;
	more_bytes = bytes;
	if (more_groups) {
		cl_emit_line(e, "more");
		cl_emit_number(e, "pid", report->process.who.pid, NULL, "");
		cl_emit_string(e, "class", row->name, NULL, "");
		cl_emit_string(e, "kind", is_event ? "event" : "memory", NULL, "");
		cl_emit_number(e, "groups", more_groups, "    and ", more_groups == 1 ? " more place" : " more places");
		cl_emit_number(e, "count", more, ": ", is_event ? " events" : " of them");
		cl_emit_bytes(e, "bytes", more_bytes, is_event || !more_bytes ? NULL : ", ", "");
		cl_emit_words(e, "\n");
		cl_emit_line_end(e);
	}
	if (unlisted) {
		SAY(report, say_unlisted(report, class, unlisted));
		if (!groups) {
			struct cl_report_group none = { .class = (uint8_t)class, .kind = CL_MEMORY };

			make_hint(report, &none, hint);
			if (row->kind != CL_FOUND_HOLD_RECLAIMED)
				cl_emit_words(e, "      HINT: %s\n", hint);
		}
	}
}

/* ------------------------------------------------------------------- the report */
static void say_head(struct cl_report *report)
{
	const struct cl_view_process *p = &report->process;
	struct cl_emit *e = &report->emit;

	cl_emit_line(e, "process");
	cl_emit_number(e, "pid", p->who.pid, "culimbo: report of process ", "");
	cl_emit_string(e, "when", report->at_exit ? "exit" : "look", NULL, "");
	if (report->at_exit)
		cl_emit_string(e, "state", "ending", NULL, "");
	else
		cl_emit_string(e, "state", state_name(p->state), " (", ")");
	cl_emit_string(e, "command", p->command, p->command[0] ? ": " : NULL, "");
	if (p->file_id) {
		char name[16];

		cl_region_name(name, p->file_id);
		cl_emit_string(e, "file", name, NULL, "");
	}
	if (p->created) {
		struct timespec t = { 0, 0 };
		uint64_t now;

		clock_gettime(CLOCK_REALTIME, &t);
		now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
		cl_emit_age(e, "shared_ns", now > p->created ? now - p->created : 0,
			    ", which began to share GPU memory ", " ago");
	}
	cl_emit_words(e, "\n");
	cl_emit_line_end(e);
}

static void say_number(struct cl_emit *e, const char *key, uint64_t value)
{
	char before[40];

	snprintf(before, sizeof(before), " %s=", key);
	cl_emit_number(e, key, value, before, "");
}

static void say_summary(struct cl_report *report, const struct cl_report_counts *counts)
{
	const struct cl_report_sums *s = &report->sums;
	struct cl_emit *e = &report->emit;
	uint64_t misuse = 0;

	for (int c = CL_REPORT_FREED_TWICE; c <= CL_REPORT_EVENT_DESTROYED_TWICE; c++)
		misuse += s->n[c];
	cl_emit_line(e, "summary");
	cl_emit_words(e, "culimbo: SUMMARY");
	say_number(e, "pid", report->process.who.pid);
	if (counts) {
		say_number(e, "exports", counts->exports);
		say_number(e, "imports", counts->imports);
	}
	say_number(e, "held", s->n[CL_REPORT_HELD] + s->n[CL_REPORT_HELD_LIMBO] + s->n[CL_REPORT_GONE]);
	say_number(e, "held_bytes",
		   s->bytes[CL_REPORT_HELD] + s->bytes[CL_REPORT_HELD_LIMBO] + s->bytes[CL_REPORT_GONE]);
	say_number(e, "limbo", s->n[CL_REPORT_HELD_LIMBO] + s->n[CL_REPORT_GRACE] + s->n[CL_REPORT_LIMBO]);
	say_number(e, "limbo_bytes", s->bytes[CL_REPORT_HELD_LIMBO] + s->bytes[CL_REPORT_GRACE] +
					     s->bytes[CL_REPORT_LIMBO]);
	say_number(e, "not_closed", s->n[CL_REPORT_NOT_CLOSED] + s->n[CL_REPORT_UNMANAGED]);
	say_number(e, "reclaimed", s->n[CL_REPORT_RECLAIMED]);
	say_number(e, "misuse", misuse);
	say_number(e, "stale_refused", s->n[CL_REPORT_STALE_REFUSED]);
	if (counts) {
		say_number(e, "released", counts->released);
		say_number(e, "released_bytes", counts->released_bytes);
		say_number(e, "pool_exports", counts->pool_exports);
		say_number(e, "cut", counts->cut);
		say_number(e, "cut_bytes", counts->cut_bytes);
	}
	say_number(e, "kept", s->n[CL_REPORT_KEPT]);
	say_number(e, "unmanaged", s->n[CL_REPORT_UNMANAGED]);
	say_number(e, "live", s->live);
	say_number(e, "live_bytes", s->live_bytes);
	say_number(e, "suppressed", s->suppressed);
	say_number(e, "suppressed_bytes", s->suppressed_bytes);
	say_number(e, "young", s->young);
	say_number(e, "findings", s->findings);
	cl_emit_words(e, "\n");
	cl_emit_line_end(e);
}

void cl_report_say(struct cl_report *report, const struct cl_report_counts *counts)
{
	struct cl_report_sums *s = &report->sums;
	struct cl_emit *e = &report->emit;
	char size[32];

	if (!report->generate)
		SAY(report, say_head(report));
	for (int c = 0; c < CL_REPORT_CLASSES; c++) {
		say_kind(report, c, CL_MEMORY);
		say_kind(report, c, CL_EVENT);
	}
	if (report->generate)
		return;
	if (counts && counts->pinned)
		cl_emit_words(e, "  opened without room to say so: %llu; their exporters keep them to the end\n",
			      (unsigned long long)counts->pinned);
	if (s->live)
		cl_emit_words(e, "  exported, not freed, held by nobody: %llu, %s%s\n",
			      (unsigned long long)s->live, cl_emit_format_bytes(size, s->live_bytes),
			      report->at_exit ? " (an ordinary end)" : "");
	if (counts && (counts->unmanaged_imports || counts->unmanaged_exports))
		cl_emit_words(e, "  not looked after: imports of processes without culimbo: %llu, exports: %llu\n",
			      (unsigned long long)counts->unmanaged_imports,
			      (unsigned long long)counts->unmanaged_exports);
	if (counts && counts->pool_exports)
		cl_emit_words(e, "  exported by pointer from memory pools, and not protected: %llu\n",
			      (unsigned long long)counts->pool_exports);
	if (counts && counts->cut)
		cl_emit_words(e, "  given back before their grace was over: %llu, %s (CULIMBO_GRACE_BYTES)\n",
			      (unsigned long long)counts->cut, cl_emit_format_bytes(size, counts->cut_bytes));
	if (s->suppressed)
		cl_emit_words(e, "  suppressed: %llu, %s (CULIMBO_SUPPRESSIONS)\n",
			      (unsigned long long)s->suppressed, cl_emit_format_bytes(size, s->suppressed_bytes));
	if (s->young)
		cl_emit_words(e, "  younger than CULIMBO_MIN_AGE: %llu, %s\n", (unsigned long long)s->young,
			      cl_emit_format_bytes(size, s->young_bytes));
	SAY(report, say_summary(report, counts));
}

void cl_report_say_suppressions(struct cl_report *report)
{
	struct cl_emit *e = &report->emit;
	bool any = false;

	for (unsigned int i = 0; report->suppressions && i < report->suppressions->n; i++) {
		const struct cl_suppression *s = &report->suppressions->list[i];

		if (!s->blocks)
			continue;
		if (!any)
			cl_emit_words(e, "culimbo: suppressions that matched:\n");
		any = true;
		cl_emit_line(e, "suppressed");
		cl_emit_number(e, "count", s->blocks, "  ", "");
		cl_emit_bytes(e, "bytes", s->bytes, ", ", "");
		cl_emit_string(e, "pattern", s->pattern, ": leak:", "\n");
		cl_emit_line_end(e);
	}
	if (!any)
		cl_emit_words(e, "culimbo: no suppression matched\n");
}
