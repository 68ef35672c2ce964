/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of memory pools that this process shares by pointer (cuMemPoolExportPointer).  CUDA keeps
 * nothing alive there: it uses a freed block again though another process has it imported
 * (measured).  So a block is exported, freed and kept as memory is (export.h, free.h, limbo.h), and
 * differs in this:
 *  - it belongs to a device and to no context, and survives the end of any (measured);
 *  - its free does not wait for kernels, nor does giving it back (measured);
 *  - without a record it is kept whatever its size, for a pool would use it again.
 */
#ifndef CL_POOL_H
#define CL_POOL_H

#include <stdbool.h>
#include "shim/driver/driver.h"

struct cl_exporter;

/* What the driver has answered: each export asks it once. */
struct cl_pool_answer {
	CUmemPoolPtrExportData data; /* has room for a stamp if bytes 48 to 63 are as they were */
	CUresult result;
	bool asked; /* false at first */
};

/*
 * Writes the export data of @dptr to @data, not NULL, with our stamp.  The driver is asked unless
 * cl_pool_export_simply() has: then @answer has what it said.  Returns the driver's error; CUDA_ERROR_INVALID_VALUE, and a finding, if the program has freed the
 * block; or CUDA_ERROR_OUT_OF_MEMORY, and does not ask the driver, without host memory.  @data is
 * written on success only.  Any thread; no lock of ours may be held.
 */
CUresult cl_pool_export(struct cl_exporter *ex, CUmemPoolPtrExportData *data, CUdeviceptr dptr,
			struct cl_pool_answer *answer);
/*
 * The same for a block that was exported before and is still the same, or that the driver refuses to
 * export: returns true, and @answer->result is what the program gets.  Else returns false, and has not
 * written to @data: then cl_pool_export() does it, with the same @answer.  It takes one lock, twice if the
 * limbo has blocks, and waits for nothing under it, so no thread is cancelled there.
 */
bool cl_pool_export_simply(struct cl_exporter *ex, CUmemPoolPtrExportData *data, CUdeviceptr dptr,
			   struct cl_pool_answer *answer);

#endif
