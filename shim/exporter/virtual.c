/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory on the side of its exporter: see virtual.h. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "shim/base/clock.h"
#include "shim/base/hot.h"
#include "shim/base/log.h"
#include "shim/blocks/blocks.h"
#include "shim/diag/stack.h"
#include "shim/diag/trace.h"
#include "shim/descriptors/flight.h"
#include "shim/driver/devices.h"
#include "shim/driver/visit.h"
#include "shim/exporter/ranges.h"
#include "shim/exporter/service.h"
#include "shim/exporter/virtual.h"
#include "shim/exporter/virtual_own.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/exporter.h"
#include "shim/limbo/limbo.h"
#include "shim/self/self.h"
#include "shim/shm/virtual_handle.h"

uint64_t cl_virtual_batch_time = 20000000;
uint64_t cl_virtual_export_wait = 1000000000;
static pthread_cond_t exported = PTHREAD_COND_INITIALIZER; /* with cl_exports_lock */

/* ------------------------------------------------------------------- creation */
static bool can_be_shared(const CUmemAllocationProp *prop)
{
	return prop && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
	       prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE && !prop->win32HandleMetaData &&
	       !prop->allocFlags.compressionType && !prop->allocFlags.usage;
}

/* Drivers before 535 (CUDA 12.2) are said to become slow by memory with handle types (pytorch#130890). */
CL_HOT bool cl_virtual_is_slow_driver(void)
{
	static CL_HOT_DATA _Atomic int version;
	int is = atomic_load_explicit(&version, memory_order_relaxed);

	if (cl_shares_by_force())
		return false;
	if (!is) {
		if (!cl_driver.cuDriverGetVersion || cl_driver.cuDriverGetVersion(&is) != CUDA_SUCCESS)
			is = INT_MAX;
		atomic_store_explicit(&version, is, memory_order_relaxed);
		if (is < 12020)
			cl_log_once(CL_LOG_WARN,
				    "CULIMBO_SHARE=all: this driver is older than 535, and may become slow by memory "
				    "that can be shared: virtual memory stays as the program asks for it, and is shared "
				    "only if it has a handle type; memory of cudaMallocAsync is not shared "
				    "(all,force shares them here, too)");
	}
	return is < 12020;
}

CL_HOT CUresult cl_virtual_make(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
			 unsigned long long flags)
{
	const unsigned int fd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, fabric = 8; /* no name before CUDA 12.3 */
	static _Atomic int asked_for = -1; /* the last device whose UUID was asked for: to compare it is cheaper */
	struct cl_physical what = { .size = size };
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	uint8_t uuid[CL_UUID];

	if (can_be_shared(prop)) {
		what.device = prop->location.id;
		what.asked = (unsigned int)prop->requestedHandleTypes;
		what.shareable = what.asked & fd;
		if ((!what.asked || what.asked == fabric) && !cl_virtual_is_slow_driver()) {
			CUmemAllocationProp more = *prop;

			more.requestedHandleTypes = (CUmemAllocationHandleType)(what.asked | fd);
			result = cl_driver.cuMemCreate(handle, size, &more, flags);
			what.added = what.shareable = result == CUDA_SUCCESS;
			if (result == CUDA_ERROR_OUT_OF_MEMORY)
				return result;
		}
	}
	if (!what.added)
		result = cl_driver.cuMemCreate(handle, size, prop, flags);
	if (result != CUDA_SUCCESS)
		return result;
	/* the service makes records of all that is mapped in a reservation, and can't ask the driver then */
	if (what.shareable && atomic_load_explicit(&asked_for, memory_order_relaxed) != what.device) {
		cl_device_uuid(what.device, uuid);
		atomic_store_explicit(&asked_for, what.device, memory_order_relaxed);
	}
	cl_lock(&cl_exports_lock);
	cl_physical_add_locked(*handle, &what);
	cl_unlock(&cl_exports_lock);
	return result;
}

