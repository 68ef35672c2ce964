/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of the test driver that do more than print.  Also those that are not in
 * the list of driver calls: old forms with 32-bit pointers, and a form that is newer than
 * any we know.
 *
 * CULIMBO_SIM_PROC_ADDRESS=thunk  cuGetProcAddress returns other addresses
 *                                 than dlsym finds, as in tools/sim.
 * DOORS_ACTIVE=1                  the primary context stays active, and a
 *                                 detached one stays current
 * DOORS_ACTIVE_ONCE=N             the first N devices' primary contexts are active
 *                                 the first time that the driver is asked about each
 */
#undef cuMemAlloc
#undef cuMemFree
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/doors/driver.h"
#undef cuMemAlloc
#undef cuMemFree

CUresult cuMemAlloc(unsigned int *dptr, unsigned int bytes);
CUresult cuMemAlloc(unsigned int *dptr, unsigned int bytes)
{
	return driver_says("cuMemAlloc");
}

CUresult cuMemFree(unsigned int dptr);
CUresult cuMemFree(unsigned int dptr)
{
	return driver_says("cuMemFree");
}

CUresult cuIpcOpenMemHandle_v3(void);
CUresult cuIpcOpenMemHandle_v3(void)
{
	return driver_says("cuIpcOpenMemHandle_v3");
}

static int active(void)
{
	return getenv("DOORS_ACTIVE") != NULL;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *is_active)
{
	const char *once = getenv("DOORS_ACTIVE_ONCE");
	static int asked[64];

	*is_active = active() || (once && device < atoi(once) && !asked[device]++);
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *ctx)
{
	*ctx = active() ? (CUcontext)0x10 : NULL;
	return CUDA_SUCCESS;
}

/* The loaders write to their options' values even if they fail. */
static CUresult loads(const char *symbol, void **values, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++) {
		if (values[i] != (void *)4096)
			dprintf(2, "driver finds an option of %p\n", values[i]);
		values[i] = NULL;
	}
	return driver_says(symbol);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int n, CUjit_option *options,
			    void **values)
{
	return loads("cuModuleLoadDataEx", values, n);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values,
			   unsigned int jit_n, CUlibraryOption *options, void **values, unsigned int n)
{
	return loads("cuLibraryLoadData", jit_values, jit_n);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit,
			       void **jit_values, unsigned int jit_n, CUlibraryOption *options,
			       void **values, unsigned int n)
{
	return loads("cuLibraryLoadFromFile", jit_values, jit_n);
}

static const struct known {
	const char *base;
	int since;
	cuuint64_t flags;
	void *address, *thunk;
} known[] = {
#define X(symbol, base, since, flags, type, params, args) \
	{base, since, flags, (void *)symbol, (void *)thunk_##symbol},
	CL_HOOKED_CALLS(X)
	CL_USED_CALLS(X)
#undef X
	{"cuMemAlloc", 2000, 0, (void *)cuMemAlloc, (void *)cuMemAlloc},
	{"cuMemFree", 2000, 0, (void *)cuMemFree, (void *)cuMemFree},
	{"cuIpcOpenMemHandle", 14000, 0, (void *)cuIpcOpenMemHandle_v3,
	 (void *)cuIpcOpenMemHandle_v3},
};

static CUresult find(const char *name, void **pfn, int version, cuuint64_t flags)
{
	const char *how = getenv("CULIMBO_SIM_PROC_ADDRESS");
	const struct known *best = NULL;

	for (const struct known *k = known; k < known + sizeof(known) / sizeof(*known); k++)
		if (!strcmp(k->base, name) && k->since <= version &&
		    (k->flags == 0 || k->flags == flags) &&
		    (!best || k->flags > best->flags ||
		     (k->flags == best->flags && k->since > best->since)))
			best = k;
	*pfn = !best ? NULL : how && !strcmp(how, "thunk") ? best->thunk : best->address;
	return best ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *name, void **pfn, int version, cuuint64_t flags)
{
	return find(name, pfn, version, flags);
}

CUresult cuGetProcAddress_v2(const char *name, void **pfn, int version, cuuint64_t flags,
			     cl_query_result *status)
{
	CUresult result = find(name, pfn, version, flags);

	if (status)
		*(int *)status = result == CUDA_SUCCESS ? 0 : 1;
	return result;
}
