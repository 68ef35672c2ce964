/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The no_memory program: calls on modules, libraries, kernels and graphs.
 */
#include "no_memory.h"

#include <cuda.h>

static const char small_ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry tiny()\n{\n\tret;\n}\n";

static const char big_ptx[] = /* 64 MiB of device memory, and a kernel that refers to it */
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .global .align 8 .b8 big[67108864];\n"
	".visible .entry uses()\n{\n"
	"\t.reg .b64 %rd<2>;\n"
	"\tmov.u64 %rd1, big;\n"
	"\tst.global.u64 [%rd1], 1;\n"
	"\tret;\n}\n";

static const char deep_ptx[] = /* 16 KiB of local memory for each thread: some GiB in total */
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry deep(.param .u64 where, .param .u32 index)\n{\n"
	"\t.local .align 8 .b8 depot[16384];\n"
	"\t.reg .b64 %rd<8>;\n\t.reg .b32 %r<4>;\n\t.reg .pred %p;\n"
	"\tld.param.u64 %rd1, [where];\n"
	"\tld.param.u32 %r1, [index];\n"
	"\tmov.u64 %rd2, depot;\n"
	"\tcvt.u64.u32 %rd3, %r1;\n"
	"\tadd.u64 %rd4, %rd2, %rd3;\n"
	"\tst.local.u8 [%rd4], %r1;\n"
	"\tld.local.u8 %r2, [depot+8];\n"
	"\tsetp.eq.u64 %p, %rd1, 0;\n"
	"\t@%p bra out;\n"
	"\tst.global.u8 [%rd1], %r2;\n"
	"out:\n"
	"\tret;\n}\n";

static int load_small(void)
{
	TRY_IF(cuModuleLoadData, &my.module, small_ptx);
	return 0;
}
static int load_big(void)
{
	TRY_IF(cuModuleLoadData, &my.module, big_ptx);
	return 0;
}
static void unload(void)
{
	cu.cuModuleUnload(my.module);
}

static int has_small(void)
{
	TRY(with_stream());
	return load_small();
}
static int get_function(void)
{
	TRY_IF(cuModuleGetFunction, &my.function, my.module, "tiny");
	return 0;
}
static int load_function(void)
{
	TRY(get_function());
	TRY_IF(cuFuncLoad, my.function);
	return 0;
}
static int has_function(void)
{
	TRY(has_small());
	return get_function();
}
static int launch(void)
{
	TRY_IF(cuLaunchKernel, my.function, 1, 1, 1, 1, 1, 1, 0, my.stream, NULL, NULL);
	return (int)cu.cuStreamSynchronize(my.stream);
}
static int has_deep(void)
{
	TRY(with_stream());
	TRY_IF(cuModuleLoadData, &my.module, deep_ptx);
	TRY_IF(cuModuleGetFunction, &my.function, my.module, "deep");
	return 0;
}
static int launch_deep(void)
{
	CUdeviceptr nowhere = 0;
	unsigned int index = 8;
	void *params[] = { &nowhere, &index };

	TRY_IF(cuLaunchKernel, my.function, 1, 1, 1, 1, 1, 1, 0, my.stream, params, NULL);
	return (int)cu.cuStreamSynchronize(my.stream);
}

static int load_library(const char *ptx)
{
	TRY_IF(cuLibraryLoadData, &my.lib, ptx, NULL, NULL, 0, NULL, NULL, 0);
	return 0;
}
static int library_small(void)
{
	return load_library(small_ptx);
}
static int library_big(void)
{
	return load_library(big_ptx);
}
static void unload_library(void)
{
	cu.cuLibraryUnload(my.lib);
}
static int has_library(void)
{
	TRY(with_context());
	return library_big();
}
static int library_module(void)
{
	TRY_IF(cuLibraryGetModule, &my.module, my.lib);
	return 0;
}
static int library_global(void)
{
	CUdeviceptr at;
	size_t size;

	TRY_IF(cuLibraryGetGlobal, &at, &size, my.lib, "big");
	return 0;
}
static int library_kernel(void)
{
	TRY_IF(cuLibraryGetKernel, &my.kernel, my.lib, "uses");
	return 0;
}
static int has_kernel(void)
{
	TRY(has_library());
	return library_kernel();
}
static int kernel_function(void)
{
	TRY_IF(cuKernelGetFunction, &my.function, my.kernel);
	return 0;
}

/* A graph of 64 launches, or of one allocation of 64 MiB. */
static int has_graph(void)
{
	TRY(has_function());
	TRY(launch());
	TRY_IF(cuStreamBeginCapture_v2, my.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	for (int i = 0; i < 64; i++)
		TRY_IF(cuLaunchKernel, my.function, 1, 1, 1, 1, 1, 1, 0, my.stream, NULL, NULL);
	TRY_IF(cuStreamEndCapture, my.stream, &my.graph);
	return 0;
}
static int has_allocating_graph(void)
{
	CUdeviceptr at;

	TRY(with_stream());
	TRY_IF(cuStreamBeginCapture_v2, my.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	TRY_IF(cuMemAllocAsync, &at, 64 * MIB, my.stream);
	TRY_IF(cuMemFreeAsync, at, my.stream);
	TRY_IF(cuStreamEndCapture, my.stream, &my.graph);
	return 0;
}
static int instantiate(void)
{
	TRY_IF(cuGraphInstantiateWithFlags, &my.exec, my.graph, 0);
	return 0;
}
static void destroy_exec(void)
{
	cu.cuGraphExecDestroy(my.exec);
}
static int has_exec(void)
{
	TRY(has_graph());
	return instantiate();
}
static int has_allocating_exec(void)
{
	TRY(has_allocating_graph());
	return instantiate();
}
static int upload_graph(void)
{
	TRY_IF(cuGraphUpload, my.exec, my.stream);
	return (int)cu.cuStreamSynchronize(my.stream);
}
static int launch_graph(void)
{
	TRY_IF(cuGraphLaunch, my.exec, my.stream);
	return (int)cu.cuStreamSynchronize(my.stream);
}
static void trim_graphs(void)
{
	if (cu.cuDeviceGraphMemTrim)
		cu.cuDeviceGraphMemTrim(0);
}

const struct call code_calls[] = {
	{ "cuModuleLoadData, small", with_context, load_small, unload },
	{ "cuModuleLoadData, 64 MiB", with_context, load_big, unload },
	{ "cuModuleGetFunction", has_small, get_function, nothing },
	{ "cuFuncLoad", has_small, load_function, nothing },
	{ "cuLibraryLoadData, small", with_context, library_small, unload_library },
	{ "cuLibraryLoadData, 64 MiB", with_context, library_big, unload_library },
	{ "cuLibraryGetModule, 64 MiB", has_library, library_module, nothing },
	{ "cuLibraryGetGlobal, 64 MiB", has_library, library_global, nothing },
	{ "cuLibraryGetKernel, 64 MiB", has_library, library_kernel, nothing },
	{ "cuKernelGetFunction, 64 MiB", has_kernel, kernel_function, nothing },
	{ "cuLaunchKernel, the first", has_function, launch, nothing },
	{ "cuLaunchKernel, local memory", has_deep, launch_deep, nothing },
	{ "cuGraphInstantiate, 64 launches", has_graph, instantiate, destroy_exec },
	{ "cuGraphInstantiate, allocates", has_allocating_graph, instantiate, destroy_exec },
	{ "cuGraphUpload, 64 launches", has_exec, upload_graph, nothing },
	{ "cuGraphUpload, allocates", has_allocating_exec, upload_graph, trim_graphs },
	{ "cuGraphLaunch, 64 launches", has_exec, launch_graph, nothing },
	{ "cuGraphLaunch, allocates", has_allocating_exec, launch_graph, trim_graphs },
	{ NULL, NULL, NULL, NULL },
};
