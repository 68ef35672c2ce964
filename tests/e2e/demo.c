/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The problem on one page: two processes share a block of GPU memory.  The process
 * that allocated it frees it, and the other reads the bytes of another block.
 *
 * It is an ordinary CUDA program that knows nothing of culimbo.  demo.sh runs
 * it without and with the library.
 *
 *   demo          the consumer closes what it opened
 *   demo --leak   it does not
 *   demo RANK DIR is one of two processes that mpirun or srun has started: rank 0 produces, rank 1
 *                 consumes.  They talk by two FIFOs, DIR/down and DIR/up.
 *
 * Exit status: 0 the consumer read its own bytes, 1 it did not, 2 an error.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cuda.h>

#define SIZE 1024
#define CHECK(call) check((call), #call)

static void check(CUresult result, const char *call)
{
	if (result != CUDA_SUCCESS) {
		fprintf(stderr, "demo: %s failed: %d\n", call, result);
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

static void receive(int fd, void *data, size_t size)
{
	if (read(fd, data, size) != (ssize_t)size) {
		fprintf(stderr, "demo: the other process is gone\n");
		_exit(2);
	}
}

static void pass(int fd, const void *data, size_t size)
{
	if (write(fd, data, size) != (ssize_t)size)
		_exit(2);
}

static void producer(int from, int to)
{
	CUdeviceptr neighbour, shared, next;
	CUipcMemHandle handle;
	char word;

	use_gpu();
	CHECK(cuMemAlloc(&neighbour, SIZE)); /* another block that stays allocated */
	CHECK(cuMemAlloc(&shared, SIZE));
	CHECK(cuMemsetD8(shared, 17, SIZE));
	CHECK(cuIpcGetMemHandle(&handle, shared));
	pass(to, &handle, sizeof(handle));
	receive(from, &word, 1); /* "I have it open" */

	CHECK(cuMemFree(shared));
	CHECK(cuMemAlloc(&next, SIZE)); /* without culimbo: the same address */
	CHECK(cuMemsetD8(next, 99, SIZE));
	CHECK(cuCtxSynchronize());
	pass(to, "f", 1); /* "I have freed it" */
}

static int consumer(int from, int to, int leak)
{
	unsigned char byte[SIZE];
	CUipcMemHandle handle;
	CUdeviceptr shared;
	char word;

	use_gpu();
	receive(from, &handle, sizeof(handle));
	CHECK(cuIpcOpenMemHandle(&shared, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	pass(to, "o", 1);
	receive(from, &word, 1);

	CHECK(cuMemcpyDtoH(byte, shared, SIZE));
	if (byte[0] == 17)
		printf("right: the consumer reads 17, its own byte\n");
	else
		printf("CORRUPTED: the consumer reads %d, the next block's byte, instead of 17\n", byte[0]);
	fflush(stdout);
	if (!leak)
		CHECK(cuIpcCloseMemHandle(shared));
	return byte[0] != 17;
}

static int one_of_two(const char *rank, const char *folder)
{
	int produces = !strcmp(rank, "0"), down, up;
	char word;

	if (chdir(folder))
		return 2;
	/* an open waits for the other side's */
	down = open("down", produces ? O_WRONLY : O_RDONLY);
	up = open("up", produces ? O_RDONLY : O_WRONLY);
	if (down < 0 || up < 0)
		return 2;
	if (!produces)
		return consumer(down, up, 0);
	producer(up, down);
	/* until the consumer has ended */
	return read(up, &word, 1) ? 2 : 0;
}

int main(int argc, char **argv)
{
	int leak = argc > 1 && !strcmp(argv[1], "--leak"), down[2], up[2], status = 0;
	pid_t child;

	if (argc > 2)
		return one_of_two(argv[1], argv[2]);
	if (pipe(down) || pipe(up))
		return 2;
	child = fork(); /* before any CUDA call */
	if (child < 0)
		return 2;
	if (child == 0) {
		close(down[1]);
		close(up[0]);
		return consumer(down[0], up[1], leak);
	}
	close(down[0]);
	close(up[1]);
	producer(up[0], down[1]);
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}
