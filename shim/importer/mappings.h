/* SPDX-License-Identifier: Apache-2.0 */
/* What this process imported: the part of it that reports and contexts need. */
#ifndef CL_MAPPINGS_H
#define CL_MAPPINGS_H

#include "shim/importer/peers.h"
#include "shim/driver/driver.h"

/* One thing imported, as this process knows it. */
struct cl_import {
	uint64_t key;		/* device address, or the CUevent */
	uint64_t size;		/* bytes; 0: not known, or an event */
	uint64_t opens;		/* not closed yet */
	uint64_t since;		/* first opened, CLOCK_MONOTONIC ns */
	uint32_t exporter_pid;	/* as it calls itself; 0: not known (unmanaged) */
	uint32_t file_id, record, generation;
	uint32_t stack;		/* of the first open */
	uint8_t device;		/* as this process counts */
	enum cl_kind kind;
	bool managed;		/* its exporter knows of us */
	bool stays;		/* its exporter has freed it */
};
/* Each open import; under cl_imports_lock. */
void cl_imports_each(void (*each)(const struct cl_import *import, void *data), void *data);

/* Whether @dptr is an import that is open here, and which. */
bool cl_import_find(CUdeviceptr dptr, struct cl_import *import);
/*
 * If @event is an imported one: destroys it by @destroy with the driver's
 * answer in @result, gives the hold back, and returns true.
 */
bool cl_import_event_destroy(CUevent event, CUresult (*destroy)(CUevent), CUresult *result);
/*
 * Whether @event was an imported one, is destroyed, and nothing else is known to
 * have been made at that address since: then that is noted as misuse.
 */
bool cl_import_event_destroyed_again(CUevent event);

/*
 * Around the driver's end of context @ctx (or, when NULL, @device's primary one), in one
 * thread: what is opened from the first on is none of it.  @gone: it has ended, with what
 * was open in it.  Without the first, with all that is.
 */
void cl_imports_context_ends(CUcontext ctx, CUdevice device);
void cl_imports_context_ended(CUcontext ctx, CUdevice device, bool gone);

void cl_imports_forget(void); /* in a forked child */

#endif
