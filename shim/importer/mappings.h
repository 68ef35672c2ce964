/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mappings: what the driver has opened for this process, one for each address (or event) and
 * context; and what reports and contexts need of them.
 *
 * Functions that end in _locked want cl_imports_lock held.
 */
#ifndef CL_MAPPINGS_H
#define CL_MAPPINGS_H

#include "shim/diag/notes.h"
#include "shim/diag/recent_closes.h"
#include "shim/driver/driver.h"
#include "shim/importer/holds.h"
#include "shim/self/self.h"

/* An open in progress: see open.h. */
struct cl_opening {
	struct cl_hold *hold;
	CUcontext ctx;
	CUdevice device;
	uint32_t stack;
	bool primary;
	enum cl_sight sight; /* where its exporter's file would be, of what is unmanaged */
};

extern struct cl_table cl_mappings[]; /* for each enum cl_kind; the key: device address, or the CUevent */
static inline struct cl_mapping *cl_mapping_find_locked(enum cl_kind kind, uint64_t key)
{
	return cl_table_find(&cl_mappings[kind], key);
}
extern struct cl_list cl_mappings_endings; /* contexts that are just ending */
static inline bool cl_mappings_any_ending_locked(void)
{
	return cl_mappings_endings.n != 0;
}
/* Whether @mapping may go with a context that is just ending. */
bool cl_mapping_goes(const struct cl_mapping *mapping);
static inline bool cl_mapping_is_going(const struct cl_mapping *mapping)
{
	return cl_mappings_any_ending_locked() && cl_mapping_goes(mapping);
}
/*
 * Of an open that has just succeeded; @newest is what cl_mapping_find_locked() says.
 * False: no memory for it.
 */
bool cl_mapping_add_locked(enum cl_kind kind, uint64_t key, struct cl_mapping *newest,
			   const struct cl_opening *o, uint32_t exporter_pid);
/* The driver has closed @mapping once (or not, when !@closed), at @stack. */
void cl_mapping_closed_locked(enum cl_kind kind, struct cl_mapping *mapping, bool closed, uint32_t stack);
/* What is to be noted of the last close of @mapping, at @stack. */
void cl_mapping_last_close(struct cl_closed *to, enum cl_kind kind, const struct cl_mapping *mapping,
			   uint32_t stack);

/* What the trace says of an open or a close here; @hold NULL: unmanaged. */
#define cl_trace_mapping(what_, kind_, key_, hold, ...)                                  \
	cl_trace(what_, .kind = (uint8_t)(kind_), .key = (key_),                         \
		 .size = (hold) ? (hold)->peer->region.record[cl_hold_record(hold)].size : 0, \
		 .file_id = (hold) ? cl_hold_file(hold) : 0,                            \
		 .record = (hold) ? cl_hold_record(hold) : CL_NO_RECORD,                   \
		 .generation = (hold) ? (hold)->generation : 0,                          \
		 .pid = (hold) ? (hold)->peer->region.header->exporter.pid : 0, ##__VA_ARGS__)
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
 * Around the driver's end of context @ctx (or, when NULL, @device's primary one), in one
 * thread: what is opened from the first on is none of it.  @gone: it has ended, with what
 * was open in it.  Without the first, with all that is.
 */
void cl_imports_context_ends(CUcontext ctx, CUdevice device);
void cl_imports_context_ended(CUcontext ctx, CUdevice device, bool gone);

void cl_imports_forget(void); /* in a forked child */

#endif
