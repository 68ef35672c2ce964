/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of memory pools, on the side of their exporter: see pool.h. */
#include <string.h>

#include "shim/limbo/exporter.h"
#include "shim/blocks/blocks.h"
#include "shim/diag/report_data.h"
#include "shim/diag/trace.h"
#include "shim/driver/context.h"
#include "shim/driver/devices.h"
#include "shim/driver/made.h"
#include "shim/exporter/export.h"
#include "shim/exporter/pool.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/grace.h"
#include "shim/limbo/limbo.h"
#include "shim/limbo/pool_imports.h"
#include "shim/self/self.h"
#include "shim/shm/pool_data.h"

/* Bytes 48 to 63 of the driver's buffer are set to this before a call: if they still are after it, a stamp has room. */
enum { PATTERN = 0xa5 };

/* Returns true if the driver has left room for a stamp in @data. */
static bool has_room(const uint8_t data[64])
{
	uint64_t pattern, words[(64 - CL_POOL_DRIVERS) / sizeof pattern];

	memset(&pattern, PATTERN, sizeof pattern);
	memcpy(words, data + CL_POOL_DRIVERS, sizeof words);
	return words[0] == pattern && words[1] == pattern;
}

/* Asks the driver about the block at @dptr, and fills in @what.  If it does not know the size, @data say it. */
static void describe(struct cl_exporter *ex, CUdeviceptr dptr, const uint8_t data[64],
		     struct cl_export *what)
{
	CUdeviceptr base = dptr;
	uint8_t uuid[CL_UUID];
	size_t size = 0;

	/* the driver refuses to export an interior pointer, so the block begins at @dptr (measured) */
	if (cl_driver.cuMemGetAddressRange_v2(&base, &size, dptr) != CUDA_SUCCESS || base != dptr)
		size = cl_pool_size(data);
	what->size = size;
	what->device = cl_pool_memory_device(dptr);
	cl_grace_know_device(ex, what->device);
	/* the limbo needs the UUID, and the driver is asked for it without a lock */
	cl_device_uuid(what->device, uuid);
}

/*
 * Publishes the block at @dptr, of @pool, with the @prepared struct, and writes its stamp into @handle.  @data are
 * the driver's.  Returns CUDA_SUCCESS, or the error that the program gets.
 */
static CUresult publish(struct cl_exporter *ex, uint8_t handle[64], const uint8_t data[64],
			CUdeviceptr dptr, uint64_t pool, struct cl_block *prepared)
{
	const struct cl_context_name none = { .device = -1 };
	struct cl_export what = { .kind = CL_POOL, .base = dptr, .handle = handle, .pool = pool };
	struct cl_about misused = { .key = 0 };
	bool orphaned = false;
	CUresult result;
	uint32_t stack;

	describe(ex, dptr, data, &what);
	cl_pool_import_cover(ex, dptr);
	stack = cl_stack_write(false);
	cl_lock(&cl_exports_lock);
	result = cl_export_publish_locked(ex, handle, &what, &none, stack, prepared, NULL, &misused, &orphaned);
	cl_unlock(&cl_exports_lock);
	cl_collector_watch_holders(ex, orphaned);
	if (misused.key)
		cl_export_tell_after_free(&misused);
	return result;
}

/*
 * Writes to @to what the program gets: the driver's bytes of @data, and the stamp of @handle if it has one.
 * @room: the driver has left bytes 48 to 63 to us.  Without a stamp these become zeros, because the program's
 * buffer may still have the stamp of an older block.
 */
static void put(CUmemPoolPtrExportData *to, const uint8_t data[64], bool room, const uint8_t handle[64])
{
	uint64_t stamp;

	memcpy(to->reserved, data, room ? CL_POOL_DRIVERS : 64);
	memcpy(&stamp, handle + 56, sizeof stamp);
	if (room && stamp)
		cl_pool_put_stamp(to->reserved, cl_pool_fingerprint(data), stamp, (uint32_t)cl_self.pid);
	else if (room)
		memset(to->reserved + CL_POOL_DRIVERS, 0, sizeof to->reserved - CL_POOL_DRIVERS);
}

static bool is_in_limbo(struct cl_exporter *ex, CUdeviceptr dptr)
{
	bool is;

	cl_lock(&cl_exports_lock);
	is = cl_block_in_limbo(cl_block_find(&ex->blocks, CL_POOL, dptr));
	cl_unlock(&cl_exports_lock);
	return is;
}

/* Asks the driver to export @dptr into a buffer whose bytes 48 to 63 have the pattern. */
static inline void ask(struct cl_pool_answer *answer, CUdeviceptr dptr)
{
	memset(answer->data.reserved + CL_POOL_DRIVERS, PATTERN, sizeof answer->data.reserved - CL_POOL_DRIVERS);
	answer->result = cl_driver.cuMemPoolExportPointer(&answer->data, dptr);
	answer->asked = true;
}

