/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ends of imported pools.  One ends when the program destroys it, or when the last of its blocks that were opened by
 * handles is closed.
 *
 * What must hold:
 *  - The driver refuses to destroy an imported pool while one of its pointers is mapped, and the pointer stays good.  Once
 *    the program has freed all pointers, the driver destroys the pool at once, even if some stream has not reached its
 *    free yet (both measured).  We keep frees back, and the program must not get a refusal for that: the destroy returns
 *    CUDA_SUCCESS, and the driver destroys the pool when those frees are done.
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
/* The driver has refused to destroy @pool, which our opens used.  It does so when the frees that we keep back are done. */
void cl_pool_end_later(struct cl_exporter *ex, CUmemoryPool pool);

#endif