/* -------------------------------------------------------------------- records */
static struct cl_virtual_handle handle_of(const struct cl_reserved *reserved, uint64_t offset)
{
	return (struct cl_virtual_handle){ .offset = offset,
					   .pid = (uint32_t)cl_self.pid,
					   .reservation = reserved->number,
					   .mark = CL_VIRTUAL_MARK,
					   .size = reserved->size };
}

/* Gives @range a block with a record, unless it has one.  Returns false if there is no record or no memory. */
static bool need_record_locked(struct cl_exporter *ex, const struct cl_reserved *reserved, struct cl_range *range,
			       uint32_t stack)
{
	struct cl_virtual_handle handle = handle_of(reserved, range->base - reserved->base);
	struct cl_export what = { .kind = CL_VIRTUAL, .base = range->base, .size = range->size,
				  .device = range->physical->device, .handle = (const uint8_t *)&handle,
				  .now = cl_now() };
	struct cl_block *block;
	uint32_t generation;

	if (range->block)
		return true;
	block = cl_block_prepare_locked(&ex->blocks, CL_VIRTUAL);
	if (!block)
		return false;
	block = cl_block_new(&ex->blocks, block, &what, &cl_context_unknown, stack, &generation);
	if (block->record == CL_NO_RECORD) {
		cl_limbo_forget_block_locked(ex, block);
		return false;
	}
	range->block = block;
	return true;
}

/* -------------------------------------------------- what the descriptor service asks */
/* The mappings of one reservation that a request asks for. */
struct asked {
	struct cl_reserved *reserved;
	size_t first, end; /* from index .first to below .end, those that can be shared */
};

/*
 * Finds the mappings that @request asks for.  Returns 0; -ESTALE if the generation that it names is over or
 * its mapping can't be shared any more; or -EINVAL if its offset is not the one of its record.
 */
static int find_asked_locked(struct cl_exporter *ex, const struct cl_request *request, struct asked *asked)
{
	const struct cl_block *block = cl_block_of_record(&ex->blocks, request->record);
	const struct cl_reserved *reserved;
	size_t i;

	if (!block || block->kind != CL_VIRTUAL || block->state != CL_BLOCK_LIVE ||
	    cl_life_generation(cl_record_life(ex->blocks.region, request->record)) != request->generation)
		return -ESTALE;
	reserved = asked->reserved = cl_reserved_at_locked(block->link.key);
	if (!reserved)
		return -ESTALE;
	if (request->offset && reserved->base + request->offset != block->link.key)
		return -EINVAL;
	i = asked->first = request->offset ? cl_range_from(reserved, block->link.key) : 0;
	asked->end = reserved->ranges;
	if (!request->offset)
		return 0;
	if (i == reserved->ranges || !cl_range_is_shareable(&reserved->range[i]))
		return -ESTALE;
	while (++i < reserved->ranges && cl_range_is_shareable(&reserved->range[i]) &&
	       reserved->range[i].base == cl_range_end(&reserved->range[i - 1]))
		;
	asked->end = i;
	return 0;
}

/* Returns true if what lies from @begin to @end lies in a range of @request.  *@run is where to look for the next one. */
static bool is_there(const struct cl_request *request, uint64_t begin, uint64_t end, uint32_t *run)
{
	while (*run < request->runs && request->run[*run].end <= begin)
		++*run;
	return *run < request->runs && request->run[*run].begin <= begin && end <= request->run[*run].end;
}

/*
 * Writes to @piece those mappings that the importer lacks, as many as it has asked for, and gives each a record.
 * Returns how many it wrote, or -ENOMEM.  *@total becomes the number of all pieces, those that have come included.
 */