bool cl_pool_export_simply(struct cl_exporter *ex, CUmemPoolPtrExportData *to, CUdeviceptr dptr,
			   struct cl_pool_answer *answer)
{
	const uint8_t *data = answer->data.reserved;
	const struct cl_block *block;
	uint64_t fingerprint, stamp = 0;

	/* the same two conditions as in cl_export_simply(), which gives the reasons */
	if (!cl_block_may_be(&ex->blocks.filter, dptr) || (!cl_limbo_is_empty(ex) && is_in_limbo(ex, dptr)))
		return false;
	ask(answer, dptr);
	if (answer->result != CUDA_SUCCESS)
		return true;
	if (!has_room(data))
		return false;
	cl_lock(&cl_exports_lock);
	block = cl_block_find(&ex->blocks, CL_POOL, dptr);
	/* computed under the lock, so that the compiler need not save the words of @data across the lock's call */
	fingerprint = cl_pool_fingerprint(data);
	if (block && block->pool && block->handle == fingerprint && cl_export_is_simple_locked(block)) {
		/* reads the clock under the lock, so that an earlier time never overwrites a later one */
		stamp = cl_region_stamp(ex->blocks.region, block->record,
					cl_record_export_again(ex->blocks.region, block->record, cl_now()));
		cl_count_locked(exports);
		cl_live_add_locked(ex->blocks.region, CL_LIVE_HANDLES, 1);
	}
	cl_unlock(&cl_exports_lock);
	if (!stamp)
		return false;
	cl_count(pool_exports);
	memcpy(to->reserved, data, CL_POOL_DRIVERS);
	cl_pool_put_stamp(to->reserved, fingerprint, stamp, (uint32_t)cl_self.pid);
	return true;
}

/* Prepares a block of @pool, for an export.  Returns NULL without memory. */
static struct cl_block *prepare_locked(struct cl_exporter *ex, uint64_t pool)
{
	struct cl_block *block = cl_block_prepare_locked(&ex->blocks, CL_POOL);

	if (block && !cl_block_prepare_pool_locked(&ex->blocks, block, pool)) {
		cl_block_discard_locked(&ex->blocks, block);
		block = NULL;
	}
	return block;
}

CUresult cl_pool_export(struct cl_exporter *ex, CUmemPoolPtrExportData *to, CUdeviceptr dptr,
			struct cl_pool_answer *answer)
{
	const uint8_t *data = answer->data.reserved;
	/* the driver is asked without our lock.  It may not have said it at an earlier export of the block */
	uint64_t pool = (uint64_t)(uintptr_t)cl_pool_of_memory(dptr);
	struct cl_block *block, *prepared = NULL;
	struct cl_about misused;
	uint8_t handle[64];
	bool known, freed, room, has_memory;
	CUresult result;

	cl_lock(&cl_exports_lock);
	block = cl_limbo_find_settled_locked(ex, CL_POOL, dptr);
	freed = cl_block_in_limbo(block);
	known = block && !freed;
	if (freed)
		misused = cl_block_about_locked(&ex->blocks, block);
	else if (!known)
		prepared = prepare_locked(ex, pool);
	has_memory = known ? cl_block_prepare_pool_locked(&ex->blocks, block, pool) : prepared != NULL;
	cl_unlock(&cl_exports_lock);
	if (freed) {
		cl_export_tell_after_free(&misused);
		/*
		 * gets the driver's error for an unknown pointer, by a call that spoils a stream capture as an export
		 * of the freed pointer would
		 */
		result = cl_driver.cuMemPoolExportPointer(&answer->data, CL_NO_MEMORY);
		return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
	}
	if (!has_memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!answer->asked)
		ask(answer, dptr);
	result = answer->result;
	if (result != CUDA_SUCCESS) {
		cl_export_discard(ex, prepared);
		return result;
	}
	room = has_room(data);
	cl_pool_to_handle(handle, data);
	if (!room) /* all ones say that there is no room for a stamp, as in cl_export_new() */
		memset(handle + 56, 0xff, 8);
	if (known) {
		cl_lock(&cl_exports_lock);
		block = cl_limbo_find_settled_locked(ex, CL_POOL, dptr);
		known = cl_export_again_locked(ex, handle, block, cl_now());
		cl_unlock(&cl_exports_lock);
	}
	if (!known)
		result = publish(ex, handle, data, dptr, pool, prepared);
	if (result != CUDA_SUCCESS)
		return result;
	cl_count(pool_exports);
	put(to, data, room, handle);
	return CUDA_SUCCESS;
}
