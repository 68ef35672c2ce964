/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A consumer is killed by SIGKILL while its kernel writes into an imported block
 * that the producer has already freed.
 *
 *	killed small|big ROUNDS [HELD_MS]
 *
 * HELD_MS is how long the kernel writes before the kill.  The memory comes back
 * at once only when that is longer than the grace period.  run.sh tests both: no
 * grace period, and a kill after it.
 *
 * After the kill the producer allocates until it gets the address again, fills
 * the block, and checks for half a second whether a byte of the dead process's
 * kernel appears in it.  Each round prints the time from the kill until the memory
 * was back, and the number of foreign bytes.  Bare, a small block comes back at
 * once and the kernel writes into it; that is a result, not an error (exit status 0).
 *
 * The test detects returned memory by its address: while a block waits in the
 * limbo its address is not reused.  Free memory is no indicator, because the dead
 * process's context is freed at the same time.
 */
#include "common.h"

enum {
	OURS = 0x3a,
	THEIRS = 0xc5,
	BESIDE = 90,
	NEIGHBOURS = 8,
	SMALL_BATCH = 64,
	BIG_BATCH = 8,
	BACK_MS = 3000, /* the time limit for getting the address again */
	WATCH_MS = 500,
	WRITE_MS = 1500, /* the kernel runs on for this long after the planned kill */
};

