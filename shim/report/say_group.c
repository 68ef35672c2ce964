/* SPDX-License-Identifier: Apache-2.0 */
/* Prints one group of the report, with its stacks and its holders or its exporter: see say_group.h. */
#include <stdio.h>
#include <string.h>

#include "shim/base/options.h"
#include "shim/diag/note_words.h"
#include "shim/report/hint.h"
#include "shim/report/limit.h"
#include "shim/report/peer_files.h"
#include "shim/report/exporter_side.h"
#include "shim/report/say_group.h"
#include "shim/report/say_python.h"
#include "shim/report/shown.h"
#include "shim/report/title.h"

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
	cl_emit_words(e, "      #%u", index);
	cl_emit_address(e, "address", frame->address, " ", "");
	if (known && symbol.function[0])
		cl_emit_string(e, "function", symbol.function, " in ", "");
	if (known && symbol.file[0]) {
		cl_emit_string(e, "file", symbol.file, " ", "");
		if (symbol.line)
			cl_emit_number(e, "line", symbol.line, ":", "");
	}
	if (frame->path[0]) {
		/* in the text, the source file or the module is enough, and a name needs no build id */
		bool words = !(known && symbol.file[0]), build_id = !(known && symbol.function[0]);

		cl_emit_string(e, "module", frame->path, words ? " (" : NULL, "");
		cl_emit_address(e, "offset", frame->offset, words ? "+" : NULL, ")");
		/* so much of it is enough for people, and for tools/common/symbols.c */
		if (e->fold && !e->json)
			id[2 * CL_REPORT_BUILD_ID] = 0;
		if (id[0])
			cl_emit_string(e, "build_id", id, words && build_id ? " (BuildId: " : NULL, ")");
	} else if (!known) {
		cl_emit_words(e, " (no file: code made at run time)");
	}
	cl_emit_words(e, "\n");
	cl_emit_object_end(e);
}

/*
 * Prints the frames of @stack other than those of Python.  If the text has Python frames, the interpreter's frames, and
 * those of all code that has called the interpreter, are left out.  Returns how many frames are left, with those that
 * cl_limit_frame() does not print: Python's frames are numbered from there.
 */
static unsigned int say_frames(struct cl_report *report, const struct cl_view *view, uint32_t stack)
{
	unsigned int first = 0, end = cl_view_stack_depth(view, stack), n = 0;
	bool python = !report->emit.json && !report->full_stacks && cl_view_python_depth(view, stack, NULL);
	struct cl_view_frame frame;

	if (!report->emit.json)
		cl_report_shown(report, view, stack, &first, &end);
	for (unsigned int i = first; i < end; i++) {
		if (!cl_view_stack_frame(view, stack, i, &frame))
			continue;
		if (python && cl_report_is_interpreter(frame.path))
			break;
		if (cl_limit_frame(report))
			say_frame(report, view, i - first, &frame);
		n++;
	}
	return n;
}

/*
 * Prints @stack.  In JSON it is the member @key, with all frames.  In the text @happened stands before it, as
 * "freed from".  @last: if there are too many lines, this stack is left out before others (fit.h).
 */
static void say_stack(struct cl_report *report, const struct cl_view *view, uint32_t stack,
		      const char *key, const char *happened, bool last)
{
	bool json = report->emit.json;
	unsigned int n;

	if (!view || !cl_view_stack_depth(view, stack) || !cl_limit_stack(report, last))
		return;
	cl_emit_words(&report->emit, "    %s\n", happened);
	/* a reader of the JSON finds the program's own code first */
	if (json)
		cl_report_say_python(report, view, stack, key, 0);
	cl_emit_array(&report->emit, key);
	n = say_frames(report, view, stack);
	cl_emit_array_end(&report->emit);
	if (!json)
		cl_report_say_python(report, view, stack, key, n);
}

