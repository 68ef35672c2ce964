/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management: physical memory separate from its addresses, which
 * processes share by a descriptor or a fabric handle.
 *
 * What must hold:
 * - physical memory stays while a handle, a mapping or a descriptor of it exists in
 *   any process (fact 8);
 * - the descriptors are real: they can be sent, duplicated and taken by pidfd_getfd,
 *   and every copy counts;
 * - a fabric handle is 64 bytes that keep nothing: it can be imported while its exporter
 *   lives and has the memory (our choice).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

#define VMM_MAGIC UINT32_C(0x766d6d30)

/* The target of a CUmemGenericAllocationHandle. */
struct sim_vmm {
	uint32_t magic;
	uint32_t segment;
	unsigned int handles, mappings;
	int device;
	unsigned int types; /* what cuMemCreate() was asked for, of SIM_HANDLE_TYPES (fact 22) */
	struct sim_fabric_handle fabric; /* .id 0: it has none yet */
	struct sim_vmm *next;
};

static struct sim_vmm *all;

static struct sim_vmm *vmm_of(CUmemGenericAllocationHandle handle)
{
	for (struct sim_vmm *vmm = all; vmm; vmm = vmm->next)
		if ((CUmemGenericAllocationHandle)(uintptr_t)vmm == handle && vmm->handles)
			return vmm;
	return NULL;
}

static struct sim_vmm *vmm_new(uint32_t segment, unsigned int types)
{
	struct sim_vmm *vmm = calloc(1, sizeof(*vmm));

	if (!vmm)
		return NULL;
	vmm->magic = VMM_MAGIC;
	vmm->segment = segment;
	vmm->handles = 1;
	vmm->device = pool_reachable(pool_segment_device(segment));
	vmm->types = types;
	vmm->next = all;
	all = vmm;
	return vmm;
}

static void vmm_settle(struct sim_vmm *vmm)
{
	struct sim_vmm **at = &all;

	if (vmm->handles || vmm->mappings)
		return;
	while (*at != vmm)
		at = &(*at)->next;
	*at = vmm->next;
	pool_drop(vmm->segment);
	free(vmm);
}

/* Like sim_enter(), for calls that need no context. */
static CUresult enter(void)
{
	CUresult result = sim_ready();

	if (!result)
		pthread_mutex_lock(&sim.lock);
	return result;
}

static bool good_property(const CUmemAllocationProp *property)
{
	return property && property->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
	       property->location.type == CU_MEM_LOCATION_TYPE_DEVICE && property->location.id >= 0 &&
	       (unsigned int)property->location.id < pool_devices();
}

SIM_CALL(cuMemGetAllocationGranularity, (size_t *granularity, const CUmemAllocationProp *property,
					 CUmemAllocationGranularity_flags option))
{
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!granularity || !good_property(property))
		return CUDA_ERROR_INVALID_VALUE;
	*granularity = SIM_PAGE;
	return CUDA_SUCCESS;
}

/* Pools give back their cached memory first. */
static int take(unsigned int device, size_t size, uint32_t *segment)
{
	int error = pool_take(device, size, segment);

	if (!error)
		return 0;
	sim_memory_trim(NULL, 0);
	return pool_take(device, size, segment);
}

