/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a trace as a page for a browser: page.html with the data in it. */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/trace/page_html.h"
#include "tools/trace/stacks.h"
#include "tools/trace/words.h"
#include "tools/trace/writers.h"

static void page_time(FILE *out, int64_t when)
{
	if (when == CU_NEVER)
		fputs(",-1", out);
	else
		fprintf(out, ",%" PRId64, when < 0 ? 0 : when);
}

/* Writes the page's data; page.html lists its members. */
static void page_data(FILE *out, const struct cu_trace *t)
{
	struct cu_trace_stacks stacks = cu_trace_stacks_of(t);
	struct cu_symbols *symbols = stacks.n ? cu_symbols_new() : NULL;

	fprintf(out, "{\"v\":1,\"zero\":%" PRIu64 ",\"span\":%" PRId64 ",\"procs\":[",
		t->zero_realtime / 1000000, t->span < 0 ? 0 : t->span);
	for (size_t i = 0; i < t->processes; i++) {
		const struct cu_trace_process *p = &t->process[i];

		fprintf(out, "%s\n{\"id\":%" PRIu32 ",\"pid\":%" PRIu32 ",\"name\":", i ? "," : "", p->id,
			p->pid);
		cu_put_json_text(out, p->name);
		fputs(",\"command\":", out);
		cu_put_json_text(out, p->command);
		fprintf(out, ",\"state\":\"%s\",\"begin\":%" PRId64 ",\"end\":%" PRId64
			     ",\"records\":%" PRIu64 ",\"lost\":%" PRIu64 ",\"damaged\":%" PRIu64
			     ",\"peak\":%" PRIu64 ",\"limbo\":[",
			cu_state_name(p->state), p->begin, p->end, p->records, p->lost, p->damaged,
			p->limbo_peak);
		for (size_t k = 0; k < p->limbo_n; k++)
			fprintf(out, "%s[%" PRId64 ",%" PRIu64 "]", k ? "," : "", p->limbo[k].when,
				p->limbo[k].bytes);
		fputs("]}", out);
	}
	fputs("],\"blocks\":[", out);
	for (size_t i = 0; i < t->blocks; i++) {
		const struct cu_trace_block *b = &t->block[i];

		fprintf(out, "%s\n[%" PRIu32 ",%u,%d,\"0x%" PRIx64 "\",%" PRIu64, i ? "," : "",
			b->process, b->kind, b->device != CL_NO_DEVICE ? b->device : -1, b->key, b->size);
		page_time(out, b->begin);
		page_time(out, b->end);
		page_time(out, b->allocated);
		page_time(out, b->exported);
		page_time(out, b->freed);
		page_time(out, b->limbo);
		page_time(out, b->held);
		page_time(out, b->ready);
		page_time(out, b->released);
		page_time(out, b->kept);
		fprintf(out, ",%" PRIu32 ",%d,\"%06" PRIx32 "/%" PRIu32 "/%" PRIu32 "\",%ld,%ld]", b->exports,
			(int)b->gone | (int)b->assumed << 1 | (int)b->at_once << 2, b->file_id,
			b->record == CL_NO_RECORD ? 0 : b->record, b->generation,
			cu_trace_stack_index(&stacks, b->process, b->export_stack),
			cu_trace_stack_index(&stacks, b->process, b->free_stack));
	}
	fputs("],\"opens\":[", out);
	for (size_t i = 0; i < t->opens; i++) {
		const struct cu_trace_open *o = &t->open[i];

		fprintf(out, "%s\n[%" PRIu32 ",%u,%d,\"0x%" PRIx64 "\",%" PRIu64, i ? "," : "",
			o->process, o->kind, o->block == CU_NO_BLOCK ? -1 : (int)o->block, o->key,
			o->size);
		page_time(out, o->opened);
		page_time(out, o->end);
		page_time(out, o->closed);
		fprintf(out, ",%d,%" PRIu32 ",%ld]", (int)o->own | (int)o->reclaimed << 1, o->pid,
			cu_trace_stack_index(&stacks, o->process, o->stack));
	}
	fputs("],\"marks\":[", out);
	for (size_t i = 0; i < t->marks; i++) {
		const struct cu_trace_mark *m = &t->mark[i];

		fprintf(out, "%s\n[%" PRIu32 ",%" PRId64 ",%u,%d,\"%s\",\"", i ? "," : "", m->process,
			m->when, m->event.what, m->block == CU_NO_BLOCK ? -1 : (int)m->block,
			cu_mark_name(m));
		cu_put_mark(out, m);
		fputs("\"]", out);
	}
	fputs("],\"stacks\":[", out);
	for (size_t i = 0; i < stacks.n; i++) {
		fputs(i ? ",\n" : "\n", out);
		cu_trace_put_stack(out, symbols, t, stacks.key[i]);
	}
	fputs("]}\n", out);
	cu_symbols_free(symbols);
	free(stacks.key);
}

void cu_trace_write_html(FILE *out, const struct cu_trace *t)
{
	for (size_t i = 0; i < sizeof page / sizeof page[0]; i++)
		if (!strcmp(page[i], "@DATA@\n"))
			page_data(out, t);
		else
			fputs(page[i], out);
}
