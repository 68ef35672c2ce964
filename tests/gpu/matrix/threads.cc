/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads with a default stream each.  The program is compiled with
 * CUDA_API_PER_THREAD_DEFAULT_STREAM, so every call below is the _ptsz or _ptds
 * variant.  All threads at once: fill a block on their own default stream, share it
 * with their own consumer, free it in that stream's order, and allocate over it.
 * The client prints one result for all reads.
 */
#define CUDA_API_PER_THREAD_DEFAULT_STREAM
#include "driver.h"
#include <atomic>
#include <thread>

enum { THREADS = 4, ROUNDS = 8 };

static std::atomic<int> foreign, broken;

static void play(CUcontext context, struct link *link)
{
	CU(cuCtxSetCurrent(context));
	for (int i = 0; i < ROUNDS; i++) {
		Block block;
		struct message m;

		CU(cuMemsetD8Async(block.address, OURS, BYTES, 0));
		CU(cuStreamSynchronize(0));
		m = open_there(link, block.address, BYTES, OURS);
		if (i % 2) {
			CU(cuMemFree(block.address));
		} else {
			CU(cuMemFreeAsync(block.address, 0));
			CU(cuStreamSynchronize(0));
		}
		block.reuse();
		foreign += !own_there(link, m);
		close_there(link, m);
		for (int n = 0; n < 2 * NEIGHBOURS; n++)
			broken += count_other(block.beside[(size_t)n], BYTES, BESIDE) != 0;
		block.free_others();
	}
}

int main(int argc, char **)
{
	std::vector<std::thread> threads;
	struct link links[THREADS];
	CUcontext context;

	program_start();
	if (argc > 1) {
		driver_start(0);
		return plain_consumer();
	}
	context = driver_start(0);
	tell_version();
	for (struct link &link : links)
		link = link_start("threads");
	fact("consumer=%d", (int)links[0].pid);
	for (struct link &link : links)
		threads.emplace_back(play, context, &link);
	for (std::thread &thread : threads)
		thread.join();
	for (struct link &link : links)
		link_end(&link);
	if (broken)
		die("a neighbour's bytes have changed");
	printf("client=threads threads=%d rounds=%d result=%s\n", THREADS, ROUNDS, word(!foreign));
	return 0;
}
