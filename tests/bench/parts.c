/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures how culimbo's own cost grows with N.  shim/ is linked to a driver that does
 * nothing, so only our code is measured, and a million blocks need no GPU.  The processes
 * and the exporter file are real.
 *
 *   parts [--count] exporter N    frees, collects, releases and reaps, with N blocks
 *   parts [--count] importer N    opens and closes blocks of an exporter of N blocks
 *   parts [--count] pool-exporter N, pool-importer N   the same for blocks of pools
 *   parts [--count] virtual-exporter N   handles of N mappings of virtual memory
 *   parts [--count] async-exporter N   handles of N blocks of a pool
 *   parts holders N               N processes hold one block
 *   parts starts N                N processes make their first export at once
 *   parts stopped N               stops processes amid their calls, N times; no other may wait for them
 *   parts pieces N                times the system calls and libc calls that we need, N times a round
 *   parts built 0                 prints the compiler and libc: only counts of the same ones compare
 *
 * CULIMBO_* variables of the environment apply (CULIMBO_STACK, say), but for three: the
 * grace is 0, the report is off, and the directory is our own.
 */
#include "tests/bench/parts.h"

#include <gnu/libc-version.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/limbo/collector.h"
#include "shim/limbo/exporter.h"
#include "shim/limbo/reap.h"
#include "shim/self/self.h"
#include "shim/shim.h"

/* --------------------------------------------------------------- the exporter */
CUdeviceptr block_at(uint64_t i)
{
	return FIRST_BLOCK + i * BLOCK_STEP;
}

uint64_t n_blocks; /* blocks that wait in the limbo, or are held */
uint64_t used;	  /* the first spare block that is not used up */

void op_export_new(uint64_t run)
{
	(void)run;
	MUST(cl_memory_export(&board->handle[used], block_at(used)) == CUDA_SUCCESS);
	used++;
}
void op_export_again(uint64_t run)
{
	CUipcMemHandle handle;

	(void)run;
	MUST(cl_memory_export(&handle, block_at(n_blocks / 2)) == CUDA_SUCCESS);
}
static void op_export_refused(uint64_t run)
{
	CUipcMemHandle handle;

	(void)run;
	MUST(cl_memory_export(&handle, REFUSED_BLOCK) == CUDA_ERROR_NOT_SUPPORTED);
}
void op_free_other(uint64_t run)
{
	/* another block each time, so that caches help no more than in a real program */
	MUST(cl_memory_free(block_at((1u << 24) + run * 64)) == CUDA_SUCCESS);
}
static void op_free_limbo(uint64_t run)
{
	(void)run;
	MUST(cl_memory_free(block_at(used++)) == CUDA_SUCCESS);
}
static void op_free_now(uint64_t run)
{
	(void)run;
	MUST(cl_memory_free(block_at(used++)) == CUDA_SUCCESS);
}
static void op_collect(uint64_t run)
{
	(void)run;
	MUST(cl_limbo_collect(&cl_exporter, false).blocks == 0);
}

/* Opens blocks 0 .. n, then closes those that it is told to, until it is killed. */
static void importer_helper(void)
{
	for (uint32_t step = 1;; step++) {
		helper_wait(step);
		for (uint64_t i = board->first; i < board->first + board->n; i++) {
			CUdeviceptr p;

			if (step == 1)
				MUST(cl_memory_import(&p, board->handle[i], 0, null_open) ==
				     CUDA_SUCCESS);
			else
				MUST(cl_memory_close(block_at(i) + MAPPED_AT) == CUDA_SUCCESS);
		}
		helper_did(step);
	}
}

