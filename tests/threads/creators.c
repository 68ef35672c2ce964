/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests which class and which processors culimbo's threads have, in a program whose first CUDA calls are made by a
 * thread that is real-time and bound to one processor.
 *
 *   creators    under culimbo, with CULIMBO_SHARE=all, so that it has two threads: the collector, and the
 *               service of descriptors
 */
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cuda.h>

enum { OURS = 2, TRIES = 20000 };

static int number, failures;

static void ok(bool holds, const char *what)
{
	printf("%sok %d - %s\n", holds ? "" : "not ", ++number, what);
	failures += !holds;
}

static cpu_set_t of_process;
static bool real_time, bound;

static void change_itself(void)
{
	struct sched_param param = { .sched_priority = 1 };
	cpu_set_t one;
	int cpu = 0;

	while (!CPU_ISSET(cpu, &of_process))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	bound = CPU_COUNT(&of_process) > 1 && !sched_setaffinity(0, sizeof one, &one);
	real_time = !sched_setscheduler(0, SCHED_FIFO, &param);
}

/* Shares and frees a block, which starts the collector, and shares virtual memory, which starts the service. */
static bool share(void)
{
	CUmemAllocationProp property = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					 .location.type = CU_MEM_LOCATION_TYPE_DEVICE };
	CUmemAccessDesc access = { .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle piece;
	CUipcMemHandle handle;
	CUdeviceptr p, v;
	CUcontext ctx;
	size_t size;

	if (cuInit(0) || cuDevicePrimaryCtxRetain(&ctx, 0) || cuCtxSetCurrent(ctx) || cuMemAlloc(&p, 1024) ||
	    cuIpcGetMemHandle(&handle, p) || cuMemFree(p))
		return false;
	return !cuMemGetAllocationGranularity(&size, &property, CU_MEM_ALLOC_GRANULARITY_MINIMUM) &&
	       !cuMemAddressReserve(&v, size, 0, 0, 0) && !cuMemCreate(&piece, size, &property, 0) &&
	       !cuMemMap(v, size, 0, piece, 0) && !cuMemSetAccess(v, size, &access, 1) &&
	       !cuIpcGetMemHandle(&handle, v);
}

static void *program_main(void *shared)
{
	change_itself();
	*(bool *)shared = share();
	return NULL;
}

static bool is_ours(pid_t task)
{
	char path[64], name[32] = "";
	FILE *f;

	snprintf(path, sizeof path, "/proc/self/task/%d/comm", (int)task);
	f = fopen(path, "r");
	if (f) {
		(void)!fgets(name, sizeof name, f);
		fclose(f);
	}
	return !strcmp(name, "culimbo\n");
}

/* Finds culimbo's threads.  Returns how many there are. */
static int find(pid_t tasks[OURS])
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	int n = 0;

	while (dir && (entry = readdir(dir)) != NULL)
		if (n < OURS && atoi(entry->d_name) && is_ours(atoi(entry->d_name)))
			tasks[n++] = atoi(entry->d_name);
	if (dir)
		closedir(dir);
	return n;
}

static bool has_cpus_of_process(pid_t task)
{
	cpu_set_t its;

	return !sched_getaffinity(task, sizeof its, &its) && CPU_EQUAL(&its, &of_process);
}

int main(void)
{
	const struct timespec moment = { 0, 1000000 };
	bool shared = false, others = true, cpus = true;
	pid_t tasks[OURS];
	pthread_t thread;
	int n;

	if (sched_getaffinity(0, sizeof of_process, &of_process) ||
	    pthread_create(&thread, NULL, program_main, &shared) || pthread_join(thread, NULL))
		return 2;
	/* a thread gives itself its name when it begins */
	for (int tries = TRIES; (n = find(tasks)) < OURS && tries; tries--)
		nanosleep(&moment, NULL);
	ok(shared && n == OURS, "culimbo has two threads");
	for (int i = 0; i < n; i++) {
		others &= sched_getscheduler(tasks[i]) == SCHED_OTHER;
		cpus &= has_cpus_of_process(tasks[i]);
	}
	ok(others, real_time ? "which are not real-time as the thread that created them" :
			       "which are not real-time # SKIP no right to create them in a real-time thread");
	ok(cpus, bound ? "and have the processors of the process, not its one" :
			 "and have the processors of the process # SKIP there is one only");
	printf("1..%d\n", number);
	fflush(stdout);
	return failures != 0;
}
