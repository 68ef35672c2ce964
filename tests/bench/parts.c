/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our part of what grows with n: shim/ linked in, over a driver that does
 * nothing, so that what is measured is ours alone and a million blocks need no
 * GPU.  Processes are real, and so is the exporter file.
 *
 *   parts [--count] exporter N    free, collect, release, reap, with N blocks
 *   parts [--count] importer N    open and close, of an exporter of N blocks
 *   parts holders N               N processes that hold one block
 *   parts starts N                N processes that make their first export at once
 *   parts stopped N               N times: others are stopped amid their calls, and nobody waits for them
 *   parts pieces N                what of all that is not ours takes on this machine, N times a round
 *   parts built 0                 by what, so that counts are compared with their like
 *
 * CULIMBO_* of the environment hold (CULIMBO_STACK, say), but for the grace,
 * which is 0, the directory, and the report, which is off.
 */
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim/blocks/blocks.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/collect.h"
#include "shim/limbo/limbo.h"
#include "shim/limbo/reap.h"
#include "shim/base/options.h"
#include "shim/self/self.h"
#include "shim/shim.h"
#include "tests/bench/harness.h"

/* ------------------------------------------------------------ the null driver */
#define FIRST_BLOCK 0x7f0000000000ull
#define BLOCK_STEP 512u
#define MAPPED_AT 0x10000000000ull
#define CONTEXT ((CUcontext)0xa0)
#define STREAM ((CUstream)0x0f)

static CUdeviceptr next_block = FIRST_BLOCK;

