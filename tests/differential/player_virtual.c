/* SPDX-License-Identifier: Apache-2.0 */
/* A player's calls on virtual memory: see player.c. */
#include <stdio.h>
#include <string.h>

#include "tests/differential/play.h"

enum { SAMPLE = 1024, ALIGNMENT = 32 << 20 };

static CUdeviceptr region[V_REGIONS], import[V_IMPORTS];

static CUmemAllocationProp wanted(uint32_t types)
{
	return (CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .requestedHandleTypes = (CUmemAllocationHandleType)types,
				      .location.type = CU_MEM_LOCATION_TYPE_DEVICE };
}

static size_t granularity(uint32_t types)
{
	CUmemAllocationProp property = wanted(types);
	size_t bytes = 0;
	CUresult result = cu.cuMemGetAllocationGranularity(&bytes, &property, CU_MEM_ALLOC_GRANULARITY_MINIMUM);

	if (result)
		die("cuMemGetAllocationGranularity gave %d", (int)result);
	return bytes;
}

/* The bytes of a page: the driver's granularity of memory with a handle type or without one, whichever is larger. */
static size_t page(void)
{
	static size_t bytes;

	if (!bytes) {
		size_t without = granularity(0), with = granularity(1);

		bytes = with > without ? with : without;
	}
	return bytes;
}

static CUdeviceptr own(const struct order *o)
{
	return region[o->slot] + o->page * page() + o->offset;
}

static CUresult map(const struct order *o, struct answer *a)
{
	CUmemAllocationProp property = wanted(o->flags);
	CUmemAccessDesc access = { .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle memory = 0;
	CUresult result = cu.cuMemCreate(&memory, page(), &property, 0);
	int each[4] = { -1, -1, -1, -1 };

	if (result)
		return result;
	memset(&property, 0, sizeof property);
	each[0] = cu.cuMemGetAllocationPropertiesFromHandle(&property, memory);
	each[1] = result = cu.cuMemMap(own(o), page(), 0, memory, 0);
	if (!result)
		each[2] = result = cu.cuMemSetAccess(own(o), page(), &access, 1);
	/* all or nothing, for the model */
	if (each[2] > 0)
		each[3] = (int)cu.cuMemUnmap(own(o), page());
	snprintf(a->text, sizeof(a->text), "types=%d:%d map=%d access=%d unmap=%d release=%d", each[0],
		 (int)property.requestedHandleTypes, each[1], each[2], each[3], (int)cu.cuMemRelease(memory));
	return result;
}

/* The value of all bytes in the first and the last KiB of a page, or that they differ. */
static CUresult sample(CUdeviceptr from, struct answer *a)
{
	unsigned char bytes[2 * SAMPLE];
	CUresult result = cu.cuMemcpyDtoH_v2(bytes, from, SAMPLE);

	if (!result)
		result = cu.cuMemcpyDtoH_v2(bytes + SAMPLE, from + page() - SAMPLE, SAMPLE);
	if (result)
		return result;
	snprintf(a->text, sizeof(a->text), "bytes=%u", bytes[0]);
	for (unsigned int i = 1; i < 2 * SAMPLE; i++)
		if (bytes[i] != bytes[0])
			snprintf(a->text, sizeof(a->text), "bytes=mixed");
	return result;
}

/*
 * Prints how far the pointer is from the base.  Even bare, a GPU's driver may give a range that the pointer is not in,
 * and the distance then depends on the region's address (doc/measurements.md, fact 21).  For such a
 * range it prints "outside", or "outside(start)" if the base is the region's beginning.
 */
static CUresult query(const struct order *o, struct answer *a)
{
	CUdeviceptr p = own(o), base = 0, start = 0;
	char from_base[24] = "+0";
	size_t size = 0, range = 0;
	unsigned long long types = 99;
	unsigned char legacy = 99;
	CUresult result = cu.cuMemGetAddressRange_v2(&base, &size, p);
	int r[4];

	r[0] = cu.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p);
	r[1] = cu.cuPointerGetAttribute(&range, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p);
	r[2] = cu.cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p);
	r[3] = cu.cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p);
	if (!result && p - base < size)
		snprintf(from_base, sizeof(from_base), "+%llu", (unsigned long long)(p - base));
	else if (!result)
		snprintf(from_base, sizeof(from_base), base == region[o->slot] ? "outside(start)" : "outside");
	snprintf(a->text, sizeof(a->text), "%s/%zu start=%d:%d size=%d:%zu types=%d:%llu legacy=%d:%d", from_base, size,
		 r[0], r[0] ? 0 : start == region[o->slot], r[1], range, r[2], types, r[3], (int)legacy);
	return result;
}

static CUresult open_one(const struct order *o, struct answer *a)
{
	CUipcMemHandle handle;
	CUdeviceptr opened = 0, base = 0;
	size_t size = 0;
	CUresult result;

	memcpy(&handle, o->handle, sizeof(handle));
	result = cu.cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (result)
		return result;
	import[o->slot] = opened;
	memcpy(a->handle, &opened, sizeof(opened));
	/* an open of the process's own memory gives its own address, about which the driver is asked as ever */
	if (o->other)
		snprintf(a->text, sizeof(a->text), "own=%d", opened == region[o->flags] + o->page * page());
	else
		snprintf(a->text, sizeof(a->text), "known=%d",
			 !cu.cuMemGetAddressRange_v2(&base, &size, opened) && base == opened && size % page() == 0);
	return result;
}

CUresult virtual_call(const struct order *o, struct answer *a)
{
	CUipcMemHandle handle = { { 0 } };
	CUresult result;

	switch ((enum call)o->call) {
	case DO_V_RESERVE:
		return cu.cuMemAddressReserve(&region[o->slot], o->pages * page(), o->flags ? ALIGNMENT : 0, 0, 0);
	case DO_V_FREE:
		return cu.cuMemAddressFree(region[o->slot], o->pages * page());
	case DO_V_MAP:
		return map(o, a);
	case DO_V_UNMAP:
		return cu.cuMemUnmap(own(o), o->pages * page());
	case DO_V_FILL:
		result = cu.cuMemsetD8_v2(own(o), (unsigned char)o->flags, page());
		return result ? result : cu.cuStreamSynchronize(NULL);
	case DO_V_READ:
		return sample(own(o), a);
	case DO_V_QUERY:
		return query(o, a);
	case DO_V_EXPORT:
		result = cu.cuIpcGetMemHandle(&handle, own(o));
		memcpy(a->handle, &handle, sizeof(handle));
		return result;
	case DO_V_OPEN:
		return open_one(o, a);
	case DO_V_LOOK:
		return sample(import[o->slot] + o->page * page(), a);
	default:
		return cu.cuIpcCloseMemHandle(import[o->slot]);
	}
}
