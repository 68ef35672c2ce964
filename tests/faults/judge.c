/* SPDX-License-Identifier: Apache-2.0 */
/* See judge.h. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/faults/judge.h"

struct side exporter, importer;
static int number, failures;

/* ------------------------------------------------------------------ one process */
void judge_start(struct side *side, int other, int close_too, bool in_importer,
		 const struct run *run)
{
	int up[2];

	memset(side, 0, sizeof *side);
	side->err = memfd_create("err", MFD_CLOEXEC);
	if (side->err < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, up)) {
		perror("judge");
		exit(2);
	}
	side->up = up[0];
	fflush(stdout);
	side->pid = fork();
	if (side->pid < 0) {
		perror("fork");
		exit(2);
	}
	if (side->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(side->err, STDERR_FILENO);
		close(side->err);
		close(up[0]);
		if (close_too >= 0)
			close(close_too);
		if (run->begins)
			run->begins(in_importer);
		scenario_condition = in_importer ? run->importer_condition : run->exporter_condition;
		if (in_importer)
			play_importer(other, up[1]);
		play_exporter(other, up[1]);
	}
	close(up[1]);
}

static volatile sig_atomic_t over;
static void is_over(int signal)
{
	over = signal;
}

void judge_finish(struct side *side)
{
	ssize_t n;

	while (waitpid(side->pid, &side->status, 0) < 0) {
		if (errno != EINTR || !over)
			continue;
		kill(side->pid, SIGKILL);
		waitpid(side->pid, &side->status, 0);
		side->status = -1;
		break;
	}
	side->has_verdict = recv(side->up, &side->verdict, sizeof side->verdict, MSG_DONTWAIT) ==
			    sizeof side->verdict;
	n = pread(side->err, side->said, SAID - 1, 0);
	side->said[n > 0 ? n : 0] = 0;
	close(side->err);
	close(side->up);
}

void judge_run(const struct run *run)
{
	struct sigaction action = { .sa_handler = is_over }; /* without SA_RESTART */
	int line[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line)) {
		perror("judge");
		exit(2);
	}
	judge_start(&exporter, line[0], line[1], false, run);
	judge_start(&importer, line[1], line[0], true, run);
	close(line[0]);
	close(line[1]);
	over = 0;
	sigaction(SIGALRM, &action, NULL);
	alarm(RUN_SECONDS);
	judge_finish(&importer);
	judge_finish(&exporter);
	alarm(0);
}

/* ------------------------------------------------------------------ the judgement */
static bool line_has(const char *said, const char *word)
{
	for (const char *line = said; *line;) {
		const char *end = strchrnul(line, '\n'), *at = strstr(line, word);

		if (at && at < end)
			return true;
		line = *end ? end + 1 : end;
	}
	return false;
}

bool judge_warned(const struct side *side)
{
	return line_has(side->said, "]: warning: ") || line_has(side->said, "]: error: ");
}

static bool says_twice(const char *said)
{
	for (const char *line = said; *line;) {
		const char *end = strchrnul(line, '\n');
		size_t length = (size_t)(end - line);
		const char *rest = *end ? end + 1 : end;

		/* a line of the report may appear twice */
		if (!strncmp(line, "culimbo[", 8))
			for (const char *other = rest; *other;) {
				const char *other_end = strchrnul(other, '\n');

				if ((size_t)(other_end - other) == length &&
				    !memcmp(line, other, length))
					return true;
				other = *other_end ? other_end + 1 : other_end;
			}
		line = rest;
	}
	return false;
}

static const char *what_of(const struct side *side, const char *name, int status)
{
	static char text[160];

	if (side->status == -1)
		snprintf(text, sizeof text, "the %s hangs", name);
	else if (WIFSIGNALED(side->status))
		snprintf(text, sizeof text, "the %s is killed by signal %d", name,
			 WTERMSIG(side->status));
	else if (!side->has_verdict || WEXITSTATUS(side->status) != status)
		snprintf(text, sizeof text, "the %s ends with %d", name,
			 WEXITSTATUS(side->status));
	else if (side->verdict.wrong_line)
		snprintf(text, sizeof text, "the %s is told %d instead of %d (scenario.c:%d)", name,
			 side->verdict.wrong_result, side->verdict.wrong_wanted,
			 side->verdict.wrong_line);
	else if (says_twice(side->said))
		snprintf(text, sizeof text, "the %s says something twice", name);
	else
		return NULL;
	return text;
}

const char *judge_what(bool no_memory)
{
	const char *wrong = what_of(&importer, "importer", IMPORTER_STATUS);
	bool warned = judge_warned(&importer) || judge_warned(&exporter);

	if (wrong)
		return wrong;
	wrong = what_of(&exporter, "exporter", EXPORTER_STATUS);
	if (wrong)
		return wrong;
	if (importer.verdict.left)
		return "the importer has descriptors left";
	if (exporter.verdict.left)
		return "a hold is left";
	if (importer.verdict.failed && !warned)
		return "an open fails, and nothing was said";
	if (scenario_virtual && !scenario_async && exporter.verdict.kept)
		return "virtual memory is kept";
	if (exporter.verdict.refused && !no_memory && !scenario_virtual)
		return "an export is refused";
	if (exporter.verdict.refused && !judge_warned(&exporter))
		return "an export is refused, and nothing was said";
	if (importer.verdict.foreign && !warned)
		return "foreign bytes are read, and nothing was said";
	if (exporter.verdict.kept && !warned)
		return "memory is kept, and nothing was said";
	return NULL;
}

/* ------------------------------------------------------------------- the folder */
const char *judge_folder(void)
{
	return getenv("CULIMBO_DIR");
}

void judge_empty_folder(void)
{
	DIR *dir = opendir(judge_folder());
	struct dirent *entry;

	if (!dir)
		return;
	while ((entry = readdir(dir)) != NULL)
		if (*entry->d_name != '.')
			unlinkat(dirfd(dir), entry->d_name, 0);
	closedir(dir);
	rmdir(judge_folder());
}

unsigned int judge_files(void)
{
	DIR *dir = opendir(judge_folder());
	struct dirent *entry;
	unsigned int n = 0;

	if (!dir)
		return 0;
	while ((entry = readdir(dir)) != NULL)
		n += *entry->d_name != '.';
	closedir(dir);
	return n;
}

/* ---------------------------------------------------------------------- results */
void ok(bool holds, const char *format, ...)
{
	va_list args;

	printf("%sok %d - ", holds ? "" : "not ", ++number);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
	failures += !holds;
}

void skip(const char *format, ...)
{
	va_list args;

	printf("ok %d # SKIP ", ++number);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

static void show(const char *name, const char *said)
{
	for (const char *line = said; *line;) {
		const char *end = strchrnul(line, '\n');

		printf("#     %s: %.*s\n", name, (int)(end - line), line);
		line = *end ? end + 1 : end;
	}
}

void judge_show(void)
{
	show("exporter", exporter.said);
	show("importer", importer.said);
	fflush(stdout);
}

int judge_failures(void)
{
	return failures;
}

int judge_end(void)
{
	printf("1..%d\n", number);
	fflush(stdout);
	return failures != 0;
}
