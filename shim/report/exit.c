/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report at exit.  It reads the blocks that have a record, and the findings, from this process's own region.  It
 * reads the blocks without a record, the imports and the counts from private memory, which others cannot damage.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/limbo/exporter.h"
#include "shim/blocks/blocks.h"
#include "shim/diag/happened.h"
#include "shim/importer/mappings.h"
#include "shim/importer/peers.h"
#include "shim/limbo/limbo.h"
#include "shim/base/log.h"
#include "shim/report/exit.h"
#include "shim/report/report_table.h"
#include "shim/report/told.h"
#include "shim/self/self.h"
#include "shim/base/stderr.h"

#define PATIENCE 5000000000ull /* ns that an end waits at most for the reader of a pipe to read something */

static struct cl_report report; /* static: a process makes one report at a time */

/* ---------------------------------------------------------------- where it goes */
/*
 * Opens the file that @pattern names for appending.  If @pattern has no %p, adds ".%p", unless the file is a device or a
 * fifo.  Returns the descriptor, and *named becomes the pattern that was opened.  Or returns -errno, and *named becomes
 * the name of the file that could not be opened.
 */
static int open_file(const char *pattern, const char **named)
{
	/* static: a process may end in a signal handler, whose stack may be too small; see end_with_room() */
	static char path[PATH_MAX], with_pid[PATH_MAX];
	struct stat st;
	int fd;

	if (!cl_path_has_pid(pattern) &&
	    /* all processes write to the same device or fifo: no .PID is added */
	    !(cl_path_expand(path, sizeof(path), pattern) == 0 && stat(path, &st) == 0 &&
	      !S_ISREG(st.st_mode)) &&
	    snprintf(with_pid, sizeof(with_pid), "%s.%%p", pattern) < (int)sizeof(with_pid))
		pattern = with_pid;
	fd = cl_open_to_append(pattern);
	*named = fd < 0 && cl_path_expand(path, sizeof(path), pattern) == 0 ? path : pattern;
	return fd;
}

/* Returns the name of the file that @pattern, *named of open_file(), stands for. */
static const char *path_of(const char *pattern)
{
	static char path[PATH_MAX];

	return cl_path_expand(path, sizeof(path), pattern) == 0 ? path : pattern;
}

/* Begins the output of the report.  Returns false if there is neither a file nor stderr. */
static bool begin_output(void)
{
	const char *file = cl_options.report_file.text;
	int fd = -1;

	if (file && file[0]) {
		fd = open_file(file, &file);
		if (fd < 0)
			cl_log(CL_LOG_ERROR,
			       "cannot write the report to %s (CULIMBO_REPORT_FILE): %s; it follows here",
			       file, strerror(-fd));
		else
			report.file = path_of(file);
	}
	if (fd < 0 && !cl_stderr_is_there())
		return false;
	cl_emit_begin(&report.emit, fd >= 0 ? fd : STDERR_FILENO,
		      cl_options.report_format.number == CL_FORMAT_JSONL);
	report.emit.colour = cl_emit_wants_colour(report.emit.fd);
	report.both = cl_options.report_format.number == CL_FORMAT_BOTH;
	if (report.both)
		report.top = 0;
	/* a parent may wait for our end before it reads the pipe, so we must not wait for it without a limit */
	report.emit.patience = PATIENCE;
	return true;
}

static void end_output(void)
{
	cl_emit_flush(&report.emit);
	if (report.emit.fd != STDERR_FILENO)
		close(report.emit.fd);
}

/* --------------------------------------------------------------- what is looked at */
static unsigned int own_opens(uint32_t record)
{
	const struct cl_block *block = cl_block_of_record(&cl_exporter.blocks, record);

	return block ? block->own_opens : 0;
}

