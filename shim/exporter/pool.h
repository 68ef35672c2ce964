/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of memory pools that this process shares by pointer (cuMemPoolExportPointer).  CUDA does not keep
 * such a block for its importers: once it is freed, the pool uses it again, although another process has it
 * mapped (measured).  So we export, free and keep it as a block of cuMemAlloc() (export.h, free.h, limbo.h),
 * with these differences:
 *  - It belongs to a device and to no context, so it survives the end of every context (measured).
 *  - Neither the program's free of it nor ours waits for kernels (measured).
 *  - If it has no record it is kept whatever its size, because its pool would use it again.
 */
#ifndef CL_POOL_H
#define CL_POOL_H

#include <stdbool.h>
#include "shim/driver/driver.h"

struct cl_exporter;

/* The driver's answer to an export, which both functions below use, so that each export asks it once. */
struct cl_pool_answer {
	CUmemPoolPtrExportData data; /* has room for a stamp if the driver has left bytes 48 to 63 unchanged */
	CUresult result;
	bool asked; /* the driver was asked; the caller sets it to false at first */
};

/*
 * Writes the export data of @dptr to @data, which is not NULL, with our stamp if there is room for one and the
 * block has a record.  Asks the driver unless cl_pool_export_simply() has done so: then @answer has its answer.
 * Returns:
 *	CUDA_SUCCESS			@data is written
 *	CUDA_ERROR_OUT_OF_MEMORY	there is no host memory for the block's record, or for its pool's
 *	CUDA_ERROR_INVALID_VALUE	the program has freed the block: that is a finding
 *	any other			the driver's refusal
 * Any thread may call it.  It must hold no lock of ours.
 */
CUresult cl_pool_export(struct cl_exporter *ex, CUmemPoolPtrExportData *data, CUdeviceptr dptr,
			struct cl_pool_answer *answer);
/*
 * The fast half of an export.  Returns true if it is done: the block was exported before and is still the
 * same, or the driver refuses to export it.  Then @answer->result is what the program gets.  Returns false if
 * the caller must call cl_pool_export() with the same @answer; @data is not written then.  Takes
 * cl_exports_lock once, or twice if the limbo has blocks, and waits for nothing while it has the lock.  So
 * its caller needs no more than CL_DOOR_FAST.
 */
bool cl_pool_export_simply(struct cl_exporter *ex, CUmemPoolPtrExportData *data, CUdeviceptr dptr,
			   struct cl_pool_answer *answer);

#endif
