/* SPDX-License-Identifier: Apache-2.0 */
/* The front door for blocks of pools that are shared by pointer: see shim.h, and shim.c for the rest. */
#include <stdatomic.h>
#include <string.h>

#include "shim/base/log.h"
#include "shim/base/options.h"
#include "shim/door.h"
#include "shim/driver/made.h"
#include "shim/exporter/pool.h"
#include "shim/importer/mappings.h"
#include "shim/importer/open.h"
#include "shim/importer/pool_uses.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/exporter.h"
#include "shim/limbo/pool_ends.h"
#include "shim/limbo/pool_imports.h"
#include "shim/limbo/release.h"
#include "shim/self/own_file.h"
#include "shim/self/locks.h"
#include "shim/shim.h"
#include "shim/shm/pool_data.h"

/* noinline: keeps its registers and its stack frame out of the fast path. */
static __attribute__((noinline)) CUresult export_carefully(CUmemPoolPtrExportData *data, CUdeviceptr dptr,
							   struct cl_pool_answer *answer)
{
	CL_DOOR(shares, CL_DOOR_TO_SHARE);

	if (!shares || !data)
		return cl_driver.cuMemPoolExportPointer(data, dptr);
	return cl_pool_export(&cl_exporter, data, dptr, answer);
}

CUresult cl_pool_pointer_export(CUmemPoolPtrExportData *data, CUdeviceptr dptr)
{
	CL_DOOR_FAST(passes);
	struct cl_pool_answer answer;

	answer.asked = false;
	if (passes && data && cl_pool_export_simply(&cl_exporter, data, dptr, &answer))
		return answer.result;
	return export_carefully(data, dptr, &answer);
}

/* ------------------------------------------------------------------ importing */
/*
 * Returns the size of the block that @resolved names, from its exporter's record.  If that can't be read, returns
 * @says: the size in the export data, or 0.
 */
static uint64_t size_of(const struct cl_opening *o, const struct cl_resolved *resolved, uint64_t says)
{
	if (o->hold)
		return o->hold->peer->region.record[resolved->stamp.record].size;
	if (!resolved->own)
		return says;
	cl_lock(&cl_exports_lock);
	if (cl_own.file_id == resolved->stamp.file_id)
		says = cl_own.record[resolved->stamp.record].size;
	cl_unlock(&cl_exports_lock);
	return says;
}

/*
 * Returns true, and logs it, if the block is larger than CULIMBO_POOL_IMPORT_MAX: the driver would overwrite its
 * stack, or crash (measured).
 */
static bool is_too_large(const struct cl_opening *o, const struct cl_resolved *resolved, uint64_t says)
{
	uint64_t most = cl_options.pool_import_max.number;
	uint64_t size = size_of(o, resolved, says);

	if (!most || size <= most)
		return false;
	cl_log_once(CL_LOG_WARN,
		    "a block of a pool with %llu bytes is not imported, and the program gets CUDA_ERROR_NOT_SUPPORTED: "
		    "drivers overwrite their stack or crash in cuMemPoolImportPointer for more than 4 GiB. Share "
		    "it in smaller allocations; CULIMBO_POOL_IMPORT_MAX (0: no limit) changes the limit of %llu bytes",
		    (unsigned long long)size, (unsigned long long)most);
	return true;
}

/* The driver has mapped @address for a stale import: has it unmapped, unless an earlier import is open there. */
static void undo(CUdeviceptr address)
{
	if (!cl_pool_import_is_open(address))
		cl_driver.cuMemFree_v2(address);
}

/*
 * The pool from which a block was imported last, and in bits 56 to 63 the device of its memory.  Only reports use
 * the device.  So it does no harm if the pool ends past our hooks and another one gets its handle.
 */
static _Atomic uint64_t last_pool;
enum { POOL_BITS = 56 };

/* Returns the device of @pool, of which the driver has just mapped @address. */
static inline int device_of(CUmemoryPool pool, CUdeviceptr address)
{
	uint64_t name = (uint64_t)(uintptr_t)pool & (UINT64_MAX >> (64 - POOL_BITS));
	uint64_t last = atomic_load_explicit(&last_pool, memory_order_relaxed);

	if (__builtin_expect((last ^ name) << (64 - POOL_BITS) || !name, 0)) {
		last = name | (uint64_t)(uint8_t)cl_pool_memory_device(address) << POOL_BITS;
		atomic_store_explicit(&last_pool, last, memory_order_relaxed);
	}
	return (int)(last >> POOL_BITS);
}

