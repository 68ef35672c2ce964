/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo check`: runs CMD under the library.  The exit status says whether CMD, or
 * a process that it started, shares memory wrongly.  For CI.
 *
 * A process's findings come from the report that it writes when it ends; a killed
 * process's come from the file that it left.  Both are in a folder of ours, which is
 * removed afterwards.
 *
 * CMD's stdin, stdout, stderr and status must be the same as without us, and signals
 * that are sent to us must reach it.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/base/options.h"
#include "shim/self/self.h"
#include "tools/commands/check_descendants.h"
#include "tools/commands/check_findings.h"
#include "tools/commands/check_folder.h"
#include "tools/commands/check_format.h"
#include "tools/commands/check_run.h"
#include "tools/commands/commands.h"
#include "tools/common/known.h"
#include "tools/common/scan.h"
#include "tools/common/start.h"
#include "tools/common/symbols.h"
#include "tools/common/text.h"
#include "tools/commands/report.h"

enum { OPTION_SIMULATE = 128, OPTION_JSON, OPTION_OUTPUT, OPTION_EXITCODE, OPTION_SUPPRESSIONS,
       OPTION_PRINT, OPTION_GENERATE, OPTION_NO_CUDA, OPTION_FORMAT, OPTION_WAIT, OPTION_RUNNING, OPTION_FULL_STACKS, OPTION_COLOR, OPTION_OBSERVE, OPTION_OPENED };
enum { FINDINGS = 99 /* the default exit status */, NOTHING_CHECKED = 98 };
#define WAIT 1000000000u /* ns, the default for processes that CMD leaves running: most are just ending */

static void say_end(struct cu_check_findings *f)
{
	struct cl_emit *e = &f->report->emit;

	e->fold = true;
	cu_check_say_descendants(f);
	cl_emit_line(e, "check");
	cl_emit_number(e, "processes", f->processes, "culimbo: CHECK processes=", "");
	cl_emit_number(e, "used_cuda", f->cuda, " used_cuda=", "");
	cl_emit_number(e, "killed", f->killed, f->killed ? " killed=" : NULL, "");
	cl_emit_number(e, "alive", f->alive, f->alive ? " alive=" : NULL, "");
	cl_emit_number(e, "findings", f->n, " findings=", "");
	cl_emit_number(e, "suppressed", f->suppressed, f->suppressed ? " suppressed=" : NULL, "");
	cl_emit_number(e, "running", f->running, f->running ? " running=" : NULL, "");
	cl_emit_number(e, "unprotected", f->unprotected, f->unprotected ? " unprotected=" : NULL, "");
	cl_emit_number(e, "oom_kills", f->watch->oom_kills, f->watch->oom_kills ? " oom_kills=" : NULL, "");
	cl_emit_number(e, "never_opened", f->never_opened, f->never_opened ? " never_opened=" : NULL, "");
	cl_emit_number(e, "unmanaged_imports", f->unmanaged_imports, f->unmanaged_imports ? " unmanaged_imports=" : NULL, "");
	cl_emit_words(e, "\n");
	cl_emit_line_end(e);
	if (!f->cuda)
		cl_emit_words(e, "culimbo: no CUDA call of any process reached culimbo: nothing was checked\n"
				 "culimbo: (see `culimbo doctor`%s)\n",
			      f->simulated ? "" : ". Without a GPU, --simulate simulates one");
	if (f->cuda && !f->shared && !f->running)
		cl_emit_words(e, "culimbo: CUDA was used, and nothing was shared between processes: there was nothing to check\n");
	if (f->never_opened)
		cl_emit_words(e, "culimbo: %llu process%s exported memory that no process under culimbo opened\n"
				 "culimbo: (nobody did, or who did is not protected; --require-opened fails then)\n",
			      (unsigned long long)f->never_opened, f->never_opened == 1 ? "" : "es");
	if (f->unmanaged_imports)
		cl_emit_words(e, "culimbo: %llu process%s opened memory of a process without culimbo or its file,\n"
				 "culimbo: which may be freed while it is mapped\n",
			      (unsigned long long)f->unmanaged_imports, f->unmanaged_imports == 1 ? "" : "es");
	if (f->alive > f->running_cuda) /* the others have a line */
		cl_emit_words(e, f->alive == 1 ?
				 "culimbo: %llu process that CMD has started still runs: what it will leave is not known\n" :
				 "culimbo: %llu processes that CMD has started still run: what they will leave is not known\n",
			      (unsigned long long)f->alive);
	cl_emit_flush(e);
}

/* ------------------------------------------------------------------- the command */
/*
 * Says which signal killed CMD: this process dies of the same one, and a shell then names this
 * command.  Not of ^C, nor of a closed pipe, which are usual.
 */
static void say_killed(const struct cu_command *command, int status, char **argv)
{
	char cmd[129], clean[sizeof(cmd)];

	if (status == -1 || !WIFSIGNALED(status) || WTERMSIG(status) == SIGINT || WTERMSIG(status) == SIGPIPE)
		return;
	cu_check_command(cmd, sizeof(cmd), argv);
	cu_clean(clean, sizeof(clean), cmd, sizeof(cmd));
	cu_error(command, "CMD (%s) was killed by signal %d (%s)", clean, WTERMSIG(status), strsignal(WTERMSIG(status)));
}

/* Returns why the run counts as failed for another reason than findings; NULL: it does not. */
static const char *why_failed(const struct cu_check_findings *f, int status, bool no_cuda, bool running, bool opened)
{
	static char failed[96];

	if (status != -1 && WIFSIGNALED(status))
		snprintf(failed, sizeof(failed), "CMD was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
	else if (status != -1)
		snprintf(failed, sizeof(failed), "CMD failed: exit status %d", WEXITSTATUS(status));
	else
		snprintf(failed, sizeof(failed), "CMD was not started");
	return status ? failed :
	       !f->cuda && !no_cuda ? "no CUDA call of any process reached culimbo: nothing was checked" :
	       (f->alive || f->running_cuda) && !running ?
				      "processes that use CUDA still run: what they will leave is not known" :
	       f->never_opened && opened ?
				      "memory was exported that no process under culimbo opened" : NULL;
}

/*
 * Writes @from, a file of JSON Lines, to @to.  Returns false, with errno, if it could not be
 * written.
 */
static bool write_format(enum cu_check_format format, int from, int to, const char *cmd, const char *failed)
{
	FILE *in = lseek(from, 0, SEEK_SET) ? NULL : fdopen(dup(from), "r");
	FILE *out = in ? fdopen(dup(to), "w") : NULL;
	bool written = false;

	if (out) {
		cu_check_format_write(format, in, out, cmd, failed);
		written = !ferror(out);
		if (fclose(out))
			written = false;
	}
	if (in)
		fclose(in);
	if (to != STDERR_FILENO)
		close(to);
	return written;
}

static int check(const struct cu_command *command, int argc, char **argv)
{
	static struct cl_report report;
	struct cl_suppressions known = { .n = 0 };
	struct cu_check_findings f = { .report = &report };
	struct cu_check_folder folder = { .own_limbo = false };
	const char *output = NULL, *suppressions = NULL;
	bool simulate = false, json = false, generate = false, no_cuda = false, running = false, opened = false;
	enum cu_check_format format = CU_CHECK_TEXT;
	struct cu_watch watch;
	uint64_t wait = WAIT;
	int out = -1; /* gets a form for CI systems, which is made from the JSON in `fd` */
	char path[PATH_MAX], pattern[256], *end;
	unsigned long exitcode = FINDINGS;
	struct timespec now;
	int got, status, fd = STDERR_FILENO, unwritten = 0;

	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		switch (got) {
		case OPTION_SIMULATE:
			simulate = true;
			break;
		case OPTION_JSON:
			format = CU_CHECK_JSON;
			break;
		case OPTION_FORMAT:
			if (!cu_check_format_read(optarg, &format))
				return cu_usage_error(command, "--format: '%s' is not text, json, junit or github", optarg);
			break;
		case OPTION_WAIT:
			if (!cu_read_wait(optarg, &wait))
				return cu_usage_error(command, "--wait: '%s' is not a time up to 1h: 500ms, 2s, 1m", optarg);
			break;
		case OPTION_RUNNING:
			running = true;
			break;
		case OPTION_OPENED:
			opened = true;
			break;
		case OPTION_OUTPUT:
			output = optarg;
			break;
		case OPTION_PRINT:
			if (setenv("CULIMBO_PRINT_SUPPRESSIONS", "1", 1))
				return CU_FAILED;
			break;
		case OPTION_GENERATE:
			generate = true;
			break;
		case OPTION_FULL_STACKS:
			if (setenv("CULIMBO_FULL_STACKS", "1", 1))
				return CU_FAILED;
			break;
		case OPTION_OBSERVE:
			if (setenv("CULIMBO_MODE", "observe", 1))
				return CU_FAILED;
			break;
		case OPTION_COLOR:
			if (!cu_report_colour(command, optarg))
				return CU_USAGE;
			break;
		case OPTION_NO_CUDA:
			no_cuda = true;
			break;
		case OPTION_SUPPRESSIONS:
			suppressions = optarg;
			break;
		case OPTION_EXITCODE:
			exitcode = strtoul(optarg, &end, 10);
			if (*optarg < '0' || *optarg > '9' || *end || !exitcode || exitcode > 255)
				return cu_usage_error(command, "--error-exitcode: '%s' is not 1 to 255", optarg);
			break;
		default:
			return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
		}
	if (optind >= argc)
		return cu_usage_error(command, "which command?");
	if (generate && format > CU_CHECK_JSON)
		return cu_usage_error(command, "--gen-suppressions writes text or JSON");
	json = format != CU_CHECK_TEXT;
	if (suppressions && !cu_start_suppressions(command, suppressions))
		return CU_FAILED;
	if (output) {
		fd = open(output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0666);
		if (fd < 0) {
			cu_error(command, "%s: %s", output, strerror(errno));
			return CU_FAILED;
		}
	}
	if (format > CU_CHECK_JSON) {
		out = fd;
		fd = (int)syscall(SYS_memfd_create, "culimbo-check", MFD_CLOEXEC);
		if (fd < 0) {
			cu_error(command, "memfd_create: %s", strerror(errno));
			return CU_FAILED;
		}
	}
	/* before LD_PRELOAD is set, which applies to all that we start */
	status = cu_start_prepare(command, argv[optind], true, simulate, path);
	if (status)
		return status;
	cu_start_look_behind(command, argv + optind);
	if (!cu_check_folder_make(command, &folder, true)) {
		cu_check_folder_remove(&folder);
		return CU_FAILED;
	}
	snprintf(pattern, sizeof(pattern), "%s/%%p", folder.reports);
	cu_report_options(command, NULL);
	if (cl_options.suppressions.text[0] &&
	    cu_report_suppressions(command, &known, cl_options.suppressions.text))
		report.suppressions = &known;
	if (known.unknown) { /* before CMD runs: a user believes that it hides something */
		cu_check_folder_remove(&folder);
		return CU_FAILED;
	}
	/* this process applies these options, so that they don't change how CMD ends */
	if (setenv("CULIMBO_STRICT", "1", 0) || setenv("CULIMBO_KEEP_DEAD", "1h", 1) ||
	    setenv("CULIMBO_KEEP_DEAD_BYTES", "0", 1) || setenv("CULIMBO_REPORT", "always", 1) ||
	    setenv("CULIMBO_REPORT_FILE", pattern, 1) ||
	    setenv("CULIMBO_REPORT_FORMAT", "both", 1) ||
	    unsetenv("CULIMBO_PRINT_SUPPRESSIONS") ||
	    ((report.suppressions || generate) && (unsetenv("CULIMBO_SUPPRESSIONS") || unsetenv("CULIMBO_ERROR_EXITCODE")))) {
		cu_check_folder_remove(&folder);
		return CU_FAILED;
	}
	clock_gettime(CLOCK_REALTIME, &now);
	f.began = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	status = cu_check_run(command, path, argv + optind, wait, &watch);
	f.watch = &watch;
	f.simulated = simulate;

	cl_report_begin(&report);
	cl_emit_begin(&report.emit, fd, json);
	report.min_age = cl_options.min_age.number;
	report.suppressions = generate && known.n ? &known : NULL;
	report.generate = generate;
	f.folder = &folder;
	f.suppressions = &known;
	f.symbols = cu_symbols_new();
	f.to = fdopen(dup(fd), "w");
	if (f.symbols && f.to) {
		report.resolve = generate ? cu_symbols_resolve : cu_symbols_resolve_early;
		report.data = f.symbols;
		cu_check_take_reports(&f);
		cu_check_take_files(&f);
		cu_check_tell(&f);
		for (unsigned int i = 0; cl_options.print_suppressions.number && i < known.n; i++)
			if (known.list[i].blocks) {
				report.suppressions = &known;
				cl_report_say_suppressions(&report);
				break;
			}
		if (generate)
			cu_check_say_unsuppressed(&f);
		else
			say_end(&f);
	}
	/* without stderr nobody reads the report */
	if (f.to && output && ferror(f.to))
		unwritten = EIO; /* the reason is no longer known */
	if (f.to && fclose(f.to) && output)
		unwritten = errno;
	if (report.emit.error && output)
		unwritten = report.emit.error;
	if (out >= 0 && !write_format(format, fd, out, argv[optind], why_failed(&f, status, no_cuda, running, opened)) && output)
		unwritten = errno;
	if (unwritten)
		cu_error(command, "cannot write to %s: %s", output, strerror(unwritten));
	free(f.lost);
	cu_symbols_free(f.symbols);
	cl_report_end(&report);
	cl_suppress_free(&known);
	if (f.alive) /* processes that still run must keep their files */
		cu_error(command, "the files of processes that still run stay in %s; when they have ended, `culimbo gc` removes it", folder.path);
	else
		cu_check_folder_remove(&folder);
	cu_check_free(&watch);
	if (fd != STDERR_FILENO)
		close(fd);
	if (status == -1)
		return CU_FAILED;
	if (output || format != CU_CHECK_TEXT || generate) /* else the report has said it */
		say_killed(command, status, argv + optind);
	if (WIFSIGNALED(status) || WEXITSTATUS(status))
		return cu_check_end_as(status);
	if (f.n || unwritten)
		return f.n ? (int)exitcode : CU_FAILED;
	return why_failed(&f, 0, no_cuda, running, opened) ? NOTHING_CHECKED : CU_OK;
}

/*
 * Each process writes its findings at its end to a file of ours.  So it neither waits for names,
 * nor forks, nor asks the dynamic linker anything.
 */
int cu_check_names(const struct cu_command *command, const char *path, char **argv)
{
	static struct cl_report report;
	struct cu_check_findings f = { .report = &report, .to = stderr };
	struct cu_check_folder folder;
	char pattern[256];
	int status;

	cu_report_options(command, NULL);
	if (cl_options.report_file.text[0])
		return cu_usage_error(command, "--names prints to stderr: not with CULIMBO_REPORT_FILE");
	if (!cu_check_folder_make(command, &folder, false)) {
		cu_check_folder_remove(&folder);
		return CU_FAILED;
	}
	snprintf(pattern, sizeof(pattern), "%s/%%p", folder.reports);
	if (setenv("CULIMBO_REPORT_FILE", pattern, 1) || setenv("CULIMBO_REPORT_FORMAT", "both", 1)) {
		cu_check_folder_remove(&folder);
		return CU_FAILED;
	}
	status = cu_check_run(command, path, argv, 0, NULL);
	cl_report_begin(&report);
	cl_emit_begin(&report.emit, STDERR_FILENO, cl_options.report_format.number == CL_FORMAT_JSONL);
	f.folder = &folder;
	f.whole = cl_options.report.number == CL_REPORT_ALWAYS;
	f.symbols = cu_symbols_new();
	cu_check_take_reports(&f);
	cu_check_tell(&f);
	cu_symbols_free(f.symbols);
	cl_report_end(&report);
	cu_check_folder_remove(&folder);
	say_killed(command, status, argv);
	return status == -1 ? CU_FAILED : cu_check_end_as(status);
}

static const struct cu_option options[] = {
	{ "simulate", OPTION_SIMULATE, NULL, "use the simulated driver: no GPU is needed" },
	{ "observe", OPTION_OBSERVE, NULL,
	  "keep nothing, refuse nothing and change no result: each finding says what would have been prevented (CULIMBO_MODE)" },
	{ "format", OPTION_FORMAT, "text|json|junit|github", "the form of the report: text, JSON Lines, JUnit XML, or annotations for GitHub Actions" },
	{ "json", OPTION_JSON, NULL, "the same as --format=json (doc/report-format.md)" },
	{ "output", OPTION_OUTPUT, "FILE", "write the report to FILE (default: stderr)" },
	{ "suppressions", OPTION_SUPPRESSIONS, "FILE", "a file of known findings (CULIMBO_SUPPRESSIONS)" },
	{ "print-suppressions", OPTION_PRINT, NULL, "list the suppressions that matched" },
	{ "gen-suppressions", OPTION_GENERATE, NULL, "print suppressions for the findings, instead of the findings" },
	{ "full-stacks", OPTION_FULL_STACKS, NULL, "show all frames and holders, also CUDA's frames: without it a finding has at most 15 lines" },
	{ "color", OPTION_COLOR, "WHEN", "auto (on a terminal, unless NO_COLOR is set), always or never" },
	{ "allow-no-cuda", OPTION_NO_CUDA, NULL, "do not fail if no CUDA call of CMD reaches culimbo" },
	{ "wait", OPTION_WAIT, "DURATION", "how long to wait, when CMD has ended, for processes that it left running (default 1s)" },
	{ "allow-running", OPTION_RUNNING, NULL, "do not fail if processes that use CUDA still run after that" },
	{ "require-opened", OPTION_OPENED, NULL, "fail also if memory was exported that no process under culimbo opened: an importer without the library may have ended before check saw it" },
	{ "error-exitcode", OPTION_EXITCODE, "N", "the exit status when there are findings (default 99)" },
	{ .name = NULL },
};

static const struct cu_exit exits[] = {
	{ CU_OK, "CMD ended with 0, and nothing was found" },
	{ FINDINGS, "CMD ended with 0, and there are findings (or N of --error-exitcode)" },
	{ NOTHING_CHECKED, "CMD ended with 0, and no CUDA call of any process reached culimbo: nothing was checked (not with --allow-no-cuda); or processes that use CUDA still run (not with --allow-running); or, with --require-opened, memory was exported that no process under culimbo opened" },
	{ CU_FAILED, "CMD was not started, or the report not written: stderr says why, such as a suppression of a class that does not exist" },
	{ CU_USAGE, "the command line is wrong" },
	{ CU_NO_LIBRARY, "a part of culimbo is missing" },
	{ CU_CANNOT_RUN, "CMD cannot be run, or not with the library" },
	{ CU_NOT_FOUND, "CMD was not found; any other status, or signal, is CMD's own" },
	{ 0, NULL },
};

static const struct cu_example examples[] = {
	{ "culimbo check -- pytest tests/ipc", "in CI: fails on leaks and misuse, too" },
	{ "culimbo check --simulate --json --output report.jsonl -- ./my_ipc_test", "without a GPU" },
	{ "culimbo check --observe -- pytest tests/ipc", "the same findings, with every result as without culimbo" },
	{ "culimbo check --format=junit --output=culimbo.xml -- pytest tests/ipc", "for Jenkins, GitLab" },
	{ "culimbo check --format=github -- pytest tests/ipc", "errors at their lines in a pull request" },
	{ "culimbo check --gen-suppressions --output known.supp -- pytest tests/ipc", "writes suppressions for the findings that are known by now" },
	{ "culimbo check --suppressions known.supp -- pytest tests/ipc", "does not report these again" },
	{ .line = NULL },
};

const struct cu_command cu_check = {
	.name = "check",
	.arguments = "[--] CMD [ARGUMENTS]",
	.summary = "run a program, and fail on leaks and misuse; for CI",
	.help = "Runs CMD, and what CMD starts, as `culimbo run` does.  When CMD has ended, prints\n"
		"the findings of all its processes, also of those that were killed.  Fails if there\n"
		"are findings, or if no CUDA call was seen, so that nothing could be checked.  If CMD\n"
		"fails or is killed, that status is returned instead.\n"
		"\n"
		"CULIMBO_STRICT is 1 unless it is set: a block that was freed while another process\n"
		"had it mapped is a finding, though culimbo kept it alive.\n"
		"\n"
		"Also names processes below CMD that use CUDA without the library, that a signal\n"
		"killed, or that still run.  One without the library is a finding if another process\n"
		"exports, and no process under the library opened that, or if a process under the\n"
		"library opened what one without it exports.  check sees such a process only while it runs, and may miss one that lives for a few milliseconds.  What it\n"
		"leaves is never_opened in the last line: that some memory was exported, and opened by\n"
		"no process under the library.  --require-opened makes check fail then.\n"
		"\n"
		"A process that shared and was killed is always named.  The signal is known of all\n"
		"where the kernel tells check how processes end: not in a container, and before\n"
		"Linux 6.6 as root only.  Elsewhere it is known if check saw the process while it ran\n"
		"(and Linux is 6.15 or later, or CMD had left the process behind); one that was\n"
		"killed and had shared nothing may not be seen at all.\n"
		"\n"
		"check sets CULIMBO_REPORT, CULIMBO_REPORT_FILE and CULIMBO_REPORT_FORMAT itself, and\n"
		"uses a CULIMBO_DIR of its own unless one is set.  It applies suppressions when CMD\n"
		"has ended, with functions and source files.  A line CLASS:stack:PATTERN;... hides\n"
		"findings of one class, such as not-closed.  With suppressions,\n"
		"CULIMBO_ERROR_EXITCODE has no effect.",
	.options = options,
	.exits = exits,
	.examples = examples,
	.run = check,
};