NULL_DRIVER static CUresult null_alloc(CUdeviceptr *p, size_t size)
{
	(void)size;
	*p = next_block;
	next_block += BLOCK_STEP;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_free(CUdeviceptr p)
{
	(void)p;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_free_async(CUdeviceptr p, CUstream stream)
{
	(void)p, (void)stream;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_handle(CUipcMemHandle *handle, CUdeviceptr p)
{
	memset(handle, 0, sizeof *handle);
	memcpy(handle->reserved, &p, sizeof p);
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_open(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags)
{
	(void)flags;
	memcpy(p, handle.reserved, sizeof *p);
	*p += MAPPED_AT;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_range(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	*base = p;
	*size = BLOCK_STEP;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
	(void)p;
	if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT)
		*(CUcontext *)data = CONTEXT;
	else
		*(int *)data = 0;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_current(CUcontext *ctx)
{
	*ctx = CONTEXT;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_device(CUdevice *device)
{
	*device = 0;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_state(CUdevice device, unsigned int *flags, int *active)
{
	(void)device, (void)flags;
	*active = 1;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_retain(CUcontext *ctx, CUdevice device)
{
	(void)device;
	*ctx = CONTEXT;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_release(CUdevice device)
{
	(void)device;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_exchange(CUstreamCaptureMode *mode)
{
	(void)mode;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_stream(CUstream *stream, unsigned int flags)
{
	(void)flags;
	*stream = STREAM;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_stream_sync(CUstream stream)
{
	(void)stream;
	return CUDA_SUCCESS;
}

static char folder[] = "/dev/shm/culimbo-bench-XXXXXX";

static void prepare(void)
{
	char **environment = environ;

	cl_options_read(&cl_options, environment, NULL);
	cl_options.dir.text = folder;
	cl_options.grace.number = 0;
	cl_options.report.number = CL_REPORT_OFF;
	cl_options.warn_blocks.number = 0;
	cl_driver.cuMemAlloc_v2 = null_alloc;
	cl_driver.cuMemFree_v2 = null_free;
	cl_driver.cuMemFreeAsync = null_free_async;
	cl_driver.cuIpcGetMemHandle = null_handle;
	cl_driver.cuIpcOpenMemHandle_v2 = null_open;
	cl_driver.cuIpcCloseMemHandle = null_free;
	cl_driver.cuMemGetAddressRange_v2 = null_range;
	cl_driver.cuPointerGetAttribute = null_attribute;
	cl_driver.cuCtxGetCurrent = null_current;
	cl_driver.cuCtxGetDevice = null_device;
	cl_driver.cuDevicePrimaryCtxGetState = null_state;
	cl_driver.cuDevicePrimaryCtxRetain = null_retain;
	cl_driver.cuDevicePrimaryCtxRelease_v2 = null_release;
	cl_driver.cuThreadExchangeStreamCaptureMode = null_exchange;
	cl_driver.cuStreamCreate = null_stream;
	cl_driver.cuStreamSynchronize = null_stream_sync;
}

/* ------------------------------------------------------------ two processes */
static struct board {
	_Atomic uint32_t step; /* what the helper is to do, and has done: both count up */
	_Atomic uint32_t done;
	_Atomic uint64_t first, n; /* which blocks */
	_Atomic uint64_t ready;
	uint64_t taken[1024]; /* ns, of each of many processes */
	CUipcMemHandle handle[];
} *board;

static void make_board(uint64_t handles)
{
	board = mmap(NULL, sizeof *board + handles * sizeof board->handle[0], PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	MUST(board != MAP_FAILED);
}

static void moment(void)
{
	nanosleep(&(struct timespec){ 0, 100000 }, NULL);
}

static void wait_for(_Atomic uint32_t *what, uint32_t value)
{
	uint64_t end = bench_now() + 120000000000u;

	while (atomic_load(what) != value) {
		MUST(bench_now() < end);
		moment();
	}
}

/* Has the helper act on blocks @first to @first + @n, and waits until it has. */
static void helper_do(uint64_t first, uint64_t n)
{
	board->first = first;
	board->n = n;
	atomic_fetch_add(&board->step, 1);
	wait_for(&board->done, atomic_load(&board->step));
}

/* In the helper: waits to be told, the @step-th time. */
static void helper_wait(uint32_t step)
{
	wait_for(&board->step, step);
}
static void helper_did(uint32_t step)
{
	atomic_store(&board->done, step);
}

static pid_t helper_start(void (*body)(void))
{
	pid_t helper = fork();

	MUST(helper >= 0);
	if (helper)
		return helper;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prepare();
	body();
	cl_process_end(0);
	_exit(0);
}

static uint64_t file_bytes(void)
{
	struct stat st;

	MUST(fstat(cl_own.fd, &st) == 0);
	return (uint64_t)st.st_blocks * 512;
}

static uint64_t heap_bytes(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

/* kB of @what in /proc/self/smaps_rollup */
static double rollup(const char *what)
{
	FILE *f = fopen("/proc/self/smaps_rollup", "re");
	char line[256];
	double kb = 0;

	MUST(f);
	while (fgets(line, sizeof line, f))
		if (!strncmp(line, what, strlen(what)))
			sscanf(line + strlen(what), " %lf", &kb);
	fclose(f);
	return kb;
}

/* --------------------------------------------------------------- the exporter */
static CUdeviceptr block_at(uint64_t i)
{
	return FIRST_BLOCK + i * BLOCK_STEP;
}

static uint64_t n_blocks; /* that wait, or are held */
static uint64_t used;	  /* first of the spare ones not used up */

static void op_export_new(uint64_t run)
{
	(void)run;
	MUST(cl_memory_export(&board->handle[used], block_at(used)) == CUDA_SUCCESS);
	used++;
}
static void op_export_again(uint64_t run)
{
	CUipcMemHandle handle;

	(void)run;
	MUST(cl_memory_export(&handle, block_at(n_blocks / 2)) == CUDA_SUCCESS);
}
static void op_free_other(uint64_t run)
{
	/* another one each time, so that no cache helps more than in life */
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
	MUST(cl_limbo_collect(false).blocks == 0);
}

/* Holds blocks 0 .. n, then closes what it is told, until it is killed. */
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
	uint64_t spare = measure_runs(1000), now_n = measure_runs(1000);
	struct cl_collected collected;
	pid_t helper;

	(void)argc;
	/* n wait in the limbo, then `spare` are freed as those wait, then now_n that nobody holds */
	total = n + spare + now_n;
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
	if (total >= 100000) { /* (below, the file's chunks and the hash's steps are what counts) */
		say_value("shared-bytes-a-block", (double)(file_bytes() - file) / (double)(total - 1),
			  "bytes");
		say_value("private-bytes-a-block", (double)(heap_bytes() - heap) / (double)(total - 1),
			  "bytes");
		say_value("resident-private", rollup("Anonymous:") / 1024, "MiB");
	}
	measure("export-again", op_export_again, 10000);
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
	/* from here on it is this thread that collects, and no other waits for a lock while it is counted */
	MUST(cl_collector_stop(10000000000u));
	measure("free-nobody-holds", op_free_now, 1000);
	measure("collect-nothing", op_collect, 10000);
	helper_do(0, k);
	start = bench_now();
	collected = cl_limbo_collect(false);
	say_ns("release-a-block", (double)(bench_now() - start) / (double)k);
	MUST(collected.blocks == k);
	kill(helper, SIGKILL);
	MUST(waitpid(helper, NULL, 0) == helper);
	do {
		start = bench_now();
		cl_limbo_reap();
	} while (!cl_count_get(dead_holders));
	say_value("reap-held-all", (double)(bench_now() - start) / 1e6, "ms");
	MUST(cl_count_get(dead_holds) == n + spare - k);
	start = bench_now();
	collected = cl_limbo_collect(false);
	say_ns("release-the-rest-a-block", (double)(bench_now() - start) / (double)(n + spare - k));
	MUST(collected.blocks == n + spare - k);
	cl_process_end(0);
	return 0;
}

/* A holder of a single one of n blocks dies. */
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
		cl_limbo_reap();
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
	/* then frees what it is told, and lies down */
	for (;;) {
		helper_wait(++step);
		for (uint64_t i = board->first; i < board->first + board->n; i++)
			MUST(cl_memory_free(block_at(i)) == CUDA_SUCCESS);
		while (board->n && !atomic_load(&cl_own.header->sleeping))
			moment();
		helper_did(step);
		while (atomic_load(&board->step) == step) {
			/* (for the one who measures wake-ups) */
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
	/* closed while the program has them, closed in the limbo, closed with the collector asleep */
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

/* ------------------------------------------------------------- stopped amid calls */
/*
 * Two others, an exporter and an importer, do their calls without pause and are
 * stopped wherever they just are.  Had they a lock that others take, or another way to
 * hold them up, those would wait until they go on: which is not before this is over.
 */
enum { SPARE = 16 }; /* blocks that are left for the one who goes on */

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
		cl_limbo_collect(false);
		/* told to, it does each call once while the other is stopped, freeing too */
		if (atomic_load(&board->ready) == 1) {
			op_export_again(run);
			op_free_other(run);
			MUST(cl_memory_free(block_at(SPARE + board->first)) == CUDA_SUCCESS);
			cl_limbo_collect(false);
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

static int stopped(int argc, char **argv)
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
		/* in a stride that is none of theirs */
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
/* (a thousand that look each 0.1 ms would take the processor from those that are measured) */
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

static int holders(int argc, char **argv)
{
	unsigned int n = (unsigned int)atoi(argv[0]);
	uint64_t file, end;

	(void)argc;
	MUST(n <= 1024);
	make_board(1);
	prepare();
	op_export_new(0);
	file = file_bytes();
	/* (the children forget what we share: their own is nothing yet) */
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

static int starts(int argc, char **argv)
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

/* ------------------------------------------------- what no way around was found for */
static pthread_mutex_t piece_lock = PTHREAD_MUTEX_INITIALIZER;
static int piece_file = -1;

static void op_clock(uint64_t run)
{
	struct timespec now;

	(void)run;
	clock_gettime(CLOCK_MONOTONIC, &now);
}
static void op_clock_coarse(uint64_t run)
{
	struct timespec now;

	(void)run;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
}
static void op_lock(uint64_t run)
{
	(void)run;
	pthread_mutex_lock(&piece_lock);
	pthread_mutex_unlock(&piece_lock);
}
static void op_cancel(uint64_t run)
{
	int was;

	(void)run;
	pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &was);
	pthread_setcanceltype(was, NULL);
}
static void op_fence(uint64_t run)
{
	(void)run;
	atomic_thread_fence(memory_order_seq_cst);
}
static void op_nothing(uint64_t run)
{
	(void)run;
}
static void op_getlk(uint64_t run)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1 };

	(void)run;
	fcntl(piece_file, F_GETLK, &lock);
}

static void *idle(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static int pieces(int argc, char **argv)
{
	unsigned int n = (unsigned int)strtoul(argv[0], NULL, 0);
	char path[64];
	pthread_t thread;

	(void)argc;
	snprintf(path, sizeof path, "%s/piece", folder);
	piece_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	/* as each process with a real driver has: without one libc's locks cost no atomic instruction */
	if (piece_file < 0 || pthread_create(&thread, NULL, idle, NULL))
		return 1;
	measure("piece-nothing", op_nothing, n);
	measure("piece-clock", op_clock, n);
	measure("piece-clock-coarse", op_clock_coarse, n);
	measure("piece-lock", op_lock, n);
	measure("piece-cancel", op_cancel, n);
	measure("piece-fence", op_fence, n);
	measure("piece-getlk", op_getlk, n);
	return 0;
}

/* The compiler, how it was asked to build, and whose libc: what counts depend on. */
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
		fprintf(stderr, "Usage: parts [--count] exporter|importer|reap|holders|starts|"
				"stopped|pieces|built N\n");
		return 2;
	}
	if (!mkdtemp(folder)) {
		perror(folder);
		return 1;
	}
	for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
		if (!strcmp(bodies[i].name, argv[0]))
			result = bench_run(bodies[i].body, argc, argv + 1, "tests/bench/parts");
	/* what the killed have left */
	{
		char command[96];

		snprintf(command, sizeof command, "rm -rf %s", folder);
		if (system(command))
			return 1;
	}
	return result;
}