/* --------------------------------------------------------------------- holders */
static void say_holder(struct cl_report *report, const struct cl_report_group *g, unsigned int index)
{
	struct cl_emit *e = &report->emit;
	struct cl_view_holder h;
	struct cl_view_import import;
	const struct cl_view *its;
	bool has_import = false;

	if (!cl_view_slot(report->view, g->holder[index].slot, &h))
		return;
	its = h.who.pid ? cl_report_peer(report, &h.who, 0) : NULL;
	cl_emit_object(e, NULL);
	cl_emit_number(e, "pid", h.who.pid, "    held by process ", "");
	cl_emit_string(e, "name", h.name, " (", ", ");
	cl_emit_string(e, "state", h.alive ? "alive" : "dead", NULL, "");
	cl_emit_words(e, "%s)", cl_report_state_words(h.alive ? CL_ALIVE : CL_DEAD, h.called_exec));
	if (g->n > 1)
		cl_emit_words(e, ", %llu %s", (unsigned long long)g->holder[index].n,
			      cl_report_what(g, g->holder[index].n != 1));
	cl_emit_number(e, "blocks", g->holder[index].n, NULL, "");
	cl_emit_age(e, "since_ns", cl_report_age(report, h.since), ", for ", "");
	if (its) {
		struct cl_view_process process;

		cl_view_process(its, &process);
		if (process.command[0])
			cl_emit_string(e, "command", process.command,
				       report->full_stacks || strlen(process.command) <= CL_REPORT_HOLDER_COMMAND ? ": " : NULL,
				       "");
		has_import = cl_view_import_of(its, report->process.file_id, g->holder[index].record,
					       g->holder[index].generation, &import);
	}
	cl_emit_words(e, "\n");
	if (has_import) {
		char age[32], words[64];

		cl_emit_age(e, "opened_ns", cl_report_age(report, import.since), NULL, "");
		cl_emit_number(e, "opens", import.opens, NULL, "");
		snprintf(words, sizeof(words), "opened %s ago, from",
			 cl_emit_format_age(age, cl_report_age(report, import.since)));
		say_stack(report, its, import.stack, "open_stack", words, index > 0);
		if (e->json && cl_report_holder_has_more_stacks(report, g, index))
			cl_emit_flag(e, "more_open_stacks", true);
	}
	cl_emit_object_end(e);
}

static void say_holders(struct cl_report *report, const struct cl_report_group *g)
{
	struct cl_emit *e = &report->emit;
	unsigned int shown = e->json || report->full_stacks || g->holders <= CL_REPORT_HOLDERS_IN_TEXT ?
				     g->holders : CL_REPORT_HOLDERS_IN_TEXT;
	uint64_t others = g->other_holds;

	cl_emit_array(e, "holders");
	for (unsigned int i = 0; i < shown; i++)
		say_holder(report, g, i);
	cl_emit_array_end(e);
	for (unsigned int i = shown; i < g->holders; i++)
		others += g->holder[i].n;
	if (others)
		cl_emit_words(e, others == 1 ? "    and %llu hold of another process\n" :
					       "    and %llu holds of other processes\n", (unsigned long long)others);
	if (g->other_holds)
		cl_emit_number(e, "other_holds", g->other_holds, NULL, "");
	if (g->pinned)
		cl_emit_number(e, "pinned", g->pinned,
			       "    kept until this process ends, since an importer that could not register may have it: ", "\n");
	if (g->own_opens)
		cl_emit_number(e, "own_opens", g->own_opens, "    opened in this process itself: ",
			       g->own_opens == 1 ? " time\n" : " times\n");
}

/* ---------------------------------------------------------------------- groups */
/* Returns @words, or, if they are "freed", what is said of the kind of @g instead. */
static const char *words_for(const struct cl_report_group *g, const char *words)
{
	return !words || strcmp(words, "freed") ? words : cl_ended_word((enum cl_kind)g->kind, g->made == CL_MADE_VIRTUAL);
}

/* Returns what happened at the second stack. */
static const char *other_happened(const struct cl_report_group *g)
{
	return words_for(g, cl_report_classes[g->class].other_happened);
}

/* Returns true if the open of @g was refused: by culimbo, or by the driver under CULIMBO_MODE=observe. */
static bool is_refused(const struct cl_report_group *g)
{
	return g->class == CL_REPORT_STALE_REFUSED || (g->class == CL_REPORT_OPENED_AFTER_FREE && g->result);
}

