/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory on the side of its exporter, under CULIMBO_SHARE=all: what CUDA refuses to make a handle
 * of gets one of ours (shm/virtual_handle.h), and the descriptor service hands its allocations over.
 *
 * What must hold:
 *  - An allocation that is mapped has one record while it is shared, with a generation and holders as any
 *    block has.  Its unmap ends the generation before the driver is called: importers keep their
 *    bytes, since the driver counts, and its handles are refused from then on.
 *  - A handle is of the allocation in which the pointer lies, as a driver's of a block is.  A pointer to the
 *    beginning of a reservation is of the reservation, also if nothing is mapped there.
 *  - When the driver's unmap is called, no thread of ours has a handle or a descriptor of what it unmaps:
 *    memory comes back as without culimbo.  A descriptor that is on its way to an importer counts as the
 *    importer's.
 *  - The program sees its allocations as it has asked for them.
 *
 * The front door (shim/virtual.c) calls these functions, from any thread and without a lock of ours.
 */
#ifndef CL_EXPORTER_VIRTUAL_H
#define CL_EXPORTER_VIRTUAL_H

#include <stdbool.h>
#include "shim/base/options.h"
#include "shim/driver/driver.h"
#include "shim/shm/layout.h"
#include "shim/shm/virtual_handle.h"

struct cl_exporter;

/* Returns true if virtual memory is shared. */
static inline bool cl_virtual_is_on(void)
{
	return cl_shares_all() && !cl_observes() && !cl_options.disable.number;
}

/* Returns true if the driver is one that memory with handle types is said to slow down. */
bool cl_virtual_is_slow_driver(void);

/*
 * cuMemCreate(): asks for a descriptor, too, if the memory is such that another process can map it.  If the
 * driver refuses that, asks for what the program wants.
 */
CUresult cl_virtual_make(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
			 unsigned long long flags);
/* cuMemUnmap(), which ends what was shared there. */
CUresult cl_virtual_unmap_shared(struct cl_exporter *ex, CUdeviceptr dptr, size_t size);

/* What cl_virtual_find() found. */
struct cl_virtual_found {
	struct cl_virtual_handle handle; /* with a record */
	uint32_t record;		 /* CL_NO_RECORD: it was not shared before */
	int device;			 /* -1: it can't be shared */
};
/*
 * Returns true if @dptr is in virtual memory of the program.  If that was shared before, it is exported
 * again: all under the lock, once.
 */
bool cl_virtual_find(struct cl_exporter *ex, CUdeviceptr dptr, struct cl_virtual_found *found);
/*
 * The driver has refused a handle of @dptr, which was @found before.  Returns true, and a virtual
 * @handle, if @dptr is virtual memory that can be shared.
 */
bool cl_virtual_share(struct cl_exporter *ex, CUipcMemHandle *handle, CUdeviceptr dptr, struct cl_virtual_found *found);

/*
 * Opens @handle, a virtual one that this process has made with @stamp.  Returns 0 and the program's own
 * address in *@dptr, or -ESTALE.
 */
int cl_virtual_own_open(struct cl_exporter *ex, struct cl_stamp stamp, const void *handle, CUdeviceptr *dptr);
/* Returns true if that is open at @dptr. */
bool cl_virtual_own_is_open(CUdeviceptr dptr);
/* Closes one open of that at @dptr.  Returns false if there is none. */
bool cl_virtual_own_close(CUdeviceptr dptr);

void cl_virtual_forget(void); /* in a forked child */

#endif
