/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes that tests trace: a producer and consumers, ordinary CUDA programs.  They
 * go step by step over pipes, so that the test knows exactly what happens.
 *
 *   player [blocks=N] [consumers=N] [live=N] [bytes=N] [pace=US] [kill] [stale] [want]
 *
 * The producer allocates and exports N blocks; one consumer opens each.  After `live` more
 * blocks the producer frees the block while it is held, and later the consumer closes it.  The first
 * consumer's blocks go round.  kill: the last consumer is killed while it holds blocks.
 * stale: a consumer opens the handle of a block that is gone.  want: the producer asks for
 * more memory than there is, and for an array of no description; both are refused.  At its
 * end the producer waits until the driver has as much free memory as at its start.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cuda.h>

enum { CONSUMERS = 64, SLOTS = 4096 };
#define CHECK(call) check((call), #call)

static void check(CUresult result, const char *call)
{
	if (result != CUDA_SUCCESS) {
		fprintf(stderr, "player: %s failed: %d\n", call, result);
		_exit(2);
	}
}

static void use_gpu(void)
{
	CUcontext context;

	CHECK(cuInit(0));
	CHECK(cuDevicePrimaryCtxRetain(&context, 0));
	CHECK(cuCtxSetCurrent(context));
}

struct order {
	char what; /* o: open, c: close, s: a stale handle, e: end */
	unsigned int slot;
	CUipcMemHandle handle;
};

static void consume(int from, int to)
{
	static CUdeviceptr opened[SLOTS];
	struct order order;
	CUdeviceptr stale;

	use_gpu();
	while (read(from, &order, sizeof order) == sizeof order && order.what != 'e') {
		if (order.what == 'o')
			CHECK(cuIpcOpenMemHandle(&opened[order.slot], order.handle,
						 CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		else if (order.what == 'c')
			CHECK(cuIpcCloseMemHandle(opened[order.slot]));
		else if (cuIpcOpenMemHandle(&stale, order.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ==
			 CUDA_SUCCESS)
			_exit(3);
		if (write(to, "k", 1) != 1)
			_exit(2);
	}
	exit(0);
}

static struct {
	int down, up;
	pid_t pid;
} consumer[CONSUMERS];

static void tell(int n, char what, unsigned int slot, const CUipcMemHandle *handle)
{
	struct order order = { .what = what, .slot = slot };
	char answer;

	if (handle)
		order.handle = *handle;
	if (write(consumer[n].down, &order, sizeof order) != sizeof order ||
	    (what != 'e' && read(consumer[n].up, &answer, 1) != 1)) {
		fprintf(stderr, "player: consumer %d is gone\n", n);
		_exit(2);
	}
}

static long option(int argc, char **argv, const char *name, long otherwise)
{
	size_t length = strlen(name);

	for (int i = 1; i < argc; i++)
		if (!strncmp(argv[i], name, length) && (argv[i][length] == '=' || !argv[i][length]))
			return argv[i][length] ? atol(argv[i] + length + 1) : 1;
	return otherwise;
}

static size_t free_memory(void)
{
	size_t free_bytes, total;

	CHECK(cuMemGetInfo(&free_bytes, &total));
	return free_bytes;
}

static void share_of_host(void)
{
	CUmemPoolProps wanted = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				  .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				  .location = { .type = CU_MEM_LOCATION_TYPE_HOST_NUMA } };
	CUmemPoolPtrExportData data;
	CUmemoryPool pool;
	CUdeviceptr block;
	int fd;

	CHECK(cuMemPoolCreate(&pool, &wanted));
	CHECK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	CHECK(cuMemAllocFromPoolAsync(&block, 2 << 20, pool, NULL));
	CHECK(cuMemPoolExportPointer(&data, block));
	CHECK(cuMemFreeAsync(block, NULL));
}

int main(int argc, char **argv)
{
	long blocks = option(argc, argv, "blocks", 8), consumers = option(argc, argv, "consumers", 1);
	long live = option(argc, argv, "live", 4), bytes = option(argc, argv, "bytes", 2 << 20);
	long pace = option(argc, argv, "pace", 0), freed = 0, closed = 0;
	bool kills = option(argc, argv, "kill", 0);
	CUdeviceptr *block = calloc((size_t)blocks, sizeof *block), warm, large;
	CUipcMemHandle handle;
	CUarray array;
	size_t before;
	int bad = 0;

	if (!block || consumers > CONSUMERS || 2 * live > SLOTS)
		return 2;
	for (long i = 0; i < consumers; i++) { /* before any CUDA call */
		int down[2], up[2];

		if (pipe(down) || pipe(up))
			return 2;
		consumer[i].pid = fork();
		if (consumer[i].pid < 0)
			return 2;
		if (consumer[i].pid == 0) {
			for (long k = 0; k < i; k++)
				close(consumer[k].down), close(consumer[k].up);
			close(down[1]);
			close(up[0]);
			consume(down[0], up[1]);
		}
		close(down[0]);
		close(up[1]);
		consumer[i].down = down[1];
		consumer[i].up = up[0];
	}
	use_gpu();
	CHECK(cuMemAlloc(&warm, (size_t)bytes));
	CHECK(cuMemFree(warm));
	if (option(argc, argv, "host", 0))
		share_of_host();
	before = free_memory();
	for (long i = 0; i < blocks; i++) {
		CHECK(cuMemAlloc(&block[i], (size_t)bytes * (size_t)(1 + i % 3)));
		CHECK(cuIpcGetMemHandle(&handle, block[i]));
		tell((int)(i % consumers), 'o', (unsigned int)(i % SLOTS), &handle);
		if (i - freed >= live) /* while it is held */
			CHECK(cuMemFree(block[freed++]));
		if (i - closed >= 2 * live && (!kills || closed % consumers != consumers - 1))
			tell((int)(closed % consumers), 'c', (unsigned int)(closed % SLOTS), NULL);
		if (i - closed >= 2 * live)
			closed++;
		usleep((useconds_t)pace);
	}
	while (freed < blocks)
		CHECK(cuMemFree(block[freed++]));
	if (kills)
		kill(consumer[consumers - 1].pid, SIGKILL);
	for (; closed < blocks; closed++)
		if (!kills || closed % consumers != consumers - 1)
			tell((int)(closed % consumers), 'c', (unsigned int)(closed % SLOTS), NULL);
	if (option(argc, argv, "want", 0) &&
	    (cuMemAlloc(&large, (size_t)1 << 50) == CUDA_SUCCESS || cuArrayCreate(&array, NULL) == CUDA_SUCCESS))
		return 3;
	for (int tries = 0; free_memory() < before && tries < 20000; tries++)
		usleep(500);
	if (free_memory() < before) {
		fprintf(stderr, "player: memory did not come back\n");
		return 4;
	}
	if (option(argc, argv, "stale", 0))
		tell(0, 's', 0, &handle);
	for (long i = 0; i < consumers; i++) {
		int status;

		if (!kills || i != consumers - 1)
			tell((int)i, 'e', 0, NULL);
		waitpid(consumer[i].pid, &status, 0);
		bad |= (!kills || i != consumers - 1) && status != 0;
	}
	return bad ? 5 : 0;
}
