/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports: this process asks for an IPC handle of a block or an event.  The first export of a
 * block makes it known to us, by its base address; free.h then decides about its free.
 *
 * The front door (shim.c) calls these functions, from any thread and without a lock of ours.  They
 * call the driver, and return its error or one that is named here.
 */
#ifndef CL_EXPORT_H
#define CL_EXPORT_H

#include <stdbool.h>
#include "shim/blocks/blocks.h"
#include "shim/driver/context.h"
#include "shim/driver/driver.h"

struct cl_exporter;

struct cl_about;

enum cl_export_as {
	CL_EXPORT_DONE,	      /* the block was exported again */
	CL_EXPORT_NEW,	      /* the driver has given a handle, but we know no block that begins at @dptr */
	CL_EXPORT_NOT_SIMPLY, /* nothing was done, and @handle holds nothing of use */
};
/*
 * Exports a block that was exported before and is still the same: asks the driver, and stamps
 * @handle.  It takes one lock, twice if the limbo has blocks, and waits for nothing under it, so
 * no thread is cancelled there.
 */
enum cl_export_as cl_export_simply(struct cl_exporter *ex, CUipcMemHandle *handle,
				   CUdeviceptr dptr);
/*
 * Exports any block: gives it a record if it has none, and stamps @handle with that.  Without
 * host memory for a new block it returns CUDA_ERROR_OUT_OF_MEMORY and does not ask the driver.
 */
CUresult cl_export_carefully(struct cl_exporter *ex, CUipcMemHandle *handle, CUdeviceptr dptr);
/* The same after CL_EXPORT_NEW, with the driver's @handle.  An error of our own wipes @handle. */
CUresult cl_export_new(struct cl_exporter *ex, CUipcMemHandle *handle, CUdeviceptr dptr);

/*
 * Comes before the driver is asked for a handle of @event.  Returns CUDA_SUCCESS and *prepared,
 * which one of the next two functions uses up; it is NULL if @event was exported before.  Returns
 * CUDA_ERROR_INVALID_HANDLE if the program has destroyed @event, which becomes a finding, and
 * CUDA_ERROR_OUT_OF_MEMORY if there is no host memory for the export.
 */
CUresult cl_export_event_begin(struct cl_exporter *ex, CUevent event, struct cl_block **prepared);
/* Ends the export when the driver has refused. */
void cl_export_event_refused(struct cl_exporter *ex, struct cl_block *prepared);
/* Ends the export when the driver has given @handle: stamps it.  On an error @handle is wiped. */
CUresult cl_export_event(struct cl_exporter *ex, CUipcEventHandle *handle, CUevent event,
			 struct cl_block *prepared);

/* ------------------------------------------------------- for the files of this folder */
/* Returns true if another export of @block needs only a stamp. */
static inline bool cl_export_is_simple_locked(const struct cl_block *block)
{
	/* a LIVE block is busy only while its context may be ending; a block of a pool has none (measured) */
	return block->state == CL_BLOCK_LIVE && (block->kind == CL_POOL || !cl_context_ends(cl_block_context(block))) &&
	       block->record != CL_NO_RECORD;
}
/*
 * Exports @block once more, at @now, and stamps @handle.  No other thread is in the driver with
 * @block.  Returns false if @block is NULL, was freed, or has a record of another handle.
 */
bool cl_export_again_locked(struct cl_exporter *ex, void *handle, struct cl_block *block,
			    uint64_t now);
/* Not a result of the driver: the driver's answer may be out of date, so the caller asks it again. */
#define CL_EXPORT_ASK_AGAIN ((CUresult)-1)
/*
 * Publishes the block that @what describes, in the context @of, and stamps @handle, which the
 * driver has given.  Lets go of the lock if the context is new, and to wait for a thread that is in the
 * driver with a block at that address.  @prepared is used up; it is NULL if the block was known before
 * the driver was asked.  *orphaned goes to cl_collector_watch_holders().  Returns
 * CUDA_ERROR_OUT_OF_MEMORY, and wipes @handle, if there is no host memory.  Returns
 * CUDA_ERROR_INVALID_VALUE, wipes @handle, and sets *misused to the block, if the program has freed it:
 * the caller reports that without the lock.  For a pointer into a block, @returned is what cl_limbo_returned_locked()
 * gave before the driver was asked; else it is NULL.  Returns CL_EXPORT_ASK_AGAIN if memory went back since then: it may
 * be this block.
 */
CUresult cl_export_publish_locked(struct cl_exporter *ex, void *handle, struct cl_export *what,
				  const struct cl_context_name *of, uint32_t stack,
				  struct cl_block *prepared, const uint64_t *returned,
				  struct cl_about *misused, bool *orphaned);
/* Reports that the program exported a block that it had freed.  No lock is held. */
void cl_export_tell_after_free(const struct cl_about *misused);
/* Discards @prepared, which may be NULL.  Takes the lock. */
void cl_export_discard(struct cl_exporter *ex, struct cl_block *prepared);

#endif
