/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forks, new images and signals with threads in every hook.
 */
#include "common.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* ------------------------------------------------------------------------- forks */
void fork_and_leave(void)
{
	start_workers();
	for (int i = 0; i < 100; i++) {
		pid_t child = fork();

		if (child == 0) {
			alarm(CHILD_SECONDS);
			_exit(7);
		}
		must_end(child, 7);
	}
	stop_workers();
}

void fork_and_exit(void)
{
	start_workers();
	for (int i = 0; i < 40; i++) {
		pid_t child = fork();

		if (child == 0) {
			alarm(CHILD_SECONDS);
			exit(7);
		}
		must_end(child, 7);
	}
	stop_workers();
}

void fork_and_exec(void)
{
	start_workers();
	for (int i = 0; i < 20; i++) {
		pid_t child = fork();

		if (child == 0) {
			alarm(CHILD_SECONDS);
			execl(self_path, self_path, "--status", "9", NULL);
			_exit(1);
		}
		must_end(child, 9);
	}
	stop_workers();
}

/* CUDA does not work in a forked child; it must say so, not hang. */
void fork_and_call(void)
{
	start_workers();
	for (int i = 0; i < 60; i++) {
		pid_t child = fork();

		if (child == 0) {
			CUipcMemHandle handle;
			CUipcEventHandle event_handle;
			CUdeviceptr address = 0;
			CUevent event = NULL;

			alarm(CHILD_SECONDS);
			for (size_t size = 1; size < 1 << 20; size *= 3)
				free(malloc(size));
			CHECK(cu.cuMemAlloc_v2(&address, SMALL) == CUDA_ERROR_NOT_INITIALIZED);
			CHECK(cu.cuMemFree_v2(0x7f0000000000) == CUDA_ERROR_NOT_INITIALIZED);
			CHECK(cu.cuMemFreeAsync(0x7f0000000000, NULL) == CUDA_ERROR_NOT_INITIALIZED);
			CHECK(cu.cuIpcGetMemHandle(&handle, 0x7f0000000000) == CUDA_ERROR_NOT_INITIALIZED);
			CHECK(cu.cuIpcOpenMemHandle_v2(&address, gifts.memory[0],
						       CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ==
			      CUDA_ERROR_NOT_INITIALIZED);
			CHECK(cu.cuIpcCloseMemHandle(0x7f0000000000) == CUDA_ERROR_NOT_INITIALIZED);
			CHECK(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING |
							       CU_EVENT_INTERPROCESS) ==
			      CUDA_ERROR_NOT_INITIALIZED);
			CHECK(cu.cuIpcOpenEventHandle(&event, gifts.event) == CUDA_ERROR_NOT_INITIALIZED);
			(void)event_handle;
			look_up();
			_exit(7);
		}
		must_end(child, 7);
	}
	stop_workers();
}

static atomic_bool allocating;
static void *allocate(void *unused)
{
	while (atomic_load(&allocating)) {
		void *many[64];

		for (int i = 0; i < 64; i++)
			many[i] = malloc(2000 + 100 * (size_t)i);
		for (int i = 0; i < 64; i++)
			free(many[i]);
	}
	return unused;
}

/*
 * As _Fork() or clone() make it: nobody has told malloc(), whose lock a thread of the parent may
 * have.  Without culimbo the driver allocates nothing there, so neither may we.
 */
void fork_amid_malloc(void)
{
	pthread_t thread[2];

	CHECK(mallopt(M_ARENA_MAX, 1));
	begin();
	share_and_free();
	open_and_close();
	atomic_store(&allocating, true);
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&thread[i], NULL, allocate, NULL));
	for (int i = 0; i < 100; i++) {
		pid_t child = (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);

		if (child == 0) {
			CUipcMemHandle handle;
			CUdeviceptr address;
			CUevent event;

			alarm(CHILD_SECONDS);
			if (cu.cuMemFree_v2(0x7f0000000000) != CUDA_ERROR_NOT_INITIALIZED ||
			    cu.cuIpcCloseMemHandle(0x7f0000000000) != CUDA_ERROR_NOT_INITIALIZED ||
			    cu.cuIpcGetMemHandle(&handle, 0x7f0000000000) != CUDA_ERROR_NOT_INITIALIZED ||
			    cu.cuIpcOpenMemHandle_v2(&address, gifts.memory[0],
						     CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) !=
				    CUDA_ERROR_NOT_INITIALIZED ||
			    cu.cuIpcOpenEventHandle(&event, gifts.event) != CUDA_ERROR_NOT_INITIALIZED)
				_exit(1);
			_exit(7);
		}
		must_end(child, 7);
	}
	atomic_store(&allocating, false);
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
}