/* Returns what happened at the first stack, or at that time. */
static const char *happened(const struct cl_report_group *g)
{
	return is_refused(g) ? "refused" : words_for(g, cl_report_classes[g->class].happened);
}

/*
 * Prints how long a block stayed mapped after its free, or how long after its free it was opened.  @next: the item that
 * follows in the group, or NULL.
 */
static void say_after_free(struct cl_emit *e, const struct cl_report_group *g, const struct cl_report_item *item,
			   const struct cl_report_item *next)
{
	bool own = item->bytes >= CL_REPORT_OWN_ALLOCATION;
	char took[32];

	cl_emit_age(e, "after_free_ns", item->after_free, NULL, "");
	if (item->after_free < 1000000)
		snprintf(took, sizeof(took), "%llu us", (unsigned long long)item->after_free / 1000);
	else
		cl_emit_format_age(took, item->after_free);
	if (g->class == CL_REPORT_OPENED_AFTER_FREE) {
		cl_emit_words(e, ", %s after its free", took);
		return;
	}
	cl_emit_words(e, ", mapped for %s after that", took);
	if (g->made == CL_MADE_VIRTUAL) {
		cl_emit_words(e, ": process %u could read what was there before", g->pid);
		return;
	}
	/* the same words are for all of them */
	if (next && next->after_free && own == (next->bytes >= CL_REPORT_OWN_ALLOCATION))
		return;
	if (own)
		cl_emit_words(e, ": undefined by CUDA's documentation; this driver keeps the bytes");
	else
		cl_emit_words(e, ": %sprocess %u could have read foreign bytes",
			      cl_observes() ? "" : "without culimbo ", g->pid);
}

/* Prints the facts of one block: in the text its address, its size and its age.  @next: see say_after_free(). */
static void say_item(struct cl_report *report, const struct cl_report_group *g,
		     const struct cl_report_item *item, bool first, const struct cl_report_item *next)
{
	int what = cl_report_classes[g->class].what;
	struct cl_emit *e = &report->emit;

	cl_emit_object(e, NULL);
	cl_emit_words(e, first ? "    " : "; ");
	if (item->key)
		cl_emit_address(e, "address", item->key, "", "");
	else /* only its handle is known here, and of the size nothing */
		cl_emit_words(e, "%s", cl_report_what(g, false));
	cl_emit_bytes(e, "bytes", item->bytes, g->kind == CL_EVENT || !item->bytes ? NULL : ", ", "");
	if (item->record != CL_NO_RECORD)
		cl_emit_number(e, "record", item->record, NULL, "");
	if (what & CL_REPORT_A_BLOCK) {
		if (item->exports) { /* untracked blocks have none */
			cl_emit_number(e, "generation", item->generation, NULL, "");
			cl_emit_number(e, "exports", item->exports, NULL, "");
			cl_emit_age(e, "exported_ns", cl_report_age(report, item->since),
				    item->other_since ? NULL : ", exported ", " ago");
		}
		if (item->other_since) {
			cl_emit_words(e, ", %s", other_happened(g));
			cl_emit_age(e, "freed_ns", cl_report_age(report, item->other_since), " ", " ago");
		}
	} else if (what & CL_REPORT_AN_IMPORT) {
		if (item->record || item->generation)
			cl_emit_number(e, "generation", item->generation, NULL, "");
		cl_emit_age(e, "opened_ns", cl_report_age(report, item->since), ", opened ", " ago");
		cl_emit_number(e, "opens", item->opens, item->opens == 1 ? NULL : ", ", " opens not closed");
	} else {
		if (item->generation)
			cl_emit_number(e, "generation", item->generation, NULL, "");
		if (item->since) {
			cl_emit_words(e, ", %s%s", happened(g), is_refused(g) && g->result ? " by CUDA" : "");
			cl_emit_age(e, "when_ns", cl_report_age(report, item->since), " ", " ago");
		}
		if (item->other_since && cl_report_classes[g->class].other_happened) {
			/* how long after its free a block was opened says more than when both were */
			bool words = g->class != CL_REPORT_OPENED_AFTER_FREE;

			if (words)
				cl_emit_words(e, ", %s", other_happened(g));
			cl_emit_age(e, "other_ns", cl_report_age(report, item->other_since), words ? " " : NULL, " ago");
		}
		if (item->after_free)
			say_after_free(e, g, item, next);
	}
	cl_emit_object_end(e);
}

