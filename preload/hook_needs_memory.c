/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks for calls that need device memory although they allocate none for the program: they
 * create contexts and streams, load code, instantiate graphs (measured, doc/measurements.md).
 *
 * What must hold: if such a call runs out of memory, memory is reclaimed as for an allocation.  A
 * failed call leaves nothing behind, so the hook can repeat it with the same arguments.
 * hook_context.c has the calls that retain a primary context or create a green one.  Launches and
 * copies are not hooked, although a launch may need memory, too: a hook would slow each one down.
 */
#include "preload/hook_again.h"
#include "preload/hook_table.h"

/* How much memory these calls need is not known. */
#define NEEDED_OF(device, call) CL_WITH_MEMORY(CL_SOME_OF(device), call)
#define NEEDED(call) NEEDED_OF(CL_OF_CURRENT, call)

/* ------------------------------------------------------------- contexts and streams */
CUresult CUDAAPI cl_hook_cuCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice device)
{
	return NEEDED_OF(device, cl_driver.cuCtxCreate(ctx, flags, device));
}

CUresult CUDAAPI cl_hook_cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice device)
{
	return NEEDED_OF(device, cl_driver.cuCtxCreate_v2(ctx, flags, device));
}

CUresult CUDAAPI cl_hook_cuCtxCreate_v3(CUcontext *ctx, CUexecAffinityParam *affinity, int n,
					unsigned int flags, CUdevice device)
{
	return NEEDED_OF(device, cl_driver.cuCtxCreate_v3(ctx, affinity, n, flags, device));
}

CUresult CUDAAPI cl_hook_cuCtxCreate_v4(CUcontext *ctx, CUctxCreateParams *with, unsigned int flags,
					CUdevice device)
{
	return NEEDED_OF(device, cl_driver.cuCtxCreate_v4(ctx, with, flags, device));
}

CUresult CUDAAPI cl_hook_cuCtxSetLimit(CUlimit limit, size_t value)
{
	return NEEDED(cl_driver.cuCtxSetLimit(limit, value));
}

CUresult CUDAAPI cl_hook_cuStreamCreate(CUstream *stream, unsigned int flags)
{
	return NEEDED(cl_driver.cuStreamCreate(stream, flags));
}

CUresult CUDAAPI cl_hook_cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	return NEEDED(cl_driver.cuStreamCreateWithPriority(stream, flags, priority));
}

/* ----------------------------------------------------------------------------- code */
/*
 * A copy of the values of a loader's options.  The driver writes to them, too: it replaces the
 * size of a log's buffer by the length of the log.  Each repeated call must get the program's values.
 */
enum { most_options = 64 }; /* CUDA 13 has 34. */
struct option_values {
	unsigned int n;
	void *value[most_options];
};

static void options_save(struct option_values *saved, void *const *values, unsigned int n)
{
	saved->n = !values ? 0 : n < most_options ? n : most_options;
	for (unsigned int i = 0; i < saved->n; i++)
		saved->value[i] = values[i];
}

/* Writes only values that the driver has changed: the program's array may be read-only memory. */
static void options_restore(const struct option_values *saved, void **values)
{
	for (unsigned int i = 0; i < saved->n; i++)
		if (values[i] != saved->value[i])
			values[i] = saved->value[i];
}

#define NEEDED_WITH_OPTIONS(values, n, call)                                           \
	({                                                                             \
		struct option_values saved;                                            \
                                                                                       \
		options_save(&saved, (values), (n));                                   \
		CL_OR_AGAIN(CL_SOME_OF(CL_OF_CURRENT), call, (options_restore(&saved, (values)), (call)));      \
	})

CUresult CUDAAPI cl_hook_cuModuleLoad(CUmodule *module, const char *path)
{
	return NEEDED(cl_driver.cuModuleLoad(module, path));
}

CUresult CUDAAPI cl_hook_cuModuleLoadData(CUmodule *module, const void *image)
{
	return NEEDED(cl_driver.cuModuleLoadData(module, image));
}

CUresult CUDAAPI cl_hook_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int n,
					    CUjit_option *options, void **values)
{
	return NEEDED_WITH_OPTIONS(values, n,
				   cl_driver.cuModuleLoadDataEx(module, image, n, options, values));
}

CUresult CUDAAPI cl_hook_cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	return NEEDED(cl_driver.cuModuleLoadFatBinary(module, image));
}

CUresult CUDAAPI cl_hook_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit,
					   void **jit_values, unsigned int jit_n,
					   CUlibraryOption *options, void **values, unsigned int n)
{
	return NEEDED_WITH_OPTIONS(jit_values, jit_n,
				   cl_driver.cuLibraryLoadData(library, code, jit, jit_values, jit_n,
							       options, values, n));
}

CUresult CUDAAPI cl_hook_cuLibraryLoadFromFile(CUlibrary *library, const char *path,
					       CUjit_option *jit, void **jit_values,
					       unsigned int jit_n, CUlibraryOption *options,
					       void **values, unsigned int n)
{
	return NEEDED_WITH_OPTIONS(jit_values, jit_n,
				   cl_driver.cuLibraryLoadFromFile(library, path, jit, jit_values,
								   jit_n, options, values, n));
}

/* The driver loads a library into a context when the program first asks for something of it there. */
CUresult CUDAAPI cl_hook_cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	return NEEDED(cl_driver.cuLibraryGetModule(module, library));
}

CUresult CUDAAPI cl_hook_cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library,
					    const char *name)
{
	return NEEDED(cl_driver.cuLibraryGetGlobal(dptr, bytes, library, name));
}

CUresult CUDAAPI cl_hook_cuKernelGetFunction(CUfunction *found, CUkernel kernel)
{
	return NEEDED(cl_driver.cuKernelGetFunction(found, kernel));
}

/* --------------------------------------------------------------------------- graphs */
CUresult CUDAAPI cl_hook_cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *node,
					    char *log, size_t bytes)
{
	return NEEDED(cl_driver.cuGraphInstantiate(exec, graph, node, log, bytes));
}

CUresult CUDAAPI cl_hook_cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node,
					       char *log, size_t bytes)
{
	return NEEDED(cl_driver.cuGraphInstantiate_v2(exec, graph, node, log, bytes));
}

CUresult CUDAAPI cl_hook_cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
						     unsigned long long flags)
{
	return NEEDED(cl_driver.cuGraphInstantiateWithFlags(exec, graph, flags));
}

CUresult CUDAAPI cl_hook_cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
						      CUDA_GRAPH_INSTANTIATE_PARAMS *with)
{
	return NEEDED(cl_driver.cuGraphInstantiateWithParams(exec, graph, with));
}

CUresult CUDAAPI cl_hook_cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
							   CUDA_GRAPH_INSTANTIATE_PARAMS *with)
{
	return NEEDED(cl_driver.cuGraphInstantiateWithParams_ptsz(exec, graph, with));
}

CUresult CUDAAPI cl_hook_cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	return NEEDED(cl_driver.cuGraphUpload(exec, stream));
}

CUresult CUDAAPI cl_hook_cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	return NEEDED(cl_driver.cuGraphUpload_ptsz(exec, stream));
}
