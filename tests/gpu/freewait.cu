/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures how long a free takes behind a kernel of 200 ms on another,
 * non-blocking stream.  Bare, cudaFree waits for the kernel; a deferred free must
 * wait as well.
 *
 *	freewait
 *
 * Prints a line for each kind of block: never exported; exported and held by the
 * consumer (1 KiB and 64 MiB); held and freed by cudaFreeAsync on the kernel's
 * own stream; held and freed while nothing runs.
 */
#include "common.h"

enum { SPIN_MS = 200, SMALL = 1024, BIG = 64 << 20 };

static __global__ void spin_kernel(unsigned int ms, volatile int *started)
{
	unsigned long long now, end;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	end = now + ms * 1000000ull;
	*started = 1;
	__threadfence_system();
	while (now < end)
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
}

static int consumer(void)
{
	struct link link = link_consumer();
	struct message m;
	void *p;

	while (link_receive(&link, &m, ANSWER_MS)) {
		if (m.op == 'Q')
			return 0;
		if (m.op != 'O')
			die("what is '%c'?", m.op);
		CUDA(cudaIpcOpenMemHandle(&p, m.handle, cudaIpcMemLazyEnablePeerAccess));
		m.op = 'o';
		link_send(&link, &m);
	}
	die("the producer ended unexpectedly");
}

static void measure(struct link *link, const char *kind, size_t bytes, bool held, bool spin,
		    bool async)
{
	static volatile int *started;
	static void *device_flag;
	void *beside, *block;
	cudaStream_t stream;
	double start, took;

	if (!started) {
		CUDA(cudaHostAlloc((void **)&started, sizeof(*started), cudaHostAllocMapped));
		CUDA(cudaHostGetDevicePointer(&device_flag, (void *)started, 0));
		/* warm-up: no measurement includes loading the kernel */
		spin_kernel<<<1, 1>>>(1, (volatile int *)device_flag);
		CUDA(cudaGetLastError());
		CUDA(cudaDeviceSynchronize());
	}
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaMalloc(&beside, SMALL));
	CUDA(cudaMalloc(&block, bytes));
	if (held) {
		struct message m = {};

		CUDA(cudaIpcGetMemHandle(&m.handle, block));
		m.op = 'O';
		link_ask(link, &m, 'o');
	}
	CUDA(cudaDeviceSynchronize());
	*started = 0;
	if (spin) {
		spin_kernel<<<1, 1, 0, stream>>>(SPIN_MS, (volatile int *)device_flag);
		CUDA(cudaGetLastError());
		start = now_ms();
		while (!*started)
			if (now_ms() - start > 2000)
				die("the kernel did not start");
	}
	start = now_ms();
	if (async)
		CUDA(cudaFreeAsync(block, stream));
	else
		CUDA(cudaFree(block));
	took = now_ms() - start;
	CUDA(cudaDeviceSynchronize());
	CUDA(cudaStreamDestroy(stream));
	CUDA(cudaFree(beside));
	printf("freewait kind=%s free_ms=%.2f\n", kind, took);
}

int main(int argc, char **argv)
{
	program_start();
	if (argc > 1 && !strcmp(argv[1], "consumer"))
		return consumer();
	CUDA(cudaFree(0));

	struct link link = link_start("freewait");
	measure(&link, "never-exported", SMALL, false, true, false);
	measure(&link, "held-small", SMALL, true, true, false);
	measure(&link, "held-big", BIG, true, true, false);
	measure(&link, "held-async", SMALL, true, true, true);
	measure(&link, "held-idle", SMALL, true, false, false);
	link_end(&link);
	return 0;
}
