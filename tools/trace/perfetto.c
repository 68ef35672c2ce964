/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a trace for Perfetto (ui.perfetto.dev, chrome://tracing): a track for each
 * process, with a row for each block that lives at the same time, and flows from the
 * exporter to the importers.
 */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>

#include "tools/trace/words.h"
#include "tools/trace/writers.h"

struct json {
	FILE *out;
	bool more;
};

/* Begins an event; the caller writes its other members and the '}'. */
static void event(struct json *j, const char *phase, uint32_t id, uint32_t thread, int64_t when)
{
	uint64_t ns = when < 0 ? 0 : (uint64_t)when;

	fprintf(j->out, "%s\n{\"ph\":\"%s\",\"pid\":%" PRIu32 ",\"tid\":%" PRIu32 ",\"ts\":%" PRIu64
			".%03u",
		j->more ? "," : "", phase, id, thread, ns / 1000, (unsigned int)(ns % 1000));
	j->more = true;
}

static void slice(struct json *j, uint32_t id, uint32_t thread, int64_t begin, int64_t end)
{
	uint64_t ns;

	if (begin < 0)
		begin = 0;
	if (end < begin)
		end = begin;
	ns = (uint64_t)(end - begin);
	event(j, "X", id, thread, begin);
	fprintf(j->out, ",\"dur\":%" PRIu64 ".%03u,", ns / 1000, (unsigned int)(ns % 1000));
}

static void named(struct json *j, const char *what, uint32_t id, uint32_t thread, const char *name)
{
	event(j, "M", id, thread, 0);
	fprintf(j->out, ",\"name\":\"%s\",\"args\":{\"name\":", what);
	cu_put_json_text(j->out, name);
	fputs("}}", j->out);
}

/* Threads of a track: 0 is for instants, the others are rows of blocks and opens. */
enum { EVENTS_ROW = 0, BLOCK_ROW = 1, OPEN_ROW = 1 << 30 };

static void json_process(struct json *j, const struct cu_trace_process *p, uint32_t place)
{
	char text[400];

	snprintf(text, sizeof text, "%s (%s)", p->name, cu_state_name(p->state));
	named(j, "process_name", p->id, 0, text);
	named(j, "process_labels", p->id, 0, p->command);
	event(j, "M", p->id, 0, 0);
	fprintf(j->out, ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%" PRIu32 "}}", place);
	named(j, "thread_name", p->id, EVENTS_ROW, "events");
	for (uint32_t row = 0; row < p->rows; row++)
		named(j, "thread_name", p->id, BLOCK_ROW + row, "blocks");
	for (uint32_t row = 0; row < p->open_rows; row++)
		named(j, "thread_name", p->id, OPEN_ROW + row, "opened from others");
	for (size_t i = 0; i < p->limbo_n; i++) {
		event(j, "C", p->id, 0, p->limbo[i].when);
		fprintf(j->out, ",\"name\":\"limbo bytes\",\"args\":{\"bytes\":%" PRIu64 "}}",
			p->limbo[i].bytes);
	}
	if (p->limbo_n && p->limbo[p->limbo_n - 1].bytes && p->state != CU_TRACE_RUNNING) {
		event(j, "i", p->id, EVENTS_ROW, p->end);
		fprintf(j->out,
			",\"s\":\"p\",\"name\":\"ended with blocks in limbo\",\"args\":{\"bytes\":%" PRIu64
			"}}",
			p->limbo[p->limbo_n - 1].bytes);
		event(j, "C", p->id, 0, p->end);
		fputs(",\"name\":\"limbo bytes\",\"args\":{\"bytes\":0}}", j->out);
	}
}

/* Writes a part of @b's life, within its slice. */
static void json_phase(struct json *j, const struct cu_trace *t, const struct cu_trace_block *b,
		       const char *name, int64_t begin, int64_t end)
{
	if (begin == CU_NEVER)
		return;
	slice(j, t->process[b->process].id, BLOCK_ROW + b->row, begin, end);
	fprintf(j->out, "\"name\":\"%s\",\"cat\":\"%s\"}", name, cu_kind_name(b->kind));
}

static int64_t first_of(int64_t a, int64_t b, int64_t c)
{
	return a != CU_NEVER ? a : b != CU_NEVER ? b : c;
}

