/* SPDX-License-Identifier: Apache-2.0 */
/*
 * many N PLACES: a producer exports N blocks at PLACES different places of the
 * program, a consumer opens them all, and the producer frees them.  Then it says
 * "ready" and waits for a line: "end", or anything else to be killed meanwhile.
 */
#include "bug.h"

enum { BYTES = 256 };

/* Each is a place of its own in the call stack: the depth tells them apart. */
__attribute__((noinline)) static void export_at(unsigned int place, CUdeviceptr block, CUipcMemHandle *handle)
{
	if (place) {
		export_at(place - 1, block, handle);
		__asm__ volatile("" ::: "memory"); /* (not a jump: a frame each) */
		return;
	}
	CHECK(cuIpcGetMemHandle(handle, block));
	__asm__ volatile("" ::: "memory");
}

static void consume(int from, int to, int n)
{
	for (int i = 0; i < n; i++) {
		CUipcMemHandle handle;
		CUdeviceptr block;

		receive(from, &handle, sizeof(handle));
		CHECK(cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	}
	pass(to, "o", 1);
	pause(); /* until it is killed: it outlives the producer */
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 100000, places = argc > 2 ? atoi(argv[2]) : 1, down[2], up[2];
	CUdeviceptr *block = calloc((size_t)n, sizeof(*block));
	pid_t consumer;
	char word[16];

	if (!block || pipe(down) || pipe(up))
		return 2;
	consumer = fork();
	use_gpu();
	if (consumer == 0) {
		close(down[1]);
		consume(down[0], up[1], n);
		return 0;
	}
	for (int i = 0; i < n; i++) {
		CUipcMemHandle handle;

		CHECK(cuMemAlloc(&block[i], BYTES));
		export_at((unsigned int)(i % places), block[i], &handle);
		pass(down[1], &handle, sizeof(handle));
	}
	receive(up[0], word, 1);
	for (int i = 0; i < n; i++)
		CHECK(cuMemFree(block[i]));
	printf("ready %d %d\n", (int)getpid(), (int)consumer);
	fflush(stdout);
	return fgets(word, sizeof(word), stdin) ? 0 : 4;
}
