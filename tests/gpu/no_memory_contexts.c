/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The no_memory program: the prober's context, and calls on contexts, green contexts and their
 * limits.
 */
#include "no_memory.h"

#include <stdio.h>

#include <cuda.h>

struct prober my;

int no_context(void)
{
	return 0;
}

int with_context(void)
{
	TRY(cu.cuDevicePrimaryCtxRetain(&my.ctx, 0));
	TRY(cu.cuCtxSetCurrent(my.ctx));
	return (int)cu.cuCtxSynchronize();
}

int with_stream(void)
{
	TRY(with_context());
	return (int)cu.cuStreamCreate(&my.stream, CU_STREAM_NON_BLOCKING);
}

int with_block(void)
{
	TRY(with_stream());
	return (int)cu.cuMemAlloc_v2(&my.small, 4 * MIB);
}

static int retain(void)
{
	CUcontext ctx;

	return (int)cu.cuDevicePrimaryCtxRetain(&ctx, 0);
}
static void release(void)
{
	cu.cuDevicePrimaryCtxRelease_v2(0);
}

static int create_context(void)
{
	return (int)cu.cuCtxCreate_v2(&my.ctx, 0, 0);
}
static void destroy_context(void)
{
	cu.cuCtxDestroy_v2(my.ctx);
}

static int set_limit(CUlimit limit, size_t value)
{
	TRY_IF(cuCtxGetLimit, &my.limit, limit);
	TRY_IF(cuCtxSetLimit, limit, value);
	return (int)cu.cuCtxSynchronize();
}
static int limit_stack(void)
{
	return set_limit(CU_LIMIT_STACK_SIZE, 16384);
}
static void unlimit_stack(void)
{
	cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, my.limit);
}
static int limit_heap(void)
{
	return set_limit(CU_LIMIT_MALLOC_HEAP_SIZE, 512 * MIB);
}
static void unlimit_heap(void)
{
	cu.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, my.limit);
}
static int limit_printf(void)
{
	return set_limit(CU_LIMIT_PRINTF_FIFO_SIZE, 256 * MIB);
}
static void unlimit_printf(void)
{
	cu.cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, my.limit);
}

void nothing(void)
{
}

static int has_resource(void)
{
	TRY(with_context());
	TRY_IF(cuDeviceGetDevResource, 0, my.resource, 1 /* CU_DEV_RESOURCE_TYPE_SM */);
	TRY_IF(cuDevResourceGenerateDesc, &my.descriptor, my.resource, 1);
	return 0;
}
static int green(void)
{
	TRY_IF(cuGreenCtxCreate, &my.green, my.descriptor, 0, 1 /* CU_GREEN_CTX_DEFAULT_STREAM */);
	return 0;
}
static void destroy_green(void)
{
	cu.cuGreenCtxDestroy(my.green);
}
static int has_green(void)
{
	TRY(has_resource());
	return green();
}
static int green_stream(void)
{
	TRY_IF(cuGreenCtxStreamCreate, &my.stream, my.green, CU_STREAM_NON_BLOCKING, 0);
	return 0;
}
static void destroy_stream(void)
{
	cu.cuStreamDestroy_v2(my.stream);
}

static int allocate(void)
{
	return (int)cu.cuMemAlloc_v2(&my.pointer, 512);
}
static void deallocate(void)
{
	cu.cuMemFree_v2(my.pointer);
}

const struct call context_calls[] = {
	{ "cuMemAlloc, 512 bytes (the control)", with_context, allocate, deallocate },
	{ "cuDevicePrimaryCtxRetain", no_context, retain, release },
	{ "cuCtxCreate, the first", no_context, create_context, destroy_context },
	{ "cuCtxCreate, beside the primary one", with_context, create_context, destroy_context },
	{ "cuGreenCtxCreate", has_resource, green, destroy_green },
	{ "cuGreenCtxStreamCreate", has_green, green_stream, destroy_stream },
	{ "cuCtxSetLimit, stack 16 KiB", with_context, limit_stack, unlimit_stack },
	{ "cuCtxSetLimit, heap 512 MiB", with_context, limit_heap, unlimit_heap },
	{ "cuCtxSetLimit, printf 256 MiB", with_context, limit_printf, unlimit_printf },
	{ NULL, NULL, NULL, NULL },
};
