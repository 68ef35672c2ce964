/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory on the side of its exporter, under CULIMBO_SHARE=all.  Where CUDA refuses to make a handle of
 * it, the exporter makes one of ours (shm/virtual_handle.h).  The descriptor service then hands the
 * allocations that are mapped there over to importers.
 *
 * What must hold:
 *  - A mapping that is shared has one record, with a generation and holders as any block has.  The program's
 *    unmap ends the generation before the driver is called, and handles are refused from then on.
 *    Importers keep their bytes, because the driver counts the references to an allocation.
 *  - A handle names the mapping in which the pointer lies, as a handle of the driver's names a block.  If the
 *    pointer is the beginning of a reservation and nothing that can be shared is mapped there, the handle
 *    names the whole reservation.
 *  - When the driver's unmap is called, no thread of ours has a handle or a descriptor of what it unmaps,
 *    so its memory comes back as without culimbo.  A descriptor that is on its way to an importer counts as
 *    the importer's.  The exception is a driver that takes more than a second to make a descriptor: the
 *    unmap waits no longer.
 *  - The program reads the properties of its allocations as it asked for them (shim/virtual.c).
 *
 * Any thread may call these functions.  It must hold no lock of ours.
 */
#ifndef CL_EXPORTER_VIRTUAL_H
#define CL_EXPORTER_VIRTUAL_H

#include <stdbool.h>
#include "shim/base/options.h"
#include "shim/driver/driver.h"
#include "shim/shm/layout.h"
#include "shim/shm/virtual_handle.h"

struct cl_exporter;

/*
 * A batch of descriptors leaves after this long (ns), though it has room for more: 20 ms.  So with all CL_SERVE_CLIENTS
 * places taken, and a driver that needs 33 ms for a descriptor (measured on a slow host), each importer still gets one in
 * less than 5 s, and learns that the service works.  Only tests change it.
 */
extern uint64_t cl_virtual_batch_time;
/*
 * An unmap waits at most this long (ns) for the driver to make descriptors: 1 s.  One takes 50 us, on a slow host 33 ms
 * (measured).  Only tests change it.
 */
extern uint64_t cl_virtual_export_wait;

/* Returns true if this process makes its virtual memory shareable: the options say so. */
static inline bool cl_virtual_is_on(void)
{
	return cl_shares_all() && !cl_observes() && !cl_options.disable.number;
}

/*
 * Returns true if the driver is older than 535.  Such drivers are said to become slow by memory that has handle
 * types, so we add none there.  The first call that finds one logs it.
 */
bool cl_virtual_is_slow_driver(void);

/*
 * In place of cuMemCreate(), with its arguments and results.  If another process could map such memory, asks
 * the driver to make it exportable by descriptor as well.  If the driver refuses that with any error but
 * CUDA_ERROR_OUT_OF_MEMORY, asks again for what the program wants.  Remembers the allocation (ranges.h).
 */
CUresult cl_virtual_make(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
			 unsigned long long flags);
/*
 * The fast half of an unmap: unmaps one mapping that was not shared (cl_range_alone_locked()).  Returns true, and the
 * driver's result in *@result.  Returns false if there is no such mapping, and then nothing was done.  Its caller has
 * CL_DOOR_FAST_UNCANCELLED.
 */
bool cl_virtual_unmap_unshared(struct cl_exporter *ex, CUdeviceptr dptr, size_t size, CUresult *result);
/*
 * In place of cuMemUnmap(), with its results.  If whole mappings cover this range, first ends their generations.
 * If they do not, the driver refuses the call.  If it refuses for another reason, the old handles stay refused,
 * and the next export of the memory begins a new generation.
 */
CUresult cl_virtual_unmap_shared(struct cl_exporter *ex, CUdeviceptr dptr, size_t size);

/* What cl_virtual_find() found. */
struct cl_virtual_found {
	struct cl_virtual_handle handle; /* set if .record is */
	uint32_t record;		 /* CL_NO_RECORD: the mapping was not shared before */
	uint64_t base, size, now;	 /* of the mapping, and the time of this export; set if .record is */
	int device;			 /* of the mapping; -1: nothing can be shared there */
};
/*
 * Comes before the driver is asked for a handle of @dptr.  Returns true if @dptr lies in a reservation of the
 * program that is known, and false otherwise; always sets @found.  If the mapping was shared before, this call
 * exports it again, so that an export that is repeated takes the lock once.
 */
bool cl_virtual_find(struct cl_exporter *ex, CUdeviceptr dptr, struct cl_virtual_found *found);
/*
 * Returns true, and a virtual handle in *@handle, if @found has one and the driver need not be asked whether it makes
 * a handle of @dptr itself.  That takes the driver longer than the two queries here.  The first of them has it check
 * the context as cuIpcGetMemHandle() does (measured), and both find memory that was mapped or allocated there past
 * our hooks.
 */
bool cl_virtual_share_again(CUipcMemHandle *handle, CUdeviceptr dptr, const struct cl_virtual_found *found);
/*
 * The driver has refused to make a handle of @dptr, for which cl_virtual_find() has set @found.  Returns true,
 * and a virtual handle in *@handle.  Returns false if nothing can be shared there, or if there is no record or no
 * descriptor service for it: then the program gets the driver's refusal.
 */
bool cl_virtual_share(struct cl_exporter *ex, CUipcMemHandle *handle, CUdeviceptr dptr, struct cl_virtual_found *found);

void cl_virtual_forget(void); /* in a forked child */

#endif
