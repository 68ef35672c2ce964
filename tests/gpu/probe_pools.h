/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the probe's questions about shared pools (probe_pools.c, probe_captures.c): the driver's calls
 * and the partner process (probe_partner.c).
 *
 * The process that asks is the importer, unless its question is about the exporter.  The partner does
 * one thing at a time on command.
 */
#ifndef CL_TEST_PROBE_POOLS_H
#define CL_TEST_PROBE_POOLS_H

#include <stdbool.h>
#include <stddef.h>

#include "probe.h"

#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
enum { OURS = 17, NEXT = 238 }; /* contents of the partner's first block and of the later ones */

/* Calls that cuda_door.h lacks, because programs of tests/e2e don't use them. */
#define POOL_CALLS(X)                                                                              \
	X(cuDeviceGetCount, (int *))                                                               \
	X(cuMemHostAlloc, (void **, size_t, unsigned int))                                         \
	X(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                           \
	X(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice))                                   \
	X(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *))                               \
	X(cuMemPoolDestroy, (CUmemoryPool))                                                        \
	X(cuMemPoolTrimTo, (CUmemoryPool, size_t))                                                 \
	X(cuMemPoolSetAttribute, (CUmemoryPool, CUmemPool_attribute, void *))                      \
	X(cuMemPoolSetAccess, (CUmemoryPool, const CUmemAccessDesc *, size_t))                     \
	X(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))                \
	X(cuMemPoolExportPointer, (CUmemPoolPtrExportData *, CUdeviceptr))                         \
	X(cuMemPoolImportPointer, (CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *))         \
	X(cuMemPoolExportToShareableHandle,                                                        \
	  (void *, CUmemoryPool, CUmemAllocationHandleType, unsigned long long))                   \
	X(cuMemPoolImportFromShareableHandle,                                                      \
	  (CUmemoryPool *, void *, CUmemAllocationHandleType, unsigned long long))

struct pool_calls {
#define X(name, params) CUresult(CUDAAPI *name) params;
	POOL_CALLS(X)
#undef X
};
extern struct pool_calls p;

/* begin(), and looks up the calls of p. */
void begin_pools(void);
/* Creates a pool that keeps all freed memory. */
CUmemoryPool new_pool(int device, bool shareable);
/* Allocates a block of it whose bytes are @value. */
CUdeviceptr new_block(CUmemoryPool pool, size_t bytes, unsigned char value);
/* Returns the block's first byte, or the error as a negative number. */
int byte_at(CUdeviceptr pointer);
/* Returns the result of cuMemGetAddressRange. */
int known(CUdeviceptr pointer);

/* Blocks the stream @in until go_on(). */
void block_stream(CUstream in);
void go_on(void);

/* Sends or receives a message on a socket, with the descriptor @fd (-1: none).  Returns 0 on success. */
int send_with(int socket, const void *bytes, size_t n, int fd);
int receive_with(int socket, void *bytes, size_t n, int *fd);

/* The partner's commands: export a new block, free it, free it behind a blocked stream, and so on. */
enum order { EXPORT, FREE, FREE_PENDING, BUSY, DESTROY, END };
struct answer {
	int result;
	CUmemPoolPtrExportData data; /* the result of EXPORT */
};
struct answer tell(enum order order);

/* Forks the partner, which creates a pool on @device; imports the pool.  Afterwards this process can ask. */
CUmemoryPool begin_with_partner(int device);
extern struct answer exported;
extern CUmemoryPool imported_pool;
/* The same, and the partner exports a block, which is imported. */
CUdeviceptr begin_with_import(void);
/* Imports the pointer in exported. */
int import_again(CUdeviceptr *pointer);

/* The exporter's side in this process: creates own_pool, exports it, and allocates subject in it. */
extern CUmemoryPool own_pool;
extern CUdeviceptr subject;
extern CUstream other_stream; /* non-blocking */
void begin_exporter(void);
void prepare_export(void);
int call_export(void);

/* The questions of probe_pool_order.c and of probe_pool_memory.c. */
void pool_order_soak(void);
void pool_memory(void);

#endif
