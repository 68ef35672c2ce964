/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of blocks of pools: see pool_handle.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "shim/base/log.h"
#include "shim/base/options.h"
#include "shim/blocks/blocks.h"
#include "shim/diag/trace.h"
#include "shim/descriptors/flight.h"
#include "shim/driver/made.h"
#include "shim/driver/visit.h"
#include "shim/exporter/async.h"
#include "shim/exporter/pool.h"
#include "shim/exporter/pool_handle.h"
#include "shim/exporter/service.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/exporter.h"
#include "shim/limbo/pool_imports.h"
#include "shim/self/self.h"
#include "shim/shm/pool_data.h"
#include "shim/shm/pool_handle.h"

/* -------------------------------------------------- what the descriptor service asks */
/* Returns a copy of @kept in flight; -EIO if the program has closed it; or -EMFILE. */
static int copy_kept(const struct cl_own_fd *kept)
{
	int fd = -EIO;

	cl_flight_begin();
	if (cl_own_fd_is_ours(kept)) {
		/* near it, so that the program gets the low numbers */
		fd = fcntl(kept->fd, F_DUPFD_CLOEXEC, kept->fd);
		fd = fd < 0 ? -EMFILE : cl_flight_enter(fd);
	}
	cl_flight_end();
	return fd;
}

/*
 * Answers a request for a block of a pool, as a cl_service_pieces, with one piece: a descriptor of the whole pool.
 * -ESTALE: the handle's generation is over, the pool is being destroyed, or the process is in exit().
 */
static int pool_pieces(struct cl_exporter *ex, const struct cl_request *request, struct cl_piece *piece, int *fds,
		       uint32_t *total)
{
	const struct cl_block *block;
	uint64_t pool = 0, number = 0, size = 0;
	int fd = -ESTALE;

	if (request->first || request->offset)
		return -EINVAL;
	cl_lock(&cl_exports_lock);
	block = cl_block_of_record(&ex->blocks, request->record);
	/* a block in the limbo can be opened, too: its handle may have been on its way when it was freed */
	if (block && block->kind == CL_POOL && block->state != CL_BLOCK_ORPHANED && block->pool && block->pool->number &&
	    cl_life_generation(cl_record_life(ex->blocks.region, request->record)) == request->generation) {
		size = block->size;
		number = block->pool->number;
		if (!block->pool->kept.ino)
			pool = block->pool->handle;
		else
			fd = copy_kept(&block->pool->kept);
	}
	cl_unlock(&cl_exports_lock);
	if (pool)
		fd = cl_async_descriptor(pool, number);
	if (fd < 0)
		return fd;
	fds[0] = fd;
	*total = 1;
	piece[0] = (struct cl_piece){ .size = size ? size : 1, .record = request->record,
				      .generation = request->generation };
	return 1;
}

/* --------------------------------------------------------------------- exports */
/* Returns true, and logs it, if a block of @size bytes is larger than CULIMBO_POOL_IMPORT_MAX. */
static bool is_too_large(size_t size)
{
	if (!cl_options.pool_import_max.number || size <= cl_options.pool_import_max.number)
		return false;
	cl_log_once(CL_LOG_WARN,
		    "cuIpcGetMemHandle refuses a block of a pool with %llu bytes, as without culimbo: drivers crash in "
		    "processes that import more than 4 GiB by one pointer. CULIMBO_POOL_IMPORT_MAX changes the limit of "
		    "%llu bytes",
		    (unsigned long long)size, (unsigned long long)cl_options.pool_import_max.number);
	return true;
}

/*
 * Exports the block at @base once more, if a handle of it was made before and it is still the same.  Returns its
 * record, or CL_NO_RECORD.  The driver is not asked for the export data, which takes it 16 to 50 us (measured).
 * That is safe: the driver has just said that @size bytes of @pool are allocated at @base, and we see each free.
 */
static uint32_t share_again(struct cl_exporter *ex, CUdeviceptr base, size_t size, CUmemoryPool pool, uint64_t now,
			    struct cl_pool_handle *handle)
{
	struct cl_block *block;
	uint32_t record = CL_NO_RECORD;

	cl_lock(&cl_exports_lock);
	block = cl_block_find(&ex->blocks, CL_POOL, base);
	if (block && block->state == CL_BLOCK_LIVE && block->size == size && block->pool && block->pool->number &&
	    block->pool->handle == (uint64_t)(uintptr_t)pool) {
		record = block->record;
		if (record != CL_NO_RECORD) {
			handle->pool = block->pool->number;
			handle->fingerprint = block->handle;
			handle->stamp = cl_region_stamp(ex->blocks.region, record,
							cl_record_export_again(ex->blocks.region, record, now));
			cl_count_locked(exports);
			cl_live_add_locked(ex->blocks.region, CL_LIVE_HANDLES, 1);
		}
	}
	cl_unlock(&cl_exports_lock);
	return record;
}

/*
 * Makes the first handle of the block at @base, which may be the first one of its pool.  Returns its record, or
 * CL_NO_RECORD if the pool or the block can't be exported.
 */
