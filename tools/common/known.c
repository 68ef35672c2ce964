/* SPDX-License-Identifier: Apache-2.0 */
/* Names and suppressions for a report that a process wrote when it ended: see known.h. */
#include "config.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "shim/report/fit.h"
#include "shim/report/fold.h"
#include "shim/report/report_table.h"
#include "tools/common/known.h"
#include "tools/common/match.h"
#include "tools/common/names.h"
#include "tools/common/objects.h"

/* The class and kind of the last groups read, and the number of those beyond `top`. */
struct section {
	char class[40];
	bool events;
	uint64_t shown, more, more_n, more_bytes;
	char hint[1024]; /* of the last group written */
};

struct work {
	struct cu_known *known;
	struct cu_names names;
	struct cu_side side; /* the process of the report */
	FILE *out;	     /* the report without what is suppressed */
	char *out_text;
	size_t out_n;
	char *pending;	     /* lines since the last object */
	size_t pending_n, pending_size;
	struct section section;
	uint64_t suppressed[CL_REPORT_CLASSES], suppressed_bytes[CL_REPORT_CLASSES];
	uint64_t gone, gone_bytes, told_elsewhere, groups;
	uint64_t gone_findings; /* those of `gone` that were findings; holds of living processes are not */
};

/* ------------------------------------------------------------------ the objects */
static int class_of(const char *object)
{
	char name[40];

	if (cu_object_text(object, "class", name, sizeof(name)))
		for (int c = 0; c < CL_REPORT_CLASSES; c++)
			if (!strcmp(cl_report_classes[c].name, name))
				return c;
	return CL_REPORT_CLASSES;
}

/* ----------------------------------------------------------------------- the text */
static bool add_pending(struct work *w, const char *line)
{
	size_t length = strlen(line) + 1, size = 2 * (w->pending_n + length);
	char *more;

	if (w->pending_n + length > w->pending_size) {
		more = realloc(w->pending, size);
		if (!more)
			return false;
		w->pending = more;
		w->pending_size = size;
	}
	memcpy(w->pending + w->pending_n, line, length);
	w->pending_n += length - 1;
	return true;
}

/* To be used before the next line is added. */
static char *take_pending(struct work *w)
{
	static char none[1];

	none[0] = 0;
	if (!w->pending_n)
		return none;
	w->pending_n = 0;
	return w->pending;
}

/* Writes how many groups of the section were left out. */
static void end_section(struct work *w)
{
	struct section *s = &w->section;
	char size[32];

	if (s->more && w->known->json) {
		fprintf(w->out, "{\"culimbo\":%u,\"type\":\"more\",\"pid\":%u,\"class\":\"%s\",\"kind\":\"%s\","
				"\"groups\":%" PRIu64 ",\"count\":%" PRIu64 ",\"bytes\":%" PRIu64 "}\n",
			CL_EMIT_VERSION, w->side.pid, s->class, s->events ? "event" : "memory", s->more, s->more_n,
			s->more_bytes);
	} else if (s->more) {
		fprintf(w->out, "  and %" PRIu64 " more %s: %" PRIu64 " %s", s->more,
			s->more == 1 ? "place" : "places", s->more_n, s->events ? "events" : "of them");
		if (!s->events && s->more_bytes)
			fprintf(w->out, ", %s", cl_emit_format_bytes(size, s->more_bytes));
		fputc('\n', w->out);
	}
	memset(s, 0, sizeof(*s));
}

static void begin_section(struct work *w, const char *object)
{
	struct section *s = &w->section;
	bool events = strstr(object, "\"kind\":\"event\"") != NULL;
	char class[40] = "";

	cu_object_text(object, "class", class, sizeof(class));
	if (!strcmp(class, s->class) && events == s->events)
		return;
	end_section(w);
	memcpy(s->class, class, sizeof(class));
	s->events = events;
}

static bool is_of_stack(const char *line)
{
	return !strncmp(line, "      ", 6);
}