/* Returns true if the device of @g is known.  It is not in a note of a pool, and memory of the host has none. */
static bool has_device(const struct cl_report_group *g)
{
	return !g->others && g->device != CL_NO_DEVICE;
}

static void say_items(struct cl_report *report, const struct cl_report_group *g)
{
	struct cl_emit *e = &report->emit;

	unsigned int shown = e->json || g->items < CL_REPORT_ITEMS_IN_TEXT ? g->items : CL_REPORT_ITEMS_IN_TEXT;

	cl_emit_array(e, "items");
	for (unsigned int i = 0; i < shown; i++)
		say_item(report, g, &g->item[i], i == 0, i + 1 < shown ? &g->item[i + 1] : NULL);
	cl_emit_array_end(e);
	if (g->n > shown)
		cl_emit_words(e, "; and %llu more", (unsigned long long)(g->n - shown));
	if (has_device(g))
		cl_emit_words(e, "; device %u", g->device);
	cl_emit_words(e, "\n");
}

/*
 * Prints where the exporter has freed one of the imports of @g.  A command that joins both sides has
 * it from the exporter's report.
 */
static void say_free(struct cl_report *report, const struct cl_report_group *g)
{
	const struct cl_view *its = report->once && g->file_id ? cl_report_peer(report, NULL, g->file_id) : NULL;
	struct cl_view_block block;
	char freed[64];

	for (unsigned int i = 0; its && i < g->items; i++)
		if (cl_view_block(its, g->item[i].record, &block) && block.generation == g->item[i].generation &&
		    block.freed && block.free_stack) {
			snprintf(freed, sizeof(freed), "%s by process %u from",
				 cl_ended_word(block.kind, block.is_virtual), g->pid);
			say_stack(report, its, block.free_stack, "free_stack", freed, true);
			return;
		}
}

static void say_exporter(struct cl_report *report, const struct cl_report_group *g)
{
	const struct cl_view *its = g->file_id ? cl_report_peer(report, NULL, g->file_id) : NULL;
	struct cl_emit *e = &report->emit;
	struct cl_view_process process = { .state = CL_DEAD };
	struct cl_report_ends ends;
	const char *freed_word;
	char before[64], file[16];

	if (!g->file_id)
		return; /* the title says that it is not under culimbo */
	cl_report_ends_there(g, its, &ends);
	freed_word = cl_ended_word((enum cl_kind)g->kind, ends.is_virtual);
	cl_region_name(file, g->file_id);
	cl_emit_object(e, "exporter");
	cl_emit_number(e, "pid", g->pid, "    of process ", "");
	cl_emit_string(e, "file", file, NULL, "");
	if (its) {
		cl_view_process(its, &process);
		cl_emit_string(e, "state", cl_report_state_name(process.state), NULL, "");
		cl_emit_words(e, " (%s)", cl_report_state_words(process.state, process.called_exec));
		cl_emit_string(e, "command", process.command, ": ", "");
	}
	if (ends.freed < g->n) /* the exporter has not freed the others, or they are not items */
		snprintf(before, sizeof(before), "; %u of those listed %s there%s ", ends.freed, freed_word,
			 ends.freed == 1 ? "" : ", the first");
	else
		snprintf(before, sizeof(before), "; %s there ", freed_word);
	if (!its && !g->stays)
		cl_emit_words(e, report->dirfd < 0 ? "" : ", which has ended");
	if (ends.freed)
		cl_emit_age(e, "freed_ns", cl_report_age(report, ends.first), before,
			    ends.waits && !cl_observes() ? " ago: it waits for this process" : " ago");
	if (ends.given_back && !cl_observes()) {
		if (ends.given_back < g->n)
			cl_emit_words(e, "; %u of them", ends.given_back);
		cl_emit_words(e, "%s given back there (%s)", ends.given_back < g->n ? "" : ";", ends.why);
	}
	if (ends.gone)
		cl_emit_words(e, ends.gone == g->n ? "; its context has ended there" :
						      "; the context of %u has ended there", ends.gone);
	if (ends.freed || cl_observes())
		;
	else if (g->stays && g->n == 1)
		cl_emit_words(e, ", which has %s it and waits for this process", freed_word);
	else if (g->stays)
		cl_emit_words(e, ", which has %s %llu of them and waits for this process", freed_word,
			      (unsigned long long)g->stays);
	cl_emit_words(e, "\n");
	if (e->json)
		say_free(report, g);
	cl_emit_object_end(e);
}

