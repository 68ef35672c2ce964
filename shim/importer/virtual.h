/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens virtual handles (shm/virtual_handle.h) of other processes.  An open asks the exporter's descriptor service
 * for the allocations that the handle names, and maps them in a mirror of the exporter's reservation (mirror.h).
 *
 * What must hold:
 *  - For each allocation that is mapped here this process holds the exporter's record, from before the driver maps it
 *    until after the driver has unmapped it.
 *  - An open returns in bounded time, whatever the exporter does.
 *
 * Any thread may call these functions.  It must hold no lock of ours.
 */
#ifndef CL_IMPORTER_VIRTUAL_H
#define CL_IMPORTER_VIRTUAL_H

#include "shim/importer/open.h"
#include "shim/importer/mirror.h"

/* An open waits so long at most for its exporter, which may be stopped or busy. */
#define CL_VIRTUAL_WAIT 5000000000ull /* ns, for each batch of descriptors, and while the exporter works for nobody */
#define CL_VIRTUAL_LONGEST 300000000000ull /* ns, for all of them, however many come */
/* An open begins anew if something was mapped or unmapped meanwhile.  The first so many times it also has its time anew. */
#define CL_VIRTUAL_STARTS 4u
/* All opens together wait so long at most for an exporter without a service: it is ending, or has lost its socket. */
#define CL_VIRTUAL_NO_SERVICE 2000000000ull /* ns */

/*
 * Opens the virtual handle @resolved, on whose record the caller has a hold, with access for @device and its peers.
 * Returns:
 *	CUDA_SUCCESS			*@address is where the exporter's pointer lies here
 *	CUDA_ERROR_INVALID_HANDLE	the handle is stale or its exporter is dead; the caller reports it
 *	CUDA_ERROR_NOT_SUPPORTED	@device or the driver can't do this
 *	any other			the driver's refusal; or the exporter does not answer, which is logged once
 */
CUresult cl_virtual_map(const struct cl_resolved *resolved, CUdevice device, CUdeviceptr *address);
/*
 * A context of @device has got access to the memory of contexts of @of.  Gives @device access to all that is open for
 * @of, now and in later opens.
 */
void cl_virtual_peer(CUdevice of, CUdevice device);
/*
 * Closes one open of @address.  Returns false if @address lies in no mirror or is not open.  Else *@result is what the
 * program gets.  Each close first waits in the current context, as the driver's close of a legacy handle does.
 */
bool cl_virtual_unmap(CUdeviceptr address, CUresult *result);

/* ---------------------------------------- for handles of pools' blocks as well (imported_pools.h) */
struct cl_asking;
/*
 * Asks the service of @peer, process @pid, by cl_ask(), with CL_VIRTUAL_WAIT for each batch and CL_VIRTUAL_LONGEST for
 * all.  Sets @asking->region and the deadline.  The caller has waited since @since (cl_now(), ns) for its turn to ask.  If
 * the exporter has left a request unanswered meanwhile, and has answered none since, the deadline counts from @since: so
 * callers that wait for each other don't wait for a stopped exporter one after another.
 * Returns:
 *	CUDA_SUCCESS			@asking->take() was called, and has succeeded or refused with -EIO
 *	CUDA_ERROR_INVALID_HANDLE	the handle is stale or its exporter is dead
 *	any other			no answer; it is logged once
 */
CUresult cl_virtual_ask(struct cl_asking *asking, struct cl_peer *peer, uint32_t pid, uint64_t since);
/* Logs, once, that memory of process @pid can't be opened because of @err, -errno.  Returns what the program gets. */
CUresult cl_virtual_say(uint32_t pid, int err);
/*
 * Logs, once, that the driver has refused, with @result, what process @pid handed over.  That is no fault of the handle,
 * so CUDA_ERROR_INVALID_HANDLE, which means a stale one, becomes CUDA_ERROR_INVALID_VALUE.  Returns what the program gets.
 */
CUresult cl_virtual_say_refused(uint32_t pid, CUresult result);
/* Returns a bit for each device that has peer access to @device, which is from 0 to CL_MIRROR_DEVICES - 1. */
uint64_t cl_virtual_peers(CUdevice device);

void cl_virtual_imports_forget(void); /* in a forked child */

#endif
