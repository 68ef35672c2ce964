/* SPDX-License-Identifier: Apache-2.0 */
/* Parts: virtual memory, shared by handles of ours (CULIMBO_SHARE=all). */
#include "tests/bench/parts.h"

#include <stdlib.h>
#include <string.h>

#include "shim/base/options.h"
#include "shim/descriptors/server.h"
#include "shim/life.h"
#include "shim/shm/virtual_handle.h"
#include "shim/virtual.h"

#define RESERVED ((CUdeviceptr)0x500000000000) /* where no other block of parts is */

/* ------------------------------------------------------------ the null driver */
NULL_DRIVER static CUresult null_create(CUmemGenericAllocationHandle *handle, size_t size,
					const CUmemAllocationProp *prop, unsigned long long flags)
{
	static CUmemGenericAllocationHandle last;

	(void)size, (void)prop, (void)flags;
	*handle = ++last;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_refuse(CUipcMemHandle *handle, CUdeviceptr p)
{
	(void)handle, (void)p;
	return CUDA_ERROR_INVALID_VALUE;
}
NULL_DRIVER static CUresult null_range(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	*base = p;
	*size = BLOCK_STEP;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
	const int none = 0;

	(void)attribute, (void)p;
	memcpy(data, &none, sizeof none);
	return CUDA_SUCCESS;
}

/* --------------------------------------------------------------- the exporter */
static CUdeviceptr piece_at(uint64_t i)
{
	return RESERVED + i * BLOCK_STEP;
}

static void op_get_again(uint64_t run)
{
	CUipcMemHandle handle;

	(void)run;
	MUST(cl_memory_export(&handle, piece_at(n_blocks / 2)) == CUDA_SUCCESS && cl_is_virtual_handle(&handle));
}

int virtual_exporter(int argc, char **argv)
{
	const CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					   .location.type = CU_MEM_LOCATION_TYPE_DEVICE };
	uint64_t start;

	(void)argc;
	n_blocks = strtoull(argv[0], NULL, 0);
	make_board(n_blocks);
	prepare();
	cl_driver.cuMemCreate = null_create;
	cl_driver.cuIpcGetMemHandle = null_refuse;
	cl_driver.cuMemGetAddressRange_v2 = null_range;
	cl_driver.cuPointerGetAttribute = null_attribute;
	cl_options.share.number = CL_SHARE_ALL;
	/* the service is looked at once a millisecond, and single steps take longer */
	if (bench_counting)
		cl_serve_look = UINT64_MAX;
	cl_virtual_reserved(RESERVED, n_blocks * BLOCK_STEP);
	for (uint64_t i = 0; i < n_blocks; i++) {
		CUmemGenericAllocationHandle memory;

		MUST(cl_virtual_create(&memory, BLOCK_STEP, &prop, 0) == CUDA_SUCCESS);
		cl_virtual_mapped(piece_at(i), BLOCK_STEP, 0, memory);
	}
	start = bench_now();
	for (uint64_t i = 0; i < n_blocks; i++)
		MUST(cl_memory_export(&board->handle[i], piece_at(i)) == CUDA_SUCCESS);
	say_ns("virtual-get-new", (double)(bench_now() - start) / (double)n_blocks);
	measure("virtual-get-again", op_get_again, 10000);
	cl_process_end(0);
	return 0;
}
