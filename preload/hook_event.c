/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks for events.  An exported event that the program destroys may wait in the limbo, and a
 * process can have only 4,096 interprocess events (doc/measurements.md).  So if the creation of
 * one fails, events of the limbo are destroyed and the creation is repeated.
 */
#include "preload/hook_table.h"
#include "preload/sharer.h"
#include "shim/base/options.h"
#include "shim/shim.h"

CUresult CUDAAPI cl_hook_cuEventCreate(CUevent *event, unsigned int flags)
{
	/* without the second flag the driver refuses an interprocess event as invalid */
	const unsigned int shared = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
	CUresult result = cl_driver.cuEventCreate(event, flags);

	if (__builtin_expect((flags & shared) != shared, 1)) {
		if (result == CUDA_SUCCESS && cl_sharing())
			cl_event_created(*event);
		return result;
	}
	/* only our limbo can give events back, and it has none before this process shares */
	if (result == CUDA_ERROR_OUT_OF_MEMORY && cl_sharing()) {
		struct cl_retry retry;

		cl_retry_begin(&retry, CL_RETRY_EVENT, (struct cl_need){ 0 });
		while (result == CUDA_ERROR_OUT_OF_MEMORY && cl_retry_again(&retry))
			result = cl_driver.cuEventCreate(event, flags);
		cl_retry_end(&retry);
	}
	if (result == CUDA_SUCCESS && cl_sharing())
		cl_event_created(*event);
	if (result == CUDA_SUCCESS && !cl_options.disable.number)
		cl_shareable_event_created(*event);
	return result;
}

CUresult CUDAAPI cl_hook_cuEventDestroy(CUevent event)
{
	if (!cl_sharing())
		return cl_unshared_event_destroy(event, cl_driver.cuEventDestroy);
	return cl_event_destroy(event, cl_driver.cuEventDestroy);
}

CUresult CUDAAPI cl_hook_cuEventDestroy_v2(CUevent event)
{
	if (!cl_sharing())
		return cl_unshared_event_destroy(event, cl_driver.cuEventDestroy_v2);
	return cl_event_destroy(event, cl_driver.cuEventDestroy_v2);
}

CUresult CUDAAPI cl_hook_cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
	cl_sharer_remember();
	return cl_event_export(handle, event);
}

CUresult CUDAAPI cl_hook_cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
	cl_sharer_remember();
	return cl_event_import(event, handle);
}
