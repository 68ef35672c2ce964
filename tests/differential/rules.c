/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The allowed differences, as doc/differences.md lists them.
 *
 * The page is for people.  A rule's name connects its entry to the code in model.c and calls*.c.  A
 * difference by an unlisted rule is a failure, and an entry without a rule here is an error.  So the page
 * lists exactly what was tested.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/differential/rules.h"

static struct rule {
	const char *name;
	bool played; /* lines can differ by it; otherwise its calls are never made or never compared */
	bool listed;
} rules[] = {
	{ .name = "foreign", .played = true },
	{ .name = "stale", .played = true },
	{ .name = "own", .played = true },
	{ .name = "freed", .played = true },
	{ .name = "known", .played = true },
	{ .name = "memory", .played = true },
	{ .name = "twice", .played = true },
	{ .name = "virtual", .played = true }, /* by run.sh --share-all alone */
	{ .name = "async", .played = true }, /* likewise */
	{ .name = "threshold", .played = true }, /* likewise */
	{ .name = "import-pool" }, /* no player destroys an imported pool */
	{ .name = "pool-used" }, /* likewise */
	{ .name = "pool" }, /* no player asks for the attributes of a pool */
	{ .name = "large" }, /* a driver crashes on it */
	{ .name = "end" }, /* likewise */
	{ .name = "ended" }, /* no player makes this free */
	{ .name = "full" },  /* no player fills a device to the last byte */
	{ .name = "crash" },  /* a driver may crash on it */
	{ .name = "mapped" }, /* it happens now and then, and afterwards different blocks are open */
	{ .name = "buffer-id" },   /* no line asks for it */
	{ .name = "hole" },	   /* no player copies there */
	{ .name = "one-address" }, /* no line says whether two addresses are one */
	{ .name = "import-unmapped" }, /* no player unmaps what a handle has opened */
	{ .name = "export" }, /* no player is ever out of memory */
	{ .name = "number" }, /* all players are in one PID namespace */
	{ .name = "stamp" },  /* no line has the bytes of a handle */
	{ .name = "dlerror" }, /* not a driver call */
};
enum { RULES = sizeof(rules) / sizeof(rules[0]) };

static struct rule *find(const char *name, size_t length)
{
	for (size_t i = 0; i < RULES; i++)
		if (strlen(rules[i].name) == length && !memcmp(rules[i].name, name, length))
			return &rules[i];
	return NULL;
}

static bool add(const char *path, unsigned int at, const char *line, char *error, size_t room)
{
	const char *name = strchr(line, '`') + 1;
	int length = (int)strcspn(name, "`\n");
	struct rule *rule = find(name, (size_t)length);

	if (!rule)
		snprintf(error, room, "%s:%u: there is no rule '%.*s' in tests/differential/rules.c", path, at,
			 length, name);
	else if (rule->listed)
		snprintf(error, room, "%s:%u: '%.*s' is listed twice", path, at, length, name);
	else
		return rule->listed = true;
	return false;
}

bool rules_read(const char *path, char *error, size_t room)
{
	FILE *file = fopen(path, "r");
	unsigned int entries = 0;
	char line[4096];
	bool good = true;

	if (!file) {
		snprintf(error, room, "%s: %s", path, strerror(errno));
		return false;
	}
	for (unsigned int at = 1; good && fgets(line, sizeof(line), file); at++)
		if (!strncmp(line, "| `", 3)) {
			good = add(path, at, line, error, room);
			entries++;
		}
	fclose(file);
	if (good && !entries) {
		snprintf(error, room, "%s: it lists nothing", path);
		return false;
	}
	return good;
}

bool rules_allow(const char *rule)
{
	const struct rule *found = find(rule, strlen(rule));

	return found && found->played && found->listed;
}

void rules_each(void (*each)(const char *rule, bool listed))
{
	for (size_t i = 0; i < RULES; i++)
		if (rules[i].played)
			each(rules[i].name, rules[i].listed);
}
