/* SPDX-License-Identifier: Apache-2.0 */
/* Suppressions in a report that was written at an end: see known.h. */
#include "config.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "shim/report/report_table.h"
#include "shim/report/say_python.h"
#include "tools/common/known.h"

enum { NAMES = 5 * 2 * CL_STACK_FRAMES + 2, ROOM = 1 << 16 };

/* One kind of finding, as it is to be written. */
struct section {
	char *title;	    /* its line; NULL: there is none */
	FILE *body;
	char *text;	    /* of body */
	size_t length;
	bool any;	    /* something belonged to it */
	bool events;
	uint64_t n, bytes;  /* that stay */
	uint64_t shown, more, more_n, more_bytes; /* groups; those beyond `top`, and what is in them */
	char hint[1024];    /* of the group that was written last */
};

struct work {
	struct cu_known *known;
	FILE *out;	     /* what stays */
	char *out_text;
	size_t out_n;
	char *pending;	     /* lines since the last object */
	size_t pending_n, pending_size;
	struct section section;
	char summary[2048];  /* the text's line, until its object comes */
	uint64_t suppressed[CL_REPORT_CLASSES], suppressed_bytes[CL_REPORT_CLASSES];
	uint64_t gone, gone_bytes;
};

/* ------------------------------------------------------------------ the objects */
/* The number of @key in @object: the first, which is the object's own. */
static uint64_t number_of(const char *object, const char *key)
{
	char word[40];
	const char *at;

	snprintf(word, sizeof(word), "\"%s\":", key);
	at = strstr(object, word);
	return at ? strtoull(at + strlen(word), NULL, 10) : 0;
}

static bool text_of(const char *object, const char *key, char *to, size_t size)
{
	char word[40];
	const char *at;
	size_t n;

	snprintf(word, sizeof(word), "\"%s\":\"", key);
	at = strstr(object, word);
	if (!at)
		return false;
	at += strlen(word);
	n = strcspn(at, "\"");
	snprintf(to, size, "%.*s", (int)(n < size ? n : size - 1), at);
	return true;
}

static int class_of(const char *object)
{
	char name[40];

	if (text_of(object, "class", name, sizeof(name)))
		for (int c = 0; c < CL_REPORT_CLASSES; c++)
			if (!strcmp(cl_report_classes[c].name, name))
				return c;
	return CL_REPORT_CLASSES;
}

/* ------------------------------------------------------------------- what matches */
struct names {
	const char *name[NAMES];
	unsigned int n;
	size_t used;
	char room[ROOM];
};

static void add_name(struct names *names, const char *text)
{
	size_t length = strlen(text) + 1;

	if (length == 1 || names->n == NAMES || length > ROOM - names->used)
		return;
	memcpy(names->room + names->used, text, length);
	names->name[names->n++] = names->room + names->used;
	names->used += length;
}

/* Ends the names of a frame, or behind that those of a stack. */
static void end_names(struct names *names)
{
	if (names->n < NAMES)
		names->name[names->n++] = NULL;
}

/* The same as the report itself goes by (shim/report/report.c). */
static bool add_names(void *data, const struct cl_view_frame *frame, const struct cl_report_symbol *symbol)
{
	struct names *names = data;
	char place[256];

	snprintf(place, sizeof(place), "%s+%#" PRIx64, frame->path, frame->offset);
	add_name(names, symbol->function);
	add_name(names, symbol->file);
	if (frame->path[0]) { /* else it is Python's */
		add_name(names, frame->path);
		add_name(names, place);
	}
	end_names(names);
	return true;
}

/* Cuts @object before what begins with @key, to be mended by uncut(). */
static char *cut(char *object, const char *key)
{
	char *at = strstr(object, key);

	if (at)
		*at = 0;
	return at;
}

static void uncut(char *at)
{
	if (at)
		*at = '"'; /* (each key begins so) */
}

static struct cl_suppression *find(struct cu_known *known, char *object)
{
	static struct names names;
	char *rest, *other;

	if (!known->suppressions || !known->suppressions->n)
		return NULL;
	names.n = 0;
	names.used = 0;
	rest = cut(object, "\"holders\":["); /* their stacks are theirs */
	other = cut(object, "\"other_stack\":[");
	cu_symbols_each(known->symbols, object, add_names, &names);
	uncut(other);
	end_names(&names);
	if (other) {
		cu_symbols_each(known->symbols, other, add_names, &names);
		end_names(&names);
	}
	uncut(rest);
	return cl_suppress_find(known->suppressions, names.name, names.n);
}

