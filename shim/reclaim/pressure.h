/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's other exporters, for an allocation that fails: what may come free from their
 * limbos, what has come free, and how they are asked for it.
 *
 * An exporter counts what enters its limbo and what goes back to the driver, and both counters only grow
 * (struct cl_device_limbo).  So they show what came free, even if new blocks have entered the limbo meanwhile.
 *
 * Any thread; one thread at a time for each cl_pressure.  The caller holds no lock.  No CUDA call
 * is made.
 */
#ifndef CL_PRESSURE_H
#define CL_PRESSURE_H

#include <stdbool.h>
#include <stdint.h>

/* What one failing allocation knows of the other exporters. */
struct cl_pressure;

/*
 * @uuid names the device whose memory is short; NULL stands for any device.  Returns NULL if there
 * is no memory.  No file stays open from one call to the next.
 */
struct cl_pressure *cl_pressure_begin(const uint8_t uuid[16]);
void cl_pressure_end(struct cl_pressure *pressure); /* NULL: does nothing */

struct cl_pressure_seen {
	/*
	 * The driver may have memory: since the last look an exporter gave something back, put
	 * something into its limbo, answered, or died; or it is new, and has a limbo.
	 */
	bool news;
	/*
	 * Something in a limbo could go, and its exporter has not had the time to say what goes;
	 * or an exporter is dying, and its memory comes back.
	 */
	bool may_come;
	/* Bytes of the device that all exporters ever put into their limbos, and gave back. */
	uint64_t entered, returned;
};
struct cl_pressure_seen cl_pressure_look(struct cl_pressure *pressure); /* NULL: sees nothing */

/*
 * Writes at most @max files of exporters that, as of the last look, have memory of the device in their limbos that waits
 * for a holder or a fence.  Returns how many it wrote.
 */
unsigned int cl_pressure_keep(const struct cl_pressure *pressure, uint32_t *files, unsigned int max); /* NULL: 0 */

/*
 * Asks all exporters that, as of the last look, have something that could go: they cut their graces
 * short and give back what nobody holds.  Waits for the answers until @until (CLOCK_MONOTONIC, ns)
 * at most, and only some milliseconds for exporters that do not answer soon: later looks see
 * their answers.  @began is when memory began to be short: the longer ago, the longer the
 * exporters skip the grace of what they free.
 */
void cl_pressure_ask(struct cl_pressure *pressure, uint64_t began, uint64_t until);

#endif
