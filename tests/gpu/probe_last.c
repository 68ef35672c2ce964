/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions about the last memory of a device: how much has to stay free when a process takes all the rest in one
 * allocation, alone and beside another process that keeps blocks of 64 MiB?  And do processes get contexts on one device
 * while another device is full?
 *
 * Rule: Other processes are forked before this one calls CUDA, and end with it.
 */
#include "probe.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
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

/* Keeps all memory of device 0, says so, and waits for its end. */
static void fill_first(int ready)
{
	size_t piece = 1024 * MIB;
	CUdeviceptr block;
	char byte = 0;

	begin();
	while (piece >= 4096)
		if (cu.cuMemAlloc_v2(&block, piece))
			piece /= 2;
	measured("device 0 has %.1f MiB free", (double)free_now() / (double)MIB);
	if (write(ready, &byte, 1) != 1)
		exit(1);
	for (;;)
		pause();
}

/* Makes a context on device 1, writes the result, and keeps it until @go ends. */
static void take_second(int results, int go)
{
	CUcontext context;
	int result;
	char byte;

	if (cuda_door_open())
		exit(1);
	result = cu.cuInit(0);
	if (!result)
		result = cu.cuDevicePrimaryCtxRetain(&context, 1);
	if (write(results, &result, sizeof result) != sizeof result || read(go, &byte, 1))
		exit(1);
	_exit(0);
}

/* CROWD processes make contexts on device 1, and all keep them until the last has one. */
static void crowd_on_second(const char *when)
{
	enum { CROWD = 64 };
	int results[2], go[2], refused = 0, error = 0;

	if (pipe(results) || pipe(go))
		exit(1);
	for (int i = 0; i < CROWD; i++)
		if (!fork()) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			close(go[1]);
			take_second(results[1], go[0]);
		}
	for (int i = 0; i < CROWD; i++) {
		int result;

		if (read(results[0], &result, sizeof result) != sizeof result)
			exit(1);
		refused += result != 0;
		error = result ? result : error;
	}
	close(go[1]);
	for (int i = 0; i < CROWD; i++)
		waitpid(-1, NULL, 0);
	close(go[0]);
	close(results[0]);
	close(results[1]);
	measured("%s: of %d processes that make a context on device 1, %d are refused, error %d", when, CROWD, refused, error);
}

/* Needs two devices: with one, each process of the crowd is refused with 101. */
static void full_neighbour(void)
{
	int ready[2];
	char byte;
	pid_t filler;

	if (pipe(ready))
		exit(1);
	crowd_on_second("both devices are free");
	filler = fork();
	if (!filler) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		fill_first(ready[1]);
	}
	close(ready[1]);
	if (filler < 0 || read(ready[0], &byte, 1) != 1)
		exit(1);
	crowd_on_second("device 0 is full");
	crowd_on_second("device 0 is full");
	kill(filler, SIGKILL);
	waitpid(filler, NULL, 0);
}

const struct more_question last_questions[] = {
	{ "last-memory", last_memory, 30000 },
	{ "last-memory-beside", last_memory_beside, 40000 },
	{ "full-neighbour", full_neighbour, 200000 },
	{ NULL, NULL, 0 },
};
