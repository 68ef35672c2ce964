/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a trace as a summary in text: the processes, the blocks that were longest in limbo, and
 * marks.
 */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/trace/words.h"
#include "tools/trace/writers.h"

static const struct cu_trace *sorted;
static int by_limbo(const void *a, const void *b)
{
	const struct cu_trace_block *x = &sorted->block[*(const size_t *)a],
				    *y = &sorted->block[*(const size_t *)b];
	int64_t p = cu_span_of(x->limbo, x->end), q = cu_span_of(y->limbo, y->end);

	return p != q ? (p > q ? -1 : 1) : *(const size_t *)a < *(const size_t *)b ? -1 : 1;
}

static void text_block(FILE *out, const struct cu_trace *t, const struct cu_trace_block *b)
{
	const struct cu_trace_process *p = &t->process[b->process];
	char size[32], took[32];
	int said = 0;

	fprintf(out, "  %s0x%" PRIx64 ", %s, of process %" PRIu32 " (", b->kind == CL_EVENT ? "event " : "",
		b->key,
		b->kind == CL_EVENT ? "shared" : cu_bytes_text(b->size, size), p->pid);
	cu_put_plain_text(out, p->name);
	fprintf(out, "): %s%s\n", cu_time_text(cu_span_of(b->limbo, b->end), took),
		b->released == CU_NEVER ? ", to the end" : "");
	for (uint32_t at = b->first_open; at != UINT32_MAX; at = t->open[at].next_of_block) {
		const struct cu_trace_open *o = &t->open[at];
		const struct cu_trace_process *q = &t->process[o->process];

		if (o->end <= b->limbo || said++ >= 4)
			continue;
		fprintf(out, "    held by process %" PRIu32 " (", q->pid);
		cu_put_plain_text(out, q->name);
		fprintf(out, ", %s) for %s%s\n", cu_state_name(q->state),
			cu_time_text(cu_span_of(b->limbo > o->opened ? b->limbo : o->opened,
						o->end < b->end ? o->end : b->end), took),
			o->reclaimed ? ", until found dead" : "");
	}
	if (said > 4)
		fprintf(out, "    and %d more\n", said - 4);
}

/*
 * Lists memory that was freed while other processes had it open, or that they opened after its
 * free.
 */
static void text_too_early(FILE *out, const struct cu_trace *t)
{
	size_t mapped = 0, late = 0;

	for (size_t i = 0; i < t->blocks; i++) {
		const struct cu_trace_block *b = &t->block[i];
		bool was_open = false, came = false;

		if (b->limbo == CU_NEVER || b->kind == CL_EVENT)
			continue;
		for (uint32_t at = b->first_open; at != UINT32_MAX; at = t->open[at].next_of_block) {
			const struct cu_trace_open *o = &t->open[at];

			was_open |= !o->own && o->opened < b->limbo && o->end > b->limbo;
			came |= !o->own && o->opened > b->limbo;
		}
		mapped += was_open;
		late += came;
	}
	if (mapped || late)
		fprintf(out, "\nFreed too early: %zu while others had them open; %zu were opened afterwards\n", mapped, late);
}

enum { LONGEST = 5 };
int cu_trace_write_text(FILE *out, const struct cu_trace *t)
{
	size_t *list = malloc((t->blocks + 1) * sizeof *list), n = 0, seen[CL_TRACE_WHATS] = { 0 };
	char text[32];

	if (!list)
		return -ENOMEM;
	fprintf(out, "%zu process%s, %s; %zu blocks and events, %zu open%s\n\n", t->processes,
		t->processes == 1 ? "" : "es", cu_time_text(t->span, text), t->blocks, t->opens,
		t->opens == 1 ? "" : "s");
	fprintf(out, "%7s %-16s %-7s %7s %4s %6s %8s %6s %10s\n", "PID", "NAME", "STATE", "RECORDS",
		"LOST", "BLOCKS", "EXPORTED", "OPENED", "LIMBO-PEAK");
	for (uint32_t i = 0; i < t->processes; i++) {
		const struct cu_trace_process *p = &t->process[i];
		size_t blocks = 0, exports = 0, opens = 0;
		char name[17];

		for (size_t k = 0; k < t->blocks; k++)
			if (t->block[k].process == i) {
				blocks++;
				exports += t->block[k].exports != 0;
			}
		for (size_t k = 0; k < t->opens; k++)
			opens += t->open[k].process == i;
		for (size_t k = 0; k < sizeof name; k++)
			name[k] = p->name[k] && ((unsigned char)p->name[k] < ' ' ||
						 (unsigned char)p->name[k] > '~') ? '?' : p->name[k];
		fprintf(out, "%7" PRIu32 " %-16s %-7s %7" PRIu64 " %4" PRIu64 " %6zu %8zu %6zu %10s\n",
			p->pid, name, cu_state_name(p->state), p->records, p->lost, blocks, exports,
			opens, cu_bytes_text(p->limbo_peak, text));
	}
	for (size_t i = 0; i < t->blocks; i++)
		if (t->block[i].limbo != CU_NEVER)
			list[n++] = i;
	sorted = t;
	qsort(list, n, sizeof *list, by_limbo);
	if (n)
		fprintf(out, "\nLongest in limbo:\n");
	for (size_t i = 0; i < n && i < LONGEST; i++)
		text_block(out, t, &t->block[list[i]]);
	if (n > LONGEST)
		fprintf(out, "  and %zu more\n", n - LONGEST);
	free(list);
	text_too_early(out, t);
	for (size_t i = 0; i < t->marks; i++)
		seen[t->mark[i].event.what]++;
	for (unsigned int what = 0, said = 0; what < CL_TRACE_WHATS; what++)
		for (size_t i = 0; seen[what] && i < t->marks; i++)
			if (t->mark[i].event.what == what) {
				fprintf(out, "%s  %s, %zu time%s; the first:\n    ", said++ ? "" : "\nAlso:\n",
					cu_mark_name(&t->mark[i]), seen[what],
					seen[what] == 1 ? "" : "s");
				cu_put_mark(out, &t->mark[i]);
				fprintf(out, "\n");
				break;
			}
	fprintf(out, "\nFor a picture: culimbo trace FILE -o out.html; for ui.perfetto.dev: -o out.json\n");
	return 0;
}