SIM_CALL(cuMemCreate, (CUmemGenericAllocationHandle *handle, size_t size,
		       const CUmemAllocationProp *property, unsigned long long flags))
{
	CUresult result = enter();
	struct sim_vmm *vmm;
	uint32_t segment;

	if (result)
		return result;
	if (!handle || !size || size % SIM_PAGE || flags || !good_property(property)) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else if (size > pool_memory() ||
		   take((unsigned int)property->location.id, size, &segment)) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		vmm = vmm_new(segment, (unsigned int)property->requestedHandleTypes & SIM_HANDLE_TYPES);
		if (vmm) {
			*handle = (CUmemGenericAllocationHandle)(uintptr_t)vmm;
		} else {
			pool_drop(segment);
			result = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	sim_leave();
	return result;
}

SIM_CALL(cuMemRelease, (CUmemGenericAllocationHandle handle))
{
	CUresult result = enter();
	struct sim_vmm *vmm;

	if (result)
		return result;
	vmm = vmm_of(handle);
	if (vmm) {
		vmm->handles--;
		vmm_settle(vmm);
	} else {
		result = CUDA_ERROR_INVALID_VALUE;
	}
	sim_leave();
	return result;
}

SIM_CALL(cuMemAddressReserve, (CUdeviceptr *dptr, size_t size, size_t alignment, CUdeviceptr wanted,
			       unsigned long long flags))
{
	CUresult result = enter();
	struct sim_region *region;
	uint64_t base;

	if (result)
		return result;
	if (!dptr || !size || size % SIM_PAGE || flags || (alignment & (alignment - 1))) {
		result = CUDA_ERROR_INVALID_VALUE;
		goto out;
	}
	base = sim_address_take(size / SIM_PAGE, alignment > SIM_PAGE ? alignment : SIM_PAGE);
	if (!base) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
		goto out;
	}
	region = sim_region_new(NULL, SIM_RESERVED, base, size / SIM_PAGE, 0);
	if (region) {
		*dptr = (CUdeviceptr)base;
	} else {
		sim_address_give(base, size / SIM_PAGE);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
out:
	sim_leave();
	return result;
}

SIM_CALL(cuMemAddressFree, (CUdeviceptr dptr, size_t size))
{
	CUresult result = enter();
	struct sim_region *region;

	if (result)
		return result;
	region = sim_region_at(dptr);
	if (!region || region->kind != SIM_RESERVED || region->base != dptr ||
	    region->pages * SIM_PAGE != size || region->maps)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		sim_region_free(region);
	sim_leave();
	return result;
}

SIM_CALL(cuMemMap, (CUdeviceptr dptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
		    unsigned long long flags))
{
	CUresult result = enter();
	struct sim_region *region;
	struct sim_vmm_map *map;
	struct sim_vmm *vmm;

	if (result)
		return result;
	region = sim_region_at(dptr);
	vmm = vmm_of(handle);
	result = CUDA_ERROR_INVALID_VALUE;
	if (!region || region->kind != SIM_RESERVED || !vmm || flags || !size || size % SIM_PAGE ||
	    offset % SIM_PAGE || dptr % SIM_PAGE ||
	    dptr + size > region->base + region->pages * SIM_PAGE ||
	    size > pool_segment_bytes(vmm->segment) ||
	    offset > pool_segment_bytes(vmm->segment) - size)
		goto out;
	for (map = region->maps; map; map = map->next)
		if (dptr < map->base + map->size && map->base < dptr + size)
			goto out;
	result = CUDA_ERROR_OUT_OF_MEMORY;
	map = calloc(1, sizeof(*map));
	if (!map)
		goto out;
	if (pool_map(vmm->segment, offset, size, (void *)(uintptr_t)dptr)) {
		sim_unmap(dptr, size);
		free(map);
		goto out;
	}
	*map = (struct sim_vmm_map){ region->maps, vmm, dptr, size, sim_next_id(), 0 };
	region->maps = map;
	vmm->mappings++;
	result = CUDA_SUCCESS;
out:
	sim_leave();
	return result;
}

SIM_CALL(cuMemUnmap, (CUdeviceptr dptr, size_t size))
{
	CUresult result = enter();
	struct sim_region *region;
	uint64_t end = dptr + size;
	size_t covered = 0;

	if (result)
		return result;
	region = sim_region_at(dptr);
	result = CUDA_ERROR_INVALID_VALUE;
	if (!region || region->kind != SIM_RESERVED || !size)
		goto out;
	/* The range must consist of whole mappings, without gaps. */
	for (struct sim_vmm_map *map = region->maps; map; map = map->next)
		if (map->base >= dptr && map->base + map->size <= end)
			covered += map->size;
	if (covered != size)
		goto out;
	for (struct sim_vmm_map **at = &region->maps; *at;) {
		struct sim_vmm_map *map = *at;

		if (map->base < dptr || map->base + map->size > end) {
			at = &map->next;
			continue;
		}
		*at = map->next;
		sim_unmap(map->base, map->size);
		map->vmm->mappings--;
		vmm_settle(map->vmm);
		free(map);
	}
	result = CUDA_SUCCESS;
out:
	sim_leave();
	return result;
}

static void set_access(uint64_t base, size_t size, const CUmemAccessDesc *access)
{
	struct sim_region *region = sim_region_at(base);
	uint64_t bit = UINT64_C(1) << (access->location.id & 63);

	for (struct sim_vmm_map *map = region ? region->maps : NULL; map; map = map->next)
		if (map->base < base + size && base < map->base + map->size)
			map->access = access->flags ? map->access | bit : map->access & ~bit;
}

SIM_CALL(cuMemSetAccess, (CUdeviceptr dptr, size_t size, const CUmemAccessDesc *access, size_t count))
{
	CUresult result = enter();

	if (result)
		return result;
	if (!access || !count || !size || !sim_device_range(dptr, size))
		result = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; !result && i < count; i++)
		result = sim_knows(&access[i].location) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	for (size_t i = 0; !result && i < count; i++)
		set_access(dptr, size, &access[i]);
	sim_leave();
	return result;
}

