/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frees_early [BYTES]: a producer puts frames of so many bytes (1 MiB) into a queue.  The bug: it frees
 * a frame when it has queued the next ones, even if the consumer has not opened it yet.  The consumer
 * is slow.
 */
#include "bug.h"

enum { FRAMES = 4 };

__attribute__((noinline)) static void publish_frame(int to, CUdeviceptr frame)
{
	CUipcMemHandle handle;

	CHECK(cuIpcGetMemHandle(&handle, frame));
	pass(to, &handle, sizeof(handle));
}

__attribute__((noinline)) static void retire_frame(CUdeviceptr frame)
{
	CHECK(cuMemFree(frame));
}

__attribute__((noinline)) static int consume_frame(int from)
{
	CUipcMemHandle handle;
	CUdeviceptr frame;
	CUresult result;

	receive(from, &handle, sizeof(handle));
	result = cuIpcOpenMemHandle(&frame, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (result != CUDA_SUCCESS) {
		fprintf(stderr, "consumer: cannot open a frame: %d\n", result);
		return 0;
	}
	CHECK(cuIpcCloseMemHandle(frame));
	return 1;
}

int main(int argc, char **argv)
{
	size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 0) : 1 << 20;
	int down[2], up[2], seen = 0;
	CUdeviceptr frame[FRAMES];
	pid_t consumer;
	char word;

	if (pipe(down) || pipe(up))
		return 2;
	consumer = fork();
	use_gpu();
	if (consumer == 0) {
		receive(up[0], &word, 1); /* busy with something else until then */
		for (int i = 0; i < FRAMES; i++)
			seen += consume_frame(down[0]);
		return seen != FRAMES;
	}
	for (int i = 0; i < FRAMES; i++) {
		CHECK(cuMemAlloc(&frame[i], bytes));
		publish_frame(down[1], frame[i]);
		if (i >= 2)
			retire_frame(frame[i - 2]);
	}
	usleep(300000); /* longer than a CULIMBO_GRACE of 50 ms, with which the consumer cannot open */
	CHECK(cuMemAlloc(&frame[0], bytes));
	pass(up[1], "g", 1);
	waitpid(consumer, NULL, 0);
	return 0;
}
