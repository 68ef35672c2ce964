/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the driver's calls, as the program gets them and as the driver defines them, and
 * measures the two by turns.  Also starts the second process and talks to it.
 */
#include "tests/bench/bench.h"
#include "tests/bench/library_file.h"

#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

struct calls cu, drivers;
struct board *board;

/* ------------------------------------------------------------------ the driver */
void *libcuda;

static void *look(const char *name)
{
	void *p = dlsym(libcuda, name);

	if (!p)
		DIE("the driver has no %s", name);
	return p;
}

void driver_load(void)
{
	static const struct file_function measured[] = {
		{ "cuMemAlloc_v2", &drivers.alloc },
		{ "cuMemFree_v2", &drivers.free },
		{ "cuMemAllocAsync", &drivers.alloc_async },
		{ "cuMemFreeAsync", &drivers.free_async },
		{ "cuMemAllocFromPoolAsync", &drivers.alloc_pool },
		{ "cuIpcGetMemHandle", &drivers.handle },
		{ "cuIpcOpenMemHandle_v2", &drivers.open },
		{ "cuIpcCloseMemHandle", &drivers.close },
	};

	libcuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!libcuda)
		DIE("%s", dlerror());
	*(void **)&cu.init = look("cuInit");
	*(void **)&cu.device = look("cuDeviceGet");
	*(void **)&cu.retain = look("cuDevicePrimaryCtxRetain");
	*(void **)&cu.release = look("cuDevicePrimaryCtxRelease_v2");
	*(void **)&cu.set_current = look("cuCtxSetCurrent");
	*(void **)&cu.alloc = look("cuMemAlloc_v2");
	*(void **)&cu.free = look("cuMemFree_v2");
	*(void **)&cu.alloc_async = look("cuMemAllocAsync");
	*(void **)&cu.free_async = look("cuMemFreeAsync");
	*(void **)&cu.pool = look("cuMemPoolCreate");
	*(void **)&cu.alloc_pool = look("cuMemAllocFromPoolAsync");
	*(void **)&cu.stream = look("cuStreamCreate");
	*(void **)&cu.stream_sync = look("cuStreamSynchronize");
	*(void **)&cu.handle = look("cuIpcGetMemHandle");
	*(void **)&cu.open = look("cuIpcOpenMemHandle_v2");
	*(void **)&cu.close = look("cuIpcCloseMemHandle");
	*(void **)&cu.info = look("cuMemGetInfo_v2");
	*(void **)&cu.proc_address = look("cuGetProcAddress");
	drivers = cu;
	find_functions(libcuda, measured, sizeof measured / sizeof measured[0]);
}

static void *idle(void *unused)
{
	for (;;)
		pause();
	return unused;
}

/*
 * Starts a thread, as a real driver does.  The simulated driver starts none, and in a
 * process of one thread libc's locks are cheaper: they use no atomic instructions.
 */
static void have_threads(void)
{
	pthread_t thread;

	MUST(bench_counting || !pthread_create(&thread, NULL, idle, NULL));
}

void driver_start(void)
{
	CUcontext ctx;
	CUdevice device;

	have_threads();
	driver_load();
	CHECKED(cu.init(0));
	CHECKED(cu.device(&device, 0));
	CHECKED(cu.retain(&ctx, device));
	CHECKED(cu.set_current(ctx));
}

static double timed_turn(struct turn *turn)
{
	uint64_t start = bench_now();

	for (unsigned int i = 0; i < TURN; i++)
		turn->op(turn->run++);
	return (double)(bench_now() - start) / TURN;
}

static void say_more(const struct turn *turn, double ns)
{
	char more[64];

	snprintf(more, sizeof more, "%s-more", turn->name);
	say_ns(more, ns);
}

/* @back, if given, undoes what @op did. */
void measure_both_turns(struct turn op, struct turn back, unsigned int pairs)
{
	const struct calls given = cu;

	for (unsigned int pair = 0; pair < pairs && !bench_counting; pair++) {
		double took[2], took_back[2] = { 0, 0 };

		for (unsigned int turn = 0; turn < 2; turn++) {
			bool own = (turn ^ pair) & 1;

			cu = own ? drivers : given;
			took[own] = timed_turn(&op);
			if (back.op)
				took_back[own] = timed_turn(&back);
		}
		say_more(&op, took[0] - took[1]);
		if (back.op)
			say_more(&back, took_back[0] - took_back[1]);
	}
	cu = given;
}

void measure_turns(const char *name, void (*op)(uint64_t), unsigned int pairs)
{
	measure_both_turns((struct turn){ .name = name, .op = op }, (struct turn){ .op = NULL }, pairs);
}

int board_fd = -1; /* a memory file: a program started later can map it */

void make_board(uint64_t handles)
{
	size_t bytes = sizeof *board + handles * sizeof board->handle[0];

	if (board_fd < 0) {
		board_fd = memfd_create("bench", 0);
		MUST(board_fd >= 0 && ftruncate(board_fd, (off_t)bytes) == 0);
	}
	board = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, board_fd, 0);
	MUST(board != MAP_FAILED);
}
void wait_for(_Atomic uint32_t *what, uint32_t value)
{
	uint64_t end = bench_now() + 120000000000u;

	while (atomic_load(what) < value) {
		MUST(bench_now() < end);
		nanosleep(&(struct timespec){ 0, 100000 }, NULL);
	}
}
/* Forks a child; the parent must not have used CUDA before. */
pid_t helper_start(void (*body)(void))
{
	pid_t child = fork();

	MUST(child >= 0);
	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	body();
	_exit(0);
}
