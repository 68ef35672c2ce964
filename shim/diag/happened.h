/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happenings: what somebody should know of, a misuse by the program or what had to be done
 * because of another process.
 *
 * One call says it wherever it is to be heard: it is counted for the report, noted in our file
 * with its stacks, traced and logged.  Nothing is decided by it, and it never fails.  errno may
 * change.
 */
#ifndef CL_HAPPENED_H
#define CL_HAPPENED_H

#include <stdbool.h>
#include "shim/shm/layout.h"

/* What it is about: a block, an import or a handle.  What is not known is 0. */
struct cl_about {
	uint64_t key;	 /* device address, or the CUevent */
	uint64_t size;	 /* bytes; 0 for an event */
	uint64_t when;	 /* of what it clashes with (the first free, the last close), CLOCK_MONOTONIC ns */
	uint32_t stack;	 /* of the same, as of cl_notes_stack() */
	uint32_t file_id, record, generation;
	uint32_t pid;	 /* of the other process */
	uint8_t kind, device; /* enum cl_kind; ordinal as this process counts */
	bool exporter_gone;	 /* its exporter's file is not where it would be */
	char name[16];	 /* of the other process */
};

/*
 * @about: what it happened to.  @stack: where it happened, as of cl_notes_stack(), or 0.  The
 * first takes cl_exports_lock, which the caller of the second holds.
 */
void cl_happened(enum cl_finding_kind kind, const struct cl_about *about, uint32_t stack);
void cl_happened_locked(enum cl_finding_kind kind, const struct cl_about *about);

/* The same as a finding, as it stands in our file and in reports; .when is not filled in. */
struct cl_finding cl_finding_of(enum cl_finding_kind kind, const struct cl_about *about, uint32_t stack);

#endif
