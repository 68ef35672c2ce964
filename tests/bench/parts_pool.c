/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts: blocks of pools, shared by a pointer.  The operations are those of parts.c and have
 * their names with pool- in front, so that guard.sh can compare the two.
 */
#include "tests/bench/parts.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "shim/life.h"
#include "shim/shm/pool_data.h"

#define POOL ((CUmemoryPool)0x900)

_Static_assert(sizeof(CUmemPoolPtrExportData) == sizeof(CUipcMemHandle), "the board has room for export data");

/* ------------------------------------------------------------ the null driver */
/* As the driver does, writes bytes 0 to 47 and does not touch the others. */
NULL_DRIVER static CUresult null_export(CUmemPoolPtrExportData *data, CUdeviceptr p)
{
	memset(data->reserved, 0, CL_POOL_DRIVERS);
	memcpy(data->reserved + 24, &p, sizeof p);
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_import(CUdeviceptr *p, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
	(void)pool;
	memcpy(p, data->reserved + 24, sizeof *p);
	*p += MAPPED_AT;
	return CUDA_SUCCESS;
}

/* As the driver does, says of which pool the memory is. */
NULL_DRIVER static CUresult null_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
	const CUmemoryPool pool = POOL;

	(void)p;
	if (attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)
		memcpy(data, &pool, sizeof pool);
	else
		*(int *)data = 0;
	return CUDA_SUCCESS;
}

static void prepare_pool(void)
{
	prepare();
	cl_driver.cuPointerGetAttribute = null_attribute;
	cl_driver.cuMemPoolExportPointer = null_export;
	cl_driver.cuMemPoolImportPointer = null_import;
}

/* --------------------------------------------------------------- the exporter */
static CUmemPoolPtrExportData *data_of(uint64_t i)
{
	return (CUmemPoolPtrExportData *)(void *)&board->handle[i];
}

static void op_export_new_of_pool(uint64_t run)
{
	(void)run;
	MUST(cl_pool_pointer_export(data_of(used), block_at(used)) == CUDA_SUCCESS);
	used++;
}
static void op_export_again_of_pool(uint64_t run)
{
	CUmemPoolPtrExportData data;

	(void)run;
	MUST(cl_pool_pointer_export(&data, block_at(n_blocks / 2)) == CUDA_SUCCESS);
}

int pool_exporter(int argc, char **argv)
{
	uint64_t heap;

	(void)argc;
	n_blocks = strtoull(argv[0], NULL, 0);
	make_board(n_blocks);
	prepare_pool();
	op_export_new_of_pool(0);
	heap = heap_bytes();
	while (used < n_blocks)
		op_export_new_of_pool(0);
	if (n_blocks >= 100000) /* see exporter() */
		say_value("private-bytes-a-block", (double)(heap_bytes() - heap) / (double)(n_blocks - 1), "bytes");
	measure("pool-export-again", op_export_again_of_pool, 10000);
	cl_process_end(0);
	return 0;
}

/* --------------------------------------------------------------- the importer */
static void helper_of_pool(void)
{
	prepare_pool();
	helper_wait(1);
	while (used < board->n)
		op_export_new_of_pool(0);
	helper_did(1);
	pause();
}

static void import(uint64_t i)
{
	CUdeviceptr p;

	MUST(cl_pool_pointer_import(&p, POOL, data_of(i), NULL) == CUDA_SUCCESS);
}
static void op_import_new(uint64_t run)
{
	(void)run;
	import(used++);
}
static void op_import_again(uint64_t run)
{
	(void)run;
	import(0);
}
static void op_free_again(uint64_t run)
{
	(void)run;
	MUST(cl_memory_free(block_at(0) + MAPPED_AT) == CUDA_SUCCESS);
}
static void op_free_last(uint64_t run)
{
	(void)run;
	MUST(cl_memory_free(block_at(used++) + MAPPED_AT) == CUDA_SUCCESS);
}

int pool_importer(int argc, char **argv)
{
	uint64_t n = strtoull(argv[0], NULL, 0), total = n + measure_runs(1000);
	pid_t helper;

	(void)argc;
	make_board(total);
	helper = helper_start(helper_of_pool);
	helper_do(0, total);
	prepare_pool();
	while (used < n)
		op_import_new(0);
	measure("pool-open-new", op_import_new, 1000);
	measure("pool-open-again", op_import_again, 1000);
	measure("pool-close-again", op_free_again, 1000);
	used = n;
	measure("pool-close-last", op_free_last, 1000);
	kill(helper, SIGKILL);
	waitpid(helper, NULL, 0);
	cl_process_end(0);
	return 0;
}
