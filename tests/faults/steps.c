/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests promise 4, that the program is never harmed.  It fails each call and each allocation
 * of libculimbo in turn: the Nth one, for N from 1 until a run makes fewer.
 *
 *   steps exporter | importer    in that process
 *   steps growing                in an exporter of 520 more blocks, which needs a second
 *                                chunk of records and larger tables; only those calls
 *   steps virtual-exporter | virtual-importer
 *                                in that process, when virtual memory is shared
 *   steps async-exporter | async-importer
 *                                the same when memory of the default pool is
 *
 * judge.h says what must hold after each failure.  A run afterwards must be normal.  The
 * stepper itself is started with libculimbo and inject.so preloaded; each run forks it
 * twice.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/faults/inject.h"
#include "tests/faults/judge.h"

enum {
	SHOWN_FAILURES = 40,
	FAILED_MOST = 20000, /* more of one call in a run is a thread that spins */
};

static struct inject_plan **plan_of_library;
static const struct inject_row *rows;
static struct inject_plan *plan;
static bool in_importer;
static char left_behind[600]; /* a dead exporter's file, outside of CULIMBO_DIR */
static int runs;

struct sums {
	int failed, runs, foreign, kept, refused, wrong, said;
};

static void count_from_now(void)
{
	atomic_store(&plan->pid, getpid());
}

static void begins(bool is_importer)
{
	if (is_importer == in_importer && !scenario_virtual)
		count_from_now();
	*plan_of_library = plan;
}
static struct run faulty = { .begins = begins };

static void run(void)
{
	runs++;
	atomic_store(&plan->pid, 0);
	atomic_store(&plan->failed, 0);
	for (int i = 0; i < INJECT_CALLS_N; i++)
		atomic_store(&plan->made[i], 0);
	judge_run(&faulty);
}

/* Makes one run with the failure that @plan describes.  False: no call was failed. */
static bool step(struct sums *sums)
{
	const char *wrong;

	judge_empty_folder();
	/* add a dead exporter's file for the run to remove, unless the folder must be missing */
	if (plan->call != INJECT_mkdir && !mkdir(judge_folder(), 0700)) {
		char to[700];

		snprintf(to, sizeof to, "%s%s", judge_folder(), strrchr(left_behind, '/'));
		if (link(left_behind, to)) {
			perror(to);
			exit(2);
		}
	}
	run();
	sums->runs++;
	sums->failed += atomic_load(&plan->failed);
	sums->foreign += importer.verdict.foreign;
	sums->kept += exporter.verdict.kept;
	sums->refused += exporter.verdict.refused != 0;
	sums->said += judge_warned(&importer) || judge_warned(&exporter);
	/* the exporter's file is opened again if fstat() cannot tell whether its descriptor is still ours */
	if (plan->call == INJECT_fstat && importer.verdict.left == 1)
		importer.verdict.left = 0;
	wrong = judge_what(plan->call == INJECT_calloc || plan->call == INJECT_malloc ||
			   plan->call == INJECT_realloc);
	if (wrong && ++sums->wrong <= SHOWN_FAILURES) {
		printf("# %s %d%s, %s: %s\n", rows[plan->call].name, plan->nth,
		       plan->for_good ? " and all after" : "", strerrorname_np(plan->error), wrong);
		judge_show();
	}
	if (!wrong && atomic_load(&plan->failed) > FAILED_MOST) {
		sums->wrong++;
		printf("# %s %d and all after: it was made %d times\n", rows[plan->call].name, plan->nth,
		       atomic_load(&plan->failed));
	}
	return atomic_load(&plan->failed) != 0;
}

/*
 * Of virtual memory, calls are failed that the other parts make not, or for less.  From there on all fail
 * but those without which the exporter does not answer: then each open waits for its whole time.
 */
static bool is_of_virtual(int call)
{
	return call <= INJECT_realloc || call == INJECT_fstat || call == INJECT_fstatat || call == INJECT_fchmodat ||
	       call == INJECT_unlinkat || call == INJECT_nanosleep || call == INJECT_pthread_clockjoin_np ||
	       (call >= INJECT_socket && call <= INJECT_pthread_setname_np);
}

static bool fails_for_good(int call, int nth)
{
	/* no call fails with EINTR for ever */
	if (rows[call].errors[0] == EINTR)
		return false;
	if (!scenario_virtual || in_importer)
		return true;
	return call == INJECT_poll ? nth == 1 : call != INJECT_accept4;
}

/* Fails every call of one kind; ends when a run makes fewer than N of them. */
static void step_through(int call, struct sums *sums)
{
	const struct inject_row *row = &rows[call];

	plan->call = call;
	for (plan->nth = 1;; plan->nth++) {
		plan->for_good = 0;
		for (int i = 0; i < INJECT_ERRORS && row->errors[i]; i++) {
			plan->error = row->errors[i];
			if (!step(sums) && i == 0)
				return;
		}
		plan->error = row->errors[0];
		plan->for_good = fails_for_good(call, plan->nth);
		if (plan->for_good)
			step(sums);
	}
}

