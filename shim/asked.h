/* SPDX-License-Identifier: Apache-2.0 */
/*
 * These functions answer what a program asks of culimbo itself.  preload/culimbo.h has their contracts.
 * Any thread may call them, but no signal handler.  It must hold no lock of ours.
 */
#ifndef CL_ASKED_H
#define CL_ASKED_H

#include <stdbool.h>
#include <stdint.h>

/* Returns true if something of this process's limbo came free. */
bool cl_asked_collect(void);

/* Writes the report to @fd.  Returns the number of findings, or -errno. */
int cl_asked_report(int fd, bool json);

/* The members mean what those of struct culimbo_stats (culimbo.h) mean. */
struct cl_asked_numbers {
	uint64_t exports, opens, closes;
	uint64_t open, open_bytes;
	uint64_t kept, returned, returned_bytes;
	uint64_t limbo, limbo_bytes, held, held_bytes;
	uint64_t refused, dead_holders, short_of_memory, findings;
};
void cl_asked_stats(struct cl_asked_numbers *stats);

#endif