static int take_pieces_locked(struct cl_exporter *ex, const struct asked *asked, const struct cl_request *request,
			      uint32_t stack, struct cl_piece *piece, uint32_t *total)
{
	int n = 0, most = request->most < CL_SERVE_BATCH ? (int)request->most : (int)CL_SERVE_BATCH;
	const uint64_t base = asked->reserved->base;
	uint32_t run = 0;

	*total = request->first;
	for (size_t i = asked->first; i < asked->end; i++) {
		struct cl_range *range = &asked->reserved->range[i];

		if (!cl_range_is_shareable(range) || cl_range_end(range) - base <= request->from ||
		    is_there(request, range->base - base, cl_range_end(range) - base, &run))
			continue;
		++*total;
		if (n == most || range->base - base >= request->until)
			continue;
		if (!need_record_locked(ex, asked->reserved, range, stack))
			return -ENOMEM;
		piece[n++] = (struct cl_piece){
			.offset = range->base - base,
			.size = range->size,
			.record = range->block->record,
			.generation = cl_life_generation(cl_record_life(ex->blocks.region, range->block->record)),
		};
	}
	return n;
}

/* @by 1: the driver will be asked for descriptors of these @n mappings, so an unmap waits.  @by -1: it was. */
static void count_exporting_locked(uint64_t base, const struct cl_piece *piece, int n, int by)
{
	for (int i = 0; i < n; i++) {
		struct cl_range *range = cl_range_at_locked(base + piece[i].offset);

		if (range && (by > 0 || range->exporting))
			range->exporting += (unsigned int)by;
	}
}

/* Has the driver make a descriptor of what is mapped at @address.  Returns 0, -ESTALE, -EMFILE or -EIO. */
static int make_descriptor(uint64_t address, int *fd)
{
	CUmemGenericAllocationHandle handle;
	CUresult result;

	result = cl_driver.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address);
	if (result != CUDA_SUCCESS)
		return -ESTALE;
	cl_flight_begin();
	result = cl_driver.cuMemExportToShareableHandle(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (result == CUDA_SUCCESS)
		*fd = cl_flight_enter(*fd);
	cl_flight_end();
	cl_driver.cuMemRelease(handle);
	if (result == CUDA_SUCCESS)
		return *fd < 0 ? *fd : 0;
	return cl_driver_no_descriptor(result);
}

/* Makes descriptors of @n pieces; of fewer if not so many may be in flight, time is over, or a later one fails.  Returns how many, or -errno. */
static int make_descriptors(uint64_t base, const struct cl_piece *piece, int n, int *fds)
{
	CL_CALLS_OF_OURS;
	uint64_t until = cl_now() + cl_virtual_batch_time;
	int err = 0, made = 0;

	n = (int)cl_flight_most((unsigned int)n);
	while (!err && made < n && (!made || cl_now() < until)) {
		err = make_descriptor(base + piece[made].offset, &fds[made]);
		made += !err;
	}
	return made ? made : err;
}

/* Answers a request for virtual memory: a cl_service_pieces. */
static int virtual_pieces(struct cl_exporter *ex, const struct cl_request *request, struct cl_piece *piece, int *fds,
			  uint32_t *total)
{
	struct asked asked;
	uint64_t base = 0;
	int n, made;

	cl_lock(&cl_exports_lock);
	n = find_asked_locked(ex, request, &asked);
	if (!n) {
		base = asked.reserved->base;
		n = take_pieces_locked(ex, &asked, request,
				       ex->blocks.region->record[request->record].export_stack, piece, total);
		count_exporting_locked(base, piece, n, 1);
	}
	cl_unlock(&cl_exports_lock);
	if (n <= 0)
		return n;
	made = make_descriptors(base, piece, n, fds);
	cl_lock(&cl_exports_lock);
	count_exporting_locked(base, piece, n, -1);
	pthread_cond_broadcast(&exported);
	cl_unlock(&cl_exports_lock);
	return made;
}

/* --------------------------------------------------------------------- exports */
/*
 * Finds what a handle of @dptr would name: a mapping, or with *@offset 0 and nothing mapped at @dptr a whole
 * reservation, of which *@range is the first mapping that can be shared.  Returns false if there is none; then
 * *@reserved is the reservation in which @dptr lies, or NULL.
 */
