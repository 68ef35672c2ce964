/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happenings: a misuse by the program, or something that culimbo had to do because of another process.
 *
 * One call counts a happening for the report, writes a finding with its stacks into our file, traces it
 * and logs it.  No free, hold or open depends on that, and it never fails.  errno may change.  Any thread
 * may call these functions.
 */
#ifndef CL_HAPPENED_H
#define CL_HAPPENED_H

#include <stdbool.h>
#include "shim/shm/layout.h"

/* What a happening is about: a block, an import or a handle.  What is not known is 0. */
struct cl_about {
	uint64_t key;	 /* device address, or the CUevent */
	uint64_t size;	 /* bytes; 0 for an event */
	uint64_t when;	 /* the time of the earlier event: the first free, the last close; CLOCK_MONOTONIC ns */
	uint64_t at;	 /* the time of this event; 0: now */
	uint64_t until;	 /* of a block freed while mapped: when its last holder closed it */
	uint32_t stack;	 /* of the earlier event, from cl_stack_write() */
	uint32_t file_id, record, generation;
	uint32_t pid;	 /* of the other process */
	uint8_t kind, device; /* enum cl_kind; ordinal as this process counts */
	uint8_t made, call;	 /* of a note: enum cl_made, enum cl_call */
	uint32_t result;	 /* of a refusal: the driver's CUresult */
	uint8_t why;		 /* of a refusal: enum cl_why */
	bool more;		 /* of a note: it is counted already, and only its `size` is added */
	bool unnamed;	 /* the log has enough of this kind: the caller writes how many more there are */
	bool told;	 /* of a hold that was taken back: the process that held it has reported it at its end */
	bool exporter_gone;	 /* of a stale handle: its exporter has ended, or has lost its file */
	char name[16];	 /* of the other process */
};

/*
 * Reports a happening.  @about tells to which block, import or handle it happened.  @stack, from cl_stack_write(), tells
 * where in the program; 0: not known.  A note of the same kind, call, memory and stack as an earlier one is counted with
 * that one.  cl_happened() takes cl_exports_lock; the caller of cl_happened_locked() holds it.
 */
void cl_happened(enum cl_finding_kind kind, const struct cl_about *about, uint32_t stack);
void cl_happened_locked(enum cl_finding_kind kind, const struct cl_about *about, uint32_t stack);

#endif
