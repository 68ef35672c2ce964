/* SPDX-License-Identifier: Apache-2.0 */
/* The front door for virtual memory: see virtual.h, and shim.c for the rest. */
#include <errno.h>
#include <string.h>

#include "shim/base/hot.h"
#include "shim/base/options.h"
#include "shim/door.h"
#include "shim/driver/context.h"
#include "shim/driver/made.h"
#include "shim/driver/visit.h"
#include "shim/exporter/async.h"
#include "shim/exporter/ranges.h"
#include "shim/exporter/virtual.h"
#include "shim/exporter/virtual_own.h"
#include "shim/importer/close.h"
#include "shim/importer/mappings.h"
#include "shim/importer/open.h"
#include "shim/importer/virtual.h"
#include "shim/limbo/exporter.h"
#include "shim/limbo/pool_opens.h"
#include "shim/refused.h"
#include "shim/self/self.h"
#include "shim/virtual.h"

/* CUDA 11.3's headers have no names for them. */
enum {
	CL_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
	CL_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,
	CL_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19,
};

/* ---------------------------------------------------------------- what lies where */
static inline __attribute__((always_inline)) CUresult
create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	return cl_virtual_is_on() ? cl_virtual_make(handle, size, prop, flags) :
				    cl_driver.cuMemCreate(handle, size, prop, flags);
}

static __attribute__((noinline)) CUresult create_carefully(CUmemGenericAllocationHandle *handle, size_t size,
							   const CUmemAllocationProp *prop, unsigned long long flags)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);

	return create(handle, size, prop, flags);
}

CL_HOT CUresult cl_virtual_create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
			   unsigned long long flags)
{
	CL_DOOR_FAST_OF_ALL(passes);

	return passes ? create(handle, size, prop, flags) : create_carefully(handle, size, prop, flags);
}

static inline __attribute__((always_inline)) CUresult release(CUmemGenericAllocationHandle handle)
{
	struct cl_physical *physical;
	CUresult result;
	bool last;

	cl_lock(&cl_exports_lock);
	physical = cl_physical_release_locked(handle, &last);
	cl_unlock(&cl_exports_lock);
	result = cl_driver.cuMemRelease(handle);
	if (physical && last && result == CUDA_SUCCESS) {
		cl_physical_free(physical);
	} else if (physical) {
		cl_lock(&cl_exports_lock);
		cl_physical_released_locked(physical, result == CUDA_SUCCESS);
		cl_unlock(&cl_exports_lock);
	}
	return result;
}

static __attribute__((noinline)) CUresult release_carefully(CUmemGenericAllocationHandle handle)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);

	return release(handle);
}

CL_HOT CUresult cl_virtual_release(CUmemGenericAllocationHandle handle)
{
	CL_DOOR_FAST_OF_ALL(passes);

	return passes ? release(handle) : release_carefully(handle);
}

static __attribute__((noinline)) CUresult unmap_carefully(CUdeviceptr dptr, size_t size)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);

	return cl_virtual_unmap_shared(&cl_exporter, dptr, size);
}

CL_HOT CUresult cl_virtual_unmap_now(CUdeviceptr dptr, size_t size)
{
	/* if the thread ended in the driver's call, the mapping would stay in the table, and its reservation with it */
	CL_DOOR_FAST_UNCANCELLED(passes);
	CUresult result;

	return passes && cl_virtual_unmap_unshared(&cl_exporter, dptr, size, &result) ? result : unmap_carefully(dptr, size);
}

CUresult cl_virtual_address_free(CUdeviceptr dptr, size_t size)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	struct cl_reserved *reserved;
	CUresult result;

	cl_lock(&cl_exports_lock);
	reserved = cl_reserved_take_locked(dptr, size);
	cl_unlock(&cl_exports_lock);
	result = cl_driver.cuMemAddressFree(dptr, size);
	if (!reserved)
		return result;
	if (result == CUDA_SUCCESS) {
		cl_reserved_free(reserved);
		return result;
	}
	cl_lock(&cl_exports_lock);
	cl_reserved_put_back_locked(reserved);
	cl_unlock(&cl_exports_lock);
	return result;
}

void cl_virtual_reserved(CUdeviceptr dptr, size_t size)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);

	cl_lock(&cl_exports_lock);
	cl_reserved_add_locked(dptr, size);
	cl_unlock(&cl_exports_lock);
}

