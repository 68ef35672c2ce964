/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests promise 4 with threads, forks, signals and ends of processes.  Wherever in a hook
 * the threads are, culimbo does not deadlock or crash, and changes neither a process's
 * results nor how it ends.
 *
 *   threads [--bare] [PATTERN]    --bare: without culimbo, as the control of
 *                                 what driver and libc stand by themselves
 *
 * Each test is a process of its own, forked before any CUDA call.  An exporter runs beside
 * it, and the test imports its blocks.  A test that misses its deadline is killed and fails.
 *
 * The driver is found by dlopen() and dlsym(), so that it can be closed again.
 */
#include "common.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

char *self_path;
CUcontext primary;
bool bare;
atomic_bool ending; /* somebody ends the process: calls may well fail now */

void unless_it_ends(void)
{
	while (atomic_load(&ending))
		pause();
}

void begin(void)
{
	const char *why = cuda_door_open();

	if (why)
		dprintf(2, "# %s\n", why);
	CHECK(!why);
	MUST(cu.cuInit(0));
	MUST(cu.cuDevicePrimaryCtxRetain(&primary, 0));
	MUST(cu.cuCtxSetCurrent(primary));
}

uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ------------------------------------------------------- the exporter beside it */

struct gifts gifts;
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
bool exporter_gets_all_back(void)
{
	char word = 'f';

	CHECK(write(to_exporter, &word, 1) == 1);
	CHECK(read(from_exporter, &word, 1) == 1);
	return word == 'y';
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
	{ "fork-malloc", "a child that no fork handler has seen calls CUDA, its parent's threads amid malloc(): none hangs",
	  fork_amid_malloc },
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