static bool find_shared_locked(uint64_t dptr, struct cl_reserved **reserved, struct cl_range **range, uint64_t *offset)
{
	struct cl_reserved *at = *reserved = cl_reserved_at_locked(dptr);
	size_t i = at ? cl_range_from(at, dptr) : 0;

	if (!at || i == at->ranges)
		return false;
	*range = &at->range[i];
	if ((*range)->base <= dptr && cl_range_is_shareable(*range)) {
		*offset = (*range)->base - at->base;
		return !(*offset >> CL_VIRTUAL_OFFSET_BITS);
	}
	*offset = 0;
	if (dptr != at->base)
		return false;
	while (i < at->ranges && !cl_range_is_shareable(&at->range[i]))
		i++;
	*range = &at->range[i];
	return i < at->ranges;
}

/* Exports @range, and writes its handle to *@handle.  Returns its record, or CL_NO_RECORD if there is none. */
static uint32_t share_locked(struct cl_exporter *ex, struct cl_reserved *reserved, struct cl_range *range,
			     uint64_t offset, uint32_t stack, uint64_t now, struct cl_virtual_handle *handle)
{
	uint32_t generation, record;
	bool again = range->block;

	if (!need_record_locked(ex, reserved, range, stack))
		return CL_NO_RECORD;
	record = range->block->record;
	if (again)
		generation = cl_record_export_again(ex->blocks.region, record, now);
	else
		generation = cl_life_generation(cl_record_life(ex->blocks.region, record));
	reserved->changes += reserved->changed;
	reserved->changed = false;
	*handle = handle_of(reserved, offset);
	handle->changes = reserved->changes;
	handle->stamp = cl_region_stamp(ex->blocks.region, record, generation);
	cl_count_locked(exports);
	cl_live_add_locked(ex->blocks.region, CL_LIVE_HANDLES, 1);
	cl_trace_block(CL_TRACE_EXPORTED, range->block, .generation = generation,
		       .value = ex->blocks.region->record[record].export_stack);
	return record;
}

bool cl_virtual_find(struct cl_exporter *ex, CUdeviceptr dptr, struct cl_virtual_found *found)
{
	struct cl_reserved *reserved;
	struct cl_range *range;
	uint64_t offset;
	bool known;

	found->record = CL_NO_RECORD;
	found->device = -1;
	cl_lock(&cl_exports_lock);
	known = find_shared_locked(dptr, &reserved, &range, &offset);
	if (known) {
		found->device = range->physical->device;
		if (range->block) {
			found->base = range->base;
			found->size = range->size;
			found->now = cl_now();
			found->record = share_locked(ex, reserved, range, offset, 0, found->now, &found->handle);
		}
	} else {
		known = reserved;
	}
	cl_unlock(&cl_exports_lock);
	return known;
}

/* Exports what lies at @dptr for the first time.  Returns its record, or CL_NO_RECORD if it has none. */
static __attribute__((noinline)) uint32_t share_first(struct cl_exporter *ex, CUdeviceptr dptr, int device,
						      struct cl_virtual_handle *handle)
{
	struct cl_reserved *reserved;
	struct cl_range *range;
	uint8_t uuid[CL_UUID];
	uint32_t stack, record = CL_NO_RECORD;
	uint64_t offset;

	/* the file's header has the UUID of the device: the driver is asked for it now, while no lock is held */
	cl_device_uuid(device, uuid);
	stack = cl_stack_write(false);
	cl_lock(&cl_exports_lock);
	if (find_shared_locked(dptr, &reserved, &range, &offset))
		record = share_locked(ex, reserved, range, offset, stack, cl_now(), handle);
	cl_unlock(&cl_exports_lock);
	return record;
}

