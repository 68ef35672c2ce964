/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pools that this process shares by pointer (cuMemPoolExportPointer). */
#ifndef CL_POOL_H
#define CL_POOL_H

/*
 * Counts an exported pointer into a memory pool, and warns once that culimbo does not protect
 * such memory.  Any thread.  This does not make the process one that shares.
 */
void cl_pool_tell(void);

#endif