/* Writes the lines of a group, @text, without the frames that do not fit (shim/report/fit.h). */
static void write_fitting(FILE *to, char *text)
{
	static const char opened[] = "    opened ", from[] = "ago, from", hint[] = "HINT: ";
	struct cl_fit fit = { .n = 0 };
	unsigned int others = 0, stack = 0, frame = 0, more;
	bool holder = false, said = false;

	for (int writing = 0; writing < 2; writing++) {
		for (char *line = text, *end; *line; line = end) {
			bool title;

			end = line + strcspn(line, "\n");
			end += *end == '\n';
			title = !is_of_stack(line) && is_of_stack(end);
			if (title && !writing && fit.n < CL_FIT_STACKS) {
				bool holders = !strncmp(line, opened, sizeof(opened) - 1) &&
					       memmem(line, (size_t)(end - line), from, sizeof(from) - 1);

				fit.stack[fit.n++] = (struct cl_fit_stack){ .last = holders && holder };
				holder = holder || holders;
			} else if (!writing && is_of_stack(line) && fit.n) {
				fit.stack[fit.n - 1].lines++;
			} else if (!writing) {
				others += cl_fold_lines(line, (size_t)(end - line));
			} else if (title && stack < fit.n) {
				frame = 0;
				if (fit.stack[stack++].shown)
					fwrite(line, 1, (size_t)(end - line), to);
			} else if (is_of_stack(line) && stack) {
				const struct cl_fit_stack *its = &fit.stack[stack - 1];
				bool shown = its->shown && cl_fit_is_shown(its, frame++, &more);

				if (its->shown && more)
					fprintf(to, CL_FIT_MORE_FRAMES, more, more == 1 ? "" : "s");
				if (shown)
					fwrite(line, 1, (size_t)(end - line), to);
			} else {
				if (fit.left_out && !said && memmem(line, (size_t)(end - line), hint, sizeof(hint) - 1)) {
					fprintf(to, CL_FIT_MORE_STACKS, fit.left_out, fit.left_out == 1 ? "" : "s");
					said = true;
				}
				fwrite(line, 1, (size_t)(end - line), to);
			}
		}
		if (!writing)
			cl_fit(&fit, others);
	}
	if (fit.left_out && !said)
		fprintf(to, CL_FIT_MORE_STACKS, fit.left_out, fit.left_out == 1 ? "" : "s");
}

/* Writes the lines of a group, with the stack @joined where its exporter has @ended the block before the hint. */
static void write_named(struct work *w, char *text, uint64_t exporter, const char *ended, const char *joined)
{
	static const char of[] = "    of process ", hint[] = "    HINT: ";
	char *copy, title[64];

	for (char *line = text, *end; *line; line = end) {
		char was;

		end = line + strcspn(line, "\n");
		end += *end == '\n';
		was = *end;
		*end = 0;
		if (!strncmp(line, hint, sizeof(hint) - 1)) {
			copy = joined ? strdup(joined) : NULL;
			if (copy) {
				snprintf(title, sizeof(title), "    %s by process %" PRIu64 " from\n", ended, exporter);
				cu_names_line(&w->names, title);
				cu_names_text(&w->names, copy);
				free(copy);
			}
			if (strcmp(line, w->section.hint))
				cu_names_line(&w->names, line);
			snprintf(w->section.hint, sizeof(w->section.hint), "%s", line);
		} else if (!joined || strncmp(line, of, sizeof(of) - 1)) {
			cu_names_line(&w->names, line);
		}
		*end = was;
	}
}

/* The same, without the frames that do not fit. */
static void write_group(struct work *w, char *text, uint64_t exporter, const char *ended, const char *joined)
{
	char *named = NULL;
	size_t size = 0;
	FILE *to = w->known->full_stacks ? NULL : open_memstream(&named, &size);

	if (to)
		w->names.to = to;
	write_named(w, text, exporter, ended, joined);
	w->names.to = w->out;
	if (to && !fclose(to))
		write_fitting(w->out, named);
	free(named);
}

/* Writes @object, with @stack as its exporter's. */
static void write_object(struct work *w, const char *object, const char *stack)
{
	static const char exporter[] = "\"exporter\":{";
	const char *at = stack ? strstr(object, exporter) : NULL;
	char *joined;

	if (!at || asprintf(&joined, "%.*s\"free_stack\":%s,%s", (int)(at + sizeof(exporter) - 1 - object),
			    object, stack, at + sizeof(exporter) - 1) < 0)
		joined = NULL;
	cu_names_line(&w->names, joined ? joined : object);
	free(joined);
}

/* Writes @object as no finding, since a group of process @by reports it. */
static void write_told(struct work *w, const char *object, uint32_t by)
{
	static const char finding[] = "\"finding\":true";
	const char *at = strstr(object, finding);
	char *told;

	if (!at || asprintf(&told, "%.*s\"finding\":false,\"told_by\":%u%s", (int)(at - object), object, by,
			    at + sizeof(finding) - 1) < 0)
		return;
	cu_names_line(&w->names, told);
	free(told);
}