void cl_virtual_retained(CUmemGenericAllocationHandle handle, CUdeviceptr dptr)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);

	cl_lock(&cl_exports_lock);
	cl_physical_retained_locked(handle, dptr);
	cl_unlock(&cl_exports_lock);
}

static __attribute__((noinline)) void mapped_carefully(CUdeviceptr dptr, size_t size, size_t offset,
						       CUmemGenericAllocationHandle handle)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	const struct cl_range *range;

	cl_lock(&cl_exports_lock);
	cl_range_add_locked(dptr, size, offset, handle);
	if (cl_exporter.still_mapped.entries.n) {
		range = cl_range_at_locked(dptr);
		cl_still_mapped_anew_locked(&cl_exporter, dptr, size,
					    range && range->physical ? range->physical->number : 0);
	}
	cl_unlock(&cl_exports_lock);
}

CL_HOT void cl_virtual_mapped(CUdeviceptr dptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle)
{
	CL_DOOR_FAST_OF_ALL(passes);

	if (passes) {
		cl_lock(&cl_exports_lock);
		/* if there are entries, it is asked which processes live.  That reads files, where threads are cancelled */
		passes = !cl_exporter.still_mapped.entries.n;
		if (passes)
			cl_range_add_locked(dptr, size, offset, handle);
		cl_unlock(&cl_exports_lock);
	}
	if (!passes)
		mapped_carefully(dptr, size, offset, handle);
}

/* ------------------------------------------------------------- what programs ask */
static bool is_hidden(const struct cl_physical *physical)
{
	return physical && physical->added && !cl_shares_visibly();
}

void cl_virtual_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	const struct cl_physical *physical;

	cl_lock(&cl_exports_lock);
	physical = cl_physical_find_locked(handle);
	if (is_hidden(physical))
		prop->requestedHandleTypes = (CUmemAllocationHandleType)physical->asked;
	cl_unlock(&cl_exports_lock);
}

bool cl_virtual_is_hidden(CUmemGenericAllocationHandle handle)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	bool hidden;

	cl_lock(&cl_exports_lock);
	hidden = is_hidden(cl_physical_find_locked(handle));
	cl_unlock(&cl_exports_lock);
	return hidden;
}

/* @result: the driver's answer to a query.  Returns false if the driver has another reason than a hole to refuse it. */
static bool may_be_a_hole(CUresult result)
{
	return result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_FOUND;
}

/*
 * Writes to @data what the program would read of an import that the driver itself had opened (doc/measurements.md has
 * the answers for one of 4 MiB).  Returns false if that is the driver's own answer.
 */
static bool import_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr base, uint64_t size,
			     CUcontext context)
{
	const unsigned long long none = 0;
	const CUmemoryPool no_pool = NULL;
	const bool no = false;

	switch ((int)attribute) {
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CL_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		memcpy(data, &base, sizeof base);
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case CL_POINTER_ATTRIBUTE_MAPPING_SIZE:
		memcpy(data, &size, sizeof size);
		break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		/* an import has no handle of its own */
		memcpy(data, &no, sizeof no);
		break;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		memcpy(data, &none, sizeof none);
		break;
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		memcpy(data, &context, sizeof context);
		break;
	case CL_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		memcpy(data, &no_pool, sizeof no_pool);
		break;
	default:
		return false;
	}
	return true;
}

/*
 * Nothing is mapped at @dptr in an import, and the next of its memory is at @mapped.  Of a legacy import the driver says
 * the same at each address, so it is asked about that.
 */
static CUresult hole_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr dptr, CUdeviceptr mapped)
{
	CUresult result = cl_driver.cuPointerGetAttribute(data, attribute, mapped);

	if (result == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
		memcpy(data, &dptr, sizeof dptr);
	return result;
}

/*
 * The driver has answered in @data about memory of the program.  If that is of a pool, puts the stand-in in the place
 * of a default pool and, with all,visible, says that the memory has legacy handles.
 */
static void own_pool_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr dptr)
{
	const bool yes = true;
	unsigned long long types;
	CUmemoryPool pool;

	if ((int)attribute == CL_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) {
		memcpy(&pool, data, sizeof pool);
		pool = cl_async_shown(pool);
		memcpy(data, &pool, sizeof pool);
	} else if (attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) {
		memcpy(&types, data, sizeof types);
		pool = types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? cl_pool_of_memory(dptr) : NULL;
		if (pool && cl_async_as_asked(pool) != pool) {
			types &= ~(unsigned long long)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
			memcpy(data, &types, sizeof types);
		}
	} else if (attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE &&
		   cl_shares_visibly() && cl_async_is_shareable(cl_pool_of_memory(dptr))) {
		memcpy(data, &yes, sizeof yes);
	}
}

