/* SPDX-License-Identifier: Apache-2.0 */
/* Prints one block or one process for `culimbo show`: see show_details.h. */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim/report/shown.h"
#include "tools/commands/show_details.h"
#include "tools/commands/show_stack.h"
#include "tools/common/left.h"
#include "tools/common/text.h"

enum { LISTED = 10 }; /* lines of a list for people; JSON has all */

static void say_process_short(struct cu_emit *to, const struct cu_process *process)
{
	char file[16];

	cu_emit_number(to, "pid", process->who.pid);
	cu_emit_text(to, "command", process->command);
	cu_emit_text(to, "state", cu_state_word(process));
	cu_file_word(file, process->file_id);
	cu_emit_text(to, "file", process->file_id ? file : NULL);
	cu_emit_text(to, "note", cu_process_note(process));
}

static const char *class_text(const struct cl_view_block *block)
{
	switch (block->class) {
	case CL_VIEW_HELD_LIMBO:
		return "freed by its program, and still held by others";
	case CL_VIEW_GRACE:
		return "freed by its program; kept for a handle that may be on its way (CULIMBO_GRACE)";
	case CL_VIEW_LIMBO:
		return "freed by its program, on its way back to the driver";
	case CL_VIEW_HELD:
		return "not freed, and held by others";
	case CL_VIEW_ORPHANED:
		if (block->freed_observed)
			return "freed by its program, though others held it; nothing is kept under CULIMBO_MODE=observe";
		if (block->unmapped)
			return "unmapped by its program, though others have it open: they read the bytes that it had";
		if (block->given_back && block->kind == CL_EVENT)
			return "given back to the driver before others were done with it (CULIMBO_MAX_EVENTS)";
		return block->given_back ? "given back to the driver, though others held it (CULIMBO_HELD_BYTES)" :
					   "gone with its context, though others held it";
	default:
		return "not freed, held by nobody";
	}
}

static const char *class_hint(const struct cu_block *block, const struct cu_process *process)
{
	if (block->is.pinned)
		return "a process that could not be recorded opened it, so it stays until its exporter ends (see room in the directory: culimbo doctor)";
	if (process->state == CL_DEAD && !block->held)
		return "its exporter has ended, and the driver has its memory back; `culimbo gc` takes the file away";
	if (!process->file_id || process->state == CL_DEAD)
		return "its exporter has ended, the driver keeps the memory for its holders; `culimbo gc` takes the file away";
	switch (block->is.class) {
	case CL_VIEW_HELD_LIMBO:
	case CL_VIEW_ORPHANED:
		return block->is.kind == CL_EVENT ?
			       "the processes that hold it should destroy it (cudaEventDestroy), or end" :
		       block->is.kind == CL_POOL ?
			       "the processes that hold it should free what they imported (cudaFree or cudaFreeAsync; cudaIpcCloseMemHandle if a handle opened it), or end" :
			       "the processes that hold it should close it (cudaIpcCloseMemHandle), or end";
	case CL_VIEW_GRACE:
	case CL_VIEW_LIMBO:
		if (!process->collects)
			return "nothing to do; the first CUDA call of its program after CULIMBO_GRACE gives it back (it has no collector)";
		return "nothing to do; `culimbo collect PID` ends the wait now";
	default:
		return NULL;
	}
}

/*
 * Writes the holder's own note of its open, if it has a file.  All ages are those at the time of
 * the scan.
 */
static void say_import(const struct cu_show *show, const struct cu_holder *holder)
{
	const struct cl_view_block *block = &show->block->is;
	struct cu_emit *to = show->to;
	struct cl_view_import import;
	struct cl_view view;

	if (!holder->who.pid ||
	    cl_view_open_process(&view, show->dirfd, &holder->who, NULL))
		return;
	if (cl_view_import_of(&view, show->process->file_id, block->record, block->generation,
			      &import)) {
		cu_emit_number(to, "opens", import.opens);
		cu_emit_hex(to, "address", import.key);
		if (show->scan->now > import.since)
			cu_emit_ago(to, "opened", show->scan->now - import.since);
		cu_show_stack(to, show->symbols, "opened_from", &view, import.stack);
	}
	cl_view_close(&view);
}

