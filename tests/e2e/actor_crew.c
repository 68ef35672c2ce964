/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The actor: several threads that share blocks with a partner or open the partner's.
 */
#include "actor.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define PARTNER_MS 20000       /* time limit for a message from the partner */

struct crew {
	uint64_t rounds, bytes, number;
	CUmemoryPool pool; /* NULL: blocks of cuMemAlloc, shared by handles */
	atomic_uint_fast64_t *messages, *refused, *foreign;
	atomic_int *error; /* the first driver error */
	const char *_Atomic *where;
};

static void note(struct crew *crew, CUresult result, const char *where)
{
	int none = 0;

	if (result && atomic_compare_exchange_strong(crew->error, &none, (int)result))
		atomic_store(crew->where, where);
}

static bool send_gift(const struct wire_gift *gift)
{
	struct pollfd ready = { .fd = WIRE_PARTNER_FD, .events = POLLOUT };

	return poll(&ready, 1, PARTNER_MS) == 1 &&
	       send(WIRE_PARTNER_FD, gift, sizeof(*gift), MSG_NOSIGNAL) == sizeof(*gift);
}

/* Odd blocks of a pool are freed in a stream's order, on both sides. */
static void free_of_pool(struct crew *crew, CUdeviceptr address, uint64_t i)
{
	if (i % 2)
		note(crew, cu.cuMemFreeAsync(address, NULL), "cuMemFreeAsync");
	else
		note(crew, cu.cuMemFree_v2(address), "cuMemFree");
}

/* Each block of a pool is sent twice, so that two threads import and free one pointer at a time. */
static void *producer_of_pool(void *data)
{
	struct crew *crew = data;
	CUmemPoolPtrExportData shared;
	struct wire_gift gift;
	CUdeviceptr address;
	CUresult result;

	note(crew, cu.cuCtxSetCurrent(primary), "cuCtxSetCurrent");
	for (uint64_t i = 0; i < crew->rounds && !atomic_load(crew->error); i++) {
		memset(&gift, 0, sizeof(gift));
		gift.bytes = crew->bytes;
		gift.value = (uint32_t)(1 + (crew->number * 31 + i) % 250);
		result = cu.cuMemAllocFromPoolAsync(&address, gift.bytes, crew->pool, NULL);
		if (result) {
			note(crew, result, "cuMemAllocFromPoolAsync");
			break;
		}
		note(crew, cu.cuMemsetD8_v2(address, (unsigned char)gift.value, gift.bytes), "cuMemsetD8");
		note(crew, cu.cuCtxSynchronize(), "cuCtxSynchronize");
		note(crew, cu.cuMemPoolExportPointer(&shared, address), "cuMemPoolExportPointer");
		memcpy(gift.handle, &shared, 64);
		/* every third one stays with us: exported, never imported */
		for (int times = i % 3 ? 2 : 0; times; times--) {
			if (!send_gift(&gift))
				note(crew, CUDA_ERROR_UNKNOWN, "the consumer takes nothing");
			atomic_fetch_add(crew->messages, 1);
		}
		free_of_pool(crew, address, i);
	}
	return NULL;
}

static void *producer(void *data)
{
	struct crew *crew = data;
	const bool ordered = (uintptr_t)crew->pool == 2; /* stream-ordered memory, of the default pool */
	CUipcMemHandle handle;
	struct wire_gift gift;
	CUdeviceptr address;
	CUresult result;

	note(crew, cu.cuCtxSetCurrent(primary), "cuCtxSetCurrent");
	for (uint64_t i = 0; i < crew->rounds && !atomic_load(crew->error); i++) {
		memset(&gift, 0, sizeof(gift));
		gift.bytes = crew->bytes;
		gift.value = (uint32_t)(1 + (crew->number * 31 + i) % 250);
		result = ordered ? cu.cuMemAllocAsync(&address, gift.bytes, NULL) : cu.cuMemAlloc_v2(&address, gift.bytes);
		if (result) {
			note(crew, result, "cuMemAlloc");
			break;
		}
		note(crew, cu.cuMemsetD8_v2(address, (unsigned char)gift.value, gift.bytes),
		     "cuMemsetD8");
		note(crew, cu.cuCtxSynchronize(), "cuCtxSynchronize");
		note(crew, cu.cuIpcGetMemHandle(&handle, address), "cuIpcGetMemHandle");
		memcpy(gift.handle, &handle, 64);
		/* every second block is exported but never sent */
		if (i % 2 == 0) {
			if (!send_gift(&gift))
				note(crew, CUDA_ERROR_UNKNOWN, "the consumer reads no messages");
			atomic_fetch_add(crew->messages, 1);
		}
		if (ordered)
			free_of_pool(crew, address, i);
		else
			note(crew, cu.cuMemFree_v2(address), "cuMemFree");
	}
	return NULL;
}

static CUresult map_new(CUdeviceptr address, size_t bytes, unsigned char value)
{
	CUmemAccessDesc access = { .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemAllocationProp property = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					 .location.type = CU_MEM_LOCATION_TYPE_DEVICE };
	CUmemGenericAllocationHandle memory;
	CUresult result = cu.cuMemCreate(&memory, bytes, &property, 0);

	if (!result)
		result = cu.cuMemMap(address, bytes, 0, memory, 0);
	if (!result)
		result = cu.cuMemRelease(memory);
	if (!result)
		result = cu.cuMemSetAccess(address, bytes, &access, 1);
	if (!result)
		result = cu.cuMemsetD8_v2(address, value, bytes);
	return result ? result : cu.cuCtxSynchronize();
}

/*
 * Virtual memory: each thread maps something new at the same addresses, three of them side by side, and shares
 * the second.  So opens meet unmaps.
 */
