/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends of the process and of its threads, and libraries that come and go, with threads in
 * every hook.
 */
#include "common.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* -------------------------------------------------------------------------- ends */
static void *end_for_all(void *unused)
{
	unsigned long before = atomic_load(&rounds);

	while (atomic_load(&rounds) < before + 50)
		sched_yield();
	atomic_store(&ending, true);
	exit(6);
}

void leave_main_thread(void)
{
	pid_t child = fork();

	if (child == 0) {
		pthread_t thread;

		alarm(CHILD_SECONDS);
		start_workers();
		CHECK(!pthread_create(&thread, NULL, end_for_all, NULL));
		pthread_exit(NULL);
	}
	must_end(child, 6);
}

void exit_among_others(void)
{
	for (int i = 0; i < 20; i++) {
		pid_t child = fork();

		if (child == 0) {
			alarm(CHILD_SECONDS);
			start_workers();
			atomic_store(&ending, true);
			if (i % 3 == 0)
				exit(6);
			if (i % 3 == 1)
				_exit(6);
			quick_exit(6);
		}
		must_end(child, 6);
	}
}

static CUdeviceptr kept[4];
static void free_at_exit(void)
{
	for (int i = 0; i < 4; i++)
		if (cu.cuMemFree_v2(kept[i]))
			_exit(1);
}

void keep_some(void)
{
	CUipcMemHandle handle;

	for (int i = 0; i < 4; i++) {
		MUST(cu.cuMemAlloc_v2(&kept[i], SMALL));
		MUST(cu.cuIpcGetMemHandle(&handle, kept[i]));
	}
}

void free_in_atexit(void)
{
	pid_t child = fork();

	if (child == 0) {
		alarm(CHILD_SECONDS);
		begin();
		keep_some();
		CHECK(!atexit(free_at_exit));
		exit(6);
	}
	must_end(child, 6);
}

static pthread_key_t key;
static void free_own(void *address)
{
	MUST(cu.cuCtxSetCurrent(primary));
	MUST(cu.cuMemFree_v2((CUdeviceptr)(uintptr_t)address));
	open_and_close();
}
static void *leave_it_to_the_key(void *unused)
{
	CUipcMemHandle handle;
	CUdeviceptr address;

	MUST(cu.cuCtxSetCurrent(primary));
	MUST(cu.cuMemAlloc_v2(&address, SMALL));
	MUST(cu.cuIpcGetMemHandle(&handle, address));
	CHECK(!pthread_setspecific(key, (void *)(uintptr_t)address));
	return unused;
}

void free_in_thread_destructor(void)
{
	pthread_t thread[8];

	begin();
	CHECK(!pthread_key_create(&key, free_own));
	for (int i = 0; i < 8; i++)
		CHECK(!pthread_create(&thread[i], NULL, leave_it_to_the_key, NULL));
	for (int i = 0; i < 8; i++)
		CHECK(!pthread_join(thread[i], NULL));
	CHECK(exporter_gets_all_back());
}

/* ---------------------------------------------------------------------- libraries */
void close_driver(void)
{
	void *library;

	begin();
	share_and_free();
	for (int i = 0; i < 3; i++) {
		library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
		CHECK(library);
		CHECK(!dlclose(library));
		CHECK(!dlclose(library)); /* the one of cuda_door_open() too */
		if (!bare) { /* we keep it: what the program has of it stays good */
			share_and_free();
			open_and_close();
		}
		begin();
		share_and_free();
		open_and_close();
	}
	CHECK(exporter_gets_all_back());
}

/* early_late.so is preloaded by run.sh: it has said on its way what it got */
void constructor_and_destructor(void)
{
	const char *library = getenv("THREADS_EARLY_LATE");
	char said[8] = "", told[4096] = "";
	int up[2], err[2];
	pid_t child;

	CHECK(library && !pipe(up));
	for (int share = 0; share < 2; share++) {
		memset(said, 0, sizeof said);
		memset(told, 0, sizeof told);
		CHECK(!pipe(err));
		child = fork();
		if (child == 0) {
			char preload[2048], fd[16];

			alarm(CHILD_SECONDS);
			snprintf(preload, sizeof preload, "%s%s%s", getenv("LD_PRELOAD") ?: "",
				 getenv("LD_PRELOAD") ? ":" : "", library);
			snprintf(fd, sizeof fd, "%d", up[1]);
			setenv("LD_PRELOAD", preload, 1);
			setenv("EARLY_LATE_FD", fd, 1);
			setenv("CULIMBO_GRACE", "0", 1); /* what it frees could go at once */
			dup2(err[1], STDERR_FILENO);
			close(err[0]);
			close(err[1]);
			execl(self_path, self_path, share ? "--share" : "--status", "9", NULL);
			_exit(1);
		}
		close(err[1]);
		must_end(child, 9);
		CHECK(read(up[0], said, sizeof said) == 2);
		CHECK(!strcmp(said, "cd")); /* constructor and destructor, both well */
		/* and nothing is wrong with that */
		if (read(err[0], told, sizeof told - 1) > 0)
			fprintf(stderr, "%s", told);
		CHECK(!told[0]);
		close(err[0]);
	}
}
