/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo run`: becomes CMD, with the library as the first entry of LD_PRELOAD.
 *
 * Once CMD is started, nothing of ours may be left except two environment variables:
 * no parent process, no open descriptor, no signal handler.  So stdin, stdout,
 * signals and the exit status are CMD's own.
 *
 * Names need a process that outlives CMD.  With --names that is CMD's parent, as in `culimbo
 * check`.  It takes no processor time while CMD runs, but 2 MiB, and 3 ms in all.  It is an option
 * all the same, since CMD then has another process id than the one that was started: SIGKILL and
 * SIGSTOP for that one do not reach CMD, and a supervisor sees two processes.
 */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/base/options.h"
#include "tools/commands/commands.h"
#include "tools/commands/report.h"
#include "tools/common/start.h"

enum {
	OPTION_SIMULATE = 128, OPTION_NO_PRELOAD, OPTION_SUPPRESSIONS, OPTION_PRINT, OPTION_OBSERVE, OPTION_SHARE_ALL, OPTION_NAMES, OPTION_FULL_STACKS, OPTION_VARIABLE
};

/* Options that set a variable of the library for CMD: --grace=1s is CULIMBO_GRACE=1s. */
static const char *const variables[] = {
	"CULIMBO_GRACE", "CULIMBO_LOG", "CULIMBO_LOG_FILE", "CULIMBO_REPORT", "CULIMBO_REPORT_FILE",
	"CULIMBO_REPORT_FORMAT", "CULIMBO_TRACE",
};
#define VARIABLE(name, n, argument, help) { name, OPTION_VARIABLE + (n), argument, help }

static char *wrong_value; /* the library's message about it */

static void note_wrong(const char *line)
{
	char *end;

	if (wrong_value || !(wrong_value = strdup(line)))
		return;
	/* here no default replaces the value */
	end = strstr(wrong_value, "; using the default");
	if (end)
		*end = 0;
}

/*
 * Sets @name to @value.  Returns false, with the reason in wrong_value, if the library would
 * reject it.
 */
static bool set_variable(const char *name, const char *value)
{
	struct cl_options options;
	char entry[4200], *environment[] = { entry, NULL };

	if (snprintf(entry, sizeof(entry), "%s=%s", name, value) >= (int)sizeof(entry))
		return false;
	cl_options_read(&options, environment, note_wrong);
	for (size_t i = 0; i < cl_option_rows_n; i++)
		if (!strcmp(cl_option_rows[i].name, name) &&
		    !((const struct cl_option_value *)((const char *)&options + cl_option_rows[i].offset))->from_environment)
			return false;
	return !setenv(name, value, 1);
}

/*
 * Tells the user that there is no driver.  A program that needs it fails with a message of ld.so or
 * of cudart, which does not mention culimbo's simulated driver.  What another `culimbo run` has
 * started has been told.
 */
static void say_no_driver(const struct cu_command *command)
{
	static const char *const devices[] = { "/dev/nvidiactl", "/dev/nvhost-ctrl-gpu", "/dev/nvgpu", "/dev/dxg" };
	const char *preloaded = getenv("LD_PRELOAD"), *log = getenv("CULIMBO_LOG");
	void *driver;

	if ((preloaded && strstr(preloaded, "libculimbo")) || (log && !strcmp(log, "off")))
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

/* Keeps the message about CULIMBO_SHARE; those about other variables the library writes, in CMD. */
static void note_wrong_share(const char *line)
{
	if (strstr(line, "CULIMBO_SHARE"))
		note_wrong(line);
}

/* Sets CULIMBO_SHARE to all, unless it asks for more already.  Says it if a wrong value is replaced. */
static bool share_all(const struct cu_command *command)
{
	struct cl_options options;

	cl_options_read(&options, environ, note_wrong_share);
	if (wrong_value)
		cu_error(command, "%s; --share-all sets it to all", wrong_value);
	free(wrong_value);
	wrong_value = NULL;
	return options.share.number != CL_SHARE_CUDA || !setenv("CULIMBO_SHARE", "all", 1);
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
		case OPTION_OBSERVE:
			if (setenv("CULIMBO_MODE", "observe", 1))
				return CU_FAILED;
			break;
		case OPTION_SHARE_ALL:
			if (!share_all(command))
				return CU_FAILED;
			break;
		case OPTION_SUPPRESSIONS:
			suppressions = optarg;
			break;
		case OPTION_FULL_STACKS:
			if (setenv("CULIMBO_FULL_STACKS", "1", 1))
				return CU_FAILED;
			break;
		case OPTION_NAMES:
			names = true;
			break;
		case OPTION_PRINT:
			if (setenv("CULIMBO_PRINT_SUPPRESSIONS", "1", 1))
				return CU_FAILED;
			break;
		default:
			if (got < OPTION_VARIABLE)
				return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
			if (!set_variable(variables[got - OPTION_VARIABLE], optarg))
				return cu_usage_error(command, "%s", wrong_value ? wrong_value : strerror(errno));
			break;
		}
	if (optind >= argc)
		return cu_usage_error(command, "which command?");
	if (suppressions && !cu_start_suppressions(command, suppressions))
		return CU_FAILED;
	if (!simulate && preload)
		say_no_driver(command);
	status = cu_start_prepare(command, argv[optind], preload, simulate, path);
	if (status)
		return status;
	if (preload)
		cu_start_look_behind(command, argv + optind);
	return names ? cu_check_names(command, path, argv + optind) :
		       cu_start_become(command, path, argv + optind);
}

static const struct cu_option options[] = {
	{ "observe", OPTION_OBSERVE, NULL,
	  "keep nothing, refuse nothing and change no result: only report what would be prevented (CULIMBO_MODE)" },
	{ "share-all", OPTION_SHARE_ALL, NULL,
	  "share also what CUDA refuses to: virtual and stream-ordered memory by handles of cuIpcGetMemHandle (CULIMBO_SHARE)" },
	{ "simulate", OPTION_SIMULATE, NULL,
	  "use the simulated driver: no GPU is needed (CULIMBO_SIM_MEMORY, CULIMBO_SIM_DEVICES)" },
	{ "no-preload", OPTION_NO_PRELOAD, NULL,
	  "run CMD without the library, to compare" },
	VARIABLE("grace", 0, "DURATION", "how long a freed block waits for a first open (CULIMBO_GRACE)"),
	VARIABLE("log", 1, "off|error|warn|info|debug", "how much the library logs (CULIMBO_LOG)"),
	VARIABLE("log-file", 2, "FILE", "where the log goes (CULIMBO_LOG_FILE)"),
	VARIABLE("report", 3, "auto|always|off", "the report at exit (CULIMBO_REPORT)"),
	VARIABLE("report-file", 4, "FILE", "where the report goes (CULIMBO_REPORT_FILE)"),
	VARIABLE("report-format", 5, "text|jsonl|both", "its form (CULIMBO_REPORT_FORMAT)"),
	VARIABLE("trace", 6, "FILE", "record when blocks live, for `culimbo trace` (CULIMBO_TRACE)"),
	{ "suppressions", OPTION_SUPPRESSIONS, "FILE", "a file of known findings (CULIMBO_SUPPRESSIONS)" },
	{ "names", OPTION_NAMES, NULL,
	  "print all reports when CMD has ended, with functions and lines; CMD runs as a child" },
	{ "full-stacks", OPTION_FULL_STACKS, NULL,
	  "reports show all frames and holders: without it a finding has at most 15 lines (CULIMBO_FULL_STACKS)" },
	{ "print-suppressions", OPTION_PRINT, NULL, "reports list the suppressions that matched" },
	{ .name = NULL },
};

static const struct cu_exit exits[] = {
	{ CU_OK, "CMD's own, like any other status" },
	{ CU_FAILED, "the suppressions file cannot be read, or names a class that does not exist" },
	{ CU_USAGE, "the command line is wrong" },
	{ CU_NO_LIBRARY, "a part of culimbo is missing" },
	{ CU_CANNOT_RUN, "CMD cannot be run, or not with the library" },
	{ CU_NOT_FOUND, "CMD was not found" },
	{ 0, NULL },
};

static const struct cu_example examples[] = {
	{ "culimbo run -- python3 serve.py", "runs a program, and what it starts, under culimbo" },
	{ "culimbo run --simulate -- ./my_ipc_test", "the same without a GPU" },
	{ "culimbo run --log=info --log-file=log.%p --trace=trace.%p -- ./job", "with a log and a trace" },
	{ "culimbo run --observe -- ./job", "changes nothing, and reports what culimbo would have prevented" },
	{ "culimbo run --share-all -- python3 serve.py", "and shares PyTorch's expandable segments, too" },
	{ "culimbo run --names -- ./my_ipc_test", "findings with functions and lines, when the program has ended" },
	{ .line = NULL },
};

const struct cu_command cu_run = {
	.name = "run",
	.arguments = "[--] CMD [ARGUMENTS]",
	.summary = "run a program with CUDA IPC made safe",
	.help = "Runs CMD, and what CMD starts, with the library in front of what LD_PRELOAD\n"
		"already names.  CMD replaces this process, so stdin, stdout, signals and the exit\n"
		"status are CMD's own.\n"
		"\n"
		"A process with findings prints a report when it exits (culimbo(7)).  It has no\n"
		"functions of C, since a program that ends must not wait until they are looked up, and\n"
		"no process of culimbo outlives CMD to do it.  The report's last line says how to get\n"
		"them.  Without functions, only suppressions of modules match.  Use `culimbo check` for\n"
		"the others, and to generate them (--gen-suppressions).\n"
		"\n"
		"With --names, CMD is a child of this process, which prints all reports when CMD has\n"
		"ended, with functions and lines, each bug once, and then exits as CMD did.  So CMD has\n"
		"another process id than the process that was started.  Signals that are sent to this\n"
		"process reach CMD, except SIGKILL and SIGSTOP.  While CMD runs it only waits.",
	.options = options,
	.exits = exits,
	.examples = examples,
	.run = run,
};