static __device__ unsigned long long global_ns(void)
{
	unsigned long long t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

/* Writes THEIRS everywhere for @ms; *@started becomes 1 after the first pass. */
static __global__ void write_kernel(volatile unsigned char *p, uint64_t n, unsigned int ms,
				    volatile int *started)
{
	unsigned long long end = global_ns() + ms * 1000000ull;
	uint64_t step = (uint64_t)gridDim.x * blockDim.x;
	uint64_t first = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;

	do {
		for (uint64_t i = first; i < n; i += step)
			p[i] = THEIRS;
		if (first == 0) {
			__threadfence_system();
			*started = 1;
		}
	} while (global_ns() < end);
}

static int consumer(void)
{
	struct link link = link_consumer();
	volatile int *started;
	struct message m;
	void *p, *device_flag;
	double end;

	CUDA(cudaHostAlloc((void **)&started, sizeof(*started), cudaHostAllocMapped));
	*started = 0;
	CUDA(cudaHostGetDevicePointer(&device_flag, (void *)started, 0));
	if (!link_receive(&link, &m, ANSWER_MS) || m.op != 'O')
		die("the producer sent no handle");
	CUDA(cudaIpcOpenMemHandle(&p, m.handle, cudaIpcMemLazyEnablePeerAccess));
	m.op = 'o';
	link_send(&link, &m);

	if (!link_receive(&link, &m, ANSWER_MS) || m.op != 'W')
		die("the producer sent no value to write");
	write_kernel<<<blocks_for(m.bytes), 256>>>((volatile unsigned char *)p, m.bytes,
						   (unsigned int)m.other + WRITE_MS,
						   (volatile int *)device_flag);
	CUDA(cudaGetLastError());
	end = now_ms() + WRITE_MS;
	while (!*started)
		if (now_ms() > end)
			die("the kernel did not start");
	m.op = 'w';
	link_send(&link, &m);
	CUDA(cudaDeviceSynchronize());
	die("nobody killed this process while its kernel ran");
}

/* One round.  Adds the foreign bytes to *@foreign; returns the time until the memory was back. */
static double round_of(const char *size, uint64_t bytes, int number, unsigned int held_ms,
		       uint64_t *foreign)
{
	int batch = bytes > (1 << 20) ? BIG_BATCH : SMALL_BATCH, got = -1, status;
	void *beside[2 * NEIGHBOURS], *again[SMALL_BATCH], *block = NULL;
	struct link link;
	struct message m = {};
	uint64_t seen = 0;
	double start, back;
	bool reap_first = number % 2, reaped = false, small = bytes < (2 << 20);
	size_t free_before, free_now, total;

	CUDA(cudaMemGetInfo(&free_before, &total));
	link = link_start("killed");
	for (int i = 0; i < 2 * NEIGHBOURS; i++) {
		if (i == NEIGHBOURS)
			CUDA(cudaMalloc(&block, bytes));
		CUDA(cudaMalloc(&beside[i], 1024));
		CUDA(cudaMemset(beside[i], BESIDE, 1024));
	}
	/* loads the kernel and allocates its counter before the measurement */
	count_other(beside[0], 1024, BESIDE);
	CUDA(cudaMemset(block, OURS, bytes));
	CUDA(cudaIpcGetMemHandle(&m.handle, block));
	m.op = 'O';
	m.bytes = bytes;
	link_ask(&link, &m, 'o');
	CUDA(cudaFree(block));
	m.op = 'W';
	m.bytes = bytes;
	m.other = held_ms;
	link_ask(&link, &m, 'w');
	pause_ms(held_ms + 20 + 30 * number);

	start = now_ms();
	if (kill(link.pid, SIGKILL))
		die("kill: %s", strerror(errno));
	/*
	 * A small block is back when its address is allocated again.  A big block's
	 * address may stay unused, so the driver's free memory tells.
	 */
	do {
		for (int i = 0; small && i < batch; i++) {
			CUDA(cudaMalloc(&again[i], bytes));
			if (again[i] == block)
				got = i;
		}
		CUDA(cudaMemGetInfo(&free_now, &total));
		back = now_ms() - start;
		for (int i = 0; small && i < batch; i++)
			if (i != got)
				CUDA(cudaFree(again[i]));
		if (!small && free_now + (8 << 20) >= free_before)
			got = 0;
		/* odd rounds reap the zombie as a careful parent would; even rounds leave it */
		if (reap_first && !reaped)
			reaped = waitpid(link.pid, &status, WNOHANG) == link.pid;
	} while (got < 0 && back < BACK_MS);
	/* the block's pages may belong to any later block: check several */
	for (int i = 0; !small && got >= 0 && i < batch; i++)
		CUDA(cudaMalloc(&again[i], bytes));

	if (got >= 0) {
		double end = now_ms() + WATCH_MS;
		int looks = 0;

		int first = small ? got : 0, last = small ? got : batch - 1;

		for (int i = first; i <= last; i++)
			CUDA(cudaMemset(again[i], OURS, bytes));
		do {
			for (int i = first; i <= last; i++)
				seen += count_other(again[i], bytes, OURS);
			looks++;
		} while (now_ms() < end);
		fprintf(stderr, "killed %s round %d: looked %d times\n", size, number, looks);
		for (int i = first; i <= last; i++)
			CUDA(cudaFree(again[i]));
	}
	for (int i = 0; i < 2 * NEIGHBOURS; i++) {
		if (count_other(beside[i], 1024, BESIDE))
			die("a neighbour's bytes have changed");
		CUDA(cudaFree(beside[i]));
	}
	if (!reaped)
		while (waitpid(link.pid, &status, 0) < 0)
			if (errno != EINTR)
				die("waitpid: %s", strerror(errno));
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		die("the consumer ended with wait status 0x%x before it was killed", status);
	close(link.in);
	close(link.out);
	if (got < 0)
		printf("killed size=%s round=%d back_ms=never\n", size, number);
	else
		printf("killed size=%s round=%d back_ms=%.1f foreign=%llu result=%s\n", size, number,
		       back, (unsigned long long)seen, seen ? "foreign" : "own");
	*foreign += seen;
	return back;
}

int main(int argc, char **argv)
{
	uint64_t foreign = 0;
	double worst = 0;

	program_start();
	if (argc > 1 && !strcmp(argv[1], "consumer"))
		return consumer();
	if (argc < 3)
		die("usage: killed small|big ROUNDS [HELD_MS]");
	CUDA(cudaFree(0));
	for (int i = 0; i < atoi(argv[2]); i++) {
		double ms = round_of(argv[1], strcmp(argv[1], "big") ? 1024 : 64 << 20, i,
				     argc > 3 ? atoi(argv[3]) : 0, &foreign);

		if (ms > worst)
			worst = ms;
	}
	printf("killed size=%s worst_ms=%.0f foreign=%llu\n", argv[1], worst,
	       (unsigned long long)foreign);
	return 0;
}
