/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A producer shares frames with a consumer.  The bug: the consumer keeps one open
 * when it skips it, in the `continue` of consume().  With an argument there is
 * another: it closes what it does not skip twice.
 */
#include "bug.h"

enum { FRAMES = 8, BYTES = 1 << 20 };

__attribute__((noinline)) static CUdeviceptr open_frame(int from)
{
	CUipcMemHandle handle;
	CUdeviceptr frame;

	receive(from, &handle, sizeof(handle));
	CHECK(cuIpcOpenMemHandle(&frame, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	return frame;
}

__attribute__((noinline)) static void close_again(CUdeviceptr frame)
{
	(void)cuIpcCloseMemHandle(frame); /* the driver refuses it */
	__asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) static void consume(int from, int to, int twice)
{
	for (int i = 0; i < FRAMES; i++) {
		CUdeviceptr frame = open_frame(from);

		if (i % 4 == 3) {
			pass(to, "s", 1);
			continue; /* not interesting */
		}
		CHECK(cuMemsetD8(frame, 1, BYTES));
		CHECK(cuIpcCloseMemHandle(frame));
		if (twice)
			close_again(frame);
		pass(to, "d", 1); /* the producer frees it then */
	}
}

__attribute__((noinline)) static void produce(int from, int to)
{
	for (int i = 0; i < FRAMES; i++) {
		CUipcMemHandle handle;
		CUdeviceptr frame;
		char word;

		CHECK(cuMemAlloc(&frame, BYTES));
		CHECK(cuIpcGetMemHandle(&handle, frame));
		pass(to, &handle, sizeof(handle));
		receive(from, &word, 1);
		CHECK(cuMemFree(frame));
	}
}

int main(int argc, char **argv)
{
	int down[2], up[2];
	pid_t consumer;

	if (pipe(down) || pipe(up))
		return 2;
	consumer = fork();
	use_gpu();
	if (consumer == 0) {
		consume(down[0], up[1], argc > 1 && argv[1] != NULL);
		return 0;
	}
	produce(up[0], down[1]);
	waitpid(consumer, NULL, 0);
	return 0;
}
