/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory pools that this process shares by pointer.  CUDA keeps nothing alive there: when the
 * program frees a block that another process has imported, the driver uses its memory again, and
 * the importer reads the next owner's bytes (measured).  We do not protect such memory yet, so we
 * warn the program's user.
 */
#include "shim/limbo/exporter.h"
#include "shim/base/log.h"
#include "shim/exporter/pool.h"
#include "shim/self/self.h"

void cl_pool_tell(void)
{
	cl_count(pool_exports);
	cl_log_once(CL_LOG_WARN,
		    "this process shares memory of a pool by pointer (cuMemPoolExportPointer), which culimbo does "
		    "not protect yet: what it frees while another process has it imported is used again, and that "
		    "process reads the next block's bytes. Free it only after the importers have");
}
