/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what is shared by descriptors: see by_descriptor.h. */
#include "shim/base/hot.h"
#include "shim/by_descriptor.h"
#include "shim/diag/happened.h"
#include "shim/diag/report_data.h"
#include "shim/door.h"
#include "shim/driver/driver.h"

/* ------------------------------------------------------------ what was created */
/*
 * The sizes of allocations that can be shared, by handle: no call of the driver tells the size of one.
 * An allocation is never taken out, since its handle may outlive its release; a later one with the same
 * handle, or one that needs the place, takes its place.  Then an export counts without bytes.
 */
enum { CREATED = 4096, NEAR = 8 };
static struct {
	_Atomic uint64_t handle, size;
} created[CREATED];

static unsigned int place_of(uint64_t handle)
{
	return (unsigned int)(cl_mix(handle) % (CREATED - NEAR));
}

void cl_descriptor_created(CUmemGenericAllocationHandle handle, size_t size)
{
	unsigned int first = place_of(handle), at = first + (unsigned int)(handle >> 4) % NEAR;

	for (unsigned int i = first; i < first + NEAR; i++) {
		uint64_t its = atomic_load_explicit(&created[i].handle, memory_order_relaxed);

		if (its == handle || !its) {
			at = i;
			break;
		}
	}
	/*
	 * release, two times: a thread that finds @handle reads the size stored before it, or the size of a
	 * newer handle in the same place
	 */
	atomic_store_explicit(&created[at].handle, 0, memory_order_release);
	atomic_store_explicit(&created[at].size, size, memory_order_release);
	atomic_store_explicit(&created[at].handle, handle, memory_order_release);
}

/* Returns 0 if the size of @handle is not known. */
static uint64_t size_of(CUmemGenericAllocationHandle handle)
{
	unsigned int first = place_of(handle);

	for (unsigned int i = first; i < first + NEAR; i++)
		if (atomic_load_explicit(&created[i].handle, memory_order_acquire) == handle)
			return atomic_load_explicit(&created[i].size, memory_order_relaxed);
	return 0;
}

/* -------------------------------------------------------------- what is imported */
/* Imports that are not mapped yet, in a ring: if there are more, the bytes of the oldest are never counted. */
enum { WAITING = 1024 };
static struct waiting {
	CUmemGenericAllocationHandle handle; /* 0: none */
	pid_t pid; /* the importer: a forked child has its parent's entries, and not the file of their stacks */
	uint32_t stack;
	uint8_t device, call;
} waiting[WAITING];
static unsigned int waiting_at; /* all under cl_exports_lock */
CL_HOT_DATA atomic_uint cl_descriptors_waiting;

static void wait_for_map(CUmemGenericAllocationHandle handle, const struct cl_about *about, uint32_t stack)
{
	struct waiting *w;

	cl_lock(&cl_exports_lock);
	w = &waiting[waiting_at++ % WAITING];
	if (!w->handle)
		atomic_fetch_add_explicit(&cl_descriptors_waiting, 1, memory_order_relaxed);
	*w = (struct waiting){ handle, cl_self.pid, stack, about->device, about->call };
	cl_unlock(&cl_exports_lock);
}

void cl_descriptor_mapped(CUmemGenericAllocationHandle handle, size_t size)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	struct cl_about about = { .kind = CL_MEMORY, .made = CL_MADE_VIRTUAL, .more = true, .size = size };
	struct waiting *found = NULL;
	uint32_t stack;

	if (!shares)
		return;
	cl_lock(&cl_exports_lock);
	/* searches the newest first: a driver may use an old handle's number again */
	for (unsigned int back = 1; back <= WAITING && !found; back++) {
		struct waiting *w = &waiting[(waiting_at - back) % WAITING];

		if (w->handle == handle)
			found = w;
	}
	if (found) {
		about.device = found->device;
		about.call = found->call;
		stack = found->stack;
		found->handle = 0;
		atomic_fetch_sub_explicit(&cl_descriptors_waiting, 1, memory_order_relaxed);
		if (found->pid == cl_self.pid)
			cl_happened_locked(CL_FINDING_DESCRIPTOR, &about, stack);
	}
	cl_unlock(&cl_exports_lock);
}

/* --------------------------------------------------------------------- both sides */
static bool is_of_pool(enum cl_call call)
{
	return call >= CL_CALL_POOL_EXPORT;
}

/* Returns the device that the driver says @handle is on, CL_NO_DEVICE if that is none or not known. */
static uint8_t device_of(CUmemGenericAllocationHandle handle)
{
	CUmemAllocationProp prop = { .location.type = CU_MEM_LOCATION_TYPE_INVALID };

	if (!cl_driver.cuMemGetAllocationPropertiesFromHandle ||
	    cl_driver.cuMemGetAllocationPropertiesFromHandle(&prop, handle) != CUDA_SUCCESS ||
	    prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop.location.id < 0 ||
	    prop.location.id >= CL_NO_DEVICE)
		return CL_NO_DEVICE;
	return (uint8_t)prop.location.id;
}

void cl_descriptor_note(enum cl_call call, CUmemGenericAllocationHandle handle)
{
	CL_DOOR(shares, CL_DOOR_TO_SHARE);
	struct cl_about about = { .kind = CL_MEMORY, .call = (uint8_t)call };
	uint32_t stack;

	if (!shares)
		return;
	/* no driver says which device a pool is on, or how much memory it has left */
	about.made = is_of_pool(call) ? CL_MADE_POOL : CL_MADE_VIRTUAL;
	about.device = is_of_pool(call) ? CL_NO_DEVICE : device_of(handle);
	if (call == CL_CALL_EXPORT || call == CL_CALL_EXPORT_FABRIC)
		about.size = size_of(handle);
	stack = cl_stack_write(true);
	cl_happened(CL_FINDING_DESCRIPTOR, &about, stack);
	if (call == CL_CALL_IMPORT || call == CL_CALL_IMPORT_FABRIC)
		wait_for_map(handle, &about, stack);
}