/* Leaves a dead exporter's file for the others to find: kills an exporter. */
static void make_left_behind(void)
{
	static const struct run plain;
	struct pollfd exported = { .events = POLLIN };
	struct dirent *entry;
	char from[700];
	int line[2];
	DIR *dir;

	judge_empty_folder();
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line))
		exit(2);
	judge_start(&exporter, line[0], line[1], false, &plain);
	close(line[0]);
	exported.fd = line[1];
	if (poll(&exported, 1, RUN_SECONDS * 1000) != 1) {
		fprintf(stderr, "steps: the exporter exports nothing\n");
		exit(2);
	}
	kill(exporter.pid, SIGKILL);
	judge_finish(&exporter);
	close(line[1]);
	dir = opendir(judge_folder());
	while (dir && (entry = readdir(dir)) != NULL) {
		if (strncmp(entry->d_name, "exporter-", 9) != 0)
			continue;
		/* the file must keep its name */
		snprintf(from, sizeof from, "%s/%s", judge_folder(), entry->d_name);
		snprintf(left_behind, sizeof left_behind, "%s.aside/%s", judge_folder(),
			 entry->d_name);
		if (rename(from, left_behind)) {
			perror(left_behind);
			exit(2);
		}
	}
	if (dir)
		closedir(dir);
	if (!*left_behind) {
		fprintf(stderr, "steps: the exporter left no file (%s)\n", exporter.said);
		exit(2);
	}
}

static void step_through_all(const char *role)
{
	struct sums all = { 0 };

	for (int call = 0; call < INJECT_CALLS_N; call++) {
		struct sums sums = { 0 };

		if (scenario_more_blocks && call != INJECT_malloc && call != INJECT_realloc &&
		    call != INJECT_fallocate)
			continue;
		if (scenario_virtual && !is_of_virtual(call))
			continue;

		step_through(call, &sums);
		all.failed += sums.failed;
		/* without protection an importer gets the driver's result; exported blocks are kept */
		if (sums.failed)
			ok(!sums.wrong && (in_importer || !sums.foreign),
			   "%s of the %s: %d failed in %d runs; %d times it is said, memory "
			   "kept %d times, exports refused %d times, unprotected %d times%s", rows[call].name,
			   role, sums.failed, sums.runs, sums.said, sums.kept, sums.refused, sums.foreign,
			   sums.wrong ? " (see above)" : "");
		else
			ok(!sums.wrong, "%s of the %s: none was made", rows[call].name, role);
		if (call == INJECT_calloc && !in_importer)
			ok(sums.refused > 0, "without memory to note it, an export is refused");
	}
	plan->nth = 0;
	run();
	ok(!judge_what(false) && judge_files() == 0, "afterwards, all is as before, and no file is left");
	ok(all.failed > 20, "%d calls of the %s were failed, in %d runs", all.failed, role, runs);
}

int main(int argc, char **argv)
{
	struct sums once = { 0 };
	const char *wrong;
	char aside[600];

	plan_of_library = dlsym(RTLD_DEFAULT, "inject_plan");
	rows = dlsym(RTLD_DEFAULT, "inject_rows");
	if (argc != 2 || !judge_folder() || !plan_of_library || !rows) {
		fprintf(stderr, "steps: run.sh starts me\n");
		return 2;
	}
	scenario_async = !strncmp(argv[1], "async-", 6);
	scenario_virtual = scenario_async || !strncmp(argv[1], "virtual-", 8);
	in_importer = !strcmp(argv[1] + (scenario_async ? 6 : scenario_virtual ? 8 : 0), "importer");
	/* what went before is that of a block, and failed in the other parts */
	if (scenario_virtual)
		*(in_importer ? &faulty.importer_condition : &faulty.exporter_condition) = count_from_now;
	if (!strcmp(argv[1], "growing"))
		scenario_more_blocks = 520;
	plan = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (plan == MAP_FAILED)
		return 2;
	snprintf(aside, sizeof aside, "%s.aside", judge_folder());
	mkdir(aside, 0700);
	make_left_behind();

	step(&once);
	wrong = judge_what(false);
	ok(!wrong && !importer.verdict.foreign && !exporter.verdict.kept && !exporter.verdict.reused,
	   "nothing failed: the importer reads its own bytes and the memory comes back%s%s",
	   wrong ? ": " : "", wrong ? wrong : "");
	ok(!strstr(importer.said, "culimbo[") && !strstr(exporter.said, "culimbo["),
	   "and nobody says anything (but the exporter's report: it freed a block twice)");
	ok(judge_files() == 0, "no file is left, not even the dead exporter's");
	ok(atomic_load(&plan->made[INJECT_fcntl]) > 0, "calls of libculimbo are seen");
	if (judge_failures()) /* the other tests would prove nothing */
		judge_show();
	else
		step_through_all(argv[1]);
	judge_empty_folder();
	unlink(left_behind);
	rmdir(aside);
	return judge_end();
}
