/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The actor: virtual memory.
 */
#include "actor.h"
#include "tests/e2e/descriptors.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

/* Virtual memory is made on the device of the current context, and is for that device. */
static int here(void)
{
	CUdevice device = 0;

	SURE(cu.cuCtxGetDevice(&device));
	return device;
}

void do_v_reserve(const struct wire_request *q)
{
	CUdeviceptr address = 0;

	TIMED(cu.cuMemAddressReserve(&address, q->a[0], 0, 0, 0));
	reply.v[0] = address;
}

void do_v_free(const struct wire_request *q)
{
	TIMED(cu.cuMemAddressFree(q->a[0], q->a[1]));
}

void do_v_create(const struct wire_request *q)
{
	CUmemAllocationProp property = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					 .requestedHandleTypes = (CUmemAllocationHandleType)q->a[1],
					 .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = here() } };
	CUmemGenericAllocationHandle handle = 0;

	TIMED(cu.cuMemCreate(&handle, q->a[0], &property, 0));
	reply.v[0] = handle;
}

void do_v_release(const struct wire_request *q)
{
	TIMED(cu.cuMemRelease(q->a[0]));
}

static CUresult map(CUdeviceptr address, size_t size, CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = here() },
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUresult result = cu.cuMemMap(address, size, 0, handle, 0);

	return result ? result : cu.cuMemSetAccess(address, size, &access, 1);
}

void do_v_map(const struct wire_request *q)
{
	TIMED(map(q->a[0], q->a[1], q->a[2]));
}

void do_v_unmap(const struct wire_request *q)
{
	TIMED(cu.cuMemUnmap(q->a[0], q->a[1]));
}

/* What the program reads of an allocation: its properties, and the attributes of a pointer into it. */
void do_v_types(const struct wire_request *q)
{
	CUmemAllocationProp property = { .type = CU_MEM_ALLOCATION_TYPE_INVALID };
	CUmemGenericAllocationHandle again = 0;
	unsigned long long types = 99;
	bool legacy = false;

	if (!SURE(cu.cuMemGetAllocationPropertiesFromHandle(&property, q->a[0])) ||
	    !SURE(cu.cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, q->a[1])) ||
	    !SURE(cu.cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, q->a[1])) ||
	    !SURE(cu.cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)q->a[1])) ||
	    !SURE(cu.cuMemRelease(again)))
		return;
	reply.v[0] = property.requestedHandleTypes;
	reply.v[1] = types;
	reply.v[2] = legacy;
}

void do_v_export(const struct wire_request *q)
{
	int fd = -1;

	TIMED(cu.cuMemExportToShareableHandle(&fd, q->a[0], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	if (!reply.result)
		close(fd);
}

void do_v_range(const struct wire_request *q)
{
	CUdeviceptr base = 0;
	size_t size = 0;

	TIMED(cu.cuMemGetAddressRange_v2(&base, &size, q->a[0]));
	reply.v[0] = base;
	reply.v[1] = size;
	SURE(cu.cuPointerGetAttribute(&reply.v[2], CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, q->a[0]));
	SURE(cu.cuPointerGetAttribute(&reply.v[3], CU_POINTER_ATTRIBUTE_RANGE_SIZE, q->a[0]));
}

void do_v_ask(const struct wire_request *q)
{
	TIMED(cu.cuPointerGetAttribute(&reply.v[0], (CUpointer_attribute)q->a[1], q->a[0]));
}

void do_v_ask_two(const struct wire_request *q)
{
	CUpointer_attribute attributes[] = { (CUpointer_attribute)q->a[1], CU_POINTER_ATTRIBUTE_MEMORY_TYPE };
	void *values[] = { &reply.v[0], &reply.v[1] };

	TIMED(cu.cuPointerGetAttributes(2, attributes, values, q->a[0]));
}

void do_v_access(const struct wire_request *q)
{
	CUmemLocation location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)q->a[1] };
	unsigned long long flags = 99;

	TIMED(cu.cuMemGetAccess(&flags, &location, q->a[0]));
	reply.v[0] = flags;
}

void do_peer(const struct wire_request *q)
{
	CUcontext context;

	if (SURE(cu.cuDevicePrimaryCtxRetain(&context, (CUdevice)q->a[0])))
		TIMED(cu.cuCtxEnablePeerAccess(context, 0));
}

/* Allocations that v_exportable has made, for v_give. */
static CUmemGenericAllocationHandle kept[1024];

