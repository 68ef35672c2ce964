/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo run`: becomes CMD, with the library before whatever LD_PRELOAD
 * already holds.
 *
 * Must always hold: once CMD is started nothing of ours is left but two
 * environment variables (no parent process, no open descriptor, no signal
 * handler), so stdin, stdout, signals and the exit status are CMD's own.
 *
 * Names need a process that outlives CMD.  With --names that is the parent of CMD, as in
 * `culimbo check`.  It is an option, for then CMD has another process id than the one that was
 * started: who kills, stops or waits for that one meets us.
 */
#include "config.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "tools/commands/commands.h"
#include "tools/commands/report.h"
#include "tools/common/start.h"

enum { OPTION_SIMULATE = 128, OPTION_NO_PRELOAD, OPTION_SUPPRESSIONS, OPTION_PRINT, OPTION_NAMES };

/*
 * Says to somebody at a terminal that there is no driver.  A program that needs it fails with words
 * of ld.so or of cudart, which lead to nothing here.
 */
static void say_no_driver(const struct cu_command *command)
{
	static const char *const devices[] = { "/dev/nvidiactl", "/dev/nvhost-ctrl-gpu", "/dev/nvgpu", "/dev/dxg" };
	void *driver;

	if (!isatty(STDERR_FILENO))
		return;
	for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++)
		if (!access(devices[i], F_OK))
			return;
	driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
	if (driver)
		dlclose(driver);
	else
		cu_error(command, "there is no NVIDIA driver here: a program that needs it will fail. With --simulate "
				  "it gets a simulated one; `culimbo doctor` looks closer");
}

static int run(const struct cu_command *command, int argc, char **argv)
{
	const char *suppressions = NULL;
	char path[PATH_MAX];
	bool preload = true, simulate = false, names = false;
	int got, status;

	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		switch (got) {
		case OPTION_SIMULATE:
			simulate = true;
			break;
		case OPTION_NO_PRELOAD:
			preload = false;
			break;
		case OPTION_SUPPRESSIONS:
			suppressions = optarg;
			break;
		case OPTION_NAMES:
			names = true;
			break;
		case OPTION_PRINT:
			if (setenv("CULIMBO_PRINT_SUPPRESSIONS", "1", 1))
				return CU_FAILED;
			break;
		default:
			return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
		}
	if (optind >= argc)
		return cu_usage_error(command, "which command?");
	if (suppressions && !cu_start_suppressions(command, suppressions))
		return CU_FAILED;
	if (!simulate)
		say_no_driver(command);
	status = cu_start_prepare(command, argv[optind], preload, simulate, path);
	if (status)
		return status;
	return names ? cu_check_names(command, path, argv + optind) :
		       cu_start_become(command, path, argv + optind);
}

static const struct cu_option options[] = {
	{ "simulate", OPTION_SIMULATE, NULL,
	  "use the simulated driver: no GPU is needed (CULIMBO_SIM_MEMORY, CULIMBO_SIM_DEVICES)" },
	{ "no-preload", OPTION_NO_PRELOAD, NULL,
	  "run CMD without the library, to compare" },
	{ "suppressions", OPTION_SUPPRESSIONS, "FILE", "findings that are known (CULIMBO_SUPPRESSIONS)" },
	{ "names", OPTION_NAMES, NULL,
	  "print what processes report when CMD has ended, with functions and lines: CMD is a child then" },
	{ "print-suppressions", OPTION_PRINT, NULL, "reports list the suppressions that matched" },
	{ .name = NULL },
};

static const struct cu_exit exits[] = {
	{ CU_OK, "CMD's own, as any other status" },
	{ CU_FAILED, "the file of suppressions cannot be read" },
	{ CU_USAGE, "a wrong option" },
	{ CU_NO_LIBRARY, "a part of culimbo is missing" },
	{ CU_CANNOT_RUN, "CMD cannot be run, or not with the library" },
	{ CU_NOT_FOUND, "there is no CMD" },
	{ 0, NULL },
};

static const struct cu_example examples[] = {
	{ "culimbo run -- python3 serve.py", "a program under the library, and what it starts" },
	{ "culimbo run --simulate -- ./my_ipc_test", "the same without a GPU" },
	{ "culimbo run --names -- ./my_ipc_test", "findings with functions and lines, when it has ended" },
	{ .line = NULL },
};

const struct cu_command cu_run = {
	.name = "run",
	.arguments = "[--] CMD [ARGUMENTS]",
	.summary = "run a program with CUDA IPC made safe",
	.help = "Runs CMD, and what CMD starts, with the library put before what LD_PRELOAD\n"
		"already holds.  CMD takes the place of this process: stdin, stdout, signals and\n"
		"the exit status are its own.\n"
		"\n"
		"What each process finds it reports at its end (culimbo(7)).  There it knows no\n"
		"functions and no files: of suppressions, those that name modules match.  All do\n"
		"in `culimbo check`, which also makes them (--gen-suppressions).\n"
		"\n"
		"With --names, CMD is a child of this process, which prints all reports when CMD has\n"
		"ended, with functions and lines, each bug once; then it ends as CMD did.  Signals\n"
		"that are sent to it reach CMD.",
	.options = options,
	.exits = exits,
	.examples = examples,
	.run = run,
};