static void *producer_of_virtual(void *data)
{
	enum { SIDE_BY_SIDE = 3 };
	struct crew *crew = data;
	CUipcMemHandle handle;
	struct wire_gift gift;
	CUdeviceptr base;
	CUresult result;

	note(crew, cu.cuCtxSetCurrent(primary), "cuCtxSetCurrent");
	result = cu.cuMemAddressReserve(&base, SIDE_BY_SIDE * crew->bytes, 0, 0, 0);
	note(crew, result, "cuMemAddressReserve");
	for (uint64_t i = 0; i < crew->rounds && !atomic_load(crew->error); i++) {
		memset(&gift, 0, sizeof(gift));
		gift.bytes = crew->bytes;
		gift.value = (uint32_t)(1 + (crew->number * 31 + i) % 250);
		for (uint64_t k = 0; k < SIDE_BY_SIDE; k++)
			note(crew, map_new(base + k * gift.bytes, gift.bytes, k == 1 ? (unsigned char)gift.value : 255),
			     "map");
		note(crew, cu.cuIpcGetMemHandle(&handle, base + gift.bytes), "cuIpcGetMemHandle");
		memcpy(gift.handle, &handle, 64);
		if (!send_gift(&gift))
			note(crew, CUDA_ERROR_UNKNOWN, "the consumer reads no messages");
		atomic_fetch_add(crew->messages, 1);
		note(crew, cu.cuMemUnmap(base, gift.bytes), "cuMemUnmap");
		note(crew, cu.cuMemUnmap(base + gift.bytes, 2 * gift.bytes), "cuMemUnmap");
	}
	if (!result)
		note(crew, cu.cuMemAddressFree(base, SIDE_BY_SIDE * crew->bytes), "cuMemAddressFree");
	return NULL;
}

static CUresult take(const struct crew *crew, const struct wire_gift *gift, CUdeviceptr *address)
{
	CUmemPoolPtrExportData shared;
	CUipcMemHandle handle;

	if (crew->pool) {
		memcpy(&shared, gift->handle, 64);
		return cu.cuMemPoolImportPointer(address, crew->pool, &shared);
	}
	to_handle(&handle, gift->handle);
	return cu.cuIpcOpenMemHandle_v2(address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static void *consumer(void *data)
{
	struct crew *crew = data;
	struct pollfd ready = { .fd = WIRE_PARTNER_FD, .events = POLLIN };
	unsigned char *buffer = malloc(STEP);
	struct wire_gift gift;
	CUdeviceptr address;
	uint64_t foreign, n_taken = 0;

	if (!buffer)
		note(crew, CUDA_ERROR_OUT_OF_MEMORY, "malloc");
	note(crew, cu.cuCtxSetCurrent(primary), "cuCtxSetCurrent");
	while (buffer && !atomic_load(crew->error)) {
		if (poll(&ready, 1, PARTNER_MS) != 1) {
			note(crew, CUDA_ERROR_UNKNOWN, "the producer sends nothing");
			break;
		}
		if (recv(WIRE_PARTNER_FD, &gift, sizeof(gift), MSG_DONTWAIT) != sizeof(gift)) {
			if (errno == EAGAIN)
				continue; /* another thread took the message */
			break;
		}
		if (!gift.bytes)
			break; /* the message that ends one thread */
		atomic_fetch_add(crew->messages, 1);
		if (take(crew, &gift, &address)) {
			atomic_fetch_add(crew->refused, 1);
			continue;
		}
		for (uint64_t at = 0; at < gift.bytes; at += STEP) {
			size_t n = gift.bytes - at < STEP ? (size_t)(gift.bytes - at) : STEP;

			note(crew, cu.cuMemcpyDtoH_v2(buffer, address + at, n), "cuMemcpyDtoH");
			foreign = 0;
			for (size_t b = 0; b < n; b++)
				foreign += buffer[b] != gift.value;
			if (foreign) {
				atomic_fetch_add(crew->foreign, 1);
				break;
			}
		}
		if (crew->pool)
			free_of_pool(crew, address, n_taken++);
		else
			note(crew, cu.cuIpcCloseMemHandle(address), "cuIpcCloseMemHandle");
	}
	free(buffer);
	return NULL;
}

static void run_crew(void *(*member)(void *), const struct wire_request *q, uint64_t pool)
{
	atomic_uint_fast64_t messages = 0, refused = 0, foreign = 0;
	const char *_Atomic where = NULL;
	atomic_int error = 0;
	struct crew crew[64];
	pthread_t thread[64];
	uint64_t n = q->a[0] < 64 ? q->a[0] : 64;
	uint64_t started = 0;

	for (; started < n; started++) {
		crew[started] = (struct crew){ .rounds = q->a[1], .bytes = q->a[2],
					       .number = started, .messages = &messages,
					       .pool = (CUmemoryPool)(uintptr_t)pool,
					       .refused = &refused, .foreign = &foreign,
					       .error = &error, .where = &where };
		if (pthread_create(&thread[started], NULL, member, &crew[started])) {
			complain("pthread_create");
			break;
		}
	}
	for (uint64_t i = 0; i < started; i++)
		pthread_join(thread[i], NULL);
	reply.result = atomic_load(&error);
	if (reply.result)
		complain("%s", atomic_load(&where) ? atomic_load(&where) : "?");
	reply.v[0] = messages;
	reply.v[1] = refused;
	reply.v[2] = foreign;
}

void do_produce(const struct wire_request *q)
{
	static const struct wire_gift end;

	run_crew(q->a[4] == 1 ? producer_of_virtual : q->a[4] > 2 ? producer_of_pool : producer, q, q->a[4]);
	for (uint64_t i = 0; i < q->a[3]; i++)
		send_gift(&end);
}

void do_consume(const struct wire_request *q)
{
	run_crew(consumer, q, q->a[1]);
}
