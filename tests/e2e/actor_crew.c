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

#define CREW_MOST 64

/* What the consumers have answered to each producer.  Whichever thread receives an answer enters it here. */
struct answers {
	_Atomic uint32_t round[CREW_MOST]; /* the last one that was answered, + 1 */
	_Atomic int32_t result[CREW_MOST];
};

struct crew {
	uint64_t rounds, bytes, number;
	struct answers *answers;
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

/* Waits until a consumer has answered @gift.  Returns false if none does in time. */
static bool hear_of(struct crew *crew, const struct wire_gift *gift, CUresult *result)
{
	struct pollfd ready = { .fd = WIRE_PARTNER_FD, .events = POLLIN };
	const uint64_t until = now_ns() + PARTNER_MS * UINT64_C(1000000);
	struct wire_taken taken;

	while (atomic_load(&crew->answers->round[gift->producer]) != gift->round + 1) {
		/* another thread may receive our answer meanwhile, and then nothing more comes: so it looks again soon */
		int n = poll(&ready, 1, 1);

		if (n < 0 || atomic_load(crew->error) || now_ns() >= until)
			return false;
		if (n && recv(WIRE_PARTNER_FD, &taken, sizeof(taken), MSG_DONTWAIT) == sizeof(taken)) {
			atomic_store(&crew->answers->result[taken.producer], taken.result);
			atomic_store(&crew->answers->round[taken.producer], taken.round + 1);
		}
	}
	*result = (CUresult)atomic_load(&crew->answers->result[gift->producer]);
	return true;
}

/*
 * Virtual memory: each thread maps something new at the same addresses, three of them side by side, and shares
 * the second.  It unmaps them when the open of it begins in every second round, and in the others when it has ended: so
 * opens and reads meet unmaps on a machine of any speed.  An open that has ended before the unmap must have succeeded.
 */
static void *producer_of_virtual(void *data)
{
	enum { SIDE_BY_SIDE = 3 };
	struct crew *crew = data;
	CUipcMemHandle handle;
	struct wire_gift gift;
	CUdeviceptr base;
	CUresult result, opened;

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
		gift.answer = i % 2 ? WIRE_OPENED : WIRE_BEGINS;
		gift.producer = (uint32_t)crew->number;
		gift.round = (uint32_t)i;
		if (!send_gift(&gift) || !hear_of(crew, &gift, &opened))
			note(crew, CUDA_ERROR_UNKNOWN, "the consumer does not answer");
		else
			note(crew, opened, "an open before the unmap");
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

static void answer(struct crew *crew, const struct wire_gift *gift, CUresult result)
{
	const struct wire_taken taken = { .producer = gift->producer, .round = gift->round, .result = (int32_t)result };

	if (send(WIRE_PARTNER_FD, &taken, sizeof(taken), MSG_NOSIGNAL) != sizeof(taken))
		note(crew, CUDA_ERROR_UNKNOWN, "the producer takes no answer");
}

static void *consumer(void *data)
{
	struct crew *crew = data;
	struct pollfd ready = { .fd = WIRE_PARTNER_FD, .events = POLLIN };
	unsigned char *buffer = malloc(STEP);
	struct wire_gift gift;
	CUdeviceptr address;
	uint64_t foreign, n_taken = 0;
	CUresult result;

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
		if (gift.answer == WIRE_BEGINS)
			answer(crew, &gift, 0);
		result = take(crew, &gift, &address);
		if (gift.answer == WIRE_OPENED)
			answer(crew, &gift, result);
		if (result) {
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
	struct answers answers = { .round = { 0 } };
	struct crew crew[CREW_MOST];
	pthread_t thread[CREW_MOST];
	uint64_t n = q->a[0] < CREW_MOST ? q->a[0] : CREW_MOST;
	uint64_t started = 0;

	for (; started < n; started++) {
		crew[started] = (struct crew){ .rounds = q->a[1], .bytes = q->a[2],
					       .number = started, .messages = &messages, .answers = &answers,
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