struct taken {
	struct cl_pattern pattern;
	bool python; /* it has Python's frames, which come first */
};

static bool take_frame(void *data, const struct cl_view_frame *frame, const struct cl_report_symbol *symbol)
{
	struct taken *taken = data;

	if (!frame->path[0] && symbol->file[0]) {
		taken->python = true;
		cl_pattern_add_python(&taken->pattern, symbol->function, symbol->file);
		return true;
	}
	/* below Python's frames there is only the interpreter */
	if (taken->python && taken->pattern.text[0])
		return false;
	cl_pattern_add(&taken->pattern, symbol->function, frame->path, frame->offset);
	return true;
}

static void generate(struct work *w, char *object, int class)
{
	struct taken taken = { .python = false };
	struct cl_suppressible of = { .class = cl_report_classes[class].name, .n = number_of(object, "count"),
				      .bytes = number_of(object, "bytes"),
				      .pid = (uint32_t)number_of(object, "pid") };
	char *rest = cut(object, "\"holders\":["), *other = cut(object, "\"other_stack\":[");

	/* the first stack is where it happened */
	cu_symbols_each(w->known->symbols, object, take_frame, &taken);
	uncut(other);
	if (other && !taken.pattern.text[0])
		cu_symbols_each(w->known->symbols, other, take_frame, &taken);
	uncut(rest);
	of.what = w->section.events ? of.n == 1 ? "event" : "events" :
		  cl_report_classes[class].what & CL_REPORT_AN_IMPORT ? of.n == 1 ? "import" : "imports" :
		  of.n == 1 ? "block" : "blocks";
	cl_report_say_pattern(w->known->generate, &of, &taken.pattern);
}

/* ----------------------------------------------------------------------- the text */
/* @text, whole lines, with names. */
static void write_named(const struct work *w, FILE *to, char *text)
{
	while (*text) {
		size_t length = strcspn(text, "\n");
		char was;

		length += text[length] == '\n';
		was = text[length];
		text[length] = 0;
		cu_symbols_add(w->known->symbols, to, text);
		text[length] = was;
		text += length;
	}
}

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

static void say_hint(struct section *s)
{
	if (s->hint[0])
		fprintf(s->body, "      HINT: %s\n", s->hint);
	s->hint[0] = 0;
}

static void end_section(struct work *w)
{
	struct section *s = &w->section;
	char size[32], *colon = NULL;

	if (!s->title)
		return;
	say_hint(s);
	if (s->more) {
		fprintf(s->body, "    and %" PRIu64 " more %s: %" PRIu64 " %s", s->more,
			s->more == 1 ? "place" : "places", s->more_n, s->events ? "events" : "of them");
		if (!s->events && s->more_bytes)
			fprintf(s->body, ", %s", cl_emit_format_bytes(size, s->more_bytes));
		fputc('\n', s->body);
	}
	fclose(s->body);
	for (char *next = s->title; (next = strstr(next, ": ")) != NULL; next++)
		colon = next;
	if (!s->any || !colon) {
		fputs(s->title, w->out);
	} else if (s->n) {
		fprintf(w->out, "%.*s: %" PRIu64, (int)(colon - s->title), s->title, s->n);
		if (!s->events && s->bytes)
			fprintf(w->out, ", %s", cl_emit_format_bytes(size, s->bytes));
		fprintf(w->out, "\n%s", s->text);
	}
	free(s->text);
	free(s->title);
	memset(s, 0, sizeof(*s));
}

static bool begin_section(struct work *w, const char *title)
{
	struct section *s = &w->section;

	s->title = strdup(title);
	s->body = s->title ? open_memstream(&s->text, &s->length) : NULL;
	if (s->body)
		return true;
	free(s->title);
	s->title = NULL;
	return false;
}

