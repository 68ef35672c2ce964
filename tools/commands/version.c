/* SPDX-License-Identifier: Apache-2.0 */
/* `culimbo version`: prints the version and the files that it would use, for bug reports. */
#include "config.h"

#include <limits.h>
#include <stdio.h>

#include "tools/commands/commands.h"
#include "tools/common/where.h"

static void print_where(const char *what, enum cu_file file)
{
	char path[PATH_MAX];

	if (cu_where(file, path, sizeof(path)))
		printf("%-17s missing (looked for %s)\n", what, path);
	else
		printf("%-17s %s\n", what, path);
}

static int version(const struct cu_command *command, int argc, char **argv)
{
	int got = cu_getopt(command, argc, argv);

	if (got != CU_DONE)
		return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
	printf("%-17s %s\n", "culimbo", PACKAGE_VERSION);
	print_where("library", CU_LIBRARY);
	print_where("simulated driver", CU_SIMULATED_DRIVER);
	return CU_OK;
}

static const struct cu_option options[] = { { .name = NULL } };

const struct cu_command cu_version = {
	.name = "version",
	.arguments = "",
	.summary = "show the version and where the library is",
	.help = "Shows the version, and which library and simulated driver `culimbo run` uses.",
	.options = options,
	.run = version,
};
