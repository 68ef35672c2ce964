/* SPDX-License-Identifier: Apache-2.0 */
/* Prints call stacks for `culimbo show`: see show_stack.h. */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>

#include "shim/base/options.h"
#include "shim/report/say_python.h"
#include "shim/report/shown.h"
#include "tools/commands/show_stack.h"

static void say_frame_json(struct cu_emit *to, const struct cl_view_frame *frame,
			   const struct cl_report_symbol *symbol)
{
	char id[2 * sizeof(frame->build_id) + 1] = "";

	for (unsigned int i = 0; i < frame->build_id_length && i < sizeof(frame->build_id); i++)
		snprintf(id + 2 * i, 3, "%02x", frame->build_id[i]);
	cu_emit_open(to, NULL, '{');
	cu_emit_hex(to, "address", frame->address);
	if (symbol->function[0])
		cu_emit_text(to, "function", symbol->function);
	if (symbol->file[0])
		cu_emit_text(to, "file", symbol->file);
	if (symbol->line)
		cu_emit_number(to, "line", symbol->line);
	if (frame->path[0]) {
		cu_emit_text(to, "module", frame->path);
		cu_emit_hex(to, "offset", frame->offset);
	}
	if (id[0])
		cu_emit_text(to, "build_id", id);
	cu_emit_close(to, '}');
}

static void say_frame(struct cu_emit *to, unsigned int index, const struct cl_view_frame *frame,
		      const struct cl_report_symbol *symbol)
{
	char place[300], text[600];

	if (symbol->file[0] && symbol->line)
		snprintf(place, sizeof(place), "%s:%u", symbol->file, symbol->line);
	else if (symbol->file[0])
		snprintf(place, sizeof(place), "%s", symbol->file);
	else if (*frame->path)
		snprintf(place, sizeof(place), "%s+0x%" PRIx64, frame->path, frame->offset);
	else
		snprintf(place, sizeof(place), "0x%" PRIx64, frame->address);
	snprintf(text, sizeof(text), "#%u %s%s%s", index, symbol->function,
		 symbol->function[0] ? " " : "", place);
	cu_emit_text(to, NULL, text);
}

/*
 * Writes a member of its own in JSON; in the text, more lines of the stack, numbered from @number
 * on.
 */
static void say_python(struct cu_emit *to, const char *key, const struct cl_view *view, uint32_t stack,
		       unsigned int number)
{
	struct cl_view_python frame;
	char name[64], text[640];
	bool unread;
	unsigned int n = cl_view_python_depth(view, stack, &unread);

	snprintf(name, sizeof(name), "%s_python", key);
	if (to->json && (n || unread))
		cu_emit_open(to, name, '[');
	for (unsigned int i = 0; i < n && cl_view_python_frame(view, stack, i, &frame); i++) {
		if (!to->json) {
			int end = snprintf(text, sizeof(text), "#%u %s (%s", number + i, frame.function, frame.file);

			snprintf(text + end, sizeof(text) - (size_t)end, frame.line ? ":%u)" : ")", frame.line);
			cu_emit_text(to, NULL, text);
			continue;
		}
		cu_emit_open(to, NULL, '{');
		cu_emit_text(to, "function", frame.function);
		cu_emit_text(to, "file", frame.file);
		if (frame.line)
			cu_emit_number(to, "line", frame.line);
		cu_emit_close(to, '}');
	}
	if (to->json && (n || unread))
		cu_emit_close(to, ']');
	else if (unread)
		cu_emit_text(to, NULL, "Python frames not read");
}

void cu_show_stack(struct cu_emit *to, struct cu_symbols *symbols, const char *key, const struct cl_view *view,
		   uint32_t stack)
{
	static struct cl_report as_text;
	unsigned int n = cl_view_stack_depth(view, stack), first = 0, end = n;
	bool python = !to->json && cl_view_python_depth(view, stack, NULL);
	struct cl_view_frame frame;
	unsigned int shown = 0;

	if (!n && !to->json)
		return;
	as_text.full_stacks = cl_options.full_stacks.number;
	if (!to->json)
		cl_report_shown(&as_text, view, stack, &first, &end);
	cu_emit_open(to, key, '[');
	for (unsigned int i = first; i < end; i++, shown++) {
		struct cl_report_symbol symbol = { .line = 0 };

		if (!cl_view_stack_frame(view, stack, i, &frame) ||
		    (python && cl_report_is_interpreter(frame.path)))
			break;
		if (symbols)
			cu_symbols_resolve(symbols, view, &frame, &symbol);
		if (to->json)
			say_frame_json(to, &frame, &symbol);
		else
			say_frame(to, i - first, &frame, &symbol);
	}
	if (!to->json)
		say_python(to, key, view, stack, shown);
	cu_emit_close(to, ']');
	if (to->json)
		say_python(to, key, view, stack, 0);
}