static uint32_t share_first(struct cl_exporter *ex, CUdeviceptr base, struct cl_pool_handle *handle)
{
	CUmemoryPool pool = cl_pool_of_memory(base);
	struct cl_pool_answer answer = { .asked = false };
	CUmemPoolPtrExportData data;
	struct cl_block *block;
	struct cl_stamp stamp;
	uint64_t number = pool ? cl_async_hand_out(pool) : 0;
	bool known;

	if (!number)
		return CL_NO_RECORD;
	memset(&data, 0, sizeof data);
	if (cl_pool_export(ex, &data, base, &answer) != CUDA_SUCCESS)
		return CL_NO_RECORD;
	handle->pool = number;
	handle->fingerprint = cl_pool_fingerprint(data.reserved);
	handle->stamp = cl_word_at(data.reserved, 7);
	stamp = cl_stamp_unpack(handle->stamp);
	/* without a record, or room for a stamp, an importer could not hold the block */
	if (!stamp.file_id)
		return CL_NO_RECORD;
	cl_lock(&cl_exports_lock);
	block = cl_block_of_record(&ex->blocks, stamp.record);
	known = block && block->kind == CL_POOL && block->link.key == base && block->pool;
	if (known)
		block->pool->number = number;
	else /* the block was freed meanwhile; or a driver that shuts down did not say of which pool it is */
		stamp.record = CL_NO_RECORD;
	cl_unlock(&cl_exports_lock);
	return stamp.record;
}

bool cl_pool_share_again(struct cl_exporter *ex, CUipcMemHandle *to, CUdeviceptr dptr, CUmemoryPool pool)
{
	struct cl_pool_handle handle = { .pid = (uint32_t)cl_self.pid, .mark = CL_POOL_HANDLE_MARK };
	uint64_t now = cl_now();
	CUdeviceptr base;
	uint32_t record;
	size_t size;

	if (cl_driver.cuMemGetAddressRange_v2(&base, &size, dptr) != CUDA_SUCCESS)
		return false;
	record = share_again(ex, base, size, pool, now, &handle);
	if (record == CL_NO_RECORD || !cl_service_need_again(record, CL_POOL, now))
		return false;
	memcpy(to, &handle, sizeof handle);
	return true;
}

static bool share(struct cl_exporter *ex, CUipcMemHandle *to, CUdeviceptr dptr)
{
	struct cl_pool_handle handle = { .pid = (uint32_t)cl_self.pid, .mark = CL_POOL_HANDLE_MARK };
	CUdeviceptr base;
	uint32_t record;
	size_t size;

	if (cl_driver.cuMemGetAddressRange_v2(&base, &size, dptr) != CUDA_SUCCESS)
		return false;
	if (!cl_async_is_shareable(cl_pool_of_memory(base)) || is_too_large(size))
		return false;
	record = share_first(ex, base, &handle);
	if (record == CL_NO_RECORD || !cl_service_need(record, CL_POOL, pool_pieces))
		return false;
	memcpy(to, &handle, sizeof handle);
	return true;
}

bool cl_pool_share(struct cl_exporter *ex, CUipcMemHandle *handle, CUdeviceptr dptr)
{
	/* cuIpcGetMemHandle() spoils no capture, and an export of a pool's pointer does (measured) */
	CL_CALLS_OF_OURS;

	return share(ex, handle, dptr);
}

/* ------------------------------------------------------- opens by this process itself */
/* A block of this process that the program has opened by a handle of this process.  Under cl_exports_lock. */
struct own_open {
	struct cl_link link; /* its key: the address */
	struct cl_stamp stamp;
	uint64_t opens;
};
static struct cl_table own_opens = CL_TABLE_BEGIN(own_opens);

int cl_pool_handle_own_open(struct cl_exporter *ex, struct cl_stamp stamp, const void *form, CUdeviceptr *dptr)
{
	struct own_open *open = calloc(1, sizeof *open), *known;
	const struct cl_block *block;

	if (!open)
		return -ENOMEM;
	if (cl_pool_own_open(ex, stamp, form)) {
		free(open);
		return -ESTALE;
	}
	cl_lock(&cl_exports_lock);
	/* cl_pool_own_open() has counted our open, so the block stays */
	block = cl_block_of_record(&ex->blocks, stamp.record);
	open->link.key = block->link.key;
	open->stamp = stamp;
	known = cl_table_find(&own_opens, open->link.key);
	if (!known)
		cl_table_add(&own_opens, &open->link);
	(known ? known : open)->opens++;
	*dptr = (CUdeviceptr)open->link.key;
	cl_unlock(&cl_exports_lock);
	if (known)
		free(open);
	return 0;
}

bool cl_pool_handle_own_is_open(CUdeviceptr dptr)
{
	bool is;

	cl_lock(&cl_exports_lock);
	is = cl_table_find(&own_opens, dptr);
	cl_unlock(&cl_exports_lock);
	return is;
}

bool cl_pool_handle_own_close(struct cl_exporter *ex, CUdeviceptr dptr)
{
	struct cl_stamp stamp = { .file_id = 0 };
	struct own_open *open;
	bool found;

	cl_lock(&cl_exports_lock);
	open = cl_table_find(&own_opens, dptr);
	found = open;
	if (open) {
		stamp = open->stamp;
		if (!--open->opens) {
			cl_table_remove(&own_opens, &open->link);
			free(open);
		}
	}
	cl_unlock(&cl_exports_lock);
	if (found && cl_pool_own_close(ex, stamp))
		cl_collector_wake(ex);
	return found;
}

void cl_pool_handles_forget(void)
{
	own_opens = (struct cl_table)CL_TABLE_BEGIN(own_opens);
}
