/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts: many processes, and processes that are stopped amid their calls.
 */
#include "tests/bench/parts.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim/limbo/collector.h"
#include "shim/limbo/exporter.h"
#include "shim/shim.h"

/* ------------------------------------------------------------- stopped amid calls */
/*
 * Two other processes, an exporter and an importer, make calls without pause and are
 * stopped at a random place.  If they held a lock that others need, or blocked others in
 * another way, those would wait until the end of this test, and it would notice.
 */
enum { SPARE = 16 }; /* blocks that are left for the process that goes on */

static void busy_exporter(void)
{
	helper_wait(1);
	while (used < board->n)
		op_export_new(0);
	n_blocks = 2;
	helper_did(1);
	for (uint64_t run = 0;; run++) {
		op_export_again(run);
		op_free_other(run);
		cl_limbo_collect(&cl_exporter, false);
		/* on command it makes each call once while the other is stopped, frees as well */
		if (atomic_load(&board->ready) == 1) {
			op_export_again(run);
			op_free_other(run);
			MUST(cl_memory_free(block_at(SPARE + board->first)) == CUDA_SUCCESS);
			cl_limbo_collect(&cl_exporter, false);
			atomic_store(&board->ready, 0);
		}
	}
}

static void busy_importer(void)
{
	for (uint64_t i = 0;; i++) {
		CUdeviceptr p;

		MUST(cl_memory_import(&p, board->handle[1], 0, null_open) == CUDA_SUCCESS);
		MUST(cl_memory_close(p) == CUDA_SUCCESS);
		atomic_store(&board->first, i);
	}
}

static void stop(pid_t child)
{
	int status;

	MUST(kill(child, SIGSTOP) == 0);
	MUST(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
}

int stopped(int argc, char **argv)
{
	uint64_t n = strtoull(argv[0], NULL, 0), slowest = 0, start, end;
	pid_t theirs, importer;
	CUdeviceptr p, q;

	(void)argc;
	make_board(SPARE + n);
	theirs = helper_start(busy_exporter);
	helper_do(0, SPARE + n);
	importer = helper_start(busy_importer);
	prepare();
	alarm(100);
	MUST(cl_memory_import(&p, board->handle[2], 0, null_open) == CUDA_SUCCESS);
	for (uint64_t i = 0; i < n; i++) {
		/* a stride that differs from theirs */
		nanosleep(&(struct timespec){ 0, (long)(i * 7919 % 500000) }, NULL);
		stop(importer);
		board->first = i;
		end = bench_now() + 10000000000u;
		atomic_store(&board->ready, 1);
		while (atomic_load(&board->ready))
			MUST(bench_now() < end);
		stop(theirs);
		start = bench_now();
		MUST(cl_memory_import(&q, board->handle[2], 0, null_open) == CUDA_SUCCESS);
		MUST(cl_memory_close(q) == CUDA_SUCCESS);
		MUST(cl_memory_import(&q, board->handle[3], 0, null_open) == CUDA_SUCCESS);
		MUST(cl_memory_close(q) == CUDA_SUCCESS);
		if (bench_now() - start > slowest)
			slowest = bench_now() - start;
		MUST(kill(theirs, SIGCONT) == 0 && kill(importer, SIGCONT) == 0);
	}
	say_value("stopped", (double)n, "times");
	say_value("slowest", (double)slowest / 1e3, "us");
	kill(theirs, SIGKILL);
	kill(importer, SIGKILL);
	while (wait(NULL) > 0)
		;
	cl_process_end(0);
	return 0;
}

/* ------------------------------------------------------------ many processes */
/* a thousand processes that poll each 0.1 ms would slow those that are measured */
static void wait_among_many(_Atomic uint32_t *what, uint32_t value)
{
	uint64_t end = bench_now() + 120000000000u;

	while (atomic_load(what) != value) {
		MUST(bench_now() < end);
		nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
	}
}

static void body_hold(unsigned int i)
{
	uint64_t start = bench_now();
	CUdeviceptr p;

	MUST(cl_memory_import(&p, board->handle[0], 0, null_open) == CUDA_SUCCESS);
	board->taken[i] = bench_now() - start;
	atomic_fetch_add(&board->done, 1);
	wait_among_many(&board->step, 1);
	MUST(cl_memory_close(block_at(0) + MAPPED_AT) == CUDA_SUCCESS);
}

static void body_start(unsigned int i)
{
	uint64_t start;
	CUipcMemHandle handle;

	atomic_fetch_add(&board->done, 1);
	while (!atomic_load(&board->step))
		sched_yield();
	start = bench_now();
	MUST(cl_memory_export(&handle, block_at(i)) == CUDA_SUCCESS);
	board->taken[i] = bench_now() - start;
	atomic_fetch_add(&board->ready, 1);
	while (atomic_load(&board->step) == 1)
		moment();
}

static void many(unsigned int n, void (*body)(unsigned int))
{
	for (unsigned int i = 0; i < n; i++) {
		pid_t child = fork();

		MUST(child >= 0);
		if (child)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		prepare();
		body(i);
		cl_process_end(0);
		_exit(0);
	}
	wait_for(&board->done, n);
}

static void join(unsigned int n)
{
	for (unsigned int i = 0; i < n; i++) {
		int status;

		MUST(wait(&status) > 0);
		MUST(WIFEXITED(status) && !WEXITSTATUS(status));
	}
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void say_taken(const char *name, unsigned int n)
{
	char longer[64];

	qsort(board->taken, n, sizeof board->taken[0], by_size);
	snprintf(longer, sizeof longer, "%s-median", name);
	say_ns(longer, (double)board->taken[n / 2]);
	snprintf(longer, sizeof longer, "%s-slowest", name);
	say_ns(longer, (double)board->taken[n - 1]);
}

int holders(int argc, char **argv)
{
	unsigned int n = (unsigned int)atoi(argv[0]);
	uint64_t file, end;

	(void)argc;
	MUST(n <= 1024);
	make_board(1);
	prepare();
	op_export_new(0);
	file = file_bytes();
	/* a forked child drops what this process shares, and shares nothing yet */
	many(n, body_hold);
	MUST(cl_record_holders(&cl_own, 0, NULL, 0) == n);
	say_value("holders", n, "processes");
	say_taken("holders-first-open", n);
	say_value("holders-file-grew", (double)(file_bytes() - file) / 1024, "KiB");
	MUST(cl_memory_free(block_at(0)) == CUDA_SUCCESS);
	MUST(cl_own.header->limbo_blocks == 1);
	atomic_store(&board->step, 1);
	end = bench_now() + 60000000000u;
	while (atomic_load(&cl_own.header->limbo_blocks)) {
		MUST(bench_now() < end);
		moment();
	}
	join(n);
	cl_process_end(0);
	return 0;
}

int starts(int argc, char **argv)
{
	unsigned int n = (unsigned int)atoi(argv[0]);

	(void)argc;
	MUST(n <= 1024);
	make_board(1);
	many(n, body_start);
	atomic_store(&board->step, 1);
	while (atomic_load(&board->ready) != n)
		moment();
	say_taken("starts-first-export", n);
	atomic_store(&board->step, 2);
	join(n);
	return 0;
}
