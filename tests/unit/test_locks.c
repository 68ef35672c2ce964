/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of locks, as a build with --enable-debug checks it (locks.h).  This program compiles locks.c
 * with that check, however the rest was built.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/self/locks.c"

static struct cl_lock low = CL_LOCK_INIT(CL_RANK_IMPORTS);
static struct cl_lock middle = CL_LOCK_INIT(CL_RANK_REAP);
static struct cl_lock high = CL_LOCK_INIT(CL_RANK_EXPORTS);

/* Returns what @body prints to stderr until it aborts, or "" when it ends normally. */
static const char *said_by(void (*body)(void))
{
	static char said[256];
	int ends[2], status;
	ssize_t n;
	pid_t child;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		dup2(ends[1], STDERR_FILENO);
		alarm(20);
		body();
		_exit(0);
	}
	close(ends[1]);
	n = read(ends[0], said, sizeof said - 1);
	close(ends[0]);
	said[n > 0 ? n : 0] = 0;
	assert_int_equal(waitpid(child, &status, 0), child);
	if (!said[0])
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	else
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	return said;
}

static void in_order(void)
{
	const struct timespec past = { 0, 0 };
	pthread_cond_t never = PTHREAD_COND_INITIALIZER;

	cl_lock(&low);
	cl_lock(&middle);
	cl_lock(&high);
	/* any order is right for unlocking */
	cl_unlock(&middle);
	cl_unlock(&high);
	/* trylock may come in any order */
	if (!cl_try_lock(&high))
		_exit(1);
	cl_unlock(&high);
	cl_unlock(&low);
	cl_rank_none();
	cl_lock(&high);
	if (cl_lock_wait_until(&never, &high, &past))
		_exit(2);
	cl_unlock(&high);
	cl_rank_none();
	/* a forked child has none of its parent's locks */
	cl_lock(&high);
	cl_lock_reset(&high);
	cl_rank_none();
	cl_lock(&low);
	cl_unlock(&low);
}
static void upside_down(void)
{
	cl_lock(&high);
	cl_lock(&low);
}
static void twice(void)
{
	cl_lock(&middle);
	cl_lock(&middle);
}
static void into_the_driver(void)
{
	cl_lock(&low);
	cl_rank_none();
}
static void *take_low(void *unused)
{
	cl_lock(&low);
	cl_unlock(&low);
	return unused;
}
static void beside(void)
{
	pthread_t thread;

	/* another thread's locks do not matter */
	cl_lock(&high);
	if (pthread_create(&thread, NULL, take_low, NULL) || pthread_join(thread, NULL))
		_exit(1);
	cl_unlock(&high);
}

static void locks_in_order_say_nothing(void **state)
{
	(void)state;
	assert_string_equal(said_by(in_order), "");
	assert_string_equal(said_by(beside), "");
}
static void a_lock_out_of_order_is_named(void **state)
{
	(void)state;
	assert_non_null(strstr(said_by(upside_down), "imports is wanted by a thread that has exports"));
	assert_non_null(strstr(said_by(twice), "reap is wanted by a thread that has reap"));
}
static void no_lock_is_taken_into_the_driver(void **state)
{
	(void)state;
	assert_non_null(strstr(said_by(into_the_driver), "the driver is wanted by a thread that has imports"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(locks_in_order_say_nothing),
		cmocka_unit_test(a_lock_out_of_order_is_named),
		cmocka_unit_test(no_lock_is_taken_into_the_driver),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
