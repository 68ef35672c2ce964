/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pools that are shared by pointer. */
#ifndef CL_POOL_H
#define CL_POOL_H

/*
 * A pointer into a memory pool was exported.  Such memory is not protected: this counts, and
 * says so once.  Any thread; this makes no process one that shares.
 */
void cl_pool_tell(void);

#endif
