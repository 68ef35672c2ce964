/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the driver calls of a program, with the libcuda.so.1 and the preload that it
 * was started with.  The same program runs without culimbo and with it.
 *
 *   bench [--count] calls N     calls of a process that shares nothing, then of one with N exported blocks
 *   bench [--count] importer N  opens and closes N blocks of another process
 *   bench back N                the time until memory is back, after the last close and after an
 *                               importer's death; N times
 *   bench live N                N live exported blocks in one process
 *   bench pointers              which calls the program gets as the driver's own pointers
 *   bench syscalls CMD...       counts CMD's system calls and threads; only CMD gets BENCH_PRELOAD
 *   bench spawn N CMD...        how long CMD takes, N times; only CMD gets BENCH_PRELOAD
 */
#include "tests/bench/bench.h"
#include "tests/bench/library_file.h"

#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ------------------------------------------------------------------- its calls */
static CUstream stream;
static CUdeviceptr *blocks;
static uint64_t blocks_n;

static void op_pair(uint64_t run)
{
	CUdeviceptr p;

	(void)run;
	CHECKED(cu.alloc(&p, SMALL));
	CHECKED(cu.free(p));
}
static void op_pair_async(uint64_t run)
{
	CUdeviceptr p;

	(void)run;
	CHECKED(cu.alloc_async(&p, SMALL, stream));
	CHECKED(cu.free_async(p, stream));
}
/* Allocates from a pool that could be shared and is not. */
static CUmemoryPool pool;
static void op_pair_pool(uint64_t run)
{
	CUdeviceptr p;

	(void)run;
	CHECKED(cu.alloc_pool(&p, SMALL, pool, stream));
	CHECKED(cu.free_async(p, stream));
}
static void make_pool(void)
{
	CUmemPoolProps properties = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				      .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };

	CHECKED(cu.pool(&pool, &properties));
}
/* UCX does so around each copy; the benchmark has a reference of its own. */
static void op_pair_primary(uint64_t run)
{
	CUcontext ctx;

	(void)run;
	CHECKED(cu.retain(&ctx, 0));
	CHECKED(cu.release(0));
}
static void op_handle_again(uint64_t run)
{
	CUipcMemHandle handle;

	(void)run;
	CHECKED(cu.handle(&handle, blocks[blocks_n / 2]));
}
/* Uses another block each time, so that it is in no cache of the processor. */
static void op_handle_any(uint64_t run)
{
	CUipcMemHandle handle;

	CHECKED(cu.handle(&handle, blocks[run * 7919 % blocks_n]));
}
/* The blocks are allocated before: only the export is measured. */
static void op_export(uint64_t run)
{
	CUipcMemHandle handle;

	(void)run;
	CHECKED(cu.handle(&handle, blocks[blocks_n++]));
}

static int calls(int argc, char **argv)
{
	uint64_t n = strtoull(argv[0], NULL, 0), start;
	unsigned int each = 1000;
	CUdeviceptr kept;
	uint64_t total = n + measure_runs(each);

	(void)argc;
	driver_start();
	CHECKED(cu.stream(&stream, CU_STREAM_NON_BLOCKING));
	/* one block stays, so that the driver keeps the chunk that small blocks come from */
	CHECKED(cu.alloc(&kept, 512));
	CHECKED(cu.alloc_async(&kept, 512, stream));
	make_pool();
	CHECKED(cu.alloc_pool(&kept, 512, pool, stream));
	CHECKED(cu.stream_sync(stream));
	for (int i = 0; i < 1000; i++) { /* the driver warms up */
		op_pair(0);
		op_pair_async(0);
		op_pair_pool(0);
	}
	measure("pair", op_pair, 2000);
	measure("pair-async", op_pair_async, 5000);
	measure("pair-pool", op_pair_pool, 5000);
	measure("pair-primary", op_pair_primary, 5000);
	measure_turns("pair", op_pair, 400);
	measure_turns("pair-async", op_pair_async, 400);
	measure_turns("pair-pool", op_pair_pool, 400);
	measure_turns("pair-primary", op_pair_primary, 400);
	CHECKED(cu.stream_sync(stream));
	blocks = calloc(total, sizeof blocks[0]);
	MUST(blocks);
	for (uint64_t i = 0; i < total; i++)
		CHECKED(cu.alloc(&blocks[i], 512));
	start = bench_now();
	while (blocks_n < n)
		op_export(0);
	say_ns("export-new-all", (double)(bench_now() - start) / (double)n);
	measure("export-new", op_export, each);
	measure("export-again", op_handle_again, 5000);
	measure("export-again-any", op_handle_any, 5000);
	measure("pair-sharing", op_pair, 2000);
	measure("pair-async-sharing", op_pair_async, 5000);
	measure("pair-pool-sharing", op_pair_pool, 5000);
	measure("pair-primary-sharing", op_pair_primary, 5000);
	measure_turns("export-again", op_handle_again, 400);
	measure_turns("export-again-any", op_handle_any, 400);
	measure_turns("pair-sharing", op_pair, 400);
	measure_turns("pair-async-sharing", op_pair_async, 400);
	measure_turns("pair-pool-sharing", op_pair_pool, 400);
	measure_turns("pair-primary-sharing", op_pair_primary, 400);
	CHECKED(cu.stream_sync(stream));
	return 0;
}