/*
 * Has the driver import the block for which @o was begun, in the turn that @importing has.  Returns what the program
 * gets.  If @importing->added is not set then, the caller must still end the turn and give @o up.
 */
static CUresult import_in_turn(struct cl_opening *o, const struct cl_resolved *resolved, CUdeviceptr *dptr,
			       CUmemPoolPtrExportData *data, struct cl_pool_importing *importing)
{
	CUresult result = cl_driver.cuMemPoolImportPointer(dptr, importing->pool, data);

	importing->told = result != CUDA_SUCCESS && o->stale;
	if (importing->told)
		cl_open_tell_stale(resolved, CL_POOL, 0, result);
	if (result != CUDA_SUCCESS)
		return result;
	if (!resolved->again)
		o->device = device_of(importing->pool, *dptr);
	if (cl_open_pool_end(o, resolved, (uint64_t)*dptr, cl_pool_import_added_locked, importing))
		return result;
	if (cl_observes()) {
		cl_open_tell_stale(resolved, CL_POOL, (uint64_t)*dptr, CUDA_SUCCESS);
		return result;
	}
	cl_open_refuse(resolved, CL_POOL);
	importing->told = true;
	undo(*dptr);
	return CUDA_ERROR_INVALID_VALUE;
}

/* Has a block of this process kept for one more import.  Returns false, and reports it, if the handle is stale. */
static bool begin_own(const struct cl_resolved *resolved)
{
	if (!cl_pool_own_open(&cl_exporter, resolved->stamp, resolved->handle))
		return true;
	cl_open_refuse(resolved, CL_POOL);
	return false;
}

/*
 * The program destroys a pool or imports a block, and the driver is not asked.  If it would refuse that because of a
 * capture, returns its error, and has it do to the capture what the refusal would do.  Else returns CUDA_SUCCESS.  Asks for
 * the export of a pointer: the driver refuses that in the same modes with the same error, before it looks at the memory
 * (measured).
 */
static CUresult capture_refusal(void)
{
	CUmemPoolPtrExportData none;
	CUresult result = cl_driver.cuMemPoolExportPointer ?
				  cl_driver.cuMemPoolExportPointer(&none, CL_NO_MEMORY) :
				  CUDA_ERROR_INVALID_VALUE;

	/* other errors are the export's own: a destroy needs no context */
	return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD ?
		       result :
		       CUDA_SUCCESS;
}

/* Returns the error of a stale import, which was reported: the driver is not asked for it. */
static __attribute__((noinline, cold)) CUresult import_refusal(bool *told)
{
	CUresult result = capture_refusal();

	if (told)
		*told = true;
	return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
}

CUresult cl_pool_pointer_import(CUdeviceptr *dptr, CUmemoryPool pool, CUmemPoolPtrExportData *data, bool *told)
{
	CL_DOOR(shares, CL_DOOR_TO_SHARE);
	struct cl_pool_importing importing;
	struct cl_resolved resolved;
	struct cl_pool_form form;
	uint64_t says = 0, key;
	struct cl_opening o;
	CUresult result;

	if (told)
		*told = false;
	if (!shares || !dptr || !data)
		return cl_driver.cuMemPoolImportPointer(dptr, pool, data);
	/* a copy: another thread may write to @data meanwhile, and the driver gets the bytes without our stamp */
	cl_pool_copy(&form, data->reserved);
	if (cl_look_up_pool(&resolved, &form, &importing.turn, &key))
		/*
		 * the size is read only from data with a stamp: in other data something else may stand there, and
		 * an import must not be refused because of a guess
		 */
		says = cl_pool_size(form.data);
	importing.ex = &cl_exporter;
	importing.pool = pool;
	importing.own.file_id = 0;
	importing.added = false;
	importing.told = false;
	if (resolved.own && !cl_observes()) {
		if (!begin_own(&resolved))
			return import_refusal(told);
		importing.own = resolved.stamp;
		o = (struct cl_opening){ .hold = NULL };
	} else if (cl_open_begin(&o, &resolved, CL_POOL) != CUDA_SUCCESS) {
		return import_refusal(told);
	}
	result = CUDA_ERROR_NOT_SUPPORTED;
	/* if the block is open here already, its size was checked at the first import */
	if (resolved.again || cl_observes() || !is_too_large(&o, &resolved, says)) {
		if (!importing.turn.key)
			cl_turn_begin(&importing.turn, key);
		result = import_in_turn(&o, &resolved, dptr, (CUmemPoolPtrExportData *)(void *)form.data, &importing);
	}
	if (!importing.added) {
		cl_turn_end(&importing.turn);
		cl_open_give_up(&o);
	}
	if (told)
		*told = importing.told;
	/* the import has failed, or an earlier one keeps the block already: close ours again */
	if (importing.own.file_id && cl_pool_own_close(&cl_exporter, importing.own))
		cl_collector_wake(&cl_exporter);
	return result;
}

