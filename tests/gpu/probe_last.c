/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions about the last memory of a device: how much has to stay free when a process takes all the rest in one
 * allocation, alone and beside another process that keeps blocks of 64 MiB?
 *
 * Rule: The other process is forked before this one calls CUDA, and ends with it.
 */
#include "probe.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
enum { BLOCKS = 8, TRIES = 3 };

static size_t free_now(void)
{
	size_t all, left;

	MUST(cu.cuMemGetInfo_v2(&left, &all));
	return left;
}

static void take_all_but(const char *who, size_t spare)
{
	size_t left = free_now(), wanted = left < spare ? 0 : (left - spare) / (2 * MIB) * (2 * MIB), least = 0;
	int given = 0, result = 0;

	for (int i = 0; i < TRIES; i++) {
		CUdeviceptr block;
		int error = DO(cu.cuMemAlloc_v2(&block, wanted));

		if (error) {
			result = error;
			continue;
		}
		given++;
		least = free_now();
		MUST(cu.cuMemFree_v2(block));
	}
	measured("%s, %.1f MiB free, %zu MiB asked for (%.1f to spare): given %d of %d times, error %d, then %.1f free", who,
		 (double)left / (double)MIB, wanted / MIB, (double)(left - wanted) / (double)MIB, given, TRIES, result,
		 (double)least / (double)MIB);
}

static void take_all(const char *who)
{
	begin();
	for (size_t spare = 0; spare <= 16; spare += spare < 8 ? 1 : 4)
		take_all_but(who, spare * MIB);
}

static void last_memory(void)
{
	take_all("alone");
}

static void last_memory_beside(void)
{
	int ready[2];
	char byte = 0;
	pid_t other;

	if (pipe(ready))
		exit(1);
	other = fork();
	if (!other) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		begin();
		for (int i = 0; i < BLOCKS; i++) {
			CUdeviceptr block;

			MUST(cu.cuMemAlloc_v2(&block, 64 * MIB));
		}
		if (write(ready[1], &byte, 1) != 1)
			exit(1);
		for (;;)
			pause();
	}
	close(ready[1]);
	if (other < 0 || read(ready[0], &byte, 1) != 1) {
		measured("the other process has no context, or no memory");
		exit(1);
	}
	take_all("beside another process");
	kill(other, SIGKILL);
}

const struct more_question last_questions[] = {
	{ "last-memory", last_memory, 30000 },
	{ "last-memory-beside", last_memory_beside, 40000 },
	{ NULL, NULL, 0 },
};
