/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What time it is, as all of the shim counts it.  Any thread.
 *
 * A seam, like the driver: a unit test turns the clock instead of waiting.  So whoever waits
 * until a time of this clock gives the kernel cl_clock_kernel() of it, and looks at the time
 * again when it was woken.
 */
#ifndef CL_CLOCK_H
#define CL_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

/* By how much this clock is ahead of the kernel's CLOCK_MONOTONIC, ns; 0 but in unit tests. */
extern _Atomic uint64_t cl_clock_ahead;

uint64_t cl_now(void); /* ns */
uint64_t cl_now_roughly(void); /* as of the last tick, some ms ago at most: for notes */
/* When it is @when here, as the kernel's CLOCK_MONOTONIC has it; if that was before it began, its beginning. */
struct timespec cl_clock_kernel(uint64_t when);
struct timespec cl_after(uint64_t wait); /* @wait ns from now, the same */

#endif
