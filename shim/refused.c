/* SPDX-License-Identifier: Apache-2.0 */
/* Notes what CUDA refuses to share: see refused.h. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "shim/diag/happened.h"
#include "shim/diag/notes.h"
#include "shim/driver/made.h"
#include "shim/importer/lookup.h"
#include "shim/importer/mappings.h"
#include "shim/refused.h"

/* Returns true if @result says something of the memory or the handle, and not of the thread or the driver. */
static bool is_of_memory(CUresult result)
{
	switch (result) {
	case CUDA_SUCCESS:
	case CUDA_ERROR_OUT_OF_MEMORY:
	case CUDA_ERROR_NOT_INITIALIZED:
	case CUDA_ERROR_DEINITIALIZED:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED:
		return false;
	default:
		return true;
	}
}

void cl_refused_handle(CUdeviceptr dptr, CUresult result)
{
	struct cl_about import, about = { .kind = CL_MEMORY, .call = CL_CALL_GET_HANDLE, .result = result };
	struct cl_memory_made memory;

	/* without a context the driver tells nothing of the memory */
	if (!is_of_memory(result) || result == CUDA_ERROR_INVALID_CONTEXT)
		return;
	memory = cl_memory_made(dptr);
	if (cl_import_find(memory.base, &import)) {
		memory.made = CL_MADE_IMPORT;
		about.pid = import.pid;
	}
	/* what the driver would share, and has not freed, we have refused: that is a finding already */
	if (memory.made == CL_MADE_ALLOC && result == CUDA_ERROR_INVALID_VALUE)
		return;
	about.key = memory.base;
	about.size = memory.size;
	about.device = (uint8_t)memory.device;
	about.made = (uint8_t)memory.made;
	cl_happened(CL_FOUND_REFUSED, &about, cl_stack_write(true));
}

void cl_refused_open(const struct cl_resolved *resolved, const CUipcMemHandle *handle, CUresult result)
{
	struct cl_about about = { .kind = CL_MEMORY, .call = CL_CALL_OPEN_HANDLE, .made = CL_MADE_ALLOC,
				  .result = result, .pid = resolved->pid };
	CUdevice device;

	if (!is_of_memory(result))
		return;
	/* so many bytes the driver would map (measured); what is no handle has anything there */
	memcpy(&about.size, handle->reserved + 16, sizeof about.size);
	if (about.size >> 48)
		about.size = 0;
	if (cl_driver.cuCtxGetDevice && cl_driver.cuCtxGetDevice(&device) == CUDA_SUCCESS && device > 0)
		about.device = (uint8_t)device;
	cl_happened(CL_FOUND_REFUSED, &about, cl_stack_write(true));
}
