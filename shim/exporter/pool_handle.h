/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles of blocks of pools (shm/pool_handle.h), under CULIMBO_SHARE=all.  CUDA refuses cuIpcGetMemHandle() of
 * such memory, and we make a handle of ours.  We export the block as cuMemPoolExportPointer() would (pool.h).
 * From then on it is held, freed and kept as a block that the program has exported by its pointer.  The descriptor
 * service hands its pool over to importers.
 *
 * Any thread may call these functions.  It must hold no lock of ours.
 */
#ifndef CL_EXPORTER_POOL_HANDLE_H
#define CL_EXPORTER_POOL_HANDLE_H

#include <stdbool.h>
#include "shim/driver/driver.h"
#include "shim/shm/layout.h"

struct cl_exporter;

/*
 * @dptr lies in memory of @pool.  Returns true, and our handle in *@handle, if a handle of that block was made before.
 * The driver is only asked for the block's size.  It checks the context for that as cuIpcGetMemHandle() does
 * (measured).
 */
bool cl_pool_share_again(struct cl_exporter *ex, CUipcMemHandle *handle, CUdeviceptr dptr, CUmemoryPool pool);
/*
 * The driver has refused to make a handle of @dptr.  Returns true, and our handle in *@handle, if @dptr lies in a
 * block of a pool that can be exported.  Returns false otherwise, also if the block is larger than
 * CULIMBO_POOL_IMPORT_MAX, or if there is no record or no descriptor service for it.
 */
bool cl_pool_share(struct cl_exporter *ex, CUipcMemHandle *handle, CUdeviceptr dptr);

/*
 * Opens a handle with @stamp that this process has made itself.  @form has the block's export data in the form of
 * a handle (pool_data.h).  Returns 0, and the block's address in *@dptr: the driver does not get the block back
 * while that is open.  Returns -ESTALE if the handle's generation is over, or -ENOMEM.
 */
int cl_pool_handle_own_open(struct cl_exporter *ex, struct cl_stamp stamp, const void *form, CUdeviceptr *dptr);
/* Returns true if such an open of @dptr is there. */
bool cl_pool_handle_own_is_open(CUdeviceptr dptr);
/* Closes one such open of @dptr.  Returns false if there is none. */
bool cl_pool_handle_own_close(struct cl_exporter *ex, CUdeviceptr dptr);

void cl_pool_handles_forget(void); /* in a forked child */

#endif
