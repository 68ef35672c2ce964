/* SPDX-License-Identifier: Apache-2.0 */
/* Joins what exporters and importers say of the same blocks: see sides.h. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/objects.h"
#include "tools/common/sides.h"

/* What one importer has open of one exporter. */
struct pair {
	struct pair *next;
	char file[32]; /* the exporter's */
	uint32_t importer;
	bool event;
	uint64_t open, held;   /* the number, by the importer and by the exporter */
	struct block {
		uint64_t record, generation;
	} *blocks;	       /* the open ones, as far as the report lists them */
	size_t n;
	char *text, *json;     /* the stack of the exporter's free */
	const char *ended;     /* .text: what it did there */
};

struct cu_sides {
	struct pair *pairs;
};

struct cu_sides *cu_sides_new(void)
{
	return calloc(1, sizeof(struct cu_sides));
}

void cu_sides_free(struct cu_sides *sides)
{
	while (sides && sides->pairs) {
		struct pair *pair = sides->pairs;

		sides->pairs = pair->next;
		free(pair->blocks);
		free(pair->text);
		free(pair->json);
		free(pair);
	}
	free(sides);
}

static struct pair *find(const struct cu_sides *sides, const char *file, uint64_t importer, bool event)
{
	struct pair *pair = sides->pairs;

	while (pair && (strcmp(pair->file, file) || pair->importer != importer || pair->event != event))
		pair = pair->next;
	return pair;
}

static struct pair *get(struct cu_sides *sides, const char *file, uint64_t importer, bool event)
{
	struct pair *pair = find(sides, file, importer, event);

	if (pair || !(pair = calloc(1, sizeof(*pair))))
		return pair;
	snprintf(pair->file, sizeof(pair->file), "%s", file);
	pair->importer = (uint32_t)importer;
	pair->event = event;
	pair->next = sides->pairs;
	sides->pairs = pair;
	return pair;
}

/*
 * If an importer's own report has fewer blocks than its exporter's, it does not replace the
 * exporter's.
 */
static bool is_joined(const struct pair *pair)
{
	return pair && pair->held && pair->open >= pair->held;
}

static bool is_event(const char *object)
{
	return strstr(object, "\"kind\":\"event\"") != NULL;
}

static bool is_class(const char *object, const char *class)
{
	char name[40];

	return cu_object_text(object, "class", name, sizeof(name)) && !strcmp(name, class);
}

static bool is_of_blocks(const char *object)
{
	return is_class(object, "held-in-limbo") || is_class(object, "held") || is_class(object, "context-gone");
}

void cu_side_begin(struct cu_side *side, const char *line)
{
	char when[16] = "", state[16] = "";

	*side = (struct cu_side){ .pid = (uint32_t)cu_object_number(line, "pid") };
	cu_object_text(line, "file", side->file, sizeof(side->file));
	cu_object_text(line, "when", when, sizeof(when));
	cu_object_text(line, "state", state, sizeof(state));
	side->living = !strcmp(when, "look") && strcmp(state, "dead") && strcmp(state, "ending");
}

/* Returns a copy of the stack in @text that begins with "freed from", or with another word for that.  *@ended is the word. */
static char *copy_of_freed(const char *text, const char **ended)
{
	static const char *const words[] = { "freed", "destroyed", "unmapped" };
	const char *at = NULL, *end;
	char line[32];

	for (size_t i = 0; !at && i < sizeof(words) / sizeof(*words); i++) {
		snprintf(line, sizeof(line), "\n    %s from\n", words[i]);
		at = strstr(text, line);
		*ended = words[i];
	}
	if (!at)
		return NULL;
	at = strchr(at + 1, '\n') + 1;
	for (end = at; end[strspn(end, " ")] == '#'; end++) {
		end = strchr(end, '\n');
		if (!end)
			return NULL;
	}
	return strndup(at, (size_t)(end - at));
}

/* Returns a copy of the array behind @key of @object, or NULL. */
static char *copy_of_array(const char *object, const char *key)
{
	const char *at = strstr(object, key), *end;
	bool quoted = false;

	if (!at)
		return NULL;
	at += strlen(key);
	for (end = at; *end && (quoted || *end != ']'); end++) {
		if (quoted && *end == '\\' && end[1])
			end++;
		else if (*end == '"')
			quoted = !quoted;
	}
	return *end ? strndup(at, (size_t)(end + 1 - at)) : NULL;
}

/* Returns "other_stack" of @object as the value of "free_stack", with its Python frames as the next member. */
static char *copy_of_stack(const char *object)
{
	char *stack = copy_of_array(object, "\"other_stack\":"), *both;
	char *python = stack ? copy_of_array(object, "\"other_stack_python\":") : NULL;

	if (!python)
		return stack;
	if (asprintf(&both, "%s,\"free_stack_python\":%s", stack, python) < 0)
		both = NULL;
	free(stack);
	free(python);
	return both;
}

static void learn_held(struct cu_sides *sides, const struct cu_side *side, uint64_t importer, uint64_t n,
		       const char *object, const char *text)
{
	struct pair *pair = get(sides, side->file, importer, is_event(object));

	if (!pair)
		return;
	pair->held += n;
	if (!pair->text)
		pair->text = copy_of_freed(text, &pair->ended);
	if (!pair->json)
		pair->json = copy_of_stack(object);
}