static unsigned long long access_of(uint64_t address, int device)
{
	const struct sim_region *region = sim_region_at(address);

	for (const struct sim_vmm_map *map = region ? region->maps : NULL; map; map = map->next)
		if (address >= map->base && address < map->base + map->size && !(map->access >> (device & 63) & 1))
			return CU_MEM_ACCESS_FLAGS_PROT_NONE;
	return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

SIM_CALL(cuMemGetAccess, (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr dptr))
{
	CUresult result = enter();

	if (result)
		return result;
	if (!flags || !location || !sim_device_range(dptr, 1))
		result = CUDA_ERROR_INVALID_VALUE;
	else if (!sim_knows(location))
		result = CUDA_ERROR_INVALID_DEVICE;
	else
		*flags = access_of(dptr, location->id);
	sim_leave();
	return result;
}

/* The first export in the process that made it names it for all; an import has the name by which it came. */
static void export_fabric(struct sim_vmm *vmm, void *shareable)
{
	if (!vmm->fabric.id) {
		vmm->fabric = (struct sim_fabric_handle){ SIM_FABRIC_SEGMENT, pool_client(), sim_next_id(),
							  pool_segment_bytes(vmm->segment) };
		pool_publish(vmm->segment, vmm->fabric.id, POOL_BY_FABRIC);
	}
	memset(shareable, 0, SIM_FABRIC_BYTES);
	memcpy(shareable, &vmm->fabric, sizeof(vmm->fabric));
}

/* Makes *@vmm of a segment that came from another process, or gives the segment back. */
static CUresult vmm_import(uint32_t segment, unsigned int types, struct sim_vmm **vmm)
{
	CUresult result = CUDA_ERROR_INVALID_DEVICE;

	*vmm = NULL;
	if (pool_reachable(pool_segment_device(segment)) >= 0) {
		*vmm = vmm_new(segment, types);
		result = *vmm ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!*vmm)
		pool_drop(segment);
	return result;
}

static CUresult import_fabric(CUmemGenericAllocationHandle *out, const void *shareable)
{
	struct sim_fabric_handle name;
	struct sim_vmm *vmm;
	uint32_t segment;
	CUresult result;

	memcpy(&name, shareable, sizeof(name));
	if (name.kind != SIM_FABRIC_SEGMENT ||
	    pool_open(name.client, name.id, name.bytes, POOL_BY_FABRIC, NULL, &segment))
		return CUDA_ERROR_INVALID_VALUE;
	result = vmm_import(segment, SIM_FABRIC, &vmm);
	if (result)
		return result;
	vmm->fabric = name;
	*out = (CUmemGenericAllocationHandle)(uintptr_t)vmm;
	return CUDA_SUCCESS;
}

SIM_CALL(cuMemExportToShareableHandle, (void *shareable, CUmemGenericAllocationHandle handle,
					CUmemAllocationHandleType type, unsigned long long flags))
{
	CUresult result = enter();
	struct sim_vmm *vmm;
	int fd;

	if (result)
		return result;
	vmm = vmm_of(handle);
	if (!shareable || !vmm || flags || !sim_is_handle_type(type) || !(vmm->types & (unsigned int)type)) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else if ((unsigned int)type == SIM_FABRIC) {
		export_fabric(vmm, shareable);
	} else {
		fd = pool_export_fd(vmm->segment, POOL_NAME_SEGMENT);
		if (fd >= 0)
			*(int *)shareable = fd;
		else
			result = CUDA_ERROR_OPERATING_SYSTEM;
	}
	sim_leave();
	return result;
}

SIM_CALL(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle *handle, void *shareable,
					  CUmemAllocationHandleType type))
{
	CUresult result = enter();
	struct sim_vmm *vmm;
	uint32_t segment;
	int error;

	if (result)
		return result;
	if (!handle || !sim_is_handle_type(type) || ((unsigned int)type == SIM_FABRIC && !shareable)) {
		result = CUDA_ERROR_INVALID_VALUE;
		goto out;
	}
	if ((unsigned int)type == SIM_FABRIC) {
		result = import_fabric(handle, shareable);
		goto out;
	}
	error = pool_import_fd((int)(intptr_t)shareable, &segment);
	if (error) {
		result = error == -ENOENT ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_INVALID_VALUE; /* fact 24 */
		goto out;
	}
	result = vmm_import(segment, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, &vmm);
	if (!result)
		*handle = (CUmemGenericAllocationHandle)(uintptr_t)vmm;
out:
	sim_leave();
	return result;
}

