/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ends of imported pools: the program destroys one, or the last block of one is closed that was opened by a handle.
 *
 * What must hold:
 *  - The driver refuses to destroy an imported pool while one of its pointers is mapped, and the pointer stays good.  Once
 *    the program has freed them all the driver destroys the pool at once, even if some stream has not reached its free
 *    yet (both measured).  So the program must not get a refusal because we keep frees back: then the destroy returns
 *    CUDA_SUCCESS, and the driver destroys the pool when they are done.
 *  - A pool that somebody else in this process uses as well stays (importer/pool_uses.h).
 *
 * Any thread may call these functions.  It must hold no lock of ours.
 */
#ifndef CL_POOL_ENDS_H
#define CL_POOL_ENDS_H

#include "shim/driver/driver.h"

struct cl_exporter;

/* The program destroys @pool, which another process may have shared with this one.  Returns what the program gets. */
CUresult cl_pool_end_programs(struct cl_exporter *ex, CUmemoryPool pool);
/* The driver has refused to destroy @pool, which our opens used.  Has that done when the frees that we keep back are. */
void cl_pool_end_later(struct cl_exporter *ex, CUmemoryPool pool);

#endif
