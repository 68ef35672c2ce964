/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limbo when memory is short: how much of it could go back, and the end of graces for a process that
 * needs memory.
 *
 * Any thread may call these functions.  Those that end in _locked want cl_exports_lock held; the others
 * take it.  None makes a CUDA call.
 */
#ifndef CL_PRESS_H
#define CL_PRESS_H

#include "shim/limbo/limbo.h"

/*
 * A process needs memory of @device, an entry of the header's `device`.  With CL_ANY_DEVICE it needs memory
 * of any device, or of the host for a pool that has no room left.  Ends the grace of all blocks there.  Until
 * @until (CLOCK_MONOTONIC, ns) blocks that are freed there get none: else memory that comes back could be
 * allocated, freed and in a limbo again before the process in need has it.  @until may come from another
 * process, so it is moved into the range from CL_PRESSED_LEAST to CL_PRESSED_MOST from now.  Gives nothing
 * back yet.
 */
void cl_limbo_press(struct cl_exporter *ex, unsigned int device, uint64_t until);
#define CL_PRESSED_LEAST 20000000ull /* ns */
#define CL_PRESSED_MOST 1000000000ull
/*
 * Returns the time until which cl_limbo_press() ends graces for a call that has lacked memory since @began.
 * The longer the call has waited, the longer that is.
 */
static inline uint64_t cl_limbo_press_until(uint64_t began, uint64_t now)
{
	return now + CL_PRESSED_LEAST + 2 * (now - began);
}
/* Ends what cl_limbo_press() began: the call in need has its memory or has given up. */
void cl_limbo_press_over(struct cl_exporter *ex, unsigned int device);

/*
 * Counts the limbo's memory that belongs, or may belong, to @device, an ordinal.  Counts all
 * devices, and pools on the host, if @device is below 0 or has no known UUID.  Returns zeros without an exporter file.
 * .entered and .returned are the bytes that ever went into the limbo and back to the driver,
 * in whole pages; .could_go are the bytes in the limbo that neither a holder nor a fence keeps.
 */
struct cl_limbo_moved {
	uint64_t entered, returned, could_go;
	unsigned int device; /* its entry in the header, for cl_limbo_press() */
};
struct cl_limbo_moved cl_limbo_moved(struct cl_exporter *ex, int device);
/* Returns how many bytes have gone back to the driver; two answers that differ tell that some did. */
uint64_t cl_limbo_returned_locked(struct cl_exporter *ex);

#endif