/* ---------------------------------------------------------------------- the objects */
static void take_group(struct work *w, char *object)
{
	struct cu_known *known = w->known;
	struct section *s = &w->section;
	uint64_t n = cu_object_number(object, "count"), bytes = cu_object_number(object, "bytes");
	bool finding = strstr(object, "\"finding\":true") != NULL;
	int class = class_of(object);
	uint32_t by = known->sides ? cu_sides_told_by(known->sides, &w->side, object) : 0;
	const char *ended = "freed", *joined = NULL, *stack = NULL, *exporter = strstr(object, "\"exporter\":{");
	struct cl_suppression *suppression;
	char *text = take_pending(w);

	begin_section(w, object);
	/* one bug is one finding: the culprit's stacks decide whether it is suppressed */
	if (by) {
		w->told_elsewhere += n;
		if (known->json && !known->generate)
			write_told(w, object, by);
		return;
	}
	suppression = finding && class < CL_REPORT_CLASSES ? cu_match_find(known, object, cl_report_classes[class].name) : NULL;
	if (suppression) {
		suppression->blocks += n;
		suppression->bytes += bytes;
		w->suppressed[class] += n;
		w->suppressed_bytes[class] += bytes;
		w->gone += n;
		if (!w->side.living || (cl_report_classes[class].what & CL_REPORT_A_FINDING))
			w->gone_findings += n;
		w->gone_bytes += bytes;
		return;
	}
	if (known->generate) {
		if (finding && class < CL_REPORT_CLASSES)
			cu_match_generate(known, object, class);
		return;
	}
	if (!finding && !known->json && !known->all &&
	    !(class < CL_REPORT_CLASSES && (cl_report_classes[class].what & CL_REPORT_A_NOTE)))
		return;
	w->groups++;
	if (known->top && s->shown == known->top) {
		s->more++;
		s->more_n += n;
		s->more_bytes += bytes;
		return;
	}
	s->shown++;
	if (known->sides)
		cu_sides_stands_for(known->sides, &w->side, object, &ended, &joined, &stack);
	if (known->json)
		write_object(w, object, stack);
	else
		write_group(w, text, exporter ? cu_object_number(exporter, "pid") : 0, ended, joined);
}

/* An object that only counts a class. */
static void take_more(struct work *w, char *object)
{
	char *text = take_pending(w);

	end_section(w);
	w->groups++;
	if (w->known->json)
		fputs(object, w->out);
	else
		cu_names_text(&w->names, text);
}

/* Copies @line to @to with the number behind @before reduced by @by, or raised if @up. */
static void change(char *line, size_t size, const char *before, uint64_t by, bool up)
{
	char *at = strstr(line, before), *end, rest[2048];
	uint64_t value;

	if (!at || !by)
		return;
	at += strlen(before);
	value = strtoull(at, &end, 10);
	snprintf(rest, sizeof(rest), "%s", end);
	snprintf(at, size - (size_t)(at - line), "%" PRIu64 "%s", up ? value + by : value - by, rest);
}

static void change_summary(const struct work *w, char *line, size_t size)
{
	const uint64_t *n = w->suppressed, *bytes = w->suppressed_bytes;
	uint64_t misuse = 0;

	for (int c = CL_REPORT_FREED_TWICE; c <= CL_REPORT_EVENT_DESTROYED_TWICE; c++)
		misuse += n[c];
	struct {
		const char *key;
		uint64_t by;
		bool up;
	} changes[] = {
		{ "held", n[CL_REPORT_HELD] + n[CL_REPORT_HELD_LIMBO] + n[CL_REPORT_ORPHANED], false },
		{ "held_bytes",
		  bytes[CL_REPORT_HELD] + bytes[CL_REPORT_HELD_LIMBO] + bytes[CL_REPORT_ORPHANED], false },
		{ "limbo", n[CL_REPORT_HELD_LIMBO], false },
		{ "limbo_bytes", bytes[CL_REPORT_HELD_LIMBO], false },
		{ "not_closed", n[CL_REPORT_NOT_CLOSED] + n[CL_REPORT_UNMANAGED], false },
		{ "reclaimed", n[CL_REPORT_RECLAIMED], false },
		{ "misuse", misuse, false },
		{ "stale_refused", n[CL_REPORT_STALE_REFUSED], false },
		{ "kept", n[CL_REPORT_UNTRACKED], false },
		{ "unmanaged", n[CL_REPORT_UNMANAGED], false },
		{ "suppressed", w->gone, true },
		{ "suppressed_bytes", w->gone_bytes, true },
		{ "findings", w->gone_findings + w->told_elsewhere, false },
	};

	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		char before[40];

		snprintf(before, sizeof(before), "\"%s\":", changes[i].key);
		change(line, size, before, changes[i].by, changes[i].up);
	}
}