CUresult cl_virtual_address_range(CUdeviceptr *base, size_t *size, CUdeviceptr dptr, CUresult result)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	CUdeviceptr its_base;
	uint64_t its_size;

	if (!may_be_a_hole(result) || !cl_mirror_find(dptr, &its_base, &its_size, NULL))
		return result;
	if (base)
		*base = its_base;
	if (size)
		*size = its_size;
	return CUDA_SUCCESS;
}

CUresult cl_virtual_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr dptr, CUresult result)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	const bool types = attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES;
	/* UCX 1.22 asks for a legacy handle only where it reads this (measured) */
	const bool legacy = attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE &&
			    cl_shares_visibly();
	const bool yes = true;
	const struct cl_range *range;
	unsigned long long asked;
	CUcontext context;
	CUdeviceptr base, mapped;
	uint64_t size;
	size_t bytes;

	if (data && may_be_a_hole(result) && cl_mirrors_any() && cl_mirror_find(dptr, &base, &size, &mapped)) {
		if (import_attribute(data, attribute, base, size, cl_mapping_context(CL_VIRTUAL, base)))
			return CUDA_SUCCESS;
		if (mapped != dptr)
			return hole_attribute(data, attribute, dptr, mapped);
	}
	if (result != CUDA_SUCCESS)
		return result;
	if (cl_pool_opens_any() && cl_pool_open_find(dptr, &base, &bytes, &context) &&
	    import_attribute(data, attribute, base, bytes, context))
		return result;
	if (cl_shares_all())
		own_pool_attribute(data, attribute, dptr);
	if (!types && !legacy)
		return result;
	cl_lock(&cl_exports_lock);
	range = cl_range_at_locked(dptr);
	if (range && types && is_hidden(range->physical)) {
		asked = range->physical->asked;
		memcpy(data, &asked, sizeof asked);
	} else if (range && legacy && cl_range_is_shareable(range)) {
		memcpy(data, &yes, sizeof yes);
	}
	cl_unlock(&cl_exports_lock);
	return result;
}

CUresult cl_virtual_attributes(unsigned int n, CUpointer_attribute *attributes, void **data, CUdeviceptr dptr,
			       CUresult result)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	CUdeviceptr base, mapped;
	uint64_t size;

	/* in a hole the driver knows nothing, and may say so for all of them */
	if (n && attributes && data && may_be_a_hole(result) && cl_mirrors_any() &&
	    cl_mirror_find(dptr, &base, &size, &mapped) && mapped != dptr)
		result = cl_driver.cuPointerGetAttributes(n, attributes, data, mapped);
	if (result == CUDA_SUCCESS)
		for (unsigned int i = 0; i < n; i++)
			cl_virtual_attribute(data[i], attributes[i], dptr, result);
	return result;
}

static void give_up(struct cl_imported_pool *pool)
{
	cl_pool_open_gives_up(&cl_exporter, pool);
}

void cl_virtual_peer_enabled(CUcontext peer)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	CUdevice device, of = -1;
	struct cl_stay stay;

	if (cl_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS)
		return;
	if (cl_stay_begin(&stay, peer, CL_STAY_AS_PROGRAM) == CUDA_SUCCESS && cl_driver.cuCtxGetDevice(&of) != CUDA_SUCCESS)
		of = -1;
	cl_stay_end(&stay);
	if (of < 0)
		return;
	cl_virtual_peer(of, device);
	/* whatever is open by now: another thread may be about to open its first block */
	cl_imported_pools_add_device(of, device, give_up);
}

/* ---------------------------------------------------------------- opens and closes */
/* Opens a handle that this process has made itself.  Returns what the program gets. */
static CUresult open_own(const struct cl_resolved *resolved, CUdeviceptr *dptr)
{
	int err = cl_virtual_own_open(&cl_exporter, resolved->stamp, resolved->handle, dptr);

	/* the handle is good, so a want of memory must not be reported as a stale one */
	if (err == -ENOMEM)
		return cl_virtual_say((uint32_t)cl_self.pid, err);
	return err ? cl_open_refuse(resolved, CL_VIRTUAL) : CUDA_SUCCESS;
}

