/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost for a program that shares nothing: the time of cudaMalloc and cudaFree of 4 KiB, the
 * best of several series.  This is a quick check, not the benchmark.
 */
#include "common.h"

enum { BYTES = 4096, PAIRS = 5000, SERIES = 9 };

int main(void)
{
	double best = 1e30;
	void *beside, *p;

	program_start();
	CUDA(cudaMalloc(&beside, BYTES));
	for (int s = 0; s < SERIES; s++) {
		double start = now_ms(), us;

		for (int i = 0; i < PAIRS; i++) {
			CUDA(cudaMalloc(&p, BYTES));
			CUDA(cudaFree(p));
		}
		us = (now_ms() - start) * 1e3 / PAIRS;
		if (us < best)
			best = us;
	}
	CUDA(cudaFree(beside));
	printf("pair_us=%.3f\n", best);
	return 0;
}
