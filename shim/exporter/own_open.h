/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that opens a handle of its own, which the driver refuses (measured): it gets the
 * block's own address.  No lock is held.
 */
#ifndef CL_OWN_OPEN_H
#define CL_OWN_OPEN_H

#include "shim/blocks/blocks.h"
#include "shim/driver/driver.h"

/* A handle that this process made itself, and its stamp.  0, or -ESTALE. */
int cl_own_open(struct cl_stamp stamp, const void *handle, CUdeviceptr *dptr);
/* Whether @key is our own: a block that cl_own_open() has opened, an event that was exported. */
bool cl_own_has(enum cl_kind kind, uint64_t key);
/* A close of what cl_own_open() gave.  False: it gave nothing there. */
bool cl_own_close(CUdeviceptr dptr);

#endif