/* Makes allocations side by side.  Keeps their handles if they are for descriptors. */
static void make_many(const struct wire_request *q, CUmemAllocationHandleType types)
{
	CUmemAllocationProp property = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					 .requestedHandleTypes = types,
					 .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = here() } };
	CUmemGenericAllocationHandle handle;

	for (uint64_t i = 0; i < q->a[1]; i++) {
		if (!SURE(cu.cuMemCreate(&handle, q->a[2], &property, 0)) ||
		    !SURE(map(q->a[0] + i * q->a[2], q->a[2], handle)) ||
		    !SURE(cu.cuMemsetD8_v2(q->a[0] + i * q->a[2], (unsigned char)(q->a[3] + i), 64)))
			return;
		if (types)
			kept[i] = handle;
		else if (!SURE(cu.cuMemRelease(handle)))
			return;
	}
}

void do_v_many(const struct wire_request *q)
{
	make_many(q, CU_MEM_HANDLE_TYPE_NONE);
}

void do_v_exportable(const struct wire_request *q)
{
	if (q->a[1] > sizeof kept / sizeof *kept)
		complain("more than there is room for");
	else
		make_many(q, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

#define PARTNER_MS 60000 /* for one message */

static bool partner_is_ready(short events)
{
	struct pollfd ready = { .fd = WIRE_PARTNER_FD, .events = events };

	return poll(&ready, 1, PARTNER_MS) == 1;
}

static bool send_some(const int *fd, unsigned int count)
{
	if (partner_is_ready(POLLOUT) && descriptors_send(WIRE_PARTNER_FD, fd, count))
		return true;
	complain("the partner takes no descriptors: %s", strerror(errno));
	return false;
}

static bool receive_some(int *fd, unsigned int count)
{
	if (partner_is_ready(POLLIN) && descriptors_receive(WIRE_PARTNER_FD, fd, count))
		return true;
	complain("the partner sends no %u descriptors", count);
	return false;
}

void do_v_give(const struct wire_request *q)
{
	const uint64_t n = q->a[0];

	for (uint64_t i = 0; i < n; i += DESCRIPTORS_AT_ONCE) {
		unsigned int count = descriptors_next(n, i), got = 0;
		bool right = true;
		int fd[DESCRIPTORS_AT_ONCE];

		for (; right && got < count; got += right)
			right = SURE(cu.cuMemExportToShareableHandle(&fd[got], kept[i + got],
								     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		right = right && send_some(fd, count);
		while (got)
			close(fd[--got]);
		if (!right)
			return;
	}
}

/* Maps what each of the descriptors is of at @address, side by side, and closes them all. */
static bool map_some(CUdeviceptr address, size_t bytes, const int *fd, unsigned int count)
{
	CUmemGenericAllocationHandle memory;
	bool right = true;

	for (unsigned int i = 0; i < count; i++) {
		right = right &&
			SURE(cu.cuMemImportFromShareableHandle(&memory, (void *)(intptr_t)fd[i],
							       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) &&
			SURE(cu.cuMemMap(address + i * bytes, bytes, 0, memory, 0)) &&
			SURE(cu.cuMemRelease(memory));
		close(fd[i]);
	}
	return right;
}

void do_v_take(const struct wire_request *q)
{
	const uint64_t n = q->a[0];
	const size_t bytes = q->a[1];
	CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = here() },
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUdeviceptr address = 0;
	int fd[DESCRIPTORS_AT_ONCE];

	if (!SURE(cu.cuMemAddressReserve(&address, n * bytes, 0, 0, 0)))
		return;
	for (uint64_t i = 0; i < n; i += DESCRIPTORS_AT_ONCE)
		if (!receive_some(fd, descriptors_next(n, i)) ||
		    !map_some(address + i * bytes, bytes, fd, descriptors_next(n, i)))
			return;
	SURE(cu.cuMemSetAccess(address, n * bytes, &access, 1));
	reply.v[0] = address;
}

void do_v_check_many(const struct wire_request *q)
{
	unsigned char byte[64];

	for (uint64_t i = 0; i < q->a[1]; i++) {
		if (!SURE(cu.cuMemcpyDtoH_v2(byte, q->a[0] + i * q->a[2], sizeof byte)))
			return;
		reply.v[0] += byte[0] != (unsigned char)(q->a[3] + i) || byte[63] != byte[0];
	}
}