bool cl_virtual_share_again(CUipcMemHandle *handle, CUdeviceptr dptr, const struct cl_virtual_found *found)
{
	CUdeviceptr base;
	size_t size;
	int legacy = 0; /* an int has room for what a driver may write there */

	if (found->record == CL_NO_RECORD || cl_driver.cuMemGetAddressRange_v2(&base, &size, dptr) != CUDA_SUCCESS ||
	    base != found->base || size != found->size ||
	    cl_driver.cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, dptr) !=
		    CUDA_SUCCESS ||
	    (legacy & 0xff) || !cl_service_need_again(found->record, CL_VIRTUAL, found->now))
		return false;
	memcpy(handle, &found->handle, sizeof found->handle);
	return true;
}

bool cl_virtual_share(struct cl_exporter *ex, CUipcMemHandle *handle, CUdeviceptr dptr, struct cl_virtual_found *found)
{
	if (found->record == CL_NO_RECORD && found->device >= 0)
		found->record = share_first(ex, dptr, found->device, &found->handle);
	if (found->record == CL_NO_RECORD || !cl_service_need(found->record, CL_VIRTUAL, virtual_pieces))
		return false;
	memcpy(handle, &found->handle, sizeof found->handle);
	return true;
}

/* ----------------------------------------------------------------------- unmap */
/* Returns true if some thread is having the driver make descriptors of mappings in this range. */
static bool is_exporting_locked(uint64_t address, uint64_t size)
{
	const struct cl_reserved *reserved = cl_reserved_at_locked(address);
	size_t first, n;
	bool whole;

	n = reserved ? cl_ranges_within(reserved, address, size, &first, &whole) : 0;
	for (size_t i = 0; i < n; i++)
		if (reserved->range[first + i].exporting)
			return true;
	return false;
}

/* Returns true if another process holds one of the mappings in this range. */
static bool is_held(struct cl_exporter *ex, uint64_t address, uint64_t size)
{
	const struct cl_reserved *reserved;
	size_t first, n;
	bool whole, held = false;

	cl_lock(&cl_exports_lock);
	reserved = cl_reserved_at_locked(address);
	n = reserved ? cl_ranges_within(reserved, address, size, &first, &whole) : 0;
	for (size_t i = 0; i < n && !held; i++) {
		const struct cl_block *block = reserved->range[first + i].block;

		held = block && cl_record_holders(ex->blocks.region, block->record, NULL, 0);
	}
	cl_unlock(&cl_exports_lock);
	return held;
}

/* The program unmaps @range, at @stack: ends its generation.  Returns true if its block is ORPHANED now. */
static bool end_range_locked(struct cl_exporter *ex, struct cl_range *range, uint32_t stack)
{
	struct cl_block *block = range->block;

	if (!block)
		return false;
	range->block = NULL;
	cl_record_unmapped(ex->blocks.region, block->record, cl_now(), stack);
	cl_still_unmapped_locked(ex, block, range->physical->number, stack);
	return cl_limbo_forget_block_locked(ex, block);
}

/*
 * Before the driver's unmap: from now on handles of the mappings in this range are neither made nor opened.
 * Waits up to cl_virtual_export_wait, without the lock, for threads that have descriptors of them made.  Returns true
 * if some block is ORPHANED now.
 */
static bool end_locked(struct cl_exporter *ex, uint64_t address, uint64_t size, uint32_t stack)
{
	struct cl_reserved *reserved = cl_reserved_at_locked(address);
	bool whole = false, exporting = false, orphaned = false;
	size_t first, n;

	n = reserved ? cl_ranges_within(reserved, address, size, &first, &whole) : 0;
	if (!whole) /* a mapping lies in this range in part, or there is a hole: the driver will refuse */
		return false;
	for (size_t i = 0; i < n; i++) {
		cl_range_set_ending_locked(reserved, &reserved->range[first + i], true);
		exporting |= reserved->range[first + i].exporting != 0;
	}
	if (exporting) {
		struct timespec until = cl_after(cl_virtual_export_wait);

		while (is_exporting_locked(address, size) && cl_lock_wait_until(&exported, &cl_exports_lock, &until))
			;
		reserved = cl_reserved_at_locked(address);
		n = reserved ? cl_ranges_within(reserved, address, size, &first, &whole) : 0;
	}
	for (size_t i = 0; i < n; i++)
		orphaned |= end_range_locked(ex, &reserved->range[first + i], stack);
	cl_virtual_own_end_locked(address, size);
	return orphaned;
}

