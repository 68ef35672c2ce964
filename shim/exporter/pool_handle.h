/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles of blocks of pools (shm/pool_handle.h), under CULIMBO_SHARE=all: CUDA refuses cuIpcGetMemHandle()
 * of such memory, and we make one.  The block is exported as by its pointer (pool.h), and is kept, freed and
 * held as one that the program has exported so; the descriptor service hands its pool over.
 *
 * Any thread may call these functions, without a lock of ours.
 */
#ifndef CL_EXPORTER_POOL_HANDLE_H
#define CL_EXPORTER_POOL_HANDLE_H

#include <stdbool.h>
#include "shim/driver/driver.h"
#include "shim/shm/layout.h"

struct cl_exporter;

/*
 * The driver has refused a handle of @dptr.  Returns true, and ours in @handle, if @dptr lies in a block of a pool
 * that can be exported.
 */
bool cl_pool_share(struct cl_exporter *ex, CUipcMemHandle *handle, CUdeviceptr dptr);

/*
 * Opens a handle that this process has made with @stamp, whose export data in the form of a handle are @form.
 * Returns 0 and the block's own address in *@dptr, -ESTALE, or -ENOMEM.
 */
int cl_pool_handle_own_open(struct cl_exporter *ex, struct cl_stamp stamp, const void *form, CUdeviceptr *dptr);
/* Returns true if something is open at @dptr so. */
bool cl_pool_handle_own_is_open(CUdeviceptr dptr);
/* Closes one open of that at @dptr.  Returns false if there is none. */
bool cl_pool_handle_own_close(struct cl_exporter *ex, CUdeviceptr dptr);

void cl_pool_handles_forget(void); /* in a forked child */

#endif