static void json_block(struct json *j, const struct cu_trace *t, const struct cu_trace_block *b)
{
	int64_t limbo_until = first_of(b->held, b->ready, b->end);
	char text[32], device[24] = "";

	if (b->device != CL_NO_DEVICE)
		snprintf(device, sizeof device, ",\"device\":%u", b->device);

	slice(j, t->process[b->process].id, BLOCK_ROW + b->row, b->begin, b->end);
	fprintf(j->out, "\"name\":\"%s 0x%" PRIx64 ", %s\",\"cat\":\"%s\",\"args\":{\"address\":\"0x%" PRIx64
			"\",\"bytes\":%" PRIu64 "%s,\"exports\":%" PRIu32
			",\"opens\":%" PRIu32 ",\"released\":%s",
		cu_kind_name(b->kind), b->key,
		b->kind == CL_EVENT ? "shared" : cu_bytes_text(b->size, text),
		cu_kind_name(b->kind), b->key, b->size, device, b->exports, b->opens,
		b->released == CU_NEVER ? "false" : "true");
	if (b->file_id && b->record != CL_NO_RECORD)
		fprintf(j->out, ",\"file\":\"%06" PRIx32 "\",\"record\":%" PRIu32 ",\"generation\":%" PRIu32,
			b->file_id, b->record, b->generation);
	if (b->gone)
		fputs(b->kind == CL_VIRTUAL ? ",\"note\":\"it was unmapped\"" : ",\"note\":\"its context ended\"",
		      j->out);
	fputs("}}", j->out);
	json_phase(j, t, b, "exported", b->exported, first_of(b->limbo, b->kept, b->end));
	json_phase(j, t, b, "limbo: grace", b->limbo, limbo_until);
	json_phase(j, t, b, "limbo: held by importers", b->held, first_of(b->ready, CU_NEVER, b->end));
	json_phase(j, t, b, "limbo: may go", b->ready, b->end);
	json_phase(j, t, b, "kept: nobody can say who holds it", b->kept, b->end);
}

static void json_open(struct json *j, const struct cu_trace *t, size_t n)
{
	const struct cu_trace_open *o = &t->open[n];
	const struct cu_trace_process *p = &t->process[o->process];
	const struct cu_trace_block *b = o->block == CU_NO_BLOCK ? NULL : &t->block[o->block];
	char text[32];

	slice(j, p->id, OPEN_ROW + o->row, o->opened, o->end);
	fprintf(j->out, "\"name\":\"%s 0x%" PRIx64 " of %s%" PRIu32 "\",\"cat\":\"open\",\"args\":{"
			"\"address\":\"0x%" PRIx64 "\",\"size\":\"%s\",\"exporter_pid\":%" PRIu32
			",\"file\":\"%06" PRIx32 "\",\"record\":%" PRIu32 ",\"generation\":%" PRIu32
			",\"closed\":\"%s\"}}",
		cu_kind_name(o->kind), o->key, o->own ? "its own " : "", o->own ? p->pid : o->pid,
		o->key,
		cu_bytes_text(o->size, text), o->pid, o->file_id, o->record, o->generation,
		o->reclaimed ? "by the exporter: its holder died" :
		o->closed != CU_NEVER ? "yes" : "never");
	if (!b || b->exported == CU_NEVER)
		return;
	event(j, "s", t->process[b->process].id, BLOCK_ROW + b->row, b->exported);
	fprintf(j->out, ",\"id\":%zu,\"name\":\"opened\",\"cat\":\"flow\"}", n + 1);
	event(j, "f", p->id, OPEN_ROW + o->row, o->opened);
	fprintf(j->out, ",\"id\":%zu,\"name\":\"opened\",\"cat\":\"flow\",\"bp\":\"e\"}", n + 1);
}

static void json_mark(struct json *j, const struct cu_trace *t, const struct cu_trace_mark *m)
{
	event(j, "i", t->process[m->process].id, EVENTS_ROW, m->when);
	fprintf(j->out, ",\"s\":\"p\",\"name\":\"%s\",\"args\":{\"details\":\"", cu_mark_name(m));
	cu_put_mark(j->out, m);
	fprintf(j->out, "\",\"thread\":%" PRIu32 ",\"pid\":%" PRIu32 "}}", m->event.tid, m->event.pid);
}

void cu_trace_write_json(FILE *out, const struct cu_trace *t)
{
	struct json j = { .out = out };

	fprintf(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"maker\":\"culimbo %s\",\"zero\":\"%" PRIu64
		     " ns since 1970\"},\"traceEvents\":[",
		PACKAGE_VERSION, t->zero_realtime);
	for (uint32_t i = 0; i < t->processes; i++)
		json_process(&j, &t->process[i], i);
	for (size_t i = 0; i < t->blocks; i++)
		json_block(&j, t, &t->block[i]);
	for (size_t i = 0; i < t->opens; i++)
		json_open(&j, t, i);
	for (size_t i = 0; i < t->marks; i++)
		json_mark(&j, t, &t->mark[i]);
	fputs("\n]}\n", out);
}
