/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process opens a handle that it has made itself.  The driver refuses that (measured); with
 * culimbo the program gets the block's own address.  Any thread may call these, without a lock of
 * ours.  They make no CUDA call.
 */
#ifndef CL_OWN_OPEN_H
#define CL_OWN_OPEN_H

#include "shim/blocks/blocks.h"
#include "shim/driver/driver.h"

struct cl_exporter;

/* Opens @handle, which this process made with @stamp.  Returns 0, or -ESTALE if it is stale. */
int cl_own_open(struct cl_exporter *ex, struct cl_stamp stamp, const void *handle,
		CUdeviceptr *dptr);
/* Returns true if @key is a block that cl_own_open() has opened, or an event that was exported. */
bool cl_own_has(struct cl_exporter *ex, enum cl_kind kind, uint64_t key);
/* Closes one open of cl_own_open() at @dptr.  Returns false if there is none. */
bool cl_own_close(struct cl_exporter *ex, CUdeviceptr dptr);

#endif
