/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promise 4 where threads, forks, signals and ends meet our hooks: nothing of
 * ours deadlocks, crashes or changes what a process gets and how it ends,
 * wherever in a hook its threads are.
 *
 *   threads [--bare] [PATTERN]    --bare: without culimbo, as the control of
 *                                 what driver and libc stand by themselves
 *
 * Each test is a process of its own, forked before any CUDA call, with an
 * exporter beside it whose blocks it imports.  One that does not end within its
 * deadline is killed, which is a failure.
 *
 * The driver is found by dlopen() and dlsym(), so that it can be closed again.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/e2e/cuda_door.h"

enum {
	SMALL = 1024,
	BIG = 4 << 20,
	TEST_SECONDS = 30, /* for one test; each takes a second or less */
	CHILD_SECONDS = 8, /* for a child that must not hang; it takes milliseconds */
	GIFTS = 4,	   /* blocks of the exporter */
};

extern char **environ;
static char *self_path;
static CUcontext primary;
static bool bare;
static atomic_bool ending; /* somebody ends the process: calls may well fail now */

static void unless_it_ends(void)
{
	while (atomic_load(&ending))
		pause();
}

#define CHECK(what)                                                                          \
	do {                                                                                 \
		if (!(what)) {                                                               \
			unless_it_ends();                                                    \
			dprintf(2, "# %s:%d: failed: %s\n", __FILE__, __LINE__, #what);      \
			_exit(1);                                                            \
		}                                                                            \
	} while (0)
#define MUST(call)                                                                           \
	do {                                                                                 \
		int result_ = (int)(call);                                                   \
		if (result_) {                                                               \
			unless_it_ends();                                                    \
			dprintf(2, "# %s:%d: %s says %d\n", __FILE__, __LINE__, #call,       \
				result_);                                                    \
			_exit(1);                                                            \
		}                                                                            \
	} while (0)

static void begin(void)
{
	const char *why = cuda_door_open();

	if (why)
		dprintf(2, "# %s\n", why);
	CHECK(!why);
	MUST(cu.cuInit(0));
	MUST(cu.cuDevicePrimaryCtxRetain(&primary, 0));
	MUST(cu.cuCtxSetCurrent(primary));
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ------------------------------------------------------- the exporter beside it */
struct gifts {
	CUipcMemHandle memory[GIFTS];
	CUipcEventHandle event;
};
static struct gifts gifts;
static int to_exporter, from_exporter;

__attribute__((noreturn)) static void be_exporter(int in, int out)
{
	CUdeviceptr address[GIFTS];
	struct gifts given;
	size_t before, now, total;
	uint64_t until;
	CUevent event;
	char word;

	begin();
	MUST(cu.cuMemGetInfo_v2(&before, &total));
	for (int i = 0; i < GIFTS; i++) {
		MUST(cu.cuMemAlloc_v2(&address[i], i ? SMALL : BIG));
		MUST(cu.cuMemsetD8_v2(address[i], (unsigned char)(i + 1), SMALL));
		MUST(cu.cuIpcGetMemHandle(&given.memory[i], address[i]));
	}
	MUST(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
	MUST(cu.cuEventRecord(event, NULL));
	MUST(cu.cuIpcGetEventHandle(&given.event, event));
	CHECK(write(out, &given, sizeof given) == sizeof given);
	/* asked, it frees all and says whether the memory is back */
	if (read(in, &word, 1) != 1)
		exit(0);
	for (int i = 0; i < GIFTS; i++)
		MUST(cu.cuMemFree_v2(address[i]));
	until = now_ms() + 3000;
	do
		MUST(cu.cuMemGetInfo_v2(&now, &total));
	while (now + BIG <= before && now_ms() < until && !usleep(500));
	word = now + BIG > before ? 'y' : 'n';
	CHECK(write(out, &word, 1) == 1);
	exit(0);
}

static void start_exporter(void)
{
	int down[2], up[2];
	pid_t child;

	CHECK(!pipe2(down, O_CLOEXEC) && !pipe2(up, O_CLOEXEC));
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(down[1]);
		close(up[0]);
		be_exporter(down[0], up[1]);
	}
	close(down[0]);
	close(up[1]);
	to_exporter = down[1];
	from_exporter = up[0];
	CHECK(read(from_exporter, &gifts, sizeof gifts) == sizeof gifts);
}

/* Frees what it gave: true when all of it came back. */
static bool exporter_gets_all_back(void)
{
	char word = 'f';

	CHECK(write(to_exporter, &word, 1) == 1);
	CHECK(read(from_exporter, &word, 1) == 1);
	return word == 'y';
}

/* ------------------------------------------------------------ threads in hooks */
/* What each does is a round of calls that come to one family of hooks. */
static atomic_bool stop;
static atomic_ulong rounds;

static void share_and_free(void)
{
	CUipcMemHandle handle;
	CUdeviceptr address, own;

	MUST(cu.cuMemAlloc_v2(&address, SMALL));
	MUST(cu.cuIpcGetMemHandle(&handle, address));
	if (!bare) { /* the driver alone refuses a process's own handle */
		MUST(cu.cuIpcOpenMemHandle_v2(&own, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		MUST(cu.cuIpcCloseMemHandle(own));
	}
	MUST(cu.cuMemFree_v2(address));
}
static void open_and_close(void)
{
	unsigned int which = (unsigned int)atomic_load(&rounds) % GIFTS;
	unsigned char byte = 0;
	CUdeviceptr address;

	MUST(cu.cuIpcOpenMemHandle_v2(&address, gifts.memory[which],
				      CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	MUST(cu.cuMemcpyDtoH_v2(&byte, address, 1));
	CHECK(byte == which + 1);
	MUST(cu.cuIpcCloseMemHandle(address));
}
static void open_event(void)
{
	CUevent event;

	MUST(cu.cuIpcOpenEventHandle(&event, gifts.event));
	MUST(cu.cuEventDestroy_v2(event));
}
static void share_event(void)
{
	CUipcEventHandle handle;
	CUevent event;

	MUST(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
	MUST(cu.cuIpcGetEventHandle(&handle, event));
	MUST(cu.cuEventDestroy_v2(event));
}
static void want_too_much(void)
{
	CUdeviceptr address;

	CHECK(cu.cuMemAlloc_v2(&address, (size_t)1 << 45) == CUDA_ERROR_OUT_OF_MEMORY);
}
static void look_up(void)
{
	CHECK(dlsym(RTLD_DEFAULT, "cuNoSuchCall") == NULL);
	CHECK(dlsym(RTLD_DEFAULT, "getpid") != NULL);
}
static void free_on_stream(void)
{
	CUipcMemHandle handle;
	CUdeviceptr address;

	MUST(cu.cuMemAlloc_v2(&address, SMALL));
	MUST(cu.cuIpcGetMemHandle(&handle, address));
	MUST(cu.cuMemFreeAsync(address, NULL));
}
static void make_context(void)
{
	CUcontext ctx;

	MUST(cu.cuCtxCreate_v2(&ctx, 0, 0));
	MUST(cu.cuCtxDestroy_v2(ctx));
	MUST(cu.cuCtxSetCurrent(primary));
}
static void make_green_context(void)
{
#if CUDA_VERSION >= 12040
	CUdevResourceDesc description;
	CUdevResource resource;
	CUgreenCtx green;
	CUcontext ctx;

	if (!cu.cuDeviceGetDevResource || !cu.cuGreenCtxCreate)
		return;
	MUST(cu.cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
	MUST(cu.cuDevResourceGenerateDesc(&description, &resource, 1));
	MUST(cu.cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
	MUST(cu.cuCtxFromGreenCtx(&ctx, green));
	MUST(cu.cuCtxSetCurrent(ctx));
	share_event();
	MUST(cu.cuCtxSetCurrent(primary));
	MUST(cu.cuGreenCtxDestroy(green));
#endif
}
static void (*const families[])(void) = { share_and_free, open_and_close, open_event, share_event,
					  want_too_much,  look_up,	  free_on_stream,
					  make_context,	  make_green_context };
enum { FAMILIES = sizeof families / sizeof *families };

static void *work(void *family)
{
	MUST(cu.cuCtxSetCurrent(primary));
	while (!atomic_load(&stop)) {
		(*(void (*const *)(void))family)();
		atomic_fetch_add(&rounds, 1);
	}
	return NULL;
}

static pthread_t workers[2 * FAMILIES];
static unsigned int workers_n;

static void start_workers(void)
{
	begin();
	for (workers_n = 0; workers_n < FAMILIES; workers_n++)
		CHECK(!pthread_create(&workers[workers_n], NULL, work,
				      (void *)(uintptr_t)&families[workers_n]));
	while (atomic_load(&rounds) < 2 * FAMILIES)
		sched_yield();
}

static void stop_workers(void)
{
	atomic_store(&stop, true);
	for (unsigned int i = 0; i < workers_n; i++)
		CHECK(!pthread_join(workers[i], NULL));
}

/* A child that must end by itself with @status; it has set an alarm. */
static void must_end(pid_t child, int status)
{
	int how;

	CHECK(child > 0);
	while (waitpid(child, &how, 0) < 0)
		CHECK(errno == EINTR);
	if (WIFSIGNALED(how) && WTERMSIG(how) == SIGALRM)
		dprintf(2, "# a child hangs\n");
	else if (!WIFEXITED(how) || WEXITSTATUS(how) != status)
		dprintf(2, "# a child's status is %#x instead of %d\n", how, status);
	CHECK(WIFEXITED(how) && WEXITSTATUS(how) == status);
}

/* ------------------------------------------------------------------------- forks */
static void fork_and_leave(void)
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

static void fork_and_exit(void)
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

static void fork_and_exec(void)
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
static void fork_and_call(void)
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

static void vfork_and_exec(void)
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

static void spawn(void)
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

/* The signal comes to the main thread as a rule, which is in a hook of family @i. */
static void signal_and_leave(void)
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
static void signal_and_fork(void)
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

/* -------------------------------------------------------------------------- ends */
static void *end_for_all(void *unused)
{
	unsigned long before = atomic_load(&rounds);

	while (atomic_load(&rounds) < before + 50)
		sched_yield();
	atomic_store(&ending, true);
	exit(6);
}

static void leave_main_thread(void)
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

static void exit_among_others(void)
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

static void keep_some(void)
{
	CUipcMemHandle handle;

	for (int i = 0; i < 4; i++) {
		MUST(cu.cuMemAlloc_v2(&kept[i], SMALL));
		MUST(cu.cuIpcGetMemHandle(&handle, kept[i]));
	}
}

static void free_in_atexit(void)
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

static void free_in_thread_destructor(void)
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
static void close_driver(void)
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
static void constructor_and_destructor(void)
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

/* --------------------------------------------------------------------- all at once */
static void sixteen_threads(void)
{
	start_workers();
	for (; workers_n < 16; workers_n++)
		CHECK(!pthread_create(&workers[workers_n], NULL, work,
				      (void *)(uintptr_t)&families[workers_n % 2 ? 1 : 0]));
	unsigned long before = atomic_load(&rounds);

	while (atomic_load(&rounds) < before + 40000)
		sched_yield();
	stop_workers();
	CHECK(exporter_gets_all_back());
}

static void *open_and_close_often(void *unused)
{
	MUST(cu.cuCtxSetCurrent(primary));
	for (int i = 0; i < 500; i++) {
		unsigned char byte = 0;
		CUdeviceptr address;

		MUST(cu.cuIpcOpenMemHandle_v2(&address, gifts.memory[0],
					      CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		MUST(cu.cuMemcpyDtoH_v2(&byte, address, 1));
		CHECK(byte == 1);
		MUST(cu.cuIpcCloseMemHandle(address));
	}
	return unused;
}

static void one_handle(void)
{
	pthread_t thread[2];

	begin();
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&thread[i], NULL, open_and_close_often, NULL));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(thread[i], NULL));
	CHECK(exporter_gets_all_back());
}

/* Whoever is the last to release it: what another thread has in the next one is its own. */
static void *have_the_primary_one(void *name)
{
	char fill = *(const char *)name;

	for (int i = 0; i < 1000; i++) {
		CUipcMemHandle handle;
		CUdeviceptr address;
		CUcontext ctx;
		char byte;

		MUST(cu.cuDevicePrimaryCtxRetain(&ctx, 0));
		MUST(cu.cuCtxSetCurrent(ctx));
		MUST(cu.cuMemAlloc_v2(&address, SMALL));
		MUST(cu.cuIpcGetMemHandle(&handle, address));
		MUST(cu.cuMemsetD8_v2(address, (unsigned char)fill, SMALL));
		MUST(cu.cuMemcpyDtoH_v2(&byte, address, 1));
		CHECK(byte == fill);
		if (i % 2) /* (the others go with it) */
			MUST(cu.cuMemFree_v2(address));
		MUST(cu.cuCtxSetCurrent(NULL));
		MUST(cu.cuDevicePrimaryCtxRelease_v2(0));
	}
	return NULL;
}

static void primary_ends(void)
{
	pthread_t thread[2];
	char names[] = { 'a', 'b' };

	begin();
	MUST(cu.cuCtxSetCurrent(NULL));
	MUST(cu.cuDevicePrimaryCtxRelease_v2(0));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&thread[i], NULL, have_the_primary_one, &names[i]));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(thread[i], NULL));
}

/* --------------------------------------------------------------------- small stacks */
/* Every hook, and the first of each kind: a file and a collector are made, stacks walked, others asked for memory. */
static void *call_every_hook(void *unused)
{
	CUdeviceptr own, second, address;
	CUipcMemHandle handle;
	CUipcEventHandle event_handle;
	CUevent event;

	MUST(cu.cuCtxSetCurrent(primary));
	MUST(cu.cuMemAlloc_v2(&own, SMALL));
	MUST(cu.cuMemAlloc_v2(&second, SMALL));
	MUST(cu.cuIpcGetMemHandle(&handle, own));
	MUST(cu.cuIpcGetMemHandle(&handle, second));
	MUST(cu.cuIpcGetMemHandle(&handle, own));
	MUST(cu.cuIpcOpenMemHandle_v2(&address, gifts.memory[1], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	MUST(cu.cuIpcCloseMemHandle(address));
	if (!bare) { /* refused there */
		MUST(cu.cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		MUST(cu.cuIpcCloseMemHandle(address));
	}
	CHECK(cu.cuIpcCloseMemHandle(address) != CUDA_SUCCESS);
	MUST(cu.cuIpcOpenEventHandle(&event, gifts.event));
	MUST(cu.cuEventDestroy_v2(event));
	MUST(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
	MUST(cu.cuIpcGetEventHandle(&event_handle, event));
	MUST(cu.cuEventDestroy_v2(event));
	MUST(cu.cuMemFree_v2(own));
	MUST(cu.cuMemFreeAsync(second, NULL));
	CHECK(cu.cuMemAlloc_v2(&own, (size_t)1 << 40) == CUDA_ERROR_OUT_OF_MEMORY);
	return unused;
}

static void on_a_small_stack(void)
{
	pthread_attr_t attributes;
	pthread_t thread;

	begin();
	CHECK(!pthread_attr_init(&attributes));
	CHECK(!pthread_attr_setstacksize(&attributes, (size_t)sysconf(_SC_THREAD_STACK_MIN)));
	CHECK(!pthread_create(&thread, &attributes, call_every_hook, NULL));
	CHECK(!pthread_join(thread, NULL));
	CHECK(exporter_gets_all_back());
}

/* -------------------------------------------------------------- the simulated driver */
static void free_in_anothers_stream(void)
{
	enum { LARGE = 4 << 20 };
	CUdeviceptr gone, there;
	CUcontext other;
	char byte;

	begin();
	MUST(cu.cuCtxCreate_v2(&other, 0, 0));
	MUST(cu.cuMemAlloc_v2(&gone, LARGE));
	MUST(cu.cuCtxSetCurrent(primary));
	MUST(cu.cuMemFreeAsync(gone, NULL));
	MUST(cu.cuCtxDestroy_v2(other));
	MUST(cu.cuMemAlloc_v2(&there, LARGE));
	CHECK(there == gone); /* or nothing is shown */
	MUST(cu.cuMemsetD8_v2(there, 5, LARGE));
	MUST(cu.cuStreamSynchronize(NULL));
	MUST(cu.cuMemcpyDtoH_v2(&byte, there, 1));
	CHECK(byte == 5);
	MUST(cu.cuMemFree_v2(there));
}

/* What marks the place in that stream is no more when it would be looked at. */
static void free_in_a_stream_that_ends(void)
{
	enum { LARGE = 4 << 20, BLOCKS = 8 };
	uint64_t until = now_ms() + 3000;
	size_t before, now, total;

	begin();
	MUST(cu.cuMemGetInfo_v2(&before, &total));
	for (int i = 0; i < BLOCKS; i++) {
		CUipcMemHandle handle;
		CUdeviceptr address;
		CUcontext other;

		MUST(cu.cuMemAlloc_v2(&address, LARGE));
		MUST(cu.cuIpcGetMemHandle(&handle, address));
		MUST(cu.cuCtxCreate_v2(&other, 0, 0));
		MUST(cu.cuMemFreeAsync(address, NULL));
		MUST(cu.cuCtxDestroy_v2(other));
		MUST(cu.cuCtxSetCurrent(primary));
	}
	do
		MUST(cu.cuMemGetInfo_v2(&now, &total));
	while (now + LARGE <= before && now_ms() < until && !usleep(500));
	CHECK(now + LARGE > before);
}

/* ---------------------------------------------------------------------------- main */
static const struct test {
	const char *name, *promise;
	void (*run)(void);
} tests[] = {
	{ "fork-exit-now", "fork with threads in every hook: the child leaves by _exit()",
	  fork_and_leave },
	{ "fork-exit", "the same, by exit()", fork_and_exit },
	{ "fork-exec", "the same, by exec", fork_and_exec },
	{ "fork-call", "the same: the child's CUDA calls say \"not initialised\", and none hangs",
	  fork_and_call },
	{ "vfork", "vfork with threads in every hook, then exec or _exit(): we share on", vfork_and_exec },
	{ "spawn", "posix_spawn with threads in every hook", spawn },
	{ "signal-exit", "a signal handler calls _exit() in the middle of each hook", signal_and_leave },
	/* (where there are threads, glibc's own fork() waits for the malloc that it interrupts) */
	{ "signal-fork", "a signal handler forks in the middle of each hook", signal_and_fork },
	{ "main-leaves", "the main thread ends, the others go on and one ends the process",
	  leave_main_thread },
	{ "exit-many", "exit(), _exit() and quick_exit() with threads in every hook",
	  exit_among_others },
	{ "atexit", "an atexit() handler frees what was exported", free_in_atexit },
	{ "thread-destructor", "so does a thread's destructor", free_in_thread_destructor },
	{ "dlclose", "the driver is closed and used again", close_driver },
	{ "constructor", "a constructor and a destructor call CUDA, before and after ours",
	  constructor_and_destructor },
	{ "sixteen", "16 threads share, open and free: all is right, and all comes back",
	  sixteen_threads },
	{ "small-stack", "every hook on the smallest stack that a thread can have", on_a_small_stack },
	{ "other-stream", "freed in another context's stream, then gone with its own: what is there now stays",
	  free_in_anothers_stream },
	{ "ended-stream", "freed in another context's stream, which is gone first: it comes back, and nothing ends",
	  free_in_a_stream_that_ends },
	{ "one-handle", "two threads open and close the same handle: all comes back", one_handle },
	{ "primary-ends", "two threads retain and release the primary context: what goes with it is gone",
	  primary_ends },
};
enum { TESTS = sizeof tests / sizeof *tests };

__attribute__((noreturn)) static void play_here(const struct test *test)
{
	start_exporter();
	test->run();
	_exit(0);
}

static bool play(const struct test *test)
{
	uint64_t until = now_ms() + TEST_SECONDS * 1000;
	pid_t child, done;
	int how = 0;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(1, 2);
		if (test->run == signal_and_fork) { /* without the collector's thread */
			setenv("CULIMBO_COLLECTOR", "inline", 1);
			execl(self_path, self_path, "--here", test->name, bare ? "--bare" : NULL, NULL);
			_exit(1);
		}
		play_here(test);
	}
	while ((done = waitpid(child, &how, WNOHANG)) == 0 && now_ms() < until)
		usleep(500);
	if (done == 0)
		printf("# killed after %d s\n", TEST_SECONDS);
	/* its exporter and children with it; the group is its own */
	kill(-child, SIGKILL);
	if (done == 0)
		waitpid(child, &how, 0);
	if (WIFSIGNALED(how))
		printf("# ended by signal %d\n", WTERMSIG(how));
	return done == child && WIFEXITED(how) && WEXITSTATUS(how) == 0;
}

int main(int argc, char **argv)
{
	const char *pattern = "*";
	int failures = 0, number = 0;
	bool here = false;
	static char path[4096];
	ssize_t n;

	if (argc == 3 && !strcmp(argv[1], "--status"))
		return atoi(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "--share")) {
		begin();
		keep_some();
		return atoi(argv[2]);
	}
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--bare"))
			bare = true;
		else if (!strcmp(argv[i], "--here"))
			here = true;
		else
			pattern = argv[i];
	}
	n = readlink("/proc/self/exe", path, sizeof path - 1);
	path[n > 0 ? n : 0] = 0;
	self_path = path;
	for (const struct test *test = tests; here && test < tests + TESTS; test++)
		if (!strcmp(test->name, pattern))
			play_here(test);
	for (const struct test *test = tests; test < tests + TESTS; test++) {
		uint64_t begun = now_ms();
		bool holds;

		if (fnmatch(pattern, test->name, 0))
			continue;
		holds = play(test);
		failures += !holds;
		printf("%sok %d - %s: %s\n", holds ? "" : "not ", ++number, test->name, test->promise);
		printf("# %s took %llu ms\n", test->name, (unsigned long long)(now_ms() - begun));
		fflush(stdout);
	}
	printf("1..%d\n", number);
	return failures || !number;
}
