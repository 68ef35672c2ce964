/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the questions of the probe about pools that processes share: the driver's calls, and the other
 * process (probe_partner.c).  probe_pools.c and probe_captures.c ask.
 *
 * The process that asks is the importer, unless its question is about the exporter's side; the other
 * one does one thing at a time as it is told.
 */
#ifndef CL_TEST_PROBE_POOLS_H
#define CL_TEST_PROBE_POOLS_H

#include <stdbool.h>
#include <stddef.h>

#include "probe.h"

#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
enum { OURS = 17, NEXT = 238 }; /* what is in the partner's first block, and in the next ones */

/* What cuda_door.h has not: programs of tests/e2e don't call them. */
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

/* begin(), and fills p. */
void begin_pools(void);
/* One of which all that is freed stays its own. */
CUmemoryPool new_pool(int device, bool shareable);
/* A block of it whose bytes are @value. */
CUdeviceptr new_block(CUmemoryPool pool, size_t bytes, unsigned char value);
/* Its first byte, or the negative result. */
int byte_at(CUdeviceptr pointer);
/* What cuMemGetAddressRange gives. */
int known(CUdeviceptr pointer);

/* From here on nothing runs in @in until go_on(). */
void block_stream(CUstream in);
void go_on(void);

/* A message on a socket, with the descriptor @fd, or -1; received, *@fd is set where one came.  Not 0: it failed. */
int send_with(int socket, const void *bytes, size_t n, int fd);
int receive_with(int socket, void *bytes, size_t n, int *fd);

/* What the partner can be told: to export a new block, to free it, or behind what blocks its stream, ... */
enum order { EXPORT, FREE, FREE_PENDING, BUSY, DESTROY, END };
struct answer {
	int result;
	CUmemPoolPtrExportData data; /* of EXPORT */
};
struct answer tell(enum order order);

/* Forks the partner, which has a pool on @device: that, imported.  This process is ready then. */
CUmemoryPool begin_with_partner(int device);
extern struct answer exported;
extern CUmemoryPool imported_pool;
/* The same with a block of it, exported and imported. */
CUdeviceptr begin_with_import(void);
/* Imports what is in exported. */
int import_again(CUdeviceptr *pointer);

/* The exporter's side in this process: own_pool, exported; subject is a block of it. */
extern CUmemoryPool own_pool;
extern CUdeviceptr subject;
extern CUstream other_stream; /* non-blocking */
void begin_exporter(void);
void prepare_export(void);
int call_export(void);

/* The question of probe_pool_order.c. */
void pool_order_soak(void);

#endif