/* ---------------------------------------------------------------------- the objects */
static void take_group(struct work *w, char *object)
{
	struct section *s = &w->section;
	uint64_t n = number_of(object, "count"), bytes = number_of(object, "bytes");
	bool finding = strstr(object, "\"finding\":true") != NULL;
	int class = class_of(object);
	struct cl_suppression *by = finding && class < CL_REPORT_CLASSES ? find(w->known, object) : NULL;
	char hint[sizeof(s->hint)] = "", *text = take_pending(w);

	if (s->title)
		s->any = true;
	s->events = strstr(object, "\"kind\":\"event\"") != NULL;
	if (by) {
		by->blocks += n;
		by->bytes += bytes;
		w->suppressed[class] += n;
		w->suppressed_bytes[class] += bytes;
		w->gone += n;
		w->gone_bytes += bytes;
		return;
	}
	if (w->known->generate) {
		if (finding && class < CL_REPORT_CLASSES)
			generate(w, object, class);
		return;
	}
	if (w->known->json) {
		cu_symbols_add(w->known->symbols, w->out, object);
		return;
	}
	if (!s->title)
		return;
	s->n += n;
	s->bytes += bytes;
	if (w->known->top && s->shown == w->known->top) {
		s->more++;
		s->more_n += n;
		s->more_bytes += bytes;
		return;
	}
	s->shown++;
	text_of(object, "hint", hint, sizeof(hint));
	if (strcmp(hint, s->hint))
		say_hint(s);
	write_named(w, s->body, text);
	memcpy(s->hint, hint, sizeof(hint));
}

/* What is only counted of a class. */
static void take_more(struct work *w, char *object)
{
	struct section *s = &w->section;
	char *text = take_pending(w);

	if (w->known->json)
		fputs(object, w->out);
	if (w->known->json || !s->title)
		return;
	say_hint(s);
	s->any = true;
	s->n += number_of(object, "count");
	fputs(text, s->body);
}

/* In @line, to @to: @by less (or more, when @up) in the number behind @before. */
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

static void change_summary(const struct work *w, char *line, size_t size, bool json)
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
		{ "findings", w->gone, false },
	};

	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		char before[40];

		snprintf(before, sizeof(before), json ? "\"%s\":" : " %s=", changes[i].key);
		change(line, size, before, changes[i].by, changes[i].up);
	}
}

static void take_summary(struct work *w, const char *object)
{
	char line[2048], size[32];

	snprintf(line, sizeof(line), "%s", object);
	change_summary(w, line, sizeof(line), true);
	w->known->findings = number_of(line, "findings");
	w->known->suppressed = number_of(line, "suppressed");
	if (w->known->json) {
		fputs(line, w->out);
		return;
	}
	if (w->gone)
		fprintf(w->out, "  suppressed: %" PRIu64 ", %s (CULIMBO_SUPPRESSIONS)\n", w->gone,
			cl_emit_format_bytes(size, w->gone_bytes));
	change_summary(w, w->summary, sizeof(w->summary), false);
	fputs(w->summary, w->out);
}

static void take_object(struct work *w, char *object)
{
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
	static const char summary[] = "culimbo: SUMMARY", hint[] = "      HINT: ";

	if (line[0] == '{') {
		take_object(w, line);
		return true;
	}
	if (!strncmp(line, "culimbo:", 8)) {
		end_section(w);
		if (!strncmp(line, summary, sizeof(summary) - 1))
			snprintf(w->summary, sizeof(w->summary), "%s", line);
		else if (!w->known->json)
			fputs(line, w->out);
		return true;
	}
	if (!w->known->json && line[0] == ' ' && line[1] == ' ' && line[2] != ' ') {
		end_section(w);
		return begin_section(w, line);
	}
	/* a group's is in its object; that of those without an object stays */
	if (strncmp(line, hint, sizeof(hint) - 1))
		return add_pending(w, line);
	if (w->section.title && !w->section.shown && w->section.n)
		fputs(line, w->section.body);
	return true;
}

bool cu_known_take(struct cu_known *known, char *text)
{
	struct work *w = calloc(1, sizeof(*w));
	bool done = false;

	known->findings = known->suppressed = 0;
	if (!w)
		return false;
	w->known = known;
	w->out = open_memstream(&w->out_text, &w->out_n);
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
	if (done && known->findings && !known->generate)
		fputs(w->out_text, known->to);
	fclose(w->out);
out:
	free(w->out_text);
	free(w->pending);
	free(w);
	return done;
}
