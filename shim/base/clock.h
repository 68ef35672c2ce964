/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one clock that all of the shim reads.  Any thread may call these functions.
 *
 * The clock is a seam, like the driver: a unit test turns it instead of waiting.  So a thread
 * that waits until a time of this clock passes cl_clock_kernel() of that time to the kernel, and
 * reads this clock again when it wakes up.
 */
#ifndef CL_CLOCK_H
#define CL_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

/* How far this clock is ahead of the kernel's CLOCK_MONOTONIC, ns.  Only unit tests change it from 0. */
extern _Atomic uint64_t cl_clock_ahead;

uint64_t cl_now(void);	       /* the time, ns */
uint64_t cl_now_roughly(void); /* the time of the kernel's last tick, a few ms ago at most, ns: cheaper */
/* Converts @when, ns of this clock, to the kernel's CLOCK_MONOTONIC: 0 if that clock had not begun then. */
struct timespec cl_clock_kernel(uint64_t when);
struct timespec cl_after(uint64_t wait); /* the kernel's CLOCK_MONOTONIC @wait ns from now */

#endif