/* Adds a block without a record, which our region does not show. */
static void add_without_record(struct cl_block *block, void *data)
{
	struct cl_view_block b = { .record = block->record, .kind = (enum cl_kind)block->kind,
				   .base = block->link.key, .size = block->size, .device = block->device };
	struct cl_report_group *g;

	if (block->record != CL_NO_RECORD)
		return;
	if (block->state == CL_BLOCK_UNTRACKED) {
		g = cl_report_add_block(&report, CL_REPORT_UNTRACKED, &b);
		if (g)
			g->own_opens += block->own_opens;
		return;
	}
	report.sums.live++;
	report.sums.live_bytes += block->size;
}

static void add_import(const struct cl_import *import, void *data)
{
	struct cl_view_import i = { .kind = import->kind, .key = import->key, .size = import->size,
				    .opens = import->opens, .since = import->since,
				    .file_id = import->managed ? import->file_id : 0,
				    .record = import->record, .generation = import->generation,
				    .told = import->told, .exporter_pid = import->exporter_pid, .stack = import->stack,
				    .device = import->device };

	cl_report_add_import(&report, &i, import->stays);
}

static uint64_t count_found(const struct cl_view *view, enum cl_finding_kind kind)
{
	return cl_count_get(findings[kind]);
}

static void warn_suppression(const char *path, unsigned int line, const char *what)
{
	cl_log(CL_LOG_WARN, "CULIMBO_SUPPRESSIONS: %s, line %u %s", path, line, what);
}

void cl_view_own(struct cl_view *view)
{
	bool has_descriptor;

	cl_own_need_locked(true);
	has_descriptor = cl_self_keep_descriptor(&cl_own, CL_LOCK_EXPORTER);
	*view = (struct cl_view){ .region = cl_own, .state = CL_ALIVE, .own = true, .borrowed = true,
				  .knows_records = true, .records = cl_block_records_locked(&cl_exporter.blocks), .now = cl_now() };
	/* the program has closed it: its number may be that of another file now */
	if (!has_descriptor)
		view->region.fd = -1;
}

static void look(const struct cl_view *view)
{
	cl_report_look_begin(&report, view, view->now);
	cl_report_add_blocks(&report, own_opens);
	cl_block_each(&cl_exporter.blocks, CL_MEMORY, add_without_record, NULL);
	cl_block_each(&cl_exporter.blocks, CL_EVENT, add_without_record, NULL);
	cl_block_each(&cl_exporter.blocks, CL_POOL, add_without_record, NULL);
	cl_imports_each(add_import, NULL);
	cl_report_add_findings(&report, count_found);
	cl_report_look_end(&report);
	report.sums.findings += cl_count_get(pinned);
}

static void open_dir(void)
{
	if (report.dirfd < 0)
		report.dirfd = cl_self_open_dir(false);
	report.dir_refused = report.dirfd == -EPERM;
}

/* Begins a report of this process, looks, and returns the number of findings. */
static uint64_t begin_and_look(struct cl_view *view, struct cl_suppressions *suppressions, bool at_exit,
			       int exit_status)
{
	const char *known = cl_options.suppressions.text;
	int err;

	cl_report_begin(&report);
	report.at_exit = at_exit;
	report.once = at_exit && cl_options.report_format.number != CL_FORMAT_BOTH;
	report.all = cl_options.report.number == CL_REPORT_ALWAYS;
	report.full_stacks = cl_options.full_stacks.number;
	report.origin.exit_status = exit_status;
	report.has_open = cl_peer_has_open;
	report.min_age = cl_options.min_age.number;
	if (known && known[0]) {
		err = cl_suppress_read(suppressions, known, warn_suppression);
		if (err)
			cl_log(CL_LOG_WARN, "cannot read %s (CULIMBO_SUPPRESSIONS): %s", known, strerror(-err));
		report.suppressions = suppressions;
		/* holders are known by their own files */
		if (suppressions->n)
			open_dir();
	}
	cl_view_own(view);
	look(view);
	return report.sums.findings;
}

