/* SPDX-License-Identifier: Apache-2.0 */
/* What `culimbo report` and `culimbo check` share: the report of many processes, from their files. */
#ifndef CU_REPORT_H
#define CU_REPORT_H

#include "shim/report/report.h"
#include "tools/common/cli.h"

struct cu_reports;
struct cu_report_sums {
	/* set by the caller */
	uint64_t since; /* CLOCK_REALTIME ns: processes that began to share before are not looked at */

	uint64_t processes, alive, findings, suppressed, unread;
	uint64_t files; /* of all processes, also of those of which there is nothing to say */
};

/*
 * Looks at each process that has a file in @dirfd, in the order in which they
 * began to share, and says what there is to say of those that @wanted agrees to
 * (NULL: all) after it was looked at: to @reports, but suppressions to be generated
 * to report->emit.  0 or -ENOMEM.
 */
int cu_report_directory(struct cl_report *report, int dirfd,
			bool (*wanted)(void *data, const struct cl_report *report), void *data,
			struct cu_report_sums *sums, struct cu_reports *reports);

/* Reports that are told together: texts with an object behind each part (shim/report/report.h). */
struct cu_reports {
	char **text;
	size_t n;
};
/* Takes @text, which malloc() has made.  False: no memory. */
bool cu_reports_add(struct cu_reports *reports, char *text);
void cu_reports_free(struct cu_reports *reports);
/* Whether there is anything to say of the process looked at. */
bool cu_report_has_something(const struct cl_report *report);
/* Reads @path of suppressions into @to, complaining.  False: it cannot be read. */
bool cu_report_suppressions(const struct cu_command *command, struct cl_suppressions *to,
			    const char *path);
/* The options of the environment, complaining.  @dir, if not NULL, in the place of CULIMBO_DIR. */
void cu_report_options(const struct cu_command *command, const char *dir);

/*
 * Runs the program at @path and prints, when it has ended, what its processes report at their ends
 * (check.c).  Returns CMD's status, or ends by the signal that ended CMD.
 */
int cu_check_names(const struct cu_command *command, const char *path, char **argv);
/* CULIMBO_COLOR becomes @when of --color.  False, after a complaint: it is no such word. */
bool cu_report_colour(const struct cu_command *command, const char *when);

#endif
