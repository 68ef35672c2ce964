/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules and kernels.
 *
 * A module is PTX text, of which we read only ".entry NAME".  Two kernels are known
 * by name, those of tests/gpu/conformance_worker.c.  Any other is launched and does
 * nothing:
 *
 *   culimbo_spin(u64 nanoseconds)
 *   culimbo_fill(u64 destination, u64 words, u32 value, u64 nanoseconds)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim.h"

#define MODULE_MAGIC UINT32_C(0x6d6f6430)
#define FUNCTION_MAGIC UINT32_C(0x66756e30)

enum { KERNEL_OTHER, KERNEL_SPIN, KERNEL_FILL };

struct sim_function {
	uint32_t magic;
	int kernel;
	struct sim_function *next;
	struct sim_module *module;
	char name[];
};

struct sim_module {
	uint32_t magic;
	struct sim_context *context;
	struct sim_function *functions;
};

static struct sim_module *module_of(CUmodule handle)
{
	struct sim_module *module = (struct sim_module *)handle;

	return module && module->magic == MODULE_MAGIC ? module : NULL;
}

static struct sim_function *function_of(CUfunction handle)
{
	struct sim_function *function = (struct sim_function *)handle;

	return function && function->magic == FUNCTION_MAGIC ? function : NULL;
}

static bool name_char(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
	       c == '_' || c == '$' || c == '%';
}

static bool add_function(struct sim_module *module, const char *name, size_t length)
{
	struct sim_function *function = calloc(1, sizeof(*function) + length + 1);

	if (!function)
		return false;
	memcpy(function->name, name, length);
	function->magic = FUNCTION_MAGIC;
	function->module = module;
	if (!strcmp(function->name, "culimbo_spin"))
		function->kernel = KERNEL_SPIN;
	else if (!strcmp(function->name, "culimbo_fill"))
		function->kernel = KERNEL_FILL;
	function->next = module->functions;
	module->functions = function;
	return true;
}

static void module_free(struct sim_module *module)
{
	/* The handles stay readable, so that one used too late gives an error. */
	for (struct sim_function *f = module->functions; f; f = f->next)
		f->magic = 0;
	module->magic = 0;
}

CUresult sim_module_load(struct sim_context *context, const char *text, CUmodule *handle)
{
	struct sim_module *module;
	CUresult result;

	/* PTX is text that begins with its version, except for comments. */
	if (!strstr(text, ".version"))
		return CUDA_ERROR_INVALID_IMAGE;
	result = sim_memory_needed(context->device);
	if (result)
		return result;
	module = calloc(1, sizeof(*module));
	if (!module)
		return CUDA_ERROR_OUT_OF_MEMORY;
	module->magic = MODULE_MAGIC;
	module->context = context;
	while ((text = strstr(text, ".entry")) != NULL) {
		const char *end;

		text += strlen(".entry");
		while (*text == ' ' || *text == '\t' || *text == '\n')
			text++;
		for (end = text; name_char(*end); end++)
			;
		if (end > text && !add_function(module, text, (size_t)(end - text)))
			result = CUDA_ERROR_OUT_OF_MEMORY;
		text = end;
	}
	if (result)
		module_free(module);
	else
		*handle = (CUmodule)module;
	return result;
}

SIM_CALL(cuModuleLoadData, (CUmodule *handle, const void *image))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	result = handle && image ? sim_module_load(context, image, handle) : CUDA_ERROR_INVALID_VALUE;
	sim_leave();
	return result;
}

SIM_CALL(cuModuleLoadFatBinary, (CUmodule *handle, const void *image))
{
	return cuModuleLoadData(handle, image);
}

char *sim_read_file(const char *path)
{
	FILE *file = fopen(path, "re");
	char *text = NULL;
	size_t room = 0;

	if (!file)
		return NULL;
	if (getdelim(&text, &room, '\0', file) < 0) {
		free(text);
		text = NULL;
	}
	fclose(file);
	return text;
}

SIM_CALL(cuModuleLoad, (CUmodule *handle, const char *path))
{
	CUresult result;
	char *text;

	if (sim_ready())
		return sim_ready();
	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	text = sim_read_file(path);
	if (!text)
		return CUDA_ERROR_FILE_NOT_FOUND;
	result = cuModuleLoadData(handle, text);
	free(text);
	return result;
}

SIM_CALL(cuModuleLoadDataEx, (CUmodule *handle, const void *image, unsigned int options,
			      CUjit_option *names, void **values))
{
	return cuModuleLoadData(handle, image);
}

SIM_CALL(cuModuleUnload, (CUmodule handle))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	sim_context_wait(context);
	if (module_of(handle))
		module_free(module_of(handle));
	else
		result = CUDA_ERROR_INVALID_HANDLE;
	sim_leave();
	return result;
}

CUresult sim_module_function(CUmodule handle, const char *name, CUfunction *out)
{
	struct sim_module *module = module_of(handle);
	CUresult result = CUDA_ERROR_NOT_FOUND;

	if (!module)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	for (struct sim_function *f = module->functions; f; f = f->next) {
		if (strcmp(f->name, name))
			continue;
		*out = (CUfunction)f;
		result = CUDA_SUCCESS;
	}
	return result;
}