/* Writes the SUMMARY line of the text from its object: the numbers that are not 0. */
static void write_summary(FILE *to, const char *object)
{
	const char *next;
	char key[40];
	int length;

	fputs("culimbo: SUMMARY", to);
	for (const char *at = strstr(object, "\"pid\":"); at; at = next ? next + 1 : NULL) {
		uint64_t value;

		next = strchr(at, ',');
		if (sscanf(at, "\"%39[a-z_]\":%n", key, &length) != 1)
			continue;
		value = strtoull(at + length, NULL, 10);
		if (value || !strcmp(key, "findings"))
			fprintf(to, " %s=%" PRIu64, key, value);
	}
	fputc('\n', to);
}

static void take_summary(struct work *w, const char *object)
{
	char line[2048], size[32], *rest = take_pending(w);

	end_section(w);
	snprintf(line, sizeof(line), "%s", object);
	change_summary(w, line, sizeof(line));
	w->known->findings = cu_object_number(line, "findings");
	w->known->suppressed = cu_object_number(line, "suppressed");
	if (w->known->json) {
		fputs(line, w->out);
		return;
	}
	fputs(rest, w->out);
	if (w->gone)
		fprintf(w->out, "  suppressed: %" PRIu64 ", %s (CULIMBO_SUPPRESSIONS)\n", w->gone,
			cl_emit_format_bytes(size, w->gone_bytes));
	write_summary(w->out, line);
}

static void take_object(struct work *w, char *object)
{
	if (strstr(object, "\"type\":\"process\""))
		cu_side_begin(&w->side, object);
	if (strstr(object, "\"type\":\"group\""))
		take_group(w, object);
	else if (strstr(object, "\"type\":\"more\""))
		take_more(w, object);
	else if (strstr(object, "\"type\":\"summary\""))
		take_summary(w, object);
	else if (w->known->json)
		fputs(object, w->out);
}

static bool take_line(struct work *w, char *line)
{
	static const char ours[] = "culimbo:", summary[] = "culimbo: SUMMARY";

	if (line[0] == '{') {
		take_object(w, line);
		return true;
	}
	if (strncmp(line, ours, sizeof(ours) - 1))
		return add_pending(w, line);
	/* the summary is rewritten from its object */
	if (!w->known->json && strncmp(line, summary, sizeof(summary) - 1))
		fputs(line, w->out);
	return true;
}

/* Writes @text, the long lines of a text folded. */
static void write_folded(FILE *to, const char *text, bool json)
{
	if (json) {
		fputs(text, to);
		return;
	}
	while (*text) {
		size_t n = strcspn(text, "\n"), next;

		if (!n)
			fputc('\n', to);
		for (bool rest = false; n; rest = true) {
			size_t part = cl_fold(text, n, rest, &next);

			fprintf(to, "%s%.*s\n", rest ? CL_FOLD_INDENT : "", (int)part, text);
			text += next;
			n -= next;
		}
		text += *text == '\n';
	}
}

bool cu_known_take(struct cu_known *known, char *text)
{
	struct work *w = calloc(1, sizeof(*w));
	bool done = false, said;

	known->findings = known->suppressed = 0;
	if (!w)
		return false;
	w->known = known;
	w->out = open_memstream(&w->out_text, &w->out_n);
	w->names = (struct cu_names){ .symbols = known->symbols, .to = w->out, .full = known->full_stacks,
				      .colour = known->colour };
	done = w->out != NULL;
	while (*text && done) {
		size_t length = strcspn(text, "\n");
		char was;

		length += text[length] == '\n';
		was = text[length];
		text[length] = 0;
		done = take_line(w, text);
		text[length] = was;
		text += length;
	}
	if (!w->out)
		goto out;
	end_section(w);
	fflush(w->out);
	said = known->whole ? w->groups || !(w->told_elsewhere || w->gone) || known->json || known->all :
			      known->findings || (known->json && w->told_elsewhere);
	if (done && said && !known->generate)
		write_folded(known->to, w->out_text, known->json);
	fclose(w->out);
out:
	free(w->out_text);
	free(w->pending);
	free(w);
	return done;
}