SIM_CALL(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp *property,
						  CUmemGenericAllocationHandle handle))
{
	CUresult result = enter();
	struct sim_vmm *vmm;

	if (result)
		return result;
	vmm = vmm_of(handle);
	if (!property || !vmm) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		memset(property, 0, sizeof(*property));
		property->type = CU_MEM_ALLOCATION_TYPE_PINNED;
		property->requestedHandleTypes = (CUmemAllocationHandleType)vmm->types;
		property->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		property->location.id = pool_told(vmm->device);
	}
	sim_leave();
	return result;
}

int sim_vmm_device(const struct sim_region *region, uint64_t address)
{
	for (struct sim_vmm_map *map = region->maps; map; map = map->next)
		if (address >= map->base && address < map->base + map->size)
			return map->vmm->device;
	return 0;
}

unsigned int sim_vmm_types(const struct sim_region *region, uint64_t address)
{
	for (struct sim_vmm_map *map = region->maps; map; map = map->next)
		if (address >= map->base && address < map->base + map->size)
			return map->vmm->types;
	return 0;
}

SIM_CALL(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle *handle, void *address))
{
	CUresult result = enter();
	struct sim_region *region;

	if (result)
		return result;
	result = CUDA_ERROR_INVALID_VALUE;
	region = sim_region_at((uint64_t)(uintptr_t)address);
	for (struct sim_vmm_map *map = region && handle ? region->maps : NULL; map; map = map->next) {
		if ((uintptr_t)address < map->base || (uintptr_t)address >= map->base + map->size)
			continue;
		map->vmm->handles++;
		*handle = (CUmemGenericAllocationHandle)(uintptr_t)map->vmm;
		result = CUDA_SUCCESS;
	}
	sim_leave();
	return result;
}