static void say(void)
{
	struct cl_report_counts counts = {
		.exports = cl_count_get(exports), .imports = cl_count_get(imports),
		.released = cl_count_get(limbo_released),
		.released_bytes = cl_count_get(limbo_bytes_released),
		.pinned = cl_count_get(pinned), .dead_holders = cl_count_get(dead_holders),
		.unmanaged_imports = cl_count_get(unmanaged_imports),
		.unmanaged_exports = cl_count_get(unmanaged_exports),
		.pool_exports = cl_count_get(pool_exports),
		.cut = cl_count_get(graces_cut),
		.cut_bytes = cl_count_get(graces_cut_bytes),
		.kept_mapped = cl_still_kept_locked(&cl_exporter),
	};

	cl_report_say(&report, &counts);
}

uint64_t cl_report_write(int exit_status)
{
	struct cl_suppressions suppressions = { .n = 0 };
	struct cl_view view;
	bool all, list, written = false;
	uint64_t findings;

	if (cl_options.report.number == CL_REPORT_OFF && !cl_options.error_exitcode.number)
		return 0;
	cl_still_end_locked(&cl_exporter);
	findings = begin_and_look(&view, &suppressions, true, exit_status);
	all = findings || cl_options.report.number == CL_REPORT_ALWAYS;
	/* the user has asked for this list, so it is printed also if there is nothing else to report */
	list = cl_options.print_suppressions.number && (all || report.sums.suppressed);
	if (cl_options.report.number != CL_REPORT_OFF && (all || list)) {
		open_dir();
		if (begin_output()) {
			if (all)
				say();
			if (list)
				cl_report_say_suppressions(&report);
			end_output();
			written = all && !report.emit.error;
		}
	}
	if (cl_options.report.number != CL_REPORT_OFF && (written || !all))
		cl_told_locked(&report, written);
	/* the exit status also counts what another process has reported: each process has a status of its own */
	findings += report.sums.told;
	if (report.dirfd >= 0)
		close(report.dirfd);
	cl_report_end(&report);
	cl_suppress_free(&suppressions);
	return findings;
}

uint64_t cl_report_write_now(int fd, bool json)
{
	struct cl_suppressions suppressions = { .n = 0 };
	struct cl_view view;
	uint64_t findings = begin_and_look(&view, &suppressions, false, -1);

	open_dir();
	cl_emit_begin(&report.emit, fd, json);
	say();
	cl_emit_flush(&report.emit);
	if (report.dirfd >= 0)
		close(report.dirfd);
	cl_report_end(&report);
	cl_suppress_free(&suppressions);
	return findings;
}

/* Prints that the process has shared nothing.  @when is "exit", or NULL while the process runs on. */
static void say_nothing(struct cl_emit *e, const char *when)
{
	bool saw = cl_driver.libcuda;
	char name[17] = "?";

	prctl(PR_GET_NAME, name);
	cl_emit_line(e, "process");
	cl_emit_number(e, "pid", (uint64_t)getpid(), "culimbo: report of process ", " (");
	cl_emit_string(e, NULL, name, "", "): ");
	if (when)
		cl_emit_string(e, "when", when, NULL, "");
	cl_emit_flag(e, "cuda", saw);
	cl_emit_words(e, saw ? "it shared no GPU memory\n" : "no CUDA call of it reached culimbo (`culimbo doctor`)\n");
	cl_emit_line_end(e);
	cl_emit_line(e, "summary");
	/* at exit one line: with CULIMBO_REPORT=always each process that a script starts has it */
	cl_emit_number(e, "pid", (uint64_t)getpid(), when ? NULL : "culimbo: SUMMARY pid=", "");
	cl_emit_number(e, "exports", 0, when ? NULL : " exports=", "");
	cl_emit_number(e, "imports", 0, when ? NULL : " imports=", "");
	cl_emit_number(e, "findings", 0, when ? NULL : " findings=", "\n");
	cl_emit_line_end(e);
}

void cl_report_nothing(void)
{
	if (!begin_output())
		return;
	say_nothing(&report.emit, "exit");
	end_output();
}

void cl_report_nothing_to(int fd, bool json)
{
	struct cl_emit emit;

	cl_emit_begin(&emit, fd, json);
	say_nothing(&emit, NULL);
	cl_emit_flush(&emit);
}
