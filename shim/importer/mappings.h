/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mappings: what the driver has opened for this process.  There is one for each hold and
 * context at an address (of an event: its CUevent).
 *
 * Functions that end in _locked want cl_imports_lock held.  The others take it, but for
 * cl_imports_each().
 */
#ifndef CL_MAPPINGS_H
#define CL_MAPPINGS_H

#include "shim/diag/report_data.h"
#include "shim/diag/recent_closes.h"
#include "shim/driver/driver.h"
#include "shim/importer/holds.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"

/* An open in progress: see open.h. */
struct cl_opening {
	struct cl_hold *hold;
	struct cl_context *context; /* set when the driver has opened it; NULL: not known */
	CUdevice device;
	uint32_t stack;
	enum cl_sight sight; /* of an unmanaged import: where its exporter's file would be */
	bool unmanaged; /* no hold can be had: its exporter runs without culimbo, or its file is not here */
	bool stale; /* CULIMBO_MODE=observe: the driver is asked all the same, and then cl_open_tell_stale() tells of it */
};

/* One table for each enum cl_kind.  The key is the device address, or the CUevent. */
extern struct cl_table cl_mappings[];
static inline struct cl_mapping *cl_mapping_find_locked(enum cl_kind kind, uint64_t key)
{
	return cl_table_find(&cl_mappings[kind], key);
}
/* Returns true if a call of the program may be ending the context of @mapping, and @mapping with it. */
static inline bool cl_mapping_is_going(const struct cl_mapping *mapping)
{
	return cl_context_ends(mapping->of.context);
}
/*
 * Notes one successful open at @key.  @newest is what cl_mapping_find_locked() returned.
 * Returns its mapping, NULL if there is no memory for a new one.
 */
struct cl_mapping *cl_mapping_add_locked(enum cl_kind kind, uint64_t key, struct cl_mapping *newest,
			   const struct cl_opening *o, uint32_t exporter_pid);
/*
 * Ends one close of @mapping that cl_close_begin() began.  @closed is false if the driver has
 * refused it.  @mapping may be freed.
 */
void cl_mapping_closed_locked(enum cl_kind kind, struct cl_mapping *mapping, bool closed, uint32_t stack);
/* Fills @to with what the log of recent closes keeps of the last close of @mapping, at @stack. */
void cl_mapping_last_close(struct cl_about *to, enum cl_kind kind, const struct cl_mapping *mapping,
			   uint32_t stack);

/* Counts a close of an import, here and for others to read. */
static inline void cl_count_close_locked(void)
{
	cl_count_locked(closes);
	if (cl_own_has_file())
		cl_live_add_locked(&cl_own, CL_LIVE_CLOSES, 1);
}

/* Traces an open or a close of an import.  @hold is NULL if the import is unmanaged. */
#define cl_trace_mapping(what_, kind_, key_, hold, ...)                                  \
	cl_trace(what_, .kind = (uint8_t)(kind_), .key = (key_),                         \
		 .size = (hold) ? (hold)->peer->region.record[cl_hold_record(hold)].size : 0, \
		 .file_id = (hold) ? cl_hold_file(hold) : 0,                            \
		 .record = (hold) ? cl_hold_record(hold) : CL_NO_RECORD,                   \
		 .generation = (hold) ? (hold)->generation : 0,                          \
		 .pid = (hold) ? (hold)->peer->region.header->exporter.pid : 0, ##__VA_ARGS__)
/* One import, as this process knows it. */
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
	bool told;		/* its exporter has ended, and has told of it */
};
/* Calls @each for every import.  The caller holds cl_imports_lock. */
void cl_imports_each(void (*each)(const struct cl_import *import, void *data), void *data);

/* Returns true if @dptr is an open import: *about says which, and since when and where it is open. */
bool cl_import_find(CUdeviceptr dptr, struct cl_about *about);
/* Returns the context in which @key was opened, NULL if that is not known or none is open there. */
CUcontext cl_mapping_context(enum cl_kind kind, uint64_t key);
/*
 * Forgets @mapping because the driver has unmapped it: its context has ended.  Gives its hold back.
 * @mapping may be freed.
 */
void cl_mapping_lost_locked(struct cl_mapping *mapping);

void cl_imports_forget(void); /* in a forked child */

#endif