static int exporter(int argc, char **argv)
{
	uint64_t n = strtoull(argv[0], NULL, 0), k = n < 1000 ? n : 1000, total, heap, file, start;
	uint64_t spare = measure_runs(1000), now_n = 2 * measure_runs(1000), grace_n = measure_runs(1000);
	struct cl_collected collected;
	pid_t helper;

	(void)argc;
	/*
	 * n blocks wait in the limbo; then `spare` held ones are freed; then now_n that nobody holds, and grace_n that
	 * wait for their grace
	 */
	total = n + spare + now_n + grace_n;
	n_blocks = n;
	make_board(total);
	helper = helper_start(importer_helper);
	prepare();
	op_export_new(0);
	heap = heap_bytes();
	file = file_bytes();
	start = bench_now();
	while (used < total)
		op_export_new(0);
	say_ns("export-new", (double)(bench_now() - start) / (double)(total - 1));
	if (total >= 100000) { /* with fewer, the steps of the file and of the hash decide */
		say_value("shared-bytes-a-block", (double)(file_bytes() - file) / (double)(total - 1),
			  "bytes");
		say_value("private-bytes-a-block", (double)(heap_bytes() - heap) / (double)(total - 1),
			  "bytes");
		say_value("resident-private", rollup("Anonymous:") / 1024, "MiB");
	}
	measure("export-again", op_export_again, 10000);
	op_export_refused(0); /* the first refusal makes a note with all that the driver says of the memory */
	measure("export-refused", op_export_refused, 10000);
	measure("free-not-exported", op_free_other, 10000);
	helper_do(0, n + spare);
	if (total >= 100000)
		say_value("shared-bytes-a-held-block",
			  (double)(file_bytes() - file) / (double)(total - 1), "bytes");
	start = bench_now();
	for (uint64_t i = 0; i < n; i++)
		MUST(cl_memory_free(block_at(i)) == CUDA_SUCCESS);
	say_ns("free-into-limbo-all", (double)(bench_now() - start) / (double)n);
	used = n;
	measure("free-into-limbo", op_free_limbo, 1000);
	/* from here on this thread collects, so no other waits for a lock during the count */
	MUST(cl_collector_stop(&cl_exporter, 10000000000u));
	/* after 100 ms it looks at the name of its file, too */
	measure_at_once("free-nobody-holds", op_free_now, 1000);
	cl_options.grace.number = 3600000000000u;
	measure("free-into-grace", op_free_limbo, 1000);
	cl_options.grace.number = 0;
	MUST(cl_limbo_collect(&cl_exporter, true).blocks == grace_n);
	measure("collect-nothing", op_collect, 10000);
	helper_do(0, k);
	start = bench_now();
	collected = cl_limbo_collect(&cl_exporter, false);
	say_ns("release-a-block", (double)(bench_now() - start) / (double)k);
	MUST(collected.blocks == k);
	kill(helper, SIGKILL);
	MUST(waitpid(helper, NULL, 0) == helper);
	do {
		start = bench_now();
		cl_limbo_reap(&cl_exporter);
	} while (!cl_count_get(dead_holders));
	say_value("reap-held-all", (double)(bench_now() - start) / 1e6, "ms");
	MUST(cl_count_get(findings[CL_FINDING_HOLD_RECLAIMED]) == n + spare - k);
	start = bench_now();
	collected = cl_limbo_collect(&cl_exporter, false);
	say_ns("release-the-rest-a-block", (double)(bench_now() - start) / (double)(n + spare - k));
	MUST(collected.blocks == n + spare - k);
	cl_process_end(0);
	return 0;
}

/* A process that holds only one of n blocks dies. */
static void single_helper(void)
{
	CUdeviceptr p;

	helper_wait(1);
	MUST(cl_memory_import(&p, board->handle[0], 0, null_open) == CUDA_SUCCESS);
	helper_did(1);
	pause();
}
static int reap(int argc, char **argv)
{
	uint64_t n = strtoull(argv[0], NULL, 0), start;
	pid_t helper;

	(void)argc;
	make_board(n);
	helper = helper_start(single_helper);
	prepare();
	while (used < n)
		op_export_new(0);
	helper_do(0, 1);
	kill(helper, SIGKILL);
	MUST(waitpid(helper, NULL, 0) == helper);
	do {
		start = bench_now();
		cl_limbo_reap(&cl_exporter);
	} while (!cl_count_get(dead_holders));
	say_value("reap-held-one", (double)(bench_now() - start) / 1e6, "ms");
	cl_process_end(0);
	return 0;
}

/* --------------------------------------------------------------- the importer */
static void exporter_helper(void)
{
	uint32_t step = 1;

	helper_wait(step);
	while (used < board->n)
		op_export_new(0);
	helper_did(step);
	/* then frees the blocks that it is told to, and sleeps */
	for (;;) {
		helper_wait(++step);
		for (uint64_t i = board->first; i < board->first + board->n; i++)
			MUST(cl_memory_free(block_at(i)) == CUDA_SUCCESS);
		while (board->n && !atomic_load(&cl_own.header->sleeping))
			moment();
		helper_did(step);
		while (atomic_load(&board->step) == step) {
			/* for the process that measures wake-ups */
			atomic_store(&board->ready,
				     cl_own.header && atomic_load(&cl_own.header->sleeping));
			sched_yield();
		}
	}
}