void vfork_and_exec(void)
{
	start_workers();
	for (int i = 0; i < 30; i++) {
		pid_t child = vfork();

		if (child == 0) {
			if (i % 2)
				_exit(9);
			execl(self_path, self_path, "--status", "9", NULL);
			_exit(1);
		}
		must_end(child, 9);
	}
	share_and_free(); /* the vfork child's _exit() did not end our sharing */
	open_and_close();
	stop_workers();
	CHECK(exporter_gets_all_back());
}

void spawn(void)
{
	char *argv[] = { self_path, (char *)"--status", (char *)"9", NULL };

	start_workers();
	for (int i = 0; i < 30; i++) {
		pid_t child;

		CHECK(!posix_spawn(&child, self_path, NULL, NULL, argv, environ));
		must_end(child, 9);
	}
	stop_workers();
}

/* ----------------------------------------------------------------------- signals */
static void leave_at_once(int signal)
{
	_exit(5);
}

static void by_handler(int number, void (*handler)(int))
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };

	CHECK(!sigaction(number, &action, NULL));
}

static void set_timer(long us, long again_us)
{
	struct itimerval when = { { 0, again_us }, { 0, us } };

	CHECK(!setitimer(ITIMER_REAL, &when, NULL));
}

/* For a child that has another use for its alarm. */
static void must_end_in_time(pid_t child, int status, const char *what, unsigned int family)
{
	uint64_t until = now_ms() + CHILD_SECONDS * 1000;
	int how = -1;

	CHECK(child > 0);
	while (waitpid(child, &how, WNOHANG) == 0)
		if (now_ms() > until || usleep(200)) {
			kill(child, SIGKILL);
			dprintf(2, "# a child that %s hangs (hook family %u)\n", what, family);
			_exit(1);
		}
	CHECK(WIFEXITED(how) && WEXITSTATUS(how) == status);
}

/* The signal usually reaches the main thread, which is in a hook of family @i. */
void signal_and_leave(void)
{
	for (unsigned int i = 0; i < 5 * FAMILIES; i++) {
		pid_t child = fork();

		if (child == 0) {
			uint64_t until = now_ms() + CHILD_SECONDS * 1000;

			begin();
			share_and_free();
			by_handler(SIGALRM, leave_at_once);
			set_timer(200 + 331 * (long)i, 0);
			while (now_ms() < until)
				families[i % FAMILIES]();
			_exit(1);
		}
		must_end_in_time(child, 5, "leaves in a signal handler", i % FAMILIES);
	}
}

static atomic_int forked;
static void fork_in_handler(int signal)
{
	int before = errno, how;
	pid_t child = fork();

	if (child == 0)
		_exit(7);
	if (child > 0) {
		while (waitpid(child, &how, 0) < 0 && errno == EINTR)
			;
		if (WIFEXITED(how) && WEXITSTATUS(how) == 7)
			atomic_fetch_add(&forked, 1);
	}
	errno = before;
}

/*
 * One signal after the other: where it meets a lock that this very thread has,
 * fork() waits 0.2 s for it, so a timer that goes on would never let it get on.
 */
void signal_and_fork(void)
{
	for (unsigned int i = 0; i < FAMILIES; i++) {
		if (families[i] == look_up)
			continue; /* (fork() in the dynamic linker's own locks is libc's) */
		pid_t child = fork();

		if (child == 0) {
			begin();
			share_and_free();
			by_handler(SIGALRM, fork_in_handler);
			for (int n = 0; n < 6; n++) {
				uint64_t until = now_ms() + CHILD_SECONDS * 1000;

				set_timer(150 + 97 * n, 0);
				while (atomic_load(&forked) == n && now_ms() < until)
					families[i]();
				CHECK(atomic_load(&forked) == n + 1);
			}
			open_and_close();
			_exit(6);
		}
		must_end_in_time(child, 6, "forks in a signal handler", i);
	}
}
