/* SPDX-License-Identifier: Apache-2.0 */
/* Replacements for functions that older C libraries lack. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <semaphore.h>
#include <stdbool.h>

#include "shim/base/clock.h"
#include "shim/base/old_libc.h"

#define MS 1000000ull

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static bool told;
static sem_t has_it, let_go;

static void *keeps_the_lock(void *unused)
{
	pthread_mutex_lock(&mutex);
	sem_post(&has_it);
	sem_wait(&let_go);
	pthread_mutex_unlock(&mutex);
	return &told;
}

static void *tells(void *unused)
{
	pthread_mutex_lock(&mutex);
	told = true;
	pthread_cond_broadcast(&condition);
	pthread_mutex_unlock(&mutex);
	return NULL;
}

static void a_lock_is_waited_for_until_then_and_no_longer(void **state)
{
	uint64_t begun = cl_now();
	struct timespec until = cl_after(15 * MS), late = cl_after(60000 * MS), past = cl_after(0);
	pthread_t thread;
	void *result;

	sem_init(&has_it, 0, 0);
	sem_init(&let_go, 0, 0);
	assert_int_equal(pthread_create(&thread, NULL, keeps_the_lock, NULL), 0);
	sem_wait(&has_it);
	assert_int_equal(cl_old_libc_lock(&mutex, &past), ETIMEDOUT);
	assert_int_equal(cl_old_libc_lock(&mutex, &until), ETIMEDOUT);
	assert_true(cl_now() - begun >= 15 * MS);
	/* a running thread cannot be joined, an ended one can */
	until = cl_after(5 * MS);
	assert_int_equal(cl_old_libc_join(thread, &result, &until), ETIMEDOUT);
	sem_post(&let_go);
	assert_int_equal(cl_old_libc_lock(&mutex, &late), 0);
	pthread_mutex_unlock(&mutex);
	assert_int_equal(cl_old_libc_join(thread, &result, &late), 0);
	assert_ptr_equal(result, &told);
	assert_int_equal(pthread_mutex_trylock(&mutex), 0);
	/* a free lock is taken even after the deadline */
	pthread_mutex_unlock(&mutex);
	assert_int_equal(cl_old_libc_lock(&mutex, &past), 0);
	pthread_mutex_unlock(&mutex);
}

static void a_condition_is_waited_for_until_then_and_no_longer(void **state)
{
	uint64_t begun = cl_now();
	/* longer than a slice */
	struct timespec until = cl_after(CL_OLD_LIBC_SLICE + 10 * MS), late = cl_after(60000 * MS);
	pthread_t thread;

	pthread_mutex_lock(&mutex);
	assert_int_equal(cl_old_libc_cond_wait(&condition, &mutex, &until), ETIMEDOUT);
	assert_true(cl_now() - begun >= CL_OLD_LIBC_SLICE + 10 * MS);
	assert_int_equal(pthread_mutex_trylock(&mutex), EBUSY);
	assert_int_equal(pthread_create(&thread, NULL, tells, NULL), 0);
	while (!told)
		assert_int_equal(cl_old_libc_cond_wait(&condition, &mutex, &late), 0);
	pthread_mutex_unlock(&mutex);
	pthread_join(thread, NULL);
	assert_true(cl_now() - begun < 30000 * MS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_lock_is_waited_for_until_then_and_no_longer),
		cmocka_unit_test(a_condition_is_waited_for_until_then_and_no_longer),
	};

	return cmocka_run_group_tests_name("old_libc", tests, NULL, NULL);
}
