/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock of tests with the fake driver (fake_driver.h, which includes this).  A test advances it
 * instead of waiting.
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

/* Advances the clock by @ns.  Threads that sleep until a time sleep on: see wake_sleepers(). */
static inline void turn_clock(uint64_t ns)
{
	atomic_fetch_add(&cl_clock_ahead, ns);
}
/* Has all threads that wait for a time look at the clock again. */
static inline void wake_sleepers(void)
{
	cl_lock(&cl_exports_lock);
	cl_gate_changed_locked();
	cl_unlock(&cl_exports_lock);
	if (cl_options.collector.number == CL_COLLECTOR_THREAD)
		cl_collector_wake(&cl_exporter);
}
/* A thread that advances the clock by a second about each millisecond, and wakes those that wait for it. */
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
