/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks for cuGetProcAddress.  The driver's function answers, and then the hook replaces its pointer.
 * So version, flags, status and error are the driver's.  A program that looks up cuGetProcAddress
 * itself in this way gets our hook again.
 */
#include "preload/hook_table.h"

static CUresult mapped(CUresult result, const char *name, void **pfn)
{
	if (result == CUDA_SUCCESS && pfn) {
		void *hook = cl_hook_for_asked(name, *pfn);

		if (hook)
			*pfn = hook;
	}
	return result;
}

CUresult CUDAAPI cl_hook_cuGetProcAddress(const char *name, void **pfn, int version,
					  cuuint64_t flags)
{
	return mapped(cl_driver.cuGetProcAddress(name, pfn, version, flags), name, pfn);
}

CUresult CUDAAPI cl_hook_cuGetProcAddress_v2(const char *name, void **pfn, int version,
					     cuuint64_t flags, cl_query_result *status)
{
	return mapped(cl_driver.cuGetProcAddress_v2(name, pfn, version, flags, status), name, pfn);
}
