/* SPDX-License-Identifier: Apache-2.0 */
/* What time it is, as all of the shim counts it.  Any thread, no state. */
#ifndef CL_CLOCK_H
#define CL_CLOCK_H

#include <stdint.h>
#include <time.h>

uint64_t cl_now(void); /* CLOCK_MONOTONIC, ns */
uint64_t cl_now_roughly(void); /* as of the last tick, some ms ago at most: for notes */
struct timespec cl_after(uint64_t wait); /* @wait ns from now, CLOCK_MONOTONIC */

#endif
