/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does this driver behave as culimbo assumes?  This program asserts measured facts about the
 * driver.  The facts have numbers, which the names of tests and TAP lines contain;
 * doc/measurements.md lists those from 11 on.
 *
 * The same program runs on a GPU and on the simulated driver, both without culimbo.  culimbo and
 * its tests depend on each asserted fact.  What the assertions leave open is measured and printed
 * as "# measured:" lines.
 *
 * This process makes no CUDA call.  It forks workers.  A worker loads libcuda and makes one call
 * at a time, as this process tells it through a pipe.  So a test (a "story" in the code) reads as
 * a sequence of calls of two processes, and a worker may crash or be killed.
 *
 * Rules:
 * - Every wait has a deadline: each call, each worker's end, the whole run.
 * - No managed memory.  At most 1 GiB of device memory is used, but fact 16 uses 6 GiB for a moment
 *   where 8 GiB are free.
 * - TAP goes to stdout.  The exit status is 1 when an assertion failed and 77 without a driver.
 */
#include "conformance_worker.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define RUN_DEADLINE_S 170

/* Prints the driver's name and version; a separate process asks for them. */
static void introduce(void)
{
	const char *missing;
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		char name[128] = "?";
		int version = 0;

		alarm(30);
		missing = load_driver();
		if (missing) {
			printf("1..0 # SKIP %s\n", missing);
			fflush(stdout);
			_exit(77);
		}
		if (driver.p_cuInit(0)) {
			printf("1..0 # SKIP cuInit fails\n");
			fflush(stdout);
			_exit(77);
		}
		driver.p_cuDriverGetVersion(&version);
		driver.p_cuDeviceGetName(name, sizeof(name), 0);
		note("%s, driver API %d", name, version);
		exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		exit(1);
	if (WIFEXITED(status) && WEXITSTATUS(status))
		exit(WEXITSTATUS(status));
}

static const struct {
	const char *name;
	void (*tell)(struct worker *a, struct worker *b);
} stories[] = {
	{ "fact-1", fact_1 },
	{ "fact-2", fact_2_sync },
	{ "fact-2", fact_2_async },
	{ "fact-3", fact_3 },
	{ "fact-4", fact_4 },
	{ "fact-5", fact_5 },
	{ "fact-6", fact_6_exit },
	{ "fact-6", fact_6_kill },
	{ "fact-7", fact_7 },
	{ "fact-8", fact_8 },
	{ "fact-9", fact_9 },
	{ "fact-10", fact_10 },
	{ "fact-11", pool_reuse },
	{ "fact-12", pool_data },
	{ "fact-14", pool_exports },
	{ "fact-15", pool_twice },
	{ "fact-16", pool_large },
	{ "fact-17", pool_memory_back },
	{ "fact-18", pool_ends },
	{ "fact-31", pool_threshold },
	{ "pool-memory", pool_memory_of_exported },
	{ "pool-pending", pool_pending },
	{ "fact-33", pool_waits },
	{ "pool-captures", pool_captures },
	{ "pool-calls-in-captures", pool_calls_in_captures },
	{ "pool-of-other-device", pool_of_other_device },
	{ "pool-numbers", pool_numbers },
	{ "pool-again", pool_imported_again },
	{ "pool-twice", pool_imported_twice },
	{ "pool-early", pool_early },
	{ "pool-reset", pool_after_reset },
	{ "fact-20", virtual_handles },
	{ "fact-21", virtual_ranges },
	{ "fact-24", virtual_descriptors },
	{ "fact-25", virtual_lifetime },
	{ "fabric", fabric },
	{ "fact-27", dma_buf },
	{ "fact-28", containers },
	{ "handle", handle_bytes },
	{ "handles-elsewhere", handles_elsewhere },
	{ "counting", counting },
	{ "event-handle", event_handle_bytes },
	{ "event-handle-beside", event_of_another_context },
	{ "synchronises", synchronises },
	{ "death", death },
	{ "errors", errors_of_free },
	{ "blocking", blocking },
	{ "fact-34", while_freeing_others },
	{ "capture", capturing },
	{ "capture-frees", frees_in_captures },
	{ "capture-open", opening_while_capturing },
	{ "capture-ask", asking_while_capturing },
	{ "contexts", contexts },
	{ "green", green },
};

static bool named(const char *name, char **wanted)
{
	while (*wanted)
		if (!strcmp(name, *wanted++))
			return true;
	return false;
}

/* Arguments name the stories to run; without arguments all run. */
int main(int argc, char **argv)
{
	struct worker a, b;

	signal(SIGPIPE, SIG_IGN);
	signal(SIGALRM, too_late);
	alarm(RUN_DEADLINE_S);
	introduce();
	if (!connect_workers()) {
		printf("Bail out! socketpair failed\n");
		return 1;
	}
	spawn(&a);
	spawn(&b);

	for (size_t i = 0; i < sizeof(stories) / sizeof(stories[0]); i++) {
		if (argc >= 2 && !named(stories[i].name, argv + 1))
			continue;
		/* a worker whose call did not return was killed: the remaining stories get a new one */
		if (!a.pid)
			spawn(&a);
		if (!b.pid)
			spawn(&b);
		stories[i].tell(&a, &b);
	}

	dismiss(&b);
	dismiss(&a);
	printf("1..%u\n", tests);
	if (failed)
		note("%u of %u failed", failed, tests);
	return failed ? 1 : 0;
}