static void say_holders(const struct cu_show *show)
{
	const struct cu_block *block = show->block;
	struct cu_emit *to = show->to;

	if (!block->held && !to->json)
		return;
	cu_emit_open(to, "held_by", '[');
	for (uint32_t i = 0; i < block->held; i++) {
		const struct cu_holder *holder =
			&show->process->holder[show->scan->held_by[block->held_at + i]];

		if (i && !to->json)
			putchar('\n');
		cu_emit_open(to, NULL, '{');
		cu_emit_number(to, "pid", holder->who.pid);
		cu_emit_text(to, "name", holder->name);
		cu_emit_text(to, "state", !to->json || holder->alive ? cu_holder_word(holder) : "ended");
		if (show->scan->now > holder->since)
			cu_emit_ago(to, "first_open", show->scan->now - holder->since);
		say_import(show, holder);
		cu_emit_close(to, '}');
	}
	cu_emit_close(to, ']');
}

void cu_show_block(void *data)
{
	struct cu_show *show = data;
	const struct cl_view_block *b = &show->block->is;
	struct cu_emit *to = show->to;
	bool unmapped = b->is_virtual && !to->json; /* JSON keeps its keys */
	uint64_t now = show->scan->now;
	char id[32];

	cu_block_id(id, show->process->file_id, b->record);
	cu_emit_text(to, b->kind == CL_EVENT ? "event" : "block", id);
	cu_emit_text(to, "state", cu_class_word(b->class));
	cu_emit_text(to, "that_is", class_text(b));
	cu_emit_hex(to, "address", b->base);
	if (b->kind != CL_EVENT) {
		cu_emit_bytes(to, "size", b->size);
		if (b->device != CL_NO_DEVICE)
			cu_emit_number(to, "device", b->device);
	}
	cu_emit_number(to, "generation", b->generation);
	cu_emit_number(to, "exports", b->exports);
	cu_emit_ago(to, "last_exported", now > b->exported ? now - b->exported : 0);
	if (b->freed)
		cu_emit_ago(to, unmapped ? "unmapped" : "freed", now > b->freed ? now - b->freed : 0);
	if (b->pinned)
		cu_emit_bool(to, "pinned", true);
	cu_show_stack(to, show->symbols, "exported_from", &show->view, b->export_stack);
	cu_show_stack(to, show->symbols, unmapped ? "unmapped_from" : "freed_from", &show->view, b->free_stack);
	cu_emit_open(to, "exporter", '{');
	say_process_short(to, show->process);
	cu_emit_close(to, '}');
	say_holders(show);
	cu_emit_text(to, "hint", class_hint(show->block, show->process));
}

static int by_bytes(const void *x, const void *y)
{
	const struct cu_block *a = *(const struct cu_block *const *)x;
	const struct cu_block *b = *(const struct cu_block *const *)y;

	if (a->is.size != b->is.size)
		return a->is.size < b->is.size ? 1 : -1;
	return (a->is.record > b->is.record) - (a->is.record < b->is.record);
}

static void say_more(struct cu_emit *to, size_t n)
{
	if (!to->json && n > LISTED)
		printf("%*sand %zu more\n", 2 * to->depth - 2, "", n - LISTED);
}

/* Writes its blocks, the largest first; JSON has all of them. */
static void say_blocks(const struct cu_show *show)
{
	const struct cu_scan *scan = show->scan;
	const struct cu_block **its = malloc((scan->blocks + 1) * sizeof(*its));
	struct cu_emit *to = show->to;
	size_t n = 0;

	if (!its)
		return;
	for (size_t i = 0; i < scan->blocks; i++)
		if (&scan->process[scan->block[i].process] == show->process)
			its[n++] = &scan->block[i];
	qsort(its, n, sizeof(const struct cu_block *), by_bytes);
	if (n || to->json) {
		cu_emit_open(to, "blocks", '[');
		for (size_t i = 0; i < n && (to->json || i < LISTED); i++) {
			char id[32], size[24], line[128];

			cu_block_id(id, show->process->file_id, its[i]->is.record);
			if (to->json) {
				cu_emit_open(to, NULL, '{');
				cu_emit_text(to, "id", id);
				cu_emit_text(to, "state", cu_class_word(its[i]->is.class));
				cu_emit_bytes(to, "size", its[i]->is.size);
				cu_emit_number(to, "holders", its[i]->held);
				cu_emit_close(to, '}');
				continue;
			}
			cu_bytes_long(size, its[i]->is.size);
			snprintf(line, sizeof(line), "%-15s %10s  %s", id,
				 its[i]->is.kind == CL_EVENT ? "event" : size,
				 cu_class_word(its[i]->is.class));
			cu_emit_text(to, NULL, line);
		}
		say_more(to, n);
		cu_emit_close(to, ']');
	}
	free(its);
}