SIM_CALL(cuModuleGetFunction, (CUfunction *out, CUmodule handle, const char *name))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	result = sim_module_function(handle, name, out);
	sim_leave();
	return result;
}

SIM_CALL(cuModuleGetGlobal_v2, (CUdeviceptr *dptr, size_t *bytes, CUmodule handle, const char *name))
{
	return sim_ready() ? sim_ready() : CUDA_ERROR_NOT_FOUND;
}

SIM_CALL(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction handle))
{
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!value || (int)attribute < 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!function_of(handle))
		return CUDA_ERROR_INVALID_HANDLE;
	switch ((int)attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		*value = 1024;
		break;
	case CU_FUNC_ATTRIBUTE_PTX_VERSION:
	case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
		*value = 70;
		break;
	default:
		*value = 0;
	}
	return CUDA_SUCCESS;
}

/* ---- launching ---- */

void sim_kernel_run(const struct sim_kernel *kernel)
{
	uint64_t end;
	volatile uint32_t *to = (volatile uint32_t *)(uintptr_t)kernel->destination;
	struct timespec nap = { .tv_nsec = 50000 };

	if (kernel->fill && sim_options()->kernels_linger && sim_linger_run(kernel))
		return;
	end = sim_now_ns() + kernel->ns;
	do {
		if (kernel->fill)
			for (uint64_t i = 0; i < kernel->words; i++)
				to[i] = kernel->value;
		else
			nanosleep(&nap, NULL);
	} while (sim_now_ns() < end && !atomic_load_explicit(&sim.exiting, memory_order_relaxed));
}

/* a: kernel, destination, words, value, nanoseconds */
static void run_kernel(struct sim_operation *op)
{
	const struct sim_kernel kernel = {
		.fill = op->a[0] == KERNEL_FILL,
		.destination = op->a[1],
		.words = op->a[2],
		.value = (uint32_t)op->a[3],
		.ns = op->a[4],
	};
	bool reachable = true;

	if (kernel.fill) {
		pthread_mutex_lock(&sim.lock);
		reachable = kernel.words <= SIZE_MAX / 4 &&
			    sim_device_range(kernel.destination, kernel.words * 4);
		if (!reachable)
			op->context->sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
		pthread_mutex_unlock(&sim.lock);
	}
	if (reachable && op->a[0] != KERNEL_OTHER)
		sim_kernel_run(&kernel);
}

static uint64_t take(void **parameters, const char *buffer, unsigned int index, size_t offset,
		     size_t bytes)
{
	uint64_t value = 0;

	memcpy(&value, parameters ? parameters[index] : buffer + offset, bytes);
	return value;
}

SIM_CALL(cuLaunchKernel, (CUfunction handle, unsigned int grid_x, unsigned int grid_y,
			  unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			  unsigned int block_z, unsigned int shared, CUstream stream_handle,
			  void **parameters, void **extra))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_function *function;
	struct sim_stream *stream;
	struct sim_operation *op;
	const char *buffer = NULL;

	if (result)
		return result;
	function = function_of(handle);
	if (!function) {
		result = CUDA_ERROR_INVALID_HANDLE;
		goto out;
	}
	for (void **e = extra; e && *e != CU_LAUNCH_PARAM_END; e += 2)
		if (*e == CU_LAUNCH_PARAM_BUFFER_POINTER)
			buffer = e[1];
	if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z ||
	    (function->kernel != KERNEL_OTHER && !parameters && !buffer)) {
		result = CUDA_ERROR_INVALID_VALUE;
		goto out;
	}
	result = sim_stream_get(context, stream_handle, &stream);
	if (result)
		goto out;
	op = sim_operation_new(run_kernel);
	if (op) {
		op->by_worker = true;
		op->a[0] = (uint64_t)function->kernel;
		if (function->kernel == KERNEL_SPIN) {
			op->a[4] = take(parameters, buffer, 0, 0, 8);
		} else if (function->kernel == KERNEL_FILL) {
			op->a[1] = take(parameters, buffer, 0, 0, 8);
			op->a[2] = take(parameters, buffer, 1, 8, 8);
			op->a[3] = take(parameters, buffer, 2, 16, 4);
			op->a[4] = take(parameters, buffer, 3, 24, 8);
		}
	}
	result = sim_submit(stream, op, NULL);
out:
	sim_leave();
	return result;
}

SIM_CALL(cuLaunchKernel_ptsz, (CUfunction handle, unsigned int grid_x, unsigned int grid_y,
			       unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			       unsigned int block_z, unsigned int shared, CUstream stream,
			       void **parameters, void **extra))
{
	return cuLaunchKernel(handle, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
			      SIM_PER_THREAD(stream), parameters, extra);
}

#if CUDA_VERSION >= 11080
SIM_CALL(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction handle, void **parameters,
			    void **extra))
{
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	return cuLaunchKernel(handle, config->gridDimX, config->gridDimY, config->gridDimZ,
			      config->blockDimX, config->blockDimY, config->blockDimZ,
			      config->sharedMemBytes, config->hStream, parameters, extra);
}

SIM_CALL(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *config, CUfunction handle,
				 void **parameters, void **extra))
{
	CUlaunchConfig own;

	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	own = *config;
	own.hStream = SIM_PER_THREAD(own.hStream);
	return cuLaunchKernelEx(&own, handle, parameters, extra);
}
#endif