/*
 * After the driver's unmap: removes the mappings in this range, or, if the driver has refused, lets them be
 * shared again.  Returns true if some block is ORPHANED now.
 */
static bool ended_locked(struct cl_exporter *ex, uint64_t address, uint64_t size, uint32_t stack, bool unmapped)
{
	struct cl_reserved *reserved = cl_reserved_at_locked(address);
	bool whole, orphaned = false;
	size_t first, n;

	n = reserved ? cl_ranges_within(reserved, address, size, &first, &whole) : 0;
	for (size_t i = n; i-- > 0;) {
		struct cl_range *range = &reserved->range[first + i];

		cl_range_set_ending_locked(reserved, range, false);
		if (!unmapped)
			continue;
		orphaned |= end_range_locked(ex, range, stack);
		cl_range_remove_locked(reserved, first + i);
	}
	/* another thread may have shared it meanwhile, and this process opened it: those opens end, too */
	if (unmapped)
		cl_virtual_own_end_locked(address, size);
	return orphaned;
}

/* As ended_locked(), for a mapping that another thread has touched while the driver was asked to unmap it. */
static __attribute__((noinline)) void ended_beside_others(struct cl_exporter *ex, uint64_t address, uint64_t size,
							  bool unmapped)
{
	bool orphaned;

	cl_lock(&cl_exports_lock);
	orphaned = ended_locked(ex, address, size, 0, unmapped);
	cl_unlock(&cl_exports_lock);
	cl_collector_watch_holders(ex, orphaned);
}

CL_HOT bool cl_virtual_unmap_unshared(struct cl_exporter *ex, CUdeviceptr dptr, size_t size, CUresult *result)
{
	struct cl_reserved *reserved;
	struct cl_range *range;
	bool alone;
	size_t i;

	cl_lock(&cl_exports_lock);
	range = cl_range_alone_locked(dptr, size, &reserved, &i);
	alone = range;
	if (alone)
		cl_range_set_ending_locked(reserved, range, true);
	cl_unlock(&cl_exports_lock);
	if (!alone)
		return false;
	*result = cl_driver.cuMemUnmap(dptr, size);
	cl_lock(&cl_exports_lock);
	range = cl_range_alone_locked(dptr, size, &reserved, &i);
	alone = range;
	if (alone && *result == CUDA_SUCCESS)
		cl_range_remove_locked(reserved, i);
	else if (alone)
		cl_range_set_ending_locked(reserved, range, false);
	cl_unlock(&cl_exports_lock);
	if (!alone)
		ended_beside_others(ex, dptr, size, *result == CUDA_SUCCESS);
	return true;
}

CUresult cl_virtual_unmap_shared(struct cl_exporter *ex, CUdeviceptr dptr, size_t size)
{
	/* acquire: our file is there; without one nothing was shared */
	bool shares = atomic_load_explicit(ex->file_id, memory_order_acquire) != 0;
	uint32_t stack = shares && is_held(ex, dptr, size) ? cl_stack_write(false) : 0;
	bool orphaned;
	CUresult result;

	cl_lock(&cl_exports_lock);
	orphaned = end_locked(ex, dptr, size, stack);
	cl_unlock(&cl_exports_lock);
	result = cl_driver.cuMemUnmap(dptr, size);
	cl_lock(&cl_exports_lock);
	orphaned |= ended_locked(ex, dptr, size, stack, result == CUDA_SUCCESS);
	cl_unlock(&cl_exports_lock);
	cl_collector_watch_holders(ex, orphaned);
	return result;
}

void cl_virtual_forget(void)
{
	cl_ranges_forget();
	cl_virtual_own_forget();
	exported = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}