static void say_its_holders(const struct cu_show *show)
{
	const struct cu_process *process = show->process;
	struct cu_emit *to = show->to;

	if (!process->holders && !to->json)
		return;
	cu_emit_open(to, "held_by", '[');
	for (unsigned int i = 0; i < process->holders && (to->json || i < LISTED); i++) {
		const struct cu_holder *h = &process->holder[i];
		char size[24], age[24], line[160];
		uint64_t since = show->scan->now > h->since ? show->scan->now - h->since : 0;

		if (to->json) {
			cu_emit_open(to, NULL, '{');
			cu_emit_number(to, "pid", h->who.pid);
			cu_emit_text(to, "name", h->name);
			cu_emit_text(to, "state", h->alive ? "alive" : "ended");
			cu_emit_number(to, "blocks", h->holds);
			cu_emit_bytes(to, "size", h->bytes);
			cu_emit_ago(to, "first_open", since);
			cu_emit_close(to, '}');
			continue;
		}
		cu_bytes_long(size, h->bytes);
		cu_duration(age, since);
		snprintf(line, sizeof(line), "%u (%s, %s): %" PRIu64 " block%s, %s, first opened %s ago",
			 h->who.pid, *h->name ? h->name : "?", cu_holder_word(h), h->holds,
			 h->holds == 1 ? "" : "s", size, age);
		cu_emit_text(to, NULL, line);
	}
	say_more(to, process->holders);
	cu_emit_close(to, ']');
}

/* ---------------------------------------------------------- what it has open of others */
struct opened {
	struct cl_view_import import;
	const struct cu_block *block; /* at its exporter; NULL: not known there any more */
	bool pinned;		      /* cu_block_is_left() */
	bool died;		      /* the exporter has */
	bool left;		      /* cu_left_has(): the exporter has ended, and its file with it */
};

/* Finds what @import is at its exporter. */
static const struct cu_block *block_of(const struct cu_scan *scan, const struct cl_view_import *import)
{
	for (size_t i = 0; import->file_id && i < scan->blocks; i++) {
		const struct cu_block *block = &scan->block[i];

		if (block->is.record == import->record && block->is.generation == import->generation &&
		    scan->process[block->process].file_id == import->file_id)
			return block;
	}
	return NULL;
}

static int by_need(const void *x, const void *y)
{
	const struct opened *a = x, *b = y;

	if (a->pinned != b->pinned)
		return a->pinned ? -1 : 1;
	if (a->import.size != b->import.size)
		return a->import.size < b->import.size ? 1 : -1;
	return (a->import.index > b->import.index) - (a->import.index < b->import.index);
}

/* Reads them, what it should close first. */
static size_t read_opened(const struct cu_show *show, struct opened **list)
{
	uint32_t most = cl_view_imports(&show->view);
	size_t n = 0;

	*list = calloc(most + 1, sizeof(**list));
	for (uint32_t i = 0; *list && i < most; i++) {
		struct opened *one = &(*list)[n];
		const struct cu_process *exporter;

		if (!cl_view_import(&show->view, i, &one->import))
			continue;
		n++;
		one->block = block_of(show->scan, &one->import);
		exporter = one->block ? &show->scan->process[one->block->process] : NULL;
		one->died = exporter && exporter->state == CL_DEAD;
		one->left = !one->block && cu_left_has(show->scan, show->process - show->scan->process, &one->import);
		one->pinned = one->left || (exporter && cu_block_is_left(&one->block->is, exporter));
	}
	if (n)
		qsort(*list, n, sizeof(**list), by_need);
	return n;
}

