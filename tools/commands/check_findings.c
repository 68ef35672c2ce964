/* SPDX-License-Identifier: Apache-2.0 */
/* Collects the findings of CMD's processes: see check_findings.h. */
#include "config.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shim/base/options.h"
#include "shim/self/self.h"
#include "tools/commands/check_findings.h"
#include "tools/common/known.h"

enum { SETTLE_TRIES = 200 };

/* Returns the number that follows the last @key in @text, or 0. */
static uint64_t last_number(const char *text, const char *key)
{
	const char *at = NULL, *next = text;

	while ((next = strstr(next, key)) != NULL)
		at = next += strlen(key);
	return at ? strtoull(at, NULL, 10) : 0;
}

static char *read_report(const char *path)
{
	char *text = NULL, *more;
	FILE *f = fopen(path, "re");
	size_t n = 0, got;

	do {
		more = realloc(text, n + 65537);
		if (!f || !more)
			break;
		text = more;
		got = fread(text + n, 1, 65536, f);
		n += got;
		text[n] = 0;
	} while (got);
	if (f)
		fclose(f);
	return text;
}

/* Takes the report that one process wrote at its end. */
static void take_one(struct cu_check_findings *f, const char *text)
{
	f->processes++;
	f->never_opened += last_number(text, " never_opened=") > 0;
	f->unmanaged_imports += last_number(text, " unmanaged_imports=") > 0;
	f->shared += last_number(text, " exports=") || last_number(text, " imports=") ||
		     last_number(text, " fd_exports=") || last_number(text, " fd_imports=") || last_number(text, " fabric=");
	f->cuda += !strstr(text, "no CUDA call of it reached culimbo");
	if (f->whole || last_number(text, " findings="))
		cu_reports_add(&f->reports, strdup(text));
}

/* Returns the report behind the first one in @text, or NULL. */
static char *next_report(char *text)
{
	char *next = strstr(text, "\nculimbo: report of process ");

	return next ? next + 1 : NULL;
}

/* Takes a file of reports: processes with the same pid (in PID namespaces, or later) share one. */
static void take_report(struct cu_check_findings *f, const char *path)
{
	char *text = read_report(path), *one, *next, was = 0;

	for (one = text; one; one = next) {
		next = next_report(one);
		if (next) {
			was = *next;
			*next = 0;
		}
		take_one(f, one);
		if (next)
			*next = was;
	}
	free(text);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strverscmp((*a)->d_name, (*b)->d_name);
}

void cu_check_take_reports(struct cu_check_findings *f)
{
	struct dirent **names;
	int n = scandir(f->folder->reports, &names, NULL, by_name);

	for (int i = 0; i < n; i++) {
		char path[512];

		if (names[i]->d_name[0] != '.') {
			snprintf(path, sizeof(path), "%s/%s", f->folder->reports, names[i]->d_name);
			take_report(f, path);
		}
		free(names[i]);
	}
	if (n >= 0)
		free(names);
}

bool cu_check_has_reported(const struct cu_check_findings *f, uint64_t pid)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%" PRIu64, f->folder->reports, pid);
	return !access(path, F_OK);
}

static void add_lost(struct cu_check_findings *f, const struct cl_view_process *process)
{
	struct cu_lost *more = realloc(f->lost, (f->n_lost + 1) * sizeof(*more));

	if (!more)
		return;
	f->lost = more;
	more += f->n_lost++;
	*more = (struct cu_lost){ .pid = process->who.pid, .start = process->who.start_time, .pid_ns = process->who.pid_ns };
	snprintf(more->command, sizeof(more->command), "%s", process->command);
}

/* Takes processes that have left their files and so wrote no report. */
static bool is_killed(void *data, struct cl_report *report)
{
	struct cu_check_findings *f = data;

	f->processes++;
	f->cuda++;
	f->shared++;
	f->never_opened += report->process.live_blocks && !cl_view_was_opened(report->view);
	if (report->process.state == CL_ALIVE) {
		f->alive++;
		return false;
	}
	/* another program has run, or runs, in its process */
	report->process.called_exec |= cu_check_has_reported(f, report->process.who.pid);
	f->killed += !report->process.called_exec;
	add_lost(f, &report->process);
	if (report->generate)
		f->n += report->sums.findings;
	return report->sums.findings;
}

/* Returns true if some process is about to end: it is not known yet what it leaves. */
static bool somebody_is_ending(int dirfd, uint64_t began)
{
	DIR *dir = fdopendir(dup(dirfd));
	const struct dirent *d;
	bool ending = false;

	if (dir)
		rewinddir(dir);
	while (dir && !ending && (d = readdir(dir)) != NULL) {
		uint32_t id = cl_region_name_id(d->d_name);
		struct cl_view_process process;
		struct cl_view view;

		if (!id || cl_view_open(&view, dirfd, id, NULL, NULL))
			continue;
		cl_view_process(&view, &process);
		ending = process.created >= began && view.state != CL_ALIVE && view.state != CL_DEAD && !view.called_exec;
		cl_view_close(&view);
	}
	if (dir)
		closedir(dir);
	return ending;
}

void cu_check_take_files(struct cu_check_findings *f)
{
	struct timespec pause = { 0, 10000000 };
	struct cu_report_sums sums = { .since = f->began };
	int dirfd = cl_self_open_dir(false);

	if (dirfd < 0)
		return;
	for (int i = 0; i < SETTLE_TRIES && somebody_is_ending(dirfd, f->began); i++)
		nanosleep(&pause, NULL);
	cu_report_directory(f->report, dirfd, is_killed, f, &sums, &f->reports);
	cl_emit_flush(&f->report->emit);
	close(dirfd);
}

/* Writes the reports of all processes, joined as sides of the same blocks. */
void cu_check_tell(struct cu_check_findings *f)
{
	struct cu_sides *sides = cu_sides_new();
	struct cu_known known = { .symbols = f->symbols, .suppressions = f->suppressions,
				  .generate = f->report->generate ? &f->report->emit : NULL, .to = f->to,
				  .json = f->report->emit.json,
				  .top = f->report->emit.json ? 0 : f->report->top, .sides = sides,
				  .whole = f->whole, .all = f->whole,
				  .full_stacks = cl_options.full_stacks.number,
				  .colour = cl_emit_wants_colour(f->report->emit.fd) };

	for (size_t i = 0; sides && i < f->reports.n; i++)
		cu_sides_learn(sides, f->reports.text[i]);
	for (size_t i = 0; i < f->reports.n; i++) {
		cu_known_take(&known, f->reports.text[i]);
		f->n += known.findings;
		f->suppressed += known.suppressed;
	}
	fflush(f->to);
	cl_emit_flush(&f->report->emit);
	cu_sides_free(sides);
	cu_reports_free(&f->reports);
}
