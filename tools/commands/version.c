/* SPDX-License-Identifier: Apache-2.0 */
/* `culimbo version`: prints the version and the files that it would use, for bug reports. */
#include "config.h"

#include <limits.h>
#include <stdio.h>

#include "tools/commands/commands.h"
#include "tools/common/emit.h"
#include "tools/common/table.h"
#include "tools/common/where.h"

/* Writes a member; for people under the name @what. */
static void say(struct cu_emit *to, const char *what, const char *key, const char *text)
{
	if (to->json)
		cu_emit_text(to, key, text);
	else
		printf("%-17s %s\n", what, text);
}

static void say_where(struct cu_emit *to, const char *what, const char *key, enum cu_file file)
{
	char path[PATH_MAX], line[PATH_MAX + 32];
	bool missing = cu_where(file, path, sizeof(path)) != 0;

	snprintf(line, sizeof(line), missing ? "missing (looked for %s)" : "%s", path);
	say(to, what, key, missing && to->json ? NULL : line);
}

static int version(const struct cu_command *command, int argc, char **argv)
{
	struct cu_format format = { .json = false };
	struct cu_emit to = { .json = false };
	int got;

	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		if (!cu_format_option(&format, got))
			return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
	to.json = format.json;
	cu_emit_open(&to, NULL, '{');
	say(&to, "culimbo", "version", PACKAGE_VERSION);
	say_where(&to, "library", "library", CU_LIBRARY);
	say_where(&to, "simulated driver", "simulated_driver", CU_SIMULATED_DRIVER);
	cu_emit_close(&to, '}');
	return CU_OK;
}

static const struct cu_option options[] = {
	CU_JSON_OPTION,
	{ .name = NULL },
};

const struct cu_command cu_version = {
	.name = "version",
	.arguments = "",
	.summary = "show the version and where the library is",
	.help = "Shows the version, and which library and simulated driver `culimbo run` uses.",
	.options = options,
	.run = version,
};