/* Stores where the program called, in one line; "" if that is not known. */
static void place_of(const struct cu_show *show, uint32_t stack, char *to, size_t size)
{
	static struct cl_report as_text;
	struct cl_report_symbol symbol = { .line = 0 };
	struct cl_view_python python;
	struct cl_view_frame frame;
	unsigned int first = 0, end = cl_view_stack_depth(&show->view, stack);

	*to = 0;
	cl_report_shown(&as_text, &show->view, stack, &first, &end);
	if (cl_view_python_frame(&show->view, stack, 0, &python)) {
		snprintf(to, size, "%s (%s:%u)", python.function, python.file, python.line);
	} else if (first < end && cl_view_stack_frame(&show->view, stack, first, &frame)) {
		if (show->symbols)
			cu_symbols_resolve(show->symbols, &show->view, &frame, &symbol);
		if (symbol.line)
			snprintf(to, size, "%s %s:%u", symbol.function, symbol.file, symbol.line);
		else
			snprintf(to, size, "%s%s%s+0x%" PRIx64, symbol.function, *symbol.function ? " " : "",
				 frame.path, frame.offset);
	}
}

static void say_opened_json(const struct cu_show *show, const struct opened *one, const char *id)
{
	struct cu_emit *to = show->to;

	cu_emit_open(to, NULL, '{');
	cu_emit_text(to, "id", one->import.file_id ? id : NULL);
	cu_emit_hex(to, "address", one->import.key);
	cu_emit_bytes(to, "size", one->import.size);
	cu_emit_number(to, "opens", one->import.opens);
	cu_emit_number(to, "exporter", one->import.exporter_pid);
	cu_emit_text(to, "state", one->left ? "exporter-ended" : one->block ? cu_class_word(one->block->is.class) : NULL);
	cu_emit_bool(to, "pinned", one->pinned);
	cu_emit_ago(to, "opened_seconds", show->scan->now > one->import.since ? show->scan->now - one->import.since : 0);
	cu_show_stack(to, show->symbols, "opened_from", &show->view, one->import.stack);
	cu_emit_close(to, '}');
}

static void say_its_imports(const struct cu_show *show)
{
	struct cu_emit *to = show->to;
	char place[600], before[sizeof(place)] = "";
	struct opened *list;
	size_t n;

	if (!show->process->imported && !to->json)
		return;
	n = read_opened(show, &list);
	cu_emit_open(to, "imports", '[');
	for (size_t i = 0; i < n && (to->json || i < LISTED); i++) {
		const struct cl_view_import *import = &list[i].import;
		char id[32], size[24], age[24], line[700];

		cu_block_id(id, import->file_id, import->record);
		if (to->json) {
			say_opened_json(show, &list[i], id);
			continue;
		}
		cu_bytes_long(size, import->size);
		cu_duration(age, show->scan->now > import->since ? show->scan->now - import->since : 0);
		snprintf(line, sizeof(line), "%-12s %10s  %-11s of process %u, opened %s ago",
			 import->file_id ? id : "unmanaged",
			 import->kind == CL_EVENT ? "event" : import->size ? size : "unknown",
			 list[i].left ? "exporter-ended" :
			 !list[i].block ? "-" : list[i].died ? "exporter-died" :
					  cu_class_word(list[i].block->is.class), import->exporter_pid, age);
		cu_emit_text(to, NULL, line);
		place_of(show, import->stack, place, sizeof(place));
		snprintf(line, sizeof(line), "  at 0x%" PRIx64 "%s%s", import->key, *place ? ", opened in " : "",
			 !*place ? "" : strcmp(place, before) ? place : "the same line");
		cu_emit_text(to, NULL, line);
		snprintf(before, sizeof(before), "%s", place);
	}
	say_more(to, n);
	cu_emit_close(to, ']');
	free(list);
}

