/* SPDX-License-Identifier: Apache-2.0 */
/*
 *	server SECONDS
 *
 * A server of 4 threads with 2 clients each runs for SECONDS.  A thread fills a
 * block of random size with its own byte, has a client open it, frees it at once
 * (by cuMemFree or cuMemFreeAsync), and continues.  A client holds up to 8 blocks,
 * checks every byte of them on each command, and closes them in any order.
 *
 * The number of reads goes to stderr, their result to stdout.
 */
#include "driver.h"
#include <atomic>
#include <deque>
#include <random>
#include <thread>

enum { THREADS = 4, EACH = 2, HELD = 8 };

static std::atomic<uint64_t> reads, foreign, bytes_read;

static void serve(CUcontext context, struct link *links, unsigned int seed)
{
	std::mt19937 random(seed);
	std::deque<struct message> held[EACH];
	double end = now_ms() + 1e3 * run_seconds;

	CU(cuCtxSetCurrent(context));
	for (uint64_t i = 0; now_ms() < end; i++) {
		unsigned int client = (unsigned int)(i % EACH);
		size_t size = random() % 4 ? 256 * (1 + random() % 16) : 4096 * (1 + random() % 1024);
		unsigned char value = (unsigned char)(1 + random() % 255);
		CUdeviceptr block = make(size, value);
		std::deque<struct message> &mine = held[client];
		size_t which;

		mine.push_back(to_open(block, size, value));
		link_ask(&links[client], &mine.back(), 'o');
		foreign += !!mine.back().other;
		if (random() % 2) {
			CU(cuMemFree(block));
		} else {
			CU(cuMemFreeAsync(block, 0));
			CU(cuStreamSynchronize(0));
		}
		which = random() % mine.size();
		foreign += !own_there(&links[client], mine[which]);
		reads++;
		bytes_read += mine[which].bytes;
		if (mine.size() == HELD) {
			foreign += !own_there(&links[client], mine[which]);
			reads++;
			close_there(&links[client], mine[which]);
			mine.erase(mine.begin() + (long)which);
		}
	}
	for (unsigned int client = 0; client < EACH; client++)
		for (const struct message &m : held[client]) {
			foreign += !own_there(&links[client], m);
			reads++;
			close_there(&links[client], m);
		}
}

int main(int argc, char **argv)
{
	struct link links[THREADS * EACH];
	std::vector<std::thread> threads;
	CUcontext context;

	if (argc > 2) {
		run_seconds = 3600; /* a client ends when the server ends */
		program_start();
		driver_start(0);
		return plain_consumer();
	}
	run_seconds = argc > 1 ? (unsigned int)atoi(argv[1]) : 60;
	program_start();
	context = driver_start(0);
	tell_version();
	for (struct link &link : links)
		link = link_start("server");
	fact("consumer=%d", (int)links[0].pid);
	for (unsigned int i = 0; i < THREADS; i++)
		threads.emplace_back(serve, context, links + i * EACH, 1 + i);
	for (std::thread &thread : threads)
		thread.join();
	for (struct link &link : links)
		link_end(&link);
	fprintf(stderr, "server: %llu reads of %llu MiB, %llu foreign\n",
		(unsigned long long)reads, (unsigned long long)bytes_read >> 20,
		(unsigned long long)foreign);
	fact("note=%llu reads, %llu foreign", (unsigned long long)reads,
	     (unsigned long long)foreign);
	printf("client=server clients=%d threads=%d result=%s\n", THREADS * EACH, THREADS,
	       word(!foreign));
	return reads ? 0 : 1;
}
