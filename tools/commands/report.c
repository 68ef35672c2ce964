/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo report`: prints the report at exit for processes that live, have ended or
 * were killed, from the files that they have or left, with functions, files and
 * lines where they are known.
 *
 * It only reads.
 */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/base/options.h"
#include "shim/self/self.h"
#include "tools/commands/commands.h"
#include "shim/report/report_table.h"
#include "tools/common/known.h"
#include "tools/common/names.h"
#include "tools/common/scan.h"
#include "tools/common/symbols.h"
#include "tools/common/users.h"
#include "tools/commands/report.h"

enum {
	OPTION_JSON = 128, OPTION_DIR, OPTION_PID, OPTION_TOP, OPTION_MIN_AGE, OPTION_SUPPRESSIONS,
	OPTION_PRINT, OPTION_GENERATE, OPTION_ALL, OPTION_NO_SYMBOLS, OPTION_FULL_STACKS, OPTION_COLOR,
	OPTION_USER, OPTION_EXITCODE,
};
enum { PIDS = 64 };

/* --------------------------------------------------------------- all processes */
struct entry {
	uint32_t file_id;
	uint64_t created;
};

static int by_age(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	return x->created != y->created ? (x->created < y->created ? -1 : 1) :
					  (x->file_id > y->file_id) - (x->file_id < y->file_id);
}

/* Lists the files in @dirfd; *unread is the number of those whose contents can't be read. */
static int list(int dirfd, struct entry **entries, size_t *n, uint64_t *unread)
{
	int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), err = 0;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *d;

	*entries = NULL;
	*n = 0;
	if (!dir) {
		err = -errno;
		if (fd >= 0)
			close(fd);
		return err;
	}
	while ((d = readdir(dir)) != NULL) {
		uint32_t id = cl_region_name_id(d->d_name);
		struct cl_view_process process;
		struct cl_view view;
		struct entry *more;

		if (!id)
			continue;
		err = cl_view_open(&view, dirfd, id, NULL, NULL);
		if (err) {
			*unread += err != -ENOENT;
			err = 0;
			continue;
		}
		cl_view_process(&view, &process);
		cl_view_close(&view);
		more = realloc(*entries, (*n + 1) * sizeof(**entries));
		if (!more) {
			err = -ENOMEM;
			break;
		}
		*entries = more;
		more[(*n)++] = (struct entry){ id, process.created };
	}
	closedir(dir);
	if (*n)
		qsort(*entries, *n, sizeof(**entries), by_age);
	return err;
}

bool cu_report_has_something(const struct cl_report *report)
{
	for (int c = 0; c < CL_REPORT_CLASSES; c++)
		if (report->sums.n[c] && (report->all || (cl_report_classes[c].what & (CL_REPORT_FOUND | CL_REPORT_A_NOTE))))
			return true;
	return false;
}

bool cu_reports_add(struct cu_reports *reports, char *text)
{
	char **more = text ? realloc(reports->text, (reports->n + 1) * sizeof(*more)) : NULL;

	if (!more) {
		free(text);
		return false;
	}
	reports->text = more;
	more[reports->n++] = text;
	return true;
}

void cu_reports_free(struct cu_reports *reports)
{
	for (size_t i = 0; i < reports->n; i++)
		free(reports->text[i]);
	free(reports->text);
	*reports = (struct cu_reports){ .n = 0 };
}

/* Returns the text and objects of the report on the process that was read; NULL: no memory. */
static char *render(struct cl_report *report)
{
	static struct cl_emit real; /* 8 KiB */
	int fd = (int)syscall(SYS_memfd_create, "report", MFD_CLOEXEC);
	char *text = NULL;
	unsigned int top = report->top;
	struct stat st;

	if (fd < 0)
		return NULL;
	cl_emit_flush(&report->emit);
	real = report->emit;
	cl_emit_begin(&report->emit, fd, false);
	report->both = true;
	report->top = 0;
	cl_report_say(report, NULL);
	cl_emit_flush(&report->emit);
	if (!report->emit.error && !fstat(fd, &st) && (text = malloc((size_t)st.st_size + 1)) != NULL) {
		if (pread(fd, text, (size_t)st.st_size, 0) != st.st_size)
			st.st_size = 0;
		text[st.st_size] = 0;
	}
	report->both = false;
	report->top = top;
	report->emit = real;
	close(fd);
	return text;
}

int cu_report_directory(struct cl_report *report, int dirfd,
			bool (*wanted)(void *data, struct cl_report *report), void *data,
			struct cu_report_sums *sums, struct cu_reports *reports)
{
	struct entry *entries;
	size_t n;
	int err = list(dirfd, &entries, &n, &sums->unread);

	report->dirfd = dirfd;
	sums->files += err ? 0 : n;
	for (size_t i = 0; !err && i < n; i++) {
		struct cl_view view;

		/*
		 * reading a process counts matches of suppressions, so skip earlier processes
		 * first
		 */
		if (entries[i].created < sums->since ||
		    cl_view_open(&view, dirfd, entries[i].file_id, NULL, NULL))
			continue; /* it has just disappeared */
		cl_report_look_at_view(report, &view);
		if (!wanted || wanted(data, report)) {
			sums->processes++;
			sums->alive += view.state == CL_ALIVE;
			if (report->generate)
				cl_report_say(report, NULL);
			else if (!cu_reports_add(reports, render(report)))
				err = -ENOMEM;
		}
		cl_view_close(&view);
	}
	free(entries);
	return err;
}

/* --------------------------------------------------------------------- options */
static const struct cu_command *complaining;
static bool own_min_age; /* the value is --min-age's: messages name that, and no default replaces it */

static void complain(const char *line)
{
	if (!own_min_age || strncmp(line, "CULIMBO_MIN_AGE=", strlen("CULIMBO_MIN_AGE=")))
		cu_error(complaining, "%s", line);
}

void cu_report_options(const struct cu_command *command, const char *dir)
{
	complaining = command;
	cl_options_read(&cl_options, environ, complain);
	if (dir)
		cl_options.dir.text = dir;
}

static void complain_suppression(const char *path, unsigned int line, const char *what)
{
	cu_error(complaining, "%s, line %u %s", path, line, what);
}

bool cu_report_suppressions(const struct cu_command *command, struct cl_suppressions *to,
			    const char *path)
{
	int err;

	complaining = command;
	err = cl_suppress_read(to, path, complain_suppression);
	if (err == -EISDIR)
		cu_error(command, "suppressions: %s is a directory; a file of CLASS:stack:PATTERN lines is wanted", path);
	else if (err)
		cu_error(command, "cannot read %s: %s", path, strerror(-err));
	return !err && !to->unknown;
}

/* Parses a number that is the whole text. */
static bool read_number(const char *text, unsigned long max, unsigned long *number)
{
	char *end;

	errno = 0;
	*number = strtoul(text, &end, 10);
	return *text >= '0' && *text <= '9' && !*end && !errno && *number <= max;
}

/* ------------------------------------------------------------------- the command */
struct choice {
	unsigned long pid[PIDS];
	bool seen[PIDS];
	unsigned int pids;
	bool all;
};

static bool is_wanted(void *data, struct cl_report *report)
{
	struct choice *choice = data;

	for (unsigned int i = 0; i < choice->pids; i++)
		if (report->process.who.pid == choice->pid[i]) {
			choice->seen[i] = true;
			return true;
		}
	return !choice->pids && (choice->all || cu_report_has_something(report));
}

static void say_end(struct cl_report *report, const struct cu_report_sums *sums, const struct choice *choice)
{
	struct cl_emit *e = &report->emit;

	if (report->generate)
		return;
	cl_emit_line(e, "total");
	cl_emit_number(e, "processes", sums->processes, "culimbo: TOTAL processes=", "");
	cl_emit_number(e, "alive", sums->alive, " alive=", "");
	cl_emit_number(e, "findings", sums->findings, " findings=", "");
	cl_emit_number(e, "suppressed", sums->suppressed, sums->suppressed ? " suppressed=" : NULL, "");
	cl_emit_number(e, "unread", sums->unread, sums->unread ? " unread=" : NULL, "");
	cl_emit_words(e, "\n");
	cl_emit_line_end(e);
	if (!sums->processes && !choice->pids && !sums->files)
		cl_emit_words(e, "culimbo: nothing to report: no process shares under culimbo now\n"
				 "culimbo: (`culimbo run -- CMD` starts one; it writes its report itself when it ends)\n");
	else if (!sums->processes && !choice->pids)
		cl_emit_words(e, "culimbo: nothing to report: no process here holds, waits for, or has leaked "
				 "anything (--all shows those that share)\n");
}

/*
 * Returns true if @line can be part of a report: its own words, a frame, or JSON.  A partial
 * report is shown, too.
 */
static bool may_be_of_report(const char *line)
{
	return line[0] == '{' || line[strspn(line, " ")] == '#' || strstr(line, "culimbo");
}

/* Reads the file to its end, or to the first line that can be part of a report.  Then it begins anew. */
static bool has_report(FILE *from)
{
	char *line = NULL;
	size_t size = 0;
	bool found = false;

	while (!found && getline(&line, &size, from) > 0)
		found = may_be_of_report(line);
	free(line);
	if (!ferror(from))
		rewind(from);
	return found;
}

/* Returns true if @line is a SUMMARY, or an object of one, with findings. */
static bool has_findings(const char *line)
{
	const char *at = strncmp(line, "culimbo: SUMMARY ", 17) ? NULL : strstr(line, " findings=");

	if (!at && line[0] == '{' && strstr(line, "\"type\":\"summary\""))
		at = strstr(line, "\"findings\":");
	return at && strtoull(at + strcspn(at, "=:") + 1, NULL, 10);
}

/*
 * Prints reports that processes have written at their ends, with names added.  @findings_status is returned
 * if they have findings.
 */
static int add_names(const struct cu_command *command, int files, char **file, bool full, int findings_status)
{
	static const char how[] = "culimbo: names and lines: "; /* left out: names are added here */
	struct cu_names names = { .symbols = cu_symbols_new(), .to = stdout, .full = full,
				  .colour = cl_emit_wants_colour(STDOUT_FILENO) };
	int status = names.symbols ? CU_OK : CU_FAILED;
	char *line = NULL;
	size_t size = 0;
	bool found, shown, findings = false;
	struct stat st;

	for (int i = 0; names.symbols && i < files; i++) {
		FILE *from = strcmp(file[i], "-") ? fopen(file[i], "re") : stdin;

		if (!from) {
			long long pid;

			if (errno == ENOENT && cu_number(file[i], &pid))
				cu_error(command, "there is no file '%s'; of process %s: --pid=%s", file[i], file[i],
					 file[i]);
			else
				cu_error(command, "%s: %s", file[i], strerror(errno));
			status = CU_FAILED;
			continue;
		}
		errno = 0;
		found = false;
		/* a file without one is not shown; a pipe is, whatever comes through it */
		shown = from == stdin || fstat(fileno(from), &st) || !S_ISREG(st.st_mode) || has_report(from);
		while (shown && getline(&line, &size, from) > 0) {
			if (strncmp(line, how, sizeof(how) - 1))
				cu_names_line(&names, line);
			found = found || may_be_of_report(line);
			findings = findings || has_findings(line);
		}
		if (ferror(from)) { /* fopen() succeeds for a directory, for example */
			cu_error(command, "%s: %s", file[i], strerror(errno));
			status = CU_FAILED;
		} else if (!found) {
			fflush(stdout);
			cu_error(command, "%s: it has no culimbo report in it", file[i]);
			status = CU_FAILED;
		}
		if (from != stdin)
			fclose(from);
	}
	free(line);
	cu_symbols_free(names.symbols);
	return findings && status == CU_OK ? findings_status : status;
}

/* Writes the reports of all processes, joined as sides of the same blocks. */
static void tell(const struct cl_report *r, const struct cu_reports *reports, struct cl_suppressions *suppressions,
		 bool all, unsigned int top, struct cu_report_sums *sums)
{
	struct cu_sides *sides = cu_sides_new();
	struct cu_known known = { .symbols = r->data, .suppressions = suppressions, .to = stdout, .json = r->emit.json, .top = top,
				  .sides = sides, .whole = true, .all = all,
				  .full_stacks = cl_options.full_stacks.number,
				  .colour = cl_emit_wants_colour(STDOUT_FILENO) };

	for (size_t i = 0; sides && i < reports->n; i++)
		cu_sides_learn(sides, reports->text[i]);
	for (size_t i = 0; i < reports->n; i++) {
		cu_known_take(&known, reports->text[i]);
		sums->findings += known.findings;
		sums->suppressed += known.suppressed;
	}
	cu_sides_free(sides);
}

bool cu_report_colour(const struct cu_command *command, const char *when)
{
	if (strcmp(when, "auto") && strcmp(when, "always") && strcmp(when, "never")) {
		cu_usage_error(command, "--color: '%s' is none of auto, always, never", when);
		return false;
	}
	return !setenv("CULIMBO_COLOR", when, 1);
}

static int report(const struct cu_command *command, int argc, char **argv)
{
	static struct cl_report r;
	struct cl_suppressions known = { .n = 0 };
	struct cu_report_sums sums = { 0 };
	struct choice choice = { .pids = 0 };
	struct cu_reports reports = { .n = 0 };
	struct cu_users users = { .given = false };
	const char *dir = NULL, *suppressions = NULL, *min_age = NULL;
	bool json = false, generate = false, print = false, symbols = true;
	unsigned long top = 10, exitcode = CU_OK;
	int got, dirfd, err = 0, status = CU_OK;
	char path[4096];

	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		switch (got) {
		case OPTION_JSON:
			json = true;
			break;
		case OPTION_DIR:
			dir = optarg;
			break;
		case OPTION_USER:
			if (!cu_users_read(command, optarg, &users))
				return CU_USAGE;
			break;
		case OPTION_PID:
			if (choice.pids == PIDS)
				return cu_usage_error(command, "more than %d processes", PIDS);
			if (!read_number(optarg, UINT32_MAX, &choice.pid[choice.pids++]))
				return cu_usage_error(command, "--pid: '%s' is not a process id", optarg);
			break;
		case OPTION_TOP:
			if (!read_number(optarg, UINT32_MAX, &top))
				return cu_usage_error(command, "--top: '%s' is not a number", optarg);
			break;
		case OPTION_EXITCODE:
			if (!read_number(optarg, 255, &exitcode))
				return cu_usage_error(command, "--error-exitcode: '%s' is not a status (0 to 255)", optarg);
			break;
		case OPTION_MIN_AGE:
			min_age = optarg;
			break;
		case OPTION_SUPPRESSIONS:
			suppressions = optarg;
			break;
		case OPTION_PRINT:
			print = true;
			break;
		case OPTION_GENERATE:
			generate = true;
			break;
		case OPTION_ALL:
			choice.all = true;
			break;
		case OPTION_NO_SYMBOLS:
			symbols = false;
			break;
		case OPTION_FULL_STACKS:
			if (setenv("CULIMBO_FULL_STACKS", "1", 1))
				return CU_FAILED;
			break;
		case OPTION_COLOR:
			if (!cu_report_colour(command, optarg))
				return CU_USAGE;
			break;
		default:
			return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
		}
	if (min_age && setenv("CULIMBO_MIN_AGE", min_age, 1))
		return CU_FAILED;
	own_min_age = min_age;
	if (!cu_users_become(command, &users, &status))
		return status;
	cu_report_options(command, dir);
	if (optind < argc)
		return add_names(command, argc - optind, argv + optind, cl_options.full_stacks.number, (int)exitcode);
	if (min_age && !cl_options.min_age.from_environment)
		return cu_usage_error(command, "--min-age: '%s' is not a duration: 500ms, 2s, 10m, 1h", min_age);
	if (!suppressions && cl_options.suppressions.text[0])
		suppressions = cl_options.suppressions.text;
	if (suppressions && !cu_report_suppressions(command, &known, suppressions))
		return CU_FAILED;

	cl_report_begin(&r);
	r.top = (unsigned int)top;
	r.min_age = cl_options.min_age.number;
	r.suppressions = generate ? &known : NULL; /* otherwise applied when reports are joined */
	r.generate = generate;
	r.all = choice.all;
	r.full_stacks = cl_options.full_stacks.number;
	if (symbols) {
		r.data = cu_symbols_new();
		r.resolve = !r.data ? NULL : generate ? cu_symbols_resolve : cu_symbols_resolve_early;
	}
	fflush(stdout);
	cl_emit_begin(&r.emit, STDOUT_FILENO, json || cl_options.report_format.number == CL_FORMAT_JSONL);
	dirfd = cl_self_open_dir(false);
	if (dirfd >= 0) {
		err = cu_report_directory(&r, dirfd, is_wanted, &choice, &sums, &reports);
		cl_emit_flush(&r.emit);
		tell(&r, &reports, &known, choice.all, (unsigned int)top, &sums);
		fflush(stdout);
		r.suppressions = &known;
		if (print)
			cl_report_say_suppressions(&r);
	} else if (dirfd != -ENOENT) {
		err = dirfd;
	}
	if (!err)
		say_end(&r, &sums, &choice);
	cl_emit_flush(&r.emit);
	cl_self_dir_path(path, sizeof(path));
	if (err) {
		cu_error(command, "%s: %s", path,
			 err == -EPERM ? "it belongs to another user, or others may write to it" : strerror(-err));
		status = CU_FAILED;
	}
	for (unsigned int i = 0; i < choice.pids && !err; i++)
		if (!choice.seen[i]) {
			cu_error(command,
				 "process %lu has no file in %s: it shares nothing, or has ended and its file is gone "
				 "(that of a killed one stays for CULIMBO_KEEP_DEAD, 10 minutes unless it is set)",
				 choice.pid[i], path);
			status = CU_FAILED;
		}
	if (sums.unread)
		cu_error(command,
			 "%llu file%s in %s could not be read (damaged, of another version or boot): "
			 "`culimbo ps` says why", (unsigned long long)sums.unread,
			 sums.unread == 1 ? "" : "s", path);
	if (r.emit.error && r.emit.error != EPIPE) {
		cu_error(command, "cannot write: %s", strerror(r.emit.error));
		status = CU_FAILED;
	}
	if (dirfd >= 0)
		close(dirfd);
	cu_reports_free(&reports);
	cu_symbols_free(r.data);
	cl_report_end(&r);
	cl_suppress_free(&known);
	return sums.findings && status == CU_OK ? (int)exitcode : status;
}

static const struct cu_option options[] = {
	{ "pid", OPTION_PID, "PID", "only this process (may be given again)" },
	{ "all", OPTION_ALL, NULL, "also what needs no action, and processes without anything to report" },
	{ "json", OPTION_JSON, NULL, "JSON Lines (doc/report-format.md)" },
	{ "top", OPTION_TOP, "N", "how many places of each kind to show (default 10; 0: all)" },
	{ "min-age", OPTION_MIN_AGE, "DURATION", "leave out blocks younger than this (default: CULIMBO_MIN_AGE)" },
	{ "suppressions", OPTION_SUPPRESSIONS, "FILE",
	  "leave out the findings that its CLASS:stack:PATTERN lines match (default: CULIMBO_SUPPRESSIONS)" },
	{ "print-suppressions", OPTION_PRINT, NULL, "list the suppressions that matched" },
	{ "gen-suppressions", OPTION_GENERATE, NULL, "print suppressions for the findings, instead of the findings" },
	{ "error-exitcode", OPTION_EXITCODE, "N", "the exit status when there are findings; what living processes hold is none (default 0)" },
	{ "no-symbols", OPTION_NO_SYMBOLS, NULL, "show modules and offsets only" },
	{ "full-stacks", OPTION_FULL_STACKS, NULL, "show all frames and holders, also CUDA's frames: without it a finding has at most 15 lines" },
	{ "color", OPTION_COLOR, "WHEN", "auto (on a terminal, unless NO_COLOR is set), always or never" },
	CU_USER_OPTION(OPTION_USER),
	{ "dir", OPTION_DIR, "DIR",
	  "where exporter files are (default: CULIMBO_DIR, else /dev/shm/culimbo-UID)" },
	{ .name = NULL },
};

static const struct cu_example examples[] = {
	{ "culimbo report", "which process holds what, since when, from where" },
	{ "culimbo report --error-exitcode 99", "for a cron job: fails if there was misuse, or a process died with blocks open" },
	{ "culimbo report --pid 753", "one process, which may have been killed" },
	{ "culimbo report report.753", "adds names to a report that was written at exit (CULIMBO_REPORT_FILE)" },
	{ "culimbo report --gen-suppressions >> known.supp", "writes suppressions for the findings that are known by now" },
	{ "culimbo report --json | jq 'select(.type == \"group\" and .finding)'", "for scripts" },
	{ .line = NULL },
};

const struct cu_command cu_report = {
	.name = "report",
	.arguments = "[FILE...]",
	.summary = "show what is held or leaked, by whom, and from which line",
	.help = "Prints the exit report now, for processes that share and for those that were killed\n"
		"while they did: what is held in limbo, by whom and since when, what was never\n"
		"closed, misuse, and what to do.  It names the lines of the program if there is debug\n"
		"information.\n"
		"\n"
		"With FILE (- is stdin), prints a report that a process wrote at exit, with\n"
		"functions, files and lines added.  Of the options only --error-exitcode,\n"
		"--full-stacks and --color apply then.",
	.options = options,
	.examples = examples,
	.run = report,
};