/*
 * Prints where process g->pid opened what it never closed: as its file says, which stays for CULIMBO_KEEP_DEAD
 * when a process is killed.
 */
static void say_open_of_dead(struct cl_report *report, const struct cl_report_group *g)
{
	const struct cl_region *region = &report->view->region;
	uint32_t slots = atomic_load_explicit(&region->header->slots_used, memory_order_relaxed);
	struct cl_view_import import;
	struct cl_view_holder h;
	char opened[48];

	snprintf(opened, sizeof(opened), "opened by process %u from", g->pid);
	if (g->class != CL_REPORT_RECLAIMED || g->others || !g->pid)
		return;
	/* a slot keeps the identity of its last process until another one takes it */
	for (unsigned int slot = 0; slot < slots && slot < CL_SLOTS; slot++) {
		const struct cl_view *its = NULL;

		if (region->slot[slot].who.pid == g->pid && cl_view_slot(report->view, slot, &h) && h.who.pid == g->pid)
			its = cl_report_peer(report, &h.who, 0);

		for (unsigned int i = 0; its && i < g->items; i++) {
			/* what it had open may be much, and groups many: an end must not take long */
			if (cl_view_imports(its) > report->imports_left)
				return;
			report->imports_left -= cl_view_imports(its);
			if (cl_view_import_of(its, report->process.file_id, g->item[i].record, g->item[i].generation,
					      &import) && import.stack) {
				say_stack(report, its, import.stack, "open_stack", opened, false);
				return;
			}
		}
	}
}

static void say_other(struct cl_report *report, const struct cl_report_group *g)
{
	struct cl_emit *e = &report->emit;
	bool words = g->name[0] != 0; /* its number is in the title */

	cl_emit_object(e, "other");
	cl_emit_number(e, "pid", g->pid, words ? "    process " : NULL, "");
	cl_emit_string(e, "name", g->name, words ? " is " : NULL, "");
	cl_emit_words(e, words ? "\n" : "");
	if (e->json)
		say_open_of_dead(report, g);
	cl_emit_object_end(e);
}

/* Prints the stacks of @g, the culprit's first.  If a handle was opened too late, that is who freed too early. */
static void say_stacks(struct cl_report *report, const struct cl_report_group *g)
{
	const struct cl_report_class_row *row = &cl_report_classes[g->class];
	bool is_stale = g->class == CL_REPORT_STALE_REFUSED;
	bool other_first = is_stale || g->class == CL_REPORT_OPENED_AFTER_FREE || (row->what & CL_REPORT_A_BLOCK);
	char first[64] = "", other[64] = "";

	snprintf(first, sizeof(first), is_refused(g) ? "%s at" : "%s from", row->happened ? happened(g) : "");
	if (row->other_happened)
		snprintf(other, sizeof(other), "%s from", other_happened(g));
	if (other[0] && other_first)
		say_stack(report, report->view, g->stack[1], "other_stack", other, false);
	/* only its exporter knew the stack of the free */
	if (is_stale && !g->others && !g->exporter_gone && !g->stack[1])
		cl_emit_words(&report->emit, "    where it was %s is no longer known\n", other_happened(g));
	say_stack(report, report->view, g->stack[0], "stack", first, false);
	if (other[0] && !other_first)
		say_stack(report, report->view, g->stack[1], "other_stack", other, false);
}