/* Calls @each with the listed items of @object until it returns false. */
static bool each_block(const char *object, bool (*each)(struct pair *pair, struct block block), struct pair *pair)
{
	const char *end = strstr(object, "\"stack\":"), *at = strstr(object, "\"items\":[");

	while (at && (at = strstr(at, "\"record\":")) != NULL && (!end || at < end)) {
		struct block block = { cu_object_number(at, "record"), 0 };
		const char *next = strchr(at, '}'), *generation = strstr(at, "\"generation\":");

		if (generation && next && generation < next)
			block.generation = cu_object_number(generation, "generation");
		if (!each(pair, block))
			return false;
		at++;
	}
	return true;
}

static bool add_block(struct pair *pair, struct block block)
{
	struct block *more = realloc(pair->blocks, (pair->n + 1) * sizeof(*more));

	if (!more)
		return false;
	pair->blocks = more;
	more[pair->n++] = block;
	return true;
}

static bool has_block(struct pair *pair, struct block block)
{
	for (size_t i = 0; i < pair->n; i++)
		if (pair->blocks[i].record == block.record && pair->blocks[i].generation == block.generation)
			return true;
	return false;
}

static void learn_group(struct cu_sides *sides, const struct cu_side *side, const char *object, const char *text)
{
	char file[32];
	const char *other, *holder;
	struct pair *pair;

	if (!strstr(object, "\"finding\":true"))
		return;
	if (is_class(object, "reclaimed")) {
		other = strstr(object, "\"other\":{");
		if (other && side->file[0])
			learn_held(sides, side, cu_object_number(other, "pid"), cu_object_number(object, "count"),
				   object, text);
	} else if (side->living) {
		return;
	} else if (is_of_blocks(object)) {
		for (holder = strstr(object, "\"holders\":["); side->file[0] && holder &&
		     (holder = strstr(holder, "{\"pid\":")) != NULL; holder++)
			learn_held(sides, side, cu_object_number(holder, "pid"), cu_object_number(holder, "blocks"),
				   object, text);
	} else if (is_class(object, "not-closed")) {
		other = strstr(object, "\"exporter\":{");
		if (!other || !cu_object_text(other, "file", file, sizeof(file)))
			return;
		pair = get(sides, file, side->pid, is_event(object));
		if (pair) {
			pair->open += cu_object_number(object, "count");
			each_block(object, add_block, pair);
		}
	}
}

void cu_sides_learn(struct cu_sides *sides, char *report)
{
	struct cu_side side = { .pid = 0 };
	char *text = report; /* since the last object */

	for (char *line = report; *line;) {
		size_t length = strcspn(line, "\n");
		bool ended = line[length] == '\n';

		if (line[0] == '{') {
			line[length] = 0;
			if (strstr(line, "\"type\":\"process\"")) {
				cu_side_begin(&side, line);
			} else if (strstr(line, "\"type\":\"group\"")) {
				learn_group(sides, &side, line, text);
			}
			if (ended)
				line[length] = '\n';
			text = line + length + ended;
		}
		line += length + ended;
	}
}

uint32_t cu_sides_told_by(const struct cu_sides *sides, const struct cu_side *side, const char *object)
{
	const char *other, *holder;
	uint32_t by = 0;

	if (!side->file[0])
		return 0;
	/* a block that was freed while mapped, and never closed, was also taken back, or is held */
	if (is_class(object, "reclaimed") || is_class(object, "freed-while-mapped")) {
		struct pair *pair;

		other = strstr(object, "\"other\":{");
		by = other ? (uint32_t)cu_object_number(other, "pid") : 0;
		pair = find(sides, side->file, by, is_event(object));
		/* blocks freed too early and closed later are another bug */
		if (pair && is_class(object, "freed-while-mapped"))
			return pair->open >= cu_object_number(object, "count") && each_block(object, has_block, pair) ?
				       by : 0;
		return is_joined(pair) ? by : 0;
	}
	if (side->living || !is_of_blocks(object) || strstr(object, "\"other_holds\":") ||
	    strstr(object, "\"pinned\":") || strstr(object, "\"own_opens\":"))
		return 0;
	for (holder = strstr(object, "\"holders\":["); holder && (holder = strstr(holder, "{\"pid\":")) != NULL;
	     holder++) {
		uint32_t pid = (uint32_t)cu_object_number(holder, "pid");

		if (!is_joined(find(sides, side->file, pid, is_event(object))))
			return 0;
		by = by ? by : pid;
	}
	return by;
}

bool cu_sides_stands_for(const struct cu_sides *sides, const struct cu_side *side, const char *object,
			 const char **ended, const char **text, const char **json)
{
	const char *other = strstr(object, "\"exporter\":{");
	const struct pair *pair;
	char file[32];

	if (side->living || !is_class(object, "not-closed") || !other ||
	    !cu_object_text(other, "file", file, sizeof(file)))
		return false;
	pair = find(sides, file, side->pid, is_event(object));
	if (!is_joined(pair))
		return false;
	*ended = pair->ended;
	*text = pair->text;
	*json = pair->json;
	return true;
}
