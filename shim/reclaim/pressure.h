/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's other exporters, for an allocation that fails: what of their limbos may come
 * free, what has come free, and asking them for it.
 *
 * What came free is told by counters that only grow (cl_device_limbo), so that an exporter
 * that gave memory back and put new blocks into its limbo meanwhile has given back all the
 * same.  All functions: any thread; no lock may be held; no CUDA call is made.
 */
#ifndef CL_PRESSURE_H
#define CL_PRESSURE_H

#include <stdbool.h>
#include <stdint.h>

/* What one failing allocation knows of them. */
struct cl_pressure;

/*
 * @uuid: of the device whose memory is short, NULL: of any.  NULL: no memory.  It keeps nothing
 * open from one call to the next.
 */
struct cl_pressure *cl_pressure_begin(const uint8_t uuid[16]);
void cl_pressure_end(struct cl_pressure *pressure); /* NULL: nothing */

struct cl_pressure_seen {
	/*
	 * Since the last look an exporter gave something back, or put something into its limbo,
	 * or answered, or died; or it had a limbo when first seen: the driver may have memory.
	 */
	bool news;
	/*
	 * Something in a limbo could go, and its exporter has not had the time to say what goes;
	 * or an exporter dies, whose memory comes back.
	 */
	bool may_come;
	/* Of the device, by all: the bytes that were ever put into limbos, and given back. */
	uint64_t entered, returned;
};
struct cl_pressure_seen cl_pressure_look(struct cl_pressure *pressure); /* NULL: nothing is seen */

/*
 * Asks all whose limbo has what could go, as of the last look, to end their graces and give
 * back what nobody holds.  Waits for their answers, until @until (CLOCK_MONOTONIC, ns) at
 * most, and for no more than some milliseconds for those that don't answer soon: the next
 * looks tell when they do.  @began: since when memory has been needed; the longer in vain, the
 * longer what they free goes at once.
 */
void cl_pressure_ask(struct cl_pressure *pressure, uint64_t began, uint64_t until);

#endif
