/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens virtual handles (shm/virtual_handle.h) of other processes: asks the exporter's descriptor service,
 * and maps what it hands over in a mirror (mirror.h).
 *
 * What must hold:
 *  - Each allocation that is mapped here has a hold on its record, from before it is mapped until after it
 *    is unmapped.
 *  - An open returns in bounded time, whatever its exporter does.
 *
 * Any thread may call these functions, without a lock of ours.
 */
#ifndef CL_IMPORTER_VIRTUAL_H
#define CL_IMPORTER_VIRTUAL_H

#include "shim/importer/open.h"
#include "shim/importer/mirror.h"

/* So long an open waits for its exporter, which is stopped or too busy. */
#define CL_VIRTUAL_WAIT 5000000000ull /* ns */
/* And so long all opens together for one that has no service: it ends, or has lost it. */
#define CL_VIRTUAL_NO_SERVICE 2000000000ull /* ns */

/*
 * Maps what @resolved names, a virtual handle whose hold the caller has, with access for @device.  Returns
 * CUDA_ERROR_INVALID_HANDLE if the handle is stale or its exporter is dead: the caller refuses it.  Any
 * other error is logged once.
 */
CUresult cl_virtual_map(const struct cl_resolved *resolved, CUdevice device, CUdeviceptr *address);
/*
 * A context of @device has got access to the memory of contexts of @of, also to what is opened there: now,
 * and later.
 */
void cl_virtual_peer(CUdevice of, CUdevice device);
/*
 * Closes one open of @address.  Returns false if none is open there.  The last close of it waits as the
 * driver's of a legacy handle does, in the current context.
 */
bool cl_virtual_unmap(CUdeviceptr address, CUresult *result);

/* ---------------------------------------- for handles of pools' blocks as well (imported_pools.h) */
struct cl_asking;
/*
 * Asks @peer, process @pid, as cl_ask() does, within CL_VIRTUAL_WAIT; sets @asking->region and .until.  Returns
 * CUDA_SUCCESS also where @asking->take() has refused with -EIO; CUDA_ERROR_INVALID_HANDLE if the handle is stale or
 * its exporter is dead; or another error, which is logged once.
 */
CUresult cl_virtual_ask(struct cl_asking *asking, struct cl_peer *peer, uint32_t pid);
/* Logs, once, that memory of process @pid can't be opened because of @err, -errno.  Returns what the program gets. */
CUresult cl_virtual_say(uint32_t pid, int err);
/* Returns a bit for each device that has peer access to @device, from 0 to CL_MIRROR_DEVICES. */
uint64_t cl_virtual_peers(CUdevice device);
/* Waits as the driver's close of a legacy handle does, in the current context. */
void cl_virtual_wait_as_a_close(void);

void cl_virtual_imports_forget(void); /* in a forked child */

#endif
