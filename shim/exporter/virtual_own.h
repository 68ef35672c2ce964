/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory that this process has shared (exporter/virtual.h) and opens again itself, by the handle.
 *
 * Any thread may call these functions.  It must hold no lock of ours, but for those that end in _locked, which want
 * cl_exports_lock held.
 */
#ifndef CL_VIRTUAL_OWN_H
#define CL_VIRTUAL_OWN_H

#include <stdbool.h>
#include "shim/driver/driver.h"
#include "shim/shm/layout.h"

struct cl_exporter;

/*
 * Opens @handle, a virtual handle with @stamp that this process has made itself.  Returns 0, and in *@dptr the
 * address that was exported; -ESTALE if the handle's generation is over; or -ENOMEM.
 */
int cl_virtual_own_open(struct cl_exporter *ex, struct cl_stamp stamp, const void *handle, CUdeviceptr *dptr);
/* Returns true if cl_virtual_own_open() has opened @dptr, and not every open of it is closed. */
bool cl_virtual_own_is_open(CUdeviceptr dptr);
/* Closes one such open of @dptr.  Returns false if there is none. */
bool cl_virtual_own_close(CUdeviceptr dptr);

/* The mappings from @address on are unmapped: ends the opens by their handles. */
void cl_virtual_own_end_locked(uint64_t address, uint64_t size);

void cl_virtual_own_forget(void); /* in a forked child */

#endif