static void op_open_new(uint64_t run)
{
	CUdeviceptr p;

	(void)run;
	MUST(cl_memory_import(&p, board->handle[used++], 0, null_open) == CUDA_SUCCESS);
}
static void op_open_again(uint64_t run)
{
	CUdeviceptr p;

	(void)run;
	MUST(cl_memory_import(&p, board->handle[0], 0, null_open) == CUDA_SUCCESS);
}
static void op_close_again(uint64_t run)
{
	(void)run;
	MUST(cl_memory_close(block_at(0) + MAPPED_AT) == CUDA_SUCCESS);
}
static void op_close_last(uint64_t run)
{
	(void)run;
	MUST(cl_memory_close(block_at(used++) + MAPPED_AT) == CUDA_SUCCESS);
}

static int importer(int argc, char **argv)
{
	uint64_t n = strtoull(argv[0], NULL, 0), each = measure_runs(1000), total = n + 2 * each + 64;
	pid_t helper;

	(void)argc;
	/* closed while the exporter uses them, while they are in the limbo, while the collector sleeps */
	make_board(total);
	helper = helper_start(exporter_helper);
	helper_do(0, total);
	prepare();
	while (used < n)
		op_open_new(0);
	measure("open-new", op_open_new, 1000);
	while (used < total)
		op_open_new(0);
	measure("open-again", op_open_again, 1000);
	measure("close-again", op_close_again, 1000);
	used = n;
	measure("close-last", op_close_last, 1000);
	helper_do(used, each + 64);
	measure("close-last-in-limbo", op_close_last, 1000);
	for (int i = 0; i < 64 && !bench_counting; i++) {
		uint64_t start;

		while (!atomic_load(&board->ready))
			sched_yield();
		moment();
		start = bench_now();
		op_close_last(0);
		say_ns("close-last-wakes", (double)(bench_now() - start));
		atomic_store(&board->ready, 0);
	}
	kill(helper, SIGKILL);
	waitpid(helper, NULL, 0);
	cl_process_end(0);
	return 0;
}

/* Prints the compiler, its options and the libc: counts depend on these. */
static int built(int argc, char **argv)
{
	(void)argc, (void)argv;
#if defined __x86_64__
	printf("x86_64 ");
#else
	printf("aarch64 ");
#endif
#if defined __clang__
	printf("clang-%d", __clang_major__);
#else
	printf("gcc-%d", __GNUC__);
#endif
#if !defined __OPTIMIZE__
	printf("-O0");
#endif
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
	printf("-sanitized");
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
	printf("-sanitized");
#endif
#endif
	printf(" glibc-%s\n", gnu_get_libc_version());
	return 0;
}

/* ------------------------------------------------------------------------ main */
static const struct {
	const char *name;
	int (*body)(int, char **);
} bodies[] = {
	{ "exporter", exporter }, { "importer", importer }, { "reap", reap },
	{ "holders", holders },	  { "starts", starts },	    { "stopped", stopped },
	{ "pieces", pieces },	  { "built", built },
	{ "pool-exporter", pool_exporter },
	{ "pool-importer", pool_importer },
	{ "virtual-exporter", virtual_exporter },
	{ "async-exporter", async_exporter },
};

int main(int argc, char **argv)
{
	int result = 2;

	argv++;
	if (*argv && !strcmp(*argv, "--count")) {
		bench_counting = true;
		argv++;
	}
	if (!argv[0] || !argv[1]) {
		fprintf(stderr, "Usage: parts [--count] exporter|importer|pool-exporter|pool-importer|virtual-exporter|async-exporter|"
				"reap|holders|starts|stopped|pieces|built N\n");
		return 2;
	}
	if (!mkdtemp(folder)) {
		perror(folder);
		return 1;
	}
	for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
		if (!strcmp(bodies[i].name, argv[0]))
			result = bench_run(bodies[i].body, argc, argv + 1, "tests/bench/parts");
	/* the files that killed processes left */
	{
		char command[96];

		snprintf(command, sizeof command, "rm -rf %s", folder);
		if (system(command))
			return 1;
	}
	return result;
}
