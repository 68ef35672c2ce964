/* SPDX-License-Identifier: Apache-2.0 */
/* Used by `culimbo report` and `culimbo check`: the report on many processes, from their files. */
#ifndef CU_REPORT_H
#define CU_REPORT_H

#include "shim/report/report.h"
#include "tools/common/cli.h"

struct cu_reports;
struct cu_report_sums {
	/* set by the caller */
	uint64_t since; /* CLOCK_REALTIME ns: skip processes that began to share earlier */

	uint64_t processes, alive, findings, suppressed, unread;
	uint64_t files; /* of all processes, even of those without anything to report */
};

/*
 * Reads each process that has a file in @dirfd, in the order in which they began to
 * share.  The reports of those that @wanted then accepts (NULL: all) go to @reports;
 * suppressions to be generated go to report->emit.  Returns 0 or -ENOMEM.
 */
int cu_report_directory(struct cl_report *report, int dirfd,
			bool (*wanted)(void *data, struct cl_report *report), void *data,
			struct cu_report_sums *sums, struct cu_reports *reports);

/*
 * Reports that are written together: texts with an object behind each part
 * (shim/report/report.h).
 */
struct cu_reports {
	char **text;
	size_t n;
};
/* Adds @text, which malloc() has made, and owns it.  Returns false without memory. */
bool cu_reports_add(struct cu_reports *reports, char *text);
void cu_reports_free(struct cu_reports *reports);
/* Returns true if there is anything to report on the process that was read. */
bool cu_report_has_something(const struct cl_report *report);
/*
 * Reads the suppressions in @path into @to, with messages about bad lines.  Returns false if it
 * cannot be read, or a line names a class that does not exist.
 */
bool cu_report_suppressions(const struct cu_command *command, struct cl_suppressions *to,
			    const char *path);
/*
 * Reads the options from the environment, with messages about bad ones.  If not NULL, @dir
 * replaces CULIMBO_DIR.
 */
void cu_report_options(const struct cu_command *command, const char *dir);

/*
 * Runs the program at @path, and when it has ended prints the reports that its processes wrote at
 * their ends (check.c).  Returns CMD's status, or ends by the signal that ended CMD.
 */
int cu_check_names(const struct cu_command *command, const char *path, char **argv);
/*
 * Sets CULIMBO_COLOR to @when of --color.  Returns false, after an error message, if it is no
 * such word.
 */
bool cu_report_colour(const struct cu_command *command, const char *when);

#endif