/* ------------------------------------------------------- importing and destroying pools */
CUresult cl_pool_import(CUmemoryPool *pool, void *shareable, CUmemAllocationHandleType type, unsigned long long flags)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);

	/* under CULIMBO_MODE=observe no handle of a pool's block is opened */
	if (!shares || !pool || cl_options.disable.number || cl_observes())
		return cl_driver.cuMemPoolImportFromShareableHandle(pool, shareable, type, flags);
	cl_self_prepare(); /* a fork must not find our lock taken */
	return cl_pool_use_begin(CL_POOL_PROGRAM, pool, shareable, type, flags);
}

/*
 * Sets each device that allocates from @pool to its default pool, as the driver does when it destroys @pool.  If
 * another thread calls cuDeviceSetMemPool() at this very moment, its setting may be lost.
 */
static void is_current_no_more(CUmemoryPool pool)
{
	CUmemoryPool current, other;
	int n = 0;

	if (!cl_driver.cuDeviceGetMemPool || !cl_driver.cuDeviceSetMemPool || !cl_driver.cuDeviceGetDefaultMemPool ||
	    cl_driver.cuDeviceGetCount(&n) != CUDA_SUCCESS)
		return;
	for (CUdevice device = 0; device < n; device++)
		if (cl_driver.cuDeviceGetMemPool(&current, device) == CUDA_SUCCESS && current == pool &&
		    cl_driver.cuDeviceGetDefaultMemPool(&other, device) == CUDA_SUCCESS)
			cl_driver.cuDeviceSetMemPool(device, other);
}

/*
 * Does for @own what the driver's destroy does at once: no device allocates from it any more.  The destroy itself
 * comes when the limbo has no block of @own.
 */
static void begin_the_end_locked(struct cl_own_pool *own)
{
	CUmemoryPool pool = (CUmemoryPool)(uintptr_t)own->handle;
	struct cl_visit visit;

	cl_visit_begin_locked(&visit, &cl_context_unknown);
	is_current_no_more(pool);
	cl_visit_end_locked(&visit);
	cl_own_pool_left(&cl_exporter.blocks.own_pools, own);
	cl_release_pools_locked(&cl_exporter);
}

/*
 * Returns true if the driver would not be asked for the destroy of @pool: it would wait for blocks in the limbo, or
 * opens by handle use the pool as well.
 */
static bool would_not_ask(CUmemoryPool pool)
{
	bool would;

	if (cl_pool_use_ends_without_driver(pool))
		return true;
	cl_lock(&cl_exports_lock);
	would = cl_own_pool_would_wait(&cl_exporter.blocks.own_pools, (uint64_t)(uintptr_t)pool);
	cl_unlock(&cl_exports_lock);
	return would;
}

CUresult cl_pool_destroy(CUmemoryPool pool)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	struct cl_own_pool *own = NULL;
	enum cl_own_pool_end end = CL_OWN_POOL_NOW;
	CUresult result;

	/* another pool may get the handle of this one */
	atomic_store_explicit(&last_pool, 0, memory_order_relaxed);
	if (shares && would_not_ask(pool)) {
		result = capture_refusal();
		if (result != CUDA_SUCCESS)
			return result;
	}
	if (shares) {
		cl_lock(&cl_exports_lock);
		end = cl_own_pool_destroy(&cl_exporter.blocks.own_pools, (uint64_t)(uintptr_t)pool, &own);
		if (end == CL_OWN_POOL_LATER)
			begin_the_end_locked(own);
		cl_unlock(&cl_exports_lock);
	}
	/* unless the program has imported it again since, and has to end that */
	if (end == CL_OWN_POOL_AGAIN && !cl_pool_use_is_programs(pool))
		return CUDA_ERROR_INVALID_VALUE;
	if (end == CL_OWN_POOL_LATER)
		return CUDA_SUCCESS;
	result = shares ? cl_pool_end_programs(&cl_exporter, pool) : cl_driver.cuMemPoolDestroy(pool);
	if (own) {
		cl_lock(&cl_exports_lock);
		cl_own_pool_destroyed(&cl_exporter.blocks.own_pools, own, result == CUDA_SUCCESS);
		cl_unlock(&cl_exports_lock);
	}
	return result;
}