/* Prints the members of JSON that only notes have, and the result of an open after the free.  The title says the same. */
static void say_note(struct cl_emit *e, const struct cl_report_group *g)
{
	if (g->class == CL_REPORT_OPENED_AFTER_FREE && g->result)
		cl_emit_number(e, "result", g->result, NULL, "");
	if (!cl_finding_is_note(cl_report_classes[g->class].kind) || g->others)
		return;
	cl_emit_string(e, "memory", cl_made_key(g->made), NULL, "");
	cl_emit_string(e, "call", cl_call_name(g->call), NULL, "");
	if (cl_call_is_by_descriptor(g->call))
		cl_emit_flag(e, "fabric", cl_call_is_by_fabric(g->call));
	else
		cl_emit_number(e, "result", g->result, NULL, "");
}

static uint32_t pid_of_holder(const struct cl_report *report, const struct cl_report_group *g)
{
	struct cl_view_holder h;

	return cl_view_slot(report->view, g->holder[0].slot, &h) ? h.who.pid : 0;
}

static void say_whole(struct cl_report *report, const struct cl_report_group *g, const char *hint, bool say_hint)
{
	char would[256];

	const struct cl_report_class_row *row = &cl_report_classes[g->class];
	struct cl_emit *e = &report->emit;
	char title[512];

	cl_report_make_title(report, g, title);
	cl_emit_line(e, "group");
	cl_emit_number(e, "pid", report->process.who.pid, NULL, "");
	cl_emit_string(e, "class", row->name, NULL, "");
	cl_emit_string(e, "kind", cl_report_kind_name(g->kind), NULL, "");
	cl_emit_flag(e, "finding", (row->what & CL_REPORT_FOUND) && !g->told);
	if (g->told && (g->pid || g->holders))
		cl_emit_number(e, "told_by", g->pid ? g->pid : pid_of_holder(report, g), NULL, "");
	cl_emit_words(e, "  ");
	if (cl_report_is_fault(report, g))
		cl_emit_paint(e, CL_EMIT_FAULT);
	cl_emit_string(e, "title", title, "", g->others ? ", of many places: the largest of them are" : "");
	if (cl_report_is_fault(report, g))
		cl_emit_paint(e, CL_EMIT_PLAIN);
	cl_emit_words(e, "\n");
	if (has_device(g))
		cl_emit_number(e, "device", g->device, NULL, "");
	say_note(e, g);
	cl_emit_number(e, "count", g->n, NULL, "");
	cl_emit_number(e, "bytes", g->bytes, NULL, "");
	if (g->oldest)
		cl_emit_age(e, "oldest_ns", cl_report_age(report, g->oldest), NULL, "");
	say_items(report, g);
	if (row->what & CL_REPORT_AN_IMPORT)
		say_exporter(report, g);
	else if ((row->what & CL_REPORT_A_FINDING) && g->pid)
		say_other(report, g);
	/* the holder is the culprit, whose stack stands first in the text; in JSON its object is last */
	if ((row->what & CL_REPORT_A_BLOCK) && !e->json)
		say_holders(report, g);
	if (!e->json)
		say_open_of_dead(report, g);
	say_stacks(report, g);
	if ((row->what & CL_REPORT_AN_IMPORT) && !e->json)
		say_free(report, g);
	if ((row->what & CL_REPORT_A_BLOCK) && e->json)
		say_holders(report, g);
	cl_limit_say_left_out(report);
	cl_report_make_would(report, g, would);
	if (would[0])
		cl_emit_string(e, "would", would, "    ", "\n");
	if (say_hint) {
		cl_emit_words(e, "    ");
		cl_emit_paint(e, CL_EMIT_HINT);
		cl_emit_words(e, "HINT: ");
		cl_emit_paint(e, CL_EMIT_PLAIN);
	}
	cl_emit_string(e, "hint", hint, say_hint ? "" : NULL, "\n");
	cl_emit_line_end(e);
}

void cl_report_say_group(struct cl_report *report, const struct cl_report_group *g, const char *hint,
			 bool say_hint)
{
	/* with report->both a command adds names to the text, and then cuts it itself (tools/common/known.c) */
	cl_limit_begin(!report->emit.json && !report->both && !report->full_stacks);
	if (cl_limit_measure(report)) {
		say_whole(report, g, hint, say_hint);
		cl_limit_fit(report);
	}
	say_whole(report, g, hint, say_hint);
}
