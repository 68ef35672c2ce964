/* SPDX-License-Identifier: Apache-2.0 */
/* What suppressions match, and new ones: see match.h. */
#include "config.h"

#include <inttypes.h>
#include <string.h>

#include "shim/report/report_table.h"
#include "tools/common/match.h"
#include "tools/common/objects.h"

enum { NAMES = 5 * 2 * CL_STACK_FRAMES + 2, ROOM = 1 << 16 };

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

/* Ends the names of a frame; called again, those of a stack. */
static void end_names(struct names *names)
{
	if (names->n < NAMES)
		names->name[names->n++] = NULL;
}

/* The same rule as in shim/report/report.c. */
static bool add_names(void *data, const struct cl_view_frame *frame, const struct cl_report_symbol *symbol)
{
	struct names *names = data;
	unsigned int before = names->n;
	char place[256];

	snprintf(place, sizeof(place), "%s+%#" PRIx64, frame->path, frame->offset);
	add_name(names, symbol->function);
	add_name(names, symbol->file);
	if (frame->path[0]) { /* else it is Python's, or was made at run time */
		add_name(names, frame->path);
		add_name(names, place);
	}
	if (names->n == before)
		add_name(names, CL_SUPPRESS_NAMELESS);
	end_names(names);
	return true;
}

/*
 * Calls @each with the frames of the stack @key of @object, Python's before the others.  The
 * order of the members does not matter.  Frames of other stacks, such as holders', are not
 * included.
 */
static void each_frame(struct cu_known *known, char *object, const char *key,
		       bool (*each)(void *data, const struct cl_view_frame *frame,
				    const struct cl_report_symbol *symbol), void *data)
{
	static const char *const parts[] = { "_python", "" };

	for (unsigned int i = 0; i < 2; i++) {
		char name[40], *end, *at;

		snprintf(name, sizeof(name), "%s%s", key, parts[i]);
		at = cu_object_array(object, name, &end);
		if (!at)
			continue;
		*end = 0;
		cu_symbols_each(known->symbols, at, each, data);
		*end = ']';
	}
}

/* Finds the suppression of @class (NULL: without a class) that matches the @n stacks @key of @object. */
static struct cl_suppression *find_stacks(struct cu_known *known, char *object, const char *const *key, int n,
					  const char *class)
{
	static struct names names;

	names.n = 0;
	names.used = 0;
	for (int i = 0; i < n; i++) {
		each_frame(known, object, key[i], add_names, &names);
		end_names(&names);
	}
	end_names(&names);
	return cl_suppress_find(known->suppressions, class, names.name, names.n);
}

/*
 * Calls @each with the objects of the holders of @object, each ended behind it, until it returns false.
 * Returns how many there are.
 */
static unsigned int each_holder(char *object, bool (*each)(void *data, char *holder), void *data)
{
	static const char first[] = "\"holders\":[{", next[] = ",{\"pid\":";
	char *holder = strstr(object, first), *end;
	bool more = true;
	unsigned int n = 0;

	for (holder = holder ? holder + sizeof(first) - 2 : NULL; holder; holder = end ? end + 1 : NULL) {
		end = strstr(holder, next);
		if (end)
			*end = 0;
		more = more && each(data, holder);
		if (end)
			*end = ',';
		n++;
	}
	return n;
}

struct found {
	struct cu_known *known;
	const char *class;
	struct cl_suppression *by;
};

/* Of a holder that has opened blocks of the group at other places as well. */
static const char more_stacks[] = "\"more_open_stacks\":true";

static bool find_holder(void *data, char *holder)
{
	static const char *const opened[] = { "open_stack" };
	struct found *found = data;

	found->by = strstr(holder, more_stacks) ? NULL :
						  find_stacks(found->known, holder, opened, 1, found->class);
	return found->by != NULL;
}

struct cl_suppression *cu_match_find(struct cu_known *known, char *object, const char *class)
{
	static const char *const stacks[] = { "stack", "other_stack" };
	struct found found = { .known = known, .class = class };
	struct cl_suppression *by;
	bool others;

	if (!known->suppressions || !known->suppressions->n)
		return NULL;
	by = find_stacks(known, object, stacks, 2, NULL);
	if (by)
		return by;
	others = strstr(object, "\"other_holds\":") || strstr(object, "\"pinned\":");
	if (!each_holder(object, find_holder, &found))
		return others ? NULL : find_stacks(known, object, stacks, 2, class);
	return others || strstr(object, "\"own_opens\":") ? NULL : found.by;
}

struct taken {
	struct cl_pattern pattern;
	bool python; /* the stack has Python frames, which come first */
};

static bool take_frame(void *data, const struct cl_view_frame *frame, const struct cl_report_symbol *symbol)
{
	struct taken *taken = data;

	if (!frame->address) {
		taken->python = true;
		cl_pattern_add_python(&taken->pattern, symbol->function, symbol->file);
		return true;
	}
	/* below the Python frames there is only the interpreter */
	if (taken->python && taken->pattern.text[0])
		return false;
	cl_pattern_add(&taken->pattern, symbol->function, frame->path, frame->offset);
	return true;
}

struct generating {
	struct cu_known *known;
	struct cl_suppressible of;
	char before[sizeof(((struct cl_pattern *)0)->text)]; /* the pattern of the holder before */
	unsigned int n;
};

static bool generate_holder(void *data, char *holder)
{
	struct generating *g = data;
	struct taken taken = { .python = false };

	g->of.many = strstr(holder, more_stacks) != NULL;
	if (!g->of.many)
		each_frame(g->known, holder, "open_stack", take_frame, &taken);
	if (!g->n++ || strcmp(taken.pattern.text, g->before))
		cl_report_say_pattern(g->known->generate, &g->of, &taken.pattern);
	memcpy(g->before, taken.pattern.text, sizeof(g->before));
	return true;
}

void cu_match_generate(struct cu_known *known, char *object, int class)
{
	struct taken taken = { .python = false };
	struct cl_suppressible of = { .class = cl_report_classes[class].name, .n = cu_object_number(object, "count"),
				      .bytes = cu_object_number(object, "bytes"),
				      .pid = (uint32_t)cu_object_number(object, "pid") };
	struct generating generating = { .known = known };

	of.what = strstr(object, "\"kind\":\"event\"") ? of.n == 1 ? "event" : "events" :
		  cl_report_classes[class].what & CL_REPORT_AN_IMPORT ? of.n == 1 ? "import" : "imports" :
		  of.n == 1 ? "block" : "blocks";
	generating.of = of;
	if (each_holder(object, generate_holder, &generating))
		return;
	/* the first stack says where it happened */
	each_frame(known, object, "stack", take_frame, &taken);
	if (!taken.pattern.text[0] && !taken.pattern.cut)
		each_frame(known, object, "other_stack", take_frame, &taken);
	cl_report_say_pattern(known->generate, &of, &taken.pattern);
}