/* --------------------------------------------------------------- the importer */
static void exporter_helper(void)
{
	CUdeviceptr p;

	driver_start();
	for (uint32_t i = 0; i < board->blocks; i++) {
		CHECKED(cu.alloc(&p, 512));
		CHECKED(cu.handle(&board->handle[i], p));
	}
	atomic_store(&board->done, 1);
	for (;;)
		pause();
}

static CUdeviceptr *opened;
static uint64_t used;

static void op_open_new(uint64_t run)
{
	(void)run;
	CHECKED(cu.open(&opened[used], board->handle[used], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	used++;
}
static void op_close_last(uint64_t run)
{
	(void)run;
	CHECKED(cu.close(opened[used++]));
}
static void op_open_again(uint64_t run)
{
	CUdeviceptr p;

	(void)run;
	CHECKED(cu.open(&p, board->handle[0], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}
static void op_close_again(uint64_t run)
{
	(void)run;
	CHECKED(cu.close(opened[0]));
}

/* Each turn opens TURN blocks for the first time and closes them for the last time. */
static void op_open_turn(uint64_t run)
{
	CHECKED(cu.open(&opened[run % TURN], board->handle[run % TURN],
			CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}
static void op_close_turn(uint64_t run)
{
	CHECKED(cu.close(opened[run % TURN]));
}

static int importer(int argc, char **argv)
{
	uint64_t n = strtoull(argv[0], NULL, 0);
	pid_t helper;

	(void)argc;
	MUST(n >= measure_runs(200) + 1 && n >= TURN);
	make_board(n);
	board->blocks = (uint32_t)n;
	helper = helper_start(exporter_helper);
	wait_for(&board->done, 1);
	driver_start();
	opened = calloc(n, sizeof opened[0]);
	MUST(opened);
	op_open_new(0); /* the first open finds the exporter's file */
	measure("open-new", op_open_new, 200);
	measure("open-again", op_open_again, 1000);
	measure("close-again", op_close_again, 1000);
	used = 1;
	measure("close-last", op_close_last, 200);
	op_close_again(0);
	measure_both_turns((struct turn){ .name = "open-new", .op = op_open_turn },
			   (struct turn){ .name = "close-last", .op = op_close_turn }, 400);
	kill(helper, SIGKILL);
	waitpid(helper, NULL, 0);
	return 0;
}

/* --------------------------------------------------------------- memory back */
static size_t free_memory(void)
{
	size_t unused, total;

	CHECKED(cu.info(&unused, &total));
	return unused;
}

static void back_exporter(void)
{
	uint32_t step = 0;
	CUdeviceptr p;

	driver_start();
	for (;;) {
		CHECKED(cu.alloc(&p, LARGE));
		CHECKED(cu.handle(&board->handle[0], p));
		atomic_store(&board->done, ++step); /* odd: the block is exported */
		wait_for(&board->told, step);
		CHECKED(cu.free(p)); /* the importer has it open */
		atomic_store(&board->done, ++step); /* even: it is freed, and this process waits */
		wait_for(&board->told, step);
	}
}

/* The importer that is killed.  Its argument is the board's descriptor. */
static int victim(int argc, char **argv)
{
	CUdeviceptr p;

	(void)argc;
	board_fd = atoi(argv[0]);
	make_board(1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	driver_start();
	CHECKED(cu.open(&p, board->handle[0], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	atomic_store(&board->blocks, 1);
	for (;;)
		pause();
}

/* Measures the time from @done until the driver has LARGE bytes more than @before. */
static void say_back(const char *name, uint64_t start, size_t before)
{
	uint64_t end = start + 5000000000u;

	while (free_memory() < before + LARGE)
		if (bench_now() > end) {
			say_ns(name, 5e9); /* the memory did not come back in time */
			return;
		}
	say_ns(name, (double)(bench_now() - start));
}

static int back(int argc, char **argv)
{
	int n = atoi(argv[0]);
	uint32_t step = 0;
	char fd[16];

	(void)argc;
	make_board(1);
	snprintf(fd, sizeof fd, "%d", board_fd);
	helper_start(back_exporter);
	wait_for(&board->done, 1);
	driver_start();
	for (int i = 0; i < n; i++) {
		bool killed = i % 5 == 4; /* each killed importer has to start CUDA */
		uint64_t start;
		CUdeviceptr p = 0;
		pid_t child = 0;
		size_t before;

		wait_for(&board->done, ++step);
		if (killed) {
			atomic_store(&board->blocks, 0);
			/* spawned, not forked: this process uses CUDA */
			MUST(!posix_spawn(&child, "/proc/self/exe", NULL, NULL,
					  (char *[]){ (char *)"bench", (char *)"victim", fd, NULL }, environ));
			wait_for(&board->blocks, 1);
		} else {
			CHECKED(cu.open(&p, board->handle[0], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		}
		atomic_store(&board->told, step);
		wait_for(&board->done, ++step);
		/* wait until the grace is over and the collector sleeps */
		nanosleep(&(struct timespec){ 0, 20000000 }, NULL);
		before = free_memory();
		start = bench_now();
		if (killed)
			kill(child, SIGKILL);
		else
			CHECKED(cu.close(p));
		say_back(killed ? "kill-to-back" : "close-to-back", start, before);
		if (killed)
			waitpid(child, NULL, 0);
		atomic_store(&board->told, step);
	}
	return 0;
}

/* ---------------------------------------------------------------- live blocks */
static int live(int argc, char **argv)
{
	uint64_t n = strtoull(argv[0], NULL, 0), start;
	CUdeviceptr *p = calloc(n, sizeof *p);
	CUipcMemHandle handle;

	(void)argc;
	MUST(p);
	driver_start();
	for (uint64_t i = 0; i < n; i++)
		CHECKED(cu.alloc(&p[i], 512));
	start = bench_now();
	for (uint64_t i = 0; i < n; i++)
		CHECKED(cu.handle(&handle, p[i]));
	say_ns("live-export", (double)(bench_now() - start) / (double)n);
	say_value("live", (double)n, "blocks");
	return 0;
}

/* ------------------------------------------------------------------- pointers */
static bool asked_for(const char *name, void **asked)
{
	return cu.proc_address(name, asked, 13000, 0) == CUDA_SUCCESS && *asked;
}

static struct {
	unsigned int own, others, asked_own, asked_others;
} pointing;

static void look_at_function(const char *name, void *address)
{
	void *asked = NULL;
	Dl_info info;

	if (strncmp(name, "cu", 2))
		return;
	if (dlsym(libcuda, name) == address)
		pointing.own++;
	else if (pointing.others++, true)
		printf("hooked %s\n", name);
	/* the driver chooses which version of the call cuGetProcAddress returns */
	if (strchr(name, '_') || !asked_for(name, &asked))
		return;
	MUST(dladdr(asked, &info));
	if (strstr(info.dli_fname, "libculimbo"))
		pointing.asked_others++;
	else
		pointing.asked_own++;
}

static int pointers(int argc, char **argv)
{
	(void)argc, (void)argv;
	driver_load();
	each_function(libcuda, look_at_function);
	say_value("pointers-own", pointing.own, "functions");
	say_value("pointers-hooked", pointing.others, "functions");
	say_value("asked-own", pointing.asked_own, "functions");
	say_value("asked-hooked", pointing.asked_others, "functions");
	return 0;
}

/* ---------------------------------------------------------------------- spawn */
static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static int run_many(int n, char **cmd)
{
	const char *preload = getenv("BENCH_PRELOAD");
	double *bare = calloc((size_t)n, sizeof *bare), *with = calloc((size_t)n, sizeof *with);

	MUST(bare && with);
	for (int i = 0; i < 2 * n; i++) {
		uint64_t start = bench_now();
		pid_t child;
		int status;

		if (i % 2 && preload)
			setenv("LD_PRELOAD", preload, 1);
		else
			unsetenv("LD_PRELOAD");
		MUST(!posix_spawnp(&child, cmd[0], NULL, NULL, cmd, environ));
		MUST(waitpid(child, &status, 0) == child);
		(i % 2 ? with : bare)[i / 2] = (double)(bench_now() - start);
	}
	qsort(bare, (size_t)n, sizeof *bare, by_size);
	qsort(with, (size_t)n, sizeof *with, by_size);
	say_ns("spawn-bare", bare[n / 2]);
	say_ns("spawn-preloaded", with[n / 2]);
	say_ns("spawn-bare-least", bare[0]);
	say_ns("spawn-preloaded-least", with[0]);
	return 0;
}

/* ------------------------------------------------------------------------ main */
static const struct {
	const char *name;
	int (*body)(int, char **);
} bodies[] = {
	{ "calls", calls }, { "importer", importer }, { "back", back },	{ "victim", victim },
	{ "live", live },   { "pointers", pointers },
};

int main(int argc, char **argv)
{
	argv++;
	if (*argv && !strcmp(*argv, "--count")) {
		bench_counting = true;
		argv++;
	}
	if (!*argv)
		goto usage;
	if (!strcmp(argv[0], "syscalls") && argv[1])
		return bench_syscalls(argv + 1);
	if (!strcmp(argv[0], "spawn") && argv[1] && argv[2])
		return run_many(atoi(argv[1]), argv + 2);
	for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
		if (!strcmp(bodies[i].name, argv[0]) && (argv[1] || !strcmp(argv[0], "pointers")))
			return bench_run(bodies[i].body, argc, argv + 1, "libculimbo");
usage:
	fprintf(stderr, "Usage: bench [--count] calls N | importer N | back N | live N | pointers | "
			"syscalls CMD... | spawn N CMD...\n");
	return 2;
}
