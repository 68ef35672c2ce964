/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Libraries: code that belongs to no context.  As measured, a library is loaded into a context, and
 * takes memory there, when the program first asks for a part of it.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define LIBRARY_MAGIC UINT32_C(0x6c696230)
#define KERNEL_MAGIC UINT32_C(0x6b726e30)

/* These types came with CUDA 12. */
#if CUDA_VERSION >= 12000
typedef CUlibraryOption library_option;
#else
typedef int library_option;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
#endif

struct loaded {
	struct loaded *next;
	struct sim_context *context;
	uint64_t id; /* of that context */
	CUmodule module;
};

struct kernel {
	uint32_t magic;
	struct library *library;
	struct kernel *next;
	char name[];
};

/* Never freed, so that a handle used too late gives an error. */
struct library {
	uint32_t magic;
	char *code;
	struct loaded *loaded;
	struct kernel *kernels;
};

static struct library *library_of(CUlibrary handle)
{
	struct library *library = (struct library *)handle;

	return library && library->magic == LIBRARY_MAGIC ? library : NULL;
}

/* Makes a library, which owns @code. */
static CUresult library_new(CUlibrary *handle, char *code)
{
	struct library *library = code ? calloc(1, sizeof(*library)) : NULL;

	if (!library) {
		free(code);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	library->magic = LIBRARY_MAGIC;
	library->code = code;
	*handle = (CUlibrary)library;
	return CUDA_SUCCESS;
}

SIM_CALL(cuLibraryLoadData, (CUlibrary *handle, const void *code, CUjit_option *jit, void **jit_values,
			     unsigned int jit_n, library_option *options, void **values, unsigned int n))
{
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!handle || !code)
		return CUDA_ERROR_INVALID_VALUE;
	if (!strstr(code, ".version"))
		return CUDA_ERROR_INVALID_IMAGE;
	return library_new(handle, strdup(code));
}

SIM_CALL(cuLibraryLoadFromFile,
	 (CUlibrary *handle, const char *path, CUjit_option *jit, void **jit_values, unsigned int jit_n,
	  library_option *options, void **values, unsigned int n))
{
	CUresult result = sim_ready();
	char *code;

	if (result)
		return result;
	if (!handle || !path)
		return CUDA_ERROR_INVALID_VALUE;
	code = sim_read_file(path);
	return code ? library_new(handle, code) : CUDA_ERROR_FILE_NOT_FOUND;
}

SIM_CALL(cuLibraryUnload, (CUlibrary handle))
{
	CUresult result = sim_ready();
	struct library *library = library_of(handle);

	if (result)
		return result;
	if (!library)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&sim.lock);
	library->magic = 0;
	for (struct kernel *k = library->kernels; k; k = k->next)
		k->magic = 0;
	sim_leave();
	return CUDA_SUCCESS;
}

/* Returns the library's module in the current context, and loads it if needed.  Under sim.lock. */
static CUresult load(struct library *library, struct sim_context *context, CUmodule *module)
{
	struct loaded *loaded;
	CUresult result;

	for (loaded = library->loaded; loaded; loaded = loaded->next)
		if (loaded->context == context && loaded->id == context->id) {
			*module = loaded->module;
			return CUDA_SUCCESS;
		}
	result = sim_module_load(context, library->code, module);
	loaded = result ? NULL : calloc(1, sizeof(*loaded));
	if (loaded) {
		*loaded = (struct loaded){ library->loaded, context, context->id, *module };
		library->loaded = loaded;
	}
	return result;
}

SIM_CALL(cuLibraryGetModule, (CUmodule *module, CUlibrary handle))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct library *library = library_of(handle);

	if (result)
		return result;
	if (!library)
		result = CUDA_ERROR_INVALID_HANDLE;
	else
		result = module ? load(library, context, module) : CUDA_ERROR_INVALID_VALUE;
	sim_leave();
	return result;
}

SIM_CALL(cuLibraryGetGlobal, (CUdeviceptr *address, size_t *bytes, CUlibrary handle, const char *name))
{
	CUmodule module;
	CUresult result = cuLibraryGetModule(&module, handle);

	/* This driver knows no variables. */
	return result ? result : CUDA_ERROR_NOT_FOUND;
}

SIM_CALL(cuLibraryGetKernel, (CUkernel *handle, CUlibrary of, const char *name))
{
	CUresult result = sim_ready();
	struct library *library = library_of(of);
	struct kernel *kernel;

	if (result)
		return result;
	if (!library)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!handle || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!strstr(library->code, name))
		return CUDA_ERROR_NOT_FOUND;
	kernel = calloc(1, sizeof(*kernel) + strlen(name) + 1);
	if (!kernel)
		return CUDA_ERROR_OUT_OF_MEMORY;
	kernel->magic = KERNEL_MAGIC;
	kernel->library = library;
	strcpy(kernel->name, name);
	pthread_mutex_lock(&sim.lock);
	kernel->next = library->kernels;
	library->kernels = kernel;
	sim_leave();
	*handle = (CUkernel)kernel;
	return CUDA_SUCCESS;
}

SIM_CALL(cuKernelGetFunction, (CUfunction *function, CUkernel handle))
{
	const struct kernel *kernel = (const struct kernel *)handle;
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	CUmodule module;

	if (result)
		return result;
	if (!kernel || kernel->magic != KERNEL_MAGIC)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (!function)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		result = load(kernel->library, context, &module);
	if (!result)
		result = sim_module_function(module, kernel->name, function);
	sim_leave();
	return result;
}
