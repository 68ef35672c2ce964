/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of the simulated driver (tools/sim/pool.c) after the death of a process that has its lock.  Other
 * processes get back all that the dead one had.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/sim/pool_state.h"

enum { PAGES = 8 };
static struct sim_options options = { .memory = PAGES * SIM_PAGE, .devices = 1 };

/* What the three files need of the rest of the driver. */
const struct sim_options *sim_options(void)
{
	return &options;
}
void sim_warn(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fputc('\n', stderr);
}
uint64_t sim_now_ns(void)
{
	return 1;
}

static size_t free_pages(void)
{
	size_t bytes = 0;

	pool_usage(0, &bytes);
	return bytes / SIM_PAGE;
}

/* A place where a process can die, with the lock and with a @segment that it has. */
static void let_go_of_last_hold(uint32_t segment)
{
	memset(sim_pool.state->slot[segment].holders, 0, sizeof(sim_pool.state->slot[segment].holders));
}
static void begin_to_give_back(uint32_t segment)
{
	let_go_of_last_hold(segment);
	sim_pool.state->slot[segment].state = SEGMENT_GIVING;
}
static void give_back_in_part(uint32_t segment)
{
	begin_to_give_back(segment);
	sim_pool.state->slot[segment].segment = 0;
}
static void take_in_part(uint32_t segment)
{
	sim_pool.state->slot[segment].state = SEGMENT_TAKING;
	sim_pool.state->slot[segment + 1].segment = 0;
}
static void hold_it(uint32_t segment)
{
	(void)segment;
}

/* A child takes two pages, comes to the place @at, and dies there. */
static void die_at(void (*at)(uint32_t segment))
{
	uint32_t segment;
	int status;
	pid_t child = fork();

	if (!child) {
		if (pool_attach() || pool_take(0, 2 * SIM_PAGE, &segment))
			_exit(1);
		sim_pool_lock();
		at(segment);
		raise(SIGKILL);
	}
	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void memory_of_the_dead_comes_back(void **state)
{
	static void (*const places[])(uint32_t) = { hold_it, let_go_of_last_hold, begin_to_give_back, give_back_in_part, take_in_part };
	uint32_t mine;

	(void)state;
	assert_int_equal(pool_attach(), 0);
	assert_int_equal(pool_take(0, SIM_PAGE, &mine), 0);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		assert_int_equal(free_pages(), PAGES - 1);
		die_at(places[i]);
		assert_int_equal(free_pages(), PAGES - 1);
	}
	pool_drop(mine);
	assert_int_equal(free_pages(), PAGES);
	pool_detach();
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(memory_of_the_dead_comes_back) };
	char folder[] = "/tmp/culimbo-sim-pool.XXXXXX";
	int failed;

	if (!mkdtemp(folder))
		return 99;
	snprintf(options.directory, sizeof(options.directory), "%s/sim", folder);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	rmdir(folder);
	return failed;
}
