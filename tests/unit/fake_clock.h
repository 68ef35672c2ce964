/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock of tests that the fake driver plays in (fake_driver.h, which includes this): it is turned
 * instead of waited for.
 */
#ifndef CL_TEST_FAKE_CLOCK_H
#define CL_TEST_FAKE_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#include "shim/base/clock.h"
#include "shim/driver/gate.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/exporter.h"
#include "tests/unit/child.h"

/* Turns the clock by @ns.  Who sleeps until some time of it sleeps on: see wake_sleepers(). */
static inline void turn_clock(uint64_t ns)
{
	atomic_fetch_add(&cl_clock_ahead, ns);
}
/* All who wait for a time of the clock look at it again. */
static inline void wake_sleepers(void)
{
	cl_lock(&cl_exports_lock);
	cl_gate_changed_locked();
	cl_unlock(&cl_exports_lock);
	if (cl_options.collector.number == CL_COLLECTOR_THREAD)
		cl_collector_wake(&cl_exporter);
}
/* A thread that turns the clock by a second each millisecond or so, and wakes who waits for it. */
static _Atomic bool turning;
static void *turn_on(void *unused)
{
	while (turning) {
		usleep(1000);
		turn_clock(1000000000);
		wake_sleepers();
	}
	return unused;
}
static inline pthread_t turn_clock_beside(void)
{
	pthread_t thread;

	turning = true;
	CHECK(!pthread_create(&thread, NULL, turn_on, NULL));
	return thread;
}
static inline void turn_no_more(pthread_t thread)
{
	turning = false;
	CHECK(!pthread_join(thread, NULL));
}

#endif