/* What to do about what it keeps from its owners. */
static void say_pins(const struct cu_show *show)
{
	const struct cu_process *p = show->process;
	char hint[128], size[24];

	cu_bytes_long(size, p->pin_bytes);
	if (p->pins && p->state != CL_DEAD && !show->to->json) {
		snprintf(hint, sizeof(hint), p->pins == 1 ? "close the pinned one (%s): its owner has freed or left it, or died" :
			 "close the pinned %2$" PRIu64 " (%1$s): their owners have freed or left them, or died", size, p->pins);
		cu_emit_text(show->to, "hint", hint);
	}
}

/* Writes its counts so far, without zeros. */
static void say_counters(struct cu_emit *to, const struct cu_counters *counters)
{
	if (counters->handles)
		cu_emit_number(to, "handles", counters->handles);
	if (counters->opens)
		cu_emit_number(to, "opens", counters->opens);
	if (counters->closes)
		cu_emit_number(to, "closes", counters->closes);
	if (counters->kept)
		cu_emit_number(to, "frees_kept", counters->kept);
	if (counters->kept_mapped)
		cu_emit_number(to, "frees_kept_mapped", counters->kept_mapped);
	if (counters->memory_waits)
		cu_emit_number(to, "memory_waits", counters->memory_waits);
}

/*
 * Returns the name of a kind in JSON; NULL: it has none.  All kinds are listed, so that the
 * compiler reports a missing one.
 */
static const char *finding_word(enum cl_finding_kind kind)
{
	switch (kind) {
	case CL_FINDING_FREED_TWICE:
		return "freed_twice";
	case CL_FINDING_EXPORTED_AFTER_FREE:
		return "exported_after_free";
	case CL_FINDING_IMPORT_FREED:
		return "import_freed";
	case CL_FINDING_CLOSED_TWICE:
		return "closed_twice";
	case CL_FINDING_STALE_REFUSED:
		return "stale_handles_refused";
	case CL_FINDING_EVENT_DESTROYED_TWICE:
		return "event_destroyed_twice";
	case CL_FINDING_EVENT_FORCED_OUT:
		return "events_forced_out";
	case CL_FINDING_HELD_FORCED_OUT:
		return "held_forced_out";
	case CL_FINDING_FREED_WHILE_MAPPED:
		return "freed_while_mapped";
	case CL_FINDING_OPENED_AFTER_FREE:
		return "opened_after_free";
	case CL_FINDING_HOLD_RECLAIMED:
		return "holds_reclaimed";
	case CL_FINDING_REFUSED:
		return "refused_by_cuda";
	case CL_FINDING_DESCRIPTOR:
		return "shared_by_descriptor";
	case CL_FINDING_NONE:
	case CL_FINDING_KINDS:
		break;
	}
	return NULL;
}

void cu_show_process(void *data)
{
	struct cu_show *show = data;
	const struct cu_process *p = show->process;
	struct cu_emit *to = show->to;
	bool has_file = show->view.region.header != NULL;

	say_process_short(to, p);
	cu_emit_ago(to, "began_to_share", p->age);
	cu_emit_number(to, "exported", p->blocks);
	cu_emit_bytes(to, "exported_bytes", p->bytes);
	cu_emit_number(to, "held", p->held);
	cu_emit_bytes(to, "held_bytes", p->held_bytes);
	cu_emit_number(to, "limbo", p->limbo);
	cu_emit_bytes(to, "limbo_bytes", p->limbo_bytes);
	cu_emit_number(to, "imported", p->imported);
	cu_emit_bytes(to, "imported_bytes", p->imported_bytes);
	if (p->pins || to->json)
		cu_emit_bytes(to, "pinned_bytes", p->pin_bytes);
	say_counters(to, &p->counters);
	if (has_file) {
		cu_emit_bytes(to, "file_takes", p->disk);
		for (unsigned int kind = 0; kind < CL_FINDING_KINDS; kind++) {
			const char *word = finding_word(kind);

			if (word && cl_view_finding_count(&show->view, kind))
				cu_emit_number(to, word, cl_view_finding_count(&show->view, kind));
		}
	}
	say_its_holders(show);
	if (has_file) {
		say_blocks(show);
		say_its_imports(show);
	}
	say_pins(show);
}
