/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the lines of call stacks of a trace: see stacks.h. */
#include "config.h"

#include <string.h>

#include "shim/report/say_python.h"
#include "shim/report/shown.h"
#include "tools/common/text.h"
#include "tools/trace/stacks.h"
#include "tools/trace/words.h"

enum { LINES = 12 };

static void put_line(FILE *out, unsigned int *n, const char *function, const char *file, unsigned int line)
{
	char text[640], clean[640];

	if (line)
		snprintf(text, sizeof(text), "%s  %s:%u", function, file, line);
	else
		snprintf(text, sizeof(text), "%s%s%s", function, *function && *file ? "  " : "", file);
	cu_clean(clean, sizeof(clean), text, sizeof(text) - 1);
	fputs((*n)++ ? "," : "", out);
	cu_put_json_text(out, clean);
}

static void put_frame(FILE *out, unsigned int *n, struct cu_symbols *symbols, const struct cl_view *view,
		      const struct cl_view_frame *frame)
{
	struct cl_report_symbol symbol = { .line = 0 };
	const char *slash = strrchr(frame->path, '/');
	char place[256];

	if (symbols)
		cu_symbols_resolve(symbols, view, frame, &symbol);
	if (frame->path[0])
		snprintf(place, sizeof(place), "%s+0x%llx", slash ? slash + 1 : frame->path,
			 (unsigned long long)frame->offset);
	else
		snprintf(place, sizeof(place), "0x%llx", (unsigned long long)frame->address);
	put_line(out, n, symbol.function, symbol.file[0] ? symbol.file : place, symbol.line);
}

void cu_trace_put_stack(FILE *out, struct cu_symbols *symbols, const struct cu_trace *t, uint64_t key)
{
	static const struct cl_report as_text;
	const struct cl_view *view = &t->process[key >> 32].stacks->is;
	uint32_t stack = (uint32_t)key;
	unsigned int python = cl_view_python_depth(view, stack, NULL), first, end, n = 0;
	struct cl_view_python line;
	struct cl_view_frame frame;

	fputc('[', out);
	for (unsigned int i = 0; i < python && n < LINES && cl_view_python_frame(view, stack, i, &line); i++)
		put_line(out, &n, line.function, line.file, line.line);
	cl_report_shown(&as_text, view, stack, &first, &end);
	for (unsigned int i = first; i < end && n < LINES && cl_view_stack_frame(view, stack, i, &frame); i++)
		if (python && cl_report_is_interpreter(frame.path))
			break;
		else
			put_frame(out, &n, symbols, view, &frame);
	fputc(']', out);
}
