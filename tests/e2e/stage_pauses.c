/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long this machine stops its processes: a virtual machine's host may take a processor away for 100 ms.  A thread on
 * each processor sleeps a millisecond at a time, without CUDA and without culimbo, and notes how late it wakes.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "tests/e2e/stage.h"

enum { MOST = 64 };
static pthread_t sleeper[MOST];
static unsigned int sleepers;
static _Atomic bool over;
static _Atomic double since;  /* of pauses_reset() */
static _Atomic double latest; /* ms that a sleeper was late at most since then */

static void *sleep_on(void *processor)
{
	const struct timespec millisecond = { 0, 1000000 };
	cpu_set_t only;

	CPU_ZERO(&only);
	CPU_SET((size_t)processor, &only);
	if (pthread_setaffinity_np(pthread_self(), sizeof(only), &only))
		return NULL; /* this process may not use that processor any more */
	while (!atomic_load(&over)) {
		double from = now_ms(), begun, late, most;

		nanosleep(&millisecond, NULL);
		begun = atomic_load(&since);
		late = now_ms() - (from + 1 > begun ? from + 1 : begun);
		most = atomic_load(&latest);
		while (late > most && !atomic_compare_exchange_weak(&latest, &most, late))
			;
	}
	return NULL;
}

void pauses_begin(void)
{
	cpu_set_t all;

	if (sched_getaffinity(0, sizeof(all), &all))
		break_off("sched_getaffinity failed");
	for (size_t processor = 0; processor < CPU_SETSIZE && sleepers < MOST; processor++) {
		if (!CPU_ISSET(processor, &all))
			continue;
		if (pthread_create(&sleeper[sleepers], NULL, sleep_on, (void *)processor))
			break_off("no thread for the machine's pauses");
		sleepers++;
	}
}

void pauses_reset(void)
{
	atomic_store(&since, now_ms());
	atomic_store(&latest, 0);
}

double pauses_most(void)
{
	return atomic_load(&latest);
}

void pauses_end(void)
{
	atomic_store(&over, true);
	while (sleepers)
		pthread_join(sleeper[--sleepers], NULL);
	atomic_store(&over, false);
}