/*
 * The driver still tells the device of a context that has ended, but makes no event in it: so an event is tried.  If
 * there is no event to be had at all, that says nothing about the context: then a query does.
 */
CUresult cl_virtual_current_device(CUdevice *device)
{
	CUresult result = cl_driver.cuCtxGetDevice(device);
	CUevent event;

	if (result != CUDA_SUCCESS)
		return result;
	result = cl_driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
	if (result == CUDA_SUCCESS) {
		cl_driver.cuEventDestroy_v2(event);
	} else if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		result = cl_context_refusal();
		/* what a context that lives says of an unknown address */
		if (result == CUDA_ERROR_INVALID_VALUE)
			result = CUDA_SUCCESS;
	}
	return result;
}

CUresult cl_virtual_import(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags,
			   CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int))
{
	struct cl_virtual_handle made;
	struct cl_resolved resolved;
	struct cl_opening o;
	CUdeviceptr address = 0;
	CUdevice device;
	CUresult result;

	if (cl_open_has_wrong_arguments(dptr, flags)) {
		memcpy(&made, &handle, sizeof made);
		cl_refused_open_of_ours(CL_MADE_VIRTUAL, made.pid, 0, CUDA_ERROR_INVALID_VALUE, CL_WHY_ARGUMENTS);
		return CUDA_ERROR_INVALID_VALUE;
	}
	result = cl_virtual_current_device(&device);
	if (result != CUDA_SUCCESS)
		return result;
	cl_look_up(&resolved, &handle, CL_VIRTUAL);
	if (resolved.own)
		return open_own(&resolved, dptr);
	result = cl_open_begin(&o, &resolved, CL_VIRTUAL);
	if (result != CUDA_SUCCESS)
		return result;
	/* the exporter's file is not here, so nobody can be asked; the driver refuses the handle in its own way */
	if (!o.hold) {
		result = open(dptr, handle, flags);
		if (o.stale)
			cl_open_tell_stale(&resolved, CL_VIRTUAL, result == CUDA_SUCCESS ? *dptr : 0, result);
		else
			cl_refused_open_of_ours(CL_MADE_VIRTUAL, resolved.pid, 0, result, CL_WHY_RESULT_ALONE);
		return result;
	}
	result = cl_virtual_map(&resolved, device, &address);
	if (result == CUDA_SUCCESS) {
		if (cl_open_end(&o, &resolved, CL_VIRTUAL, address)) {
			*dptr = address;
			return result;
		}
		cl_virtual_unmap(address, &result);
		result = CUDA_ERROR_INVALID_HANDLE;
	}
	if (result == CUDA_ERROR_INVALID_HANDLE)
		result = cl_open_refuse(&resolved, CL_VIRTUAL);
	else
		cl_refused_open_of_ours(CL_MADE_VIRTUAL, resolved.pid,
					o.hold->peer->region.record[cl_hold_record(o.hold)].size, result, CL_WHY_RESULT_ALONE);
	cl_open_give_up(&o);
	return result;
}

/* For cl_close_begin(): no mapping of virtual memory is this process's own.  Those are in the exporter's table. */
static bool is_own(enum cl_kind kind, uint64_t key)
{
	(void)kind, (void)key;
	return false;
}

bool cl_virtual_is_open_locked(CUdeviceptr dptr)
{
	return (cl_shares_all() && cl_virtual_own_is_open(dptr)) || cl_mapping_find_locked(CL_VIRTUAL, dptr);
}

bool cl_virtual_close(CUdeviceptr dptr, CUresult *result)
{
	struct cl_mapping *mapping;
	CUdevice device;
	bool last, closed;

	if (cl_virtual_own_close(dptr)) {
		*result = CUDA_SUCCESS;
		return true;
	}
	if (!cl_mirrors_any())
		return false;
	mapping = cl_close_begin(CL_VIRTUAL, dptr, is_own, &last);
	*result = cl_virtual_current_device(&device);
	closed = *result == CUDA_SUCCESS && cl_virtual_unmap(dptr, result);
	if (mapping)
		cl_close_end(CL_VIRTUAL, mapping, closed, last);
	return mapping || closed;
}
