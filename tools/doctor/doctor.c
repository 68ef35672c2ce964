/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo doctor`: checks that everything that the library needs is there, and says
 * what to do if it is not.
 *
 * It always ends, since another process asks the driver, for a bounded time.  It says
 * what it can without a GPU, and changes nothing.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/base/options.h"
#include "tools/commands/commands.h"
#include "tools/common/scan.h"
#include "tools/common/table.h"
#include "tools/common/text.h"
#include "tools/doctor/checks.h"
#include "tools/doctor/probe.h"

enum { OPTION_SIMULATE = 128, OPTION_PROBE, OPTION_ROOT, OPTION_PATIENCE, OPTION_GPU };

static const char *const verdict_word[] = { "ok", "warn", "fail" };

enum { STATUS, CHECK, WHAT, ADVICE };
static const struct cu_column columns[] = {
	[STATUS] = { "STATUS", CU_TEXT, 0, "ok, warn or fail" },
	[CHECK] = { "CHECK", CU_TEXT, 0, "what was looked at" },
	[WHAT] = { "WHAT", CU_TEXT, CU_WRAP, "what was found" },
	[ADVICE] = { "ADVICE", CU_TEXT, CU_WRAP, "what to do about it" },
	{ .name = NULL },
};

/* ----------------------------------------------------------------- the options */
static unsigned int complaints;

static void complain(const char *line)
{
	complaints++;
	cu_found("options", WARN,
		 "correct it where it is set, or unset it: `culimbo config` shows what is allowed",
		 "%s", line);
}

static void check_options(void)
{
	cl_options_read(&cl_options, environ, complain);
	if (cl_options.disable.number)
		cu_found("options", WARN, "unset CULIMBO_DISABLE",
			 "CULIMBO_DISABLE=1: the library does nothing in what is started from here");
	else if (!complaints)
		cu_found("options", OK, NULL, "all CULIMBO_* that are set are understood");
}

/* -------------------------------------------------------------------------- all */
static void fill(struct cu_cell *cell, unsigned int column, const void *row)
{
	const struct cu_check *check = row;

	cu_cell_text(cell, column == STATUS ? verdict_word[check->verdict] :
			   column == CHECK  ? check->name :
			   column == WHAT   ? check->what :
					      check->advice);
}

static void print_for_people(void)
{
	enum { WHAT_AT = 20 };
	static const char *const colour[] = { "32", "33", "31" };
	bool colours = isatty(STDOUT_FILENO) && getenv("TERM") && strcmp(getenv("TERM"), "dumb") != 0 &&
		       !getenv("NO_COLOR");
	unsigned int n[3] = { 0 };

	for (unsigned int i = 0; i < cu_checks_n; i++) {
		const struct cu_check *c = &cu_checks[i];

		n[c->verdict]++;
		if (colours)
			printf("\033[%sm%-4s\033[0m", colour[c->verdict], verdict_word[c->verdict]);
		else
			printf("%-4s", verdict_word[c->verdict]);
		printf("  %-13s ", c->name);
		cu_put_line(stdout, WHAT_AT, WHAT_AT, c->what);
		if (!*c->advice)
			continue;
		printf("%*s-> ", WHAT_AT, "");
		cu_put_line(stdout, WHAT_AT + 3, WHAT_AT + 3, c->advice);
	}
	printf("\n%u ok, %u warning%s, %u failed\n", n[OK], n[WARN], n[WARN] == 1 ? "" : "s", n[FAIL]);
}

static int doctor(const struct cu_command *command, int argc, char **argv)
{
	struct cu_format format = { 0 };
	struct cu_table *table = NULL;
	int got, status = CU_OK, patience_ms = 30000;
	bool simulate = false;
	uint64_t ns;

	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		switch (got) {
		case OPTION_SIMULATE:
			simulate = true;
			break;
		case OPTION_GPU:
			cu_doctor_require_gpu = true;
			break;
		case OPTION_PROBE:
			return cu_probe();
		case OPTION_ROOT:
			cu_doctor_root = optarg;
			break;
		case OPTION_PATIENCE:
			if (!cu_read_wait(optarg, &ns))
				return cu_usage_error(command, "'%s' is not a time: 500ms, 2s, 1m, up to 1 hour",
						      optarg);
			patience_ms = (int)(ns / 1000000);
			break;
		case CU_OPTION_DIR:
			if (setenv("CULIMBO_DIR", optarg, 1))
				return CU_FAILED;
			break;
		default:
			if (!cu_format_option(&format, got))
				return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
		}
	if (format.json || format.raw || format.output) {
		table = cu_table_new(command, "checks", &format, &status);
		if (!table)
			return status;
		status = CU_OK;
	}
	check_options();
	cu_check_driver(simulate, patience_ms);
	cu_check_system();
	cu_check_containers();
	cu_check_versions();
	cu_check_refused();
	for (unsigned int i = 0; i < cu_checks_n; i++) {
		if (cu_checks[i].verdict == FAIL)
			status = CU_FAILED;
		if (table)
			cu_table_line(table, fill, &cu_checks[i]);
	}
	if (!table)
		print_for_people();
	else if (cu_table_end(table))
		status = CU_FAILED;
	return status;
}

static const struct cu_option options[] = {
	{ "simulate", OPTION_SIMULATE, NULL, "ask the simulated driver: no GPU is needed" },
	{ "require-gpu", OPTION_GPU, NULL, "fail without a driver, or without a GPU: for the first step of a job that needs one" },
	{ "patience", OPTION_PATIENCE, "DURATION", "how long to wait for the driver (default 30s)" },
	{ "root", OPTION_ROOT, "DIR", "read the settings of the system below DIR (/etc, /proc, /run)" },
	CU_TABLE_OPTIONS,
	CU_DIR_OPTION,
	{ "probe", OPTION_PROBE, NULL, NULL },
	{ .name = NULL },
};

static const struct cu_exit exits[] = {
	{ CU_OK, "nothing failed; there may be warnings" },
	{ CU_FAILED, "something failed: the library cannot do its work here, or (--require-gpu) there is no GPU" },
	{ CU_USAGE, "the command line is wrong" },
	{ 0, NULL },
};

static const struct cu_example examples[] = {
	{ "culimbo doctor", "is all in place on this machine, or in this container?" },
	{ "culimbo doctor --simulate", "the same with the simulated driver" },
	{ "culimbo doctor --require-gpu", "fails where there is no GPU" },
	{ "culimbo doctor --json | jq '.checks[] | select(.status != \"ok\")'", "only what is wrong" },
	{ .line = NULL },
};

const struct cu_command cu_doctor = {
	.name = "doctor",
	.arguments = "",
	.summary = "check this machine's setup, and suggest fixes",
	.help = "Checks the driver (in a process of its own), its handles, how its calls are routed\n"
		"to the library, the directory of exporter files, logind, limits, /proc, and with which\n"
		"library other processes run.  Each check is ok, a warning or a failure, and says what to do.  doctor changes nothing.",
	.options = options,
	.columns = columns,
	.exits = exits,
	.examples = examples,
	.run = doctor,
};
