/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver of a few functions, for tests of what shim/ does with its blocks.
 *
 * It behaves as the real one where these tests depend on it: a reused address has
 * the same handle again, freeing what is not allocated is an error, and an
 * allocation ends with its context.  It also checks culimbo: no lock of culimbo is
 * held in a call (self.h), no context is used after its end, and the capture mode and
 * the current context are unchanged after each call.
 */
#ifndef CL_TEST_FAKE_DRIVER_H
#define CL_TEST_FAKE_DRIVER_H

#include "tests/unit/child.h"

#include <errno.h>
#include <pthread.h>

#include "shim/blocks/blocks.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/exporter.h"
#include "shim/limbo/limbo.h"
#include "shim/limbo/reap.h"
#include "shim/base/log.h"
#include "shim/driver/context.h"
#include "shim/self/self.h"
#include "shim/shim.h"
#include "shim/shm/handle.h"

#define MS 1000000ull
#define MIB (1ull << 20)
#define HOUR (3600000 * MS)

enum { BLOCKS = 200400, EVENTS = 64 };
#define DEVICE_BASE 0x7f0000000000ull
#ifndef DEVICE_STEP /* where each block begins a step after the one before; a test may set it */
#define DEVICE_STEP (4 * MIB)
#endif
#define CONTEXT_A ((CUcontext)0xa0)
#define CONTEXT_B ((CUcontext)0xb0)
#define SOME_STREAM ((CUstream)0x57)
#define OWN_STREAM ((CUstream)0x0f) /* the result of cuStreamCreate */
#define STAND_IN 0x1000ull /* the result of cuMemAlloc: culimbo frees it to wait as a free does */
#define NO_BLOCK 0x10000ull /* culimbo frees this address to ask whether a free would be refused */

struct fake_block {
	_Atomic bool live;
	_Atomic uint32_t frees;
	_Atomic uint64_t freed_at;
	size_t size;
	int device;
	CUcontext ctx;
};
static struct {
	struct fake_block block[BLOCKS];
	_Atomic unsigned int n;
	_Atomic uint32_t fabric; /* not 0: handles are as on a fabric, see fake_fabric_bytes() */
	CUresult none_result; /* the result of freeing nothing, and of similar failures; 0: INVALID_VALUE or the call's own */
	_Atomic uint32_t free_calls, free_async_calls, handle_calls, close_calls, open_calls;
	_Atomic uint32_t syncs, streams_made;
	_Atomic(CUcontext) sync_ctx;
	CUresult sync_result, free_result, event_create_result;
	void (*in_sync)(void);
	_Atomic bool stall_free; /* frees wait while this is set */
	_Atomic bool in_free;
	_Atomic bool dead_a, dead_b; /* CONTEXT_A (_B) has ended */
	/* events */
	_Atomic uint32_t event_n, destroyed_n, recorded_n;
	CUevent destroyed[EVENTS];
	_Atomic bool event_live[EVENTS];
	CUcontext event_ctx[EVENTS];
	CUstream recorded_on;
	CUcontext stream_ctx; /* of all streams; NULL: CONTEXT_A */
	_Atomic int query_result;
	_Atomic uint32_t queries;
	CUstreamCaptureStatus capturing;
	CUresult capturing_result; /* the result of asking whether a stream captures */
	_Atomic int device; /* of the current context */
	_Atomic uint32_t device_calls;
	size_t device_size;	   /* of each device; 0: the size cannot be had */
	int block_device;	   /* the device of later allocations */
	int first_uuid; /* of device 0: CUDA_VISIBLE_DEVICES gives each process its own first device */
	size_t memory_free; /* as the driver reports it */
	_Atomic uint32_t memory_asked;
} fake;
static pthread_mutex_t order_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread CUcontext fake_stack[8] = { CONTEXT_A };
static __thread unsigned int fake_depth;
static __thread CUstreamCaptureMode fake_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static inline void driver_entered(void)
{
	/* glibc records the owner of every mutex */
	CHECK(cl_exports_lock.mutex.__data.__owner != gettid());
	CHECK(cl_imports_lock.mutex.__data.__owner != gettid());
}

#include "tests/unit/fake_clock.h"

static inline struct fake_block *fake_find(CUdeviceptr p)
{
	uint64_t i = (p - DEVICE_BASE) / DEVICE_STEP;

	return p >= DEVICE_BASE && i < fake.n ? &fake.block[i] : NULL;
}
static inline struct fake_block *fake_at(CUdeviceptr p)
{
	struct fake_block *block = fake_find(p);

	CHECK(block);
	return block;
}
static inline CUdeviceptr fake_alloc(size_t size, CUcontext ctx)
{
	struct fake_block *block = &fake.block[fake.n];

	CHECK(fake.n < BLOCKS);
	block->size = size;
	block->device = fake.block_device;
	block->ctx = ctx;
	atomic_store(&block->live, true);
	return DEVICE_BASE + DEVICE_STEP * fake.n++;
}
/* The driver gives a freed address to another block. */
static inline void fake_alloc_again(CUdeviceptr p, CUcontext ctx)
{
	struct fake_block *block = fake_at(p);

	CHECK(!atomic_load(&block->live));
	block->ctx = ctx;
	atomic_store(&block->frees, 0);
	atomic_store(&block->live, true);
}
static inline uint32_t frees_of(CUdeviceptr p)
{
	return atomic_load(&fake_at(p)->frees);
}

static CUresult fake_sync(void)
{
	driver_entered();
	atomic_fetch_add(&fake.syncs, 1);
	atomic_store(&fake.sync_ctx, fake_stack[fake_depth]);
	if (fake.in_sync)
		fake.in_sync();
	return fake.sync_result;
}
#include "tests/unit/fake_bytes.h"

static CUresult really_free(CUdeviceptr p)
{
	struct fake_block *block = fake_find(p);
	bool live = true;

	if (!p)
		return CUDA_SUCCESS;
	if (!block || p % DEVICE_STEP || !atomic_load(&block->live))
		return CUDA_ERROR_INVALID_VALUE;
	if (fake.free_result)
		return fake.free_result;
	CHECK(!atomic_load(&fake.dead_a) || block->ctx != CONTEXT_A);
	atomic_store(&fake.in_free, true);
	CHECK(COMES_TRUE(!atomic_load(&fake.stall_free), 20000));
	atomic_store(&fake.in_free, false);
	CHECK(atomic_compare_exchange_strong(&block->live, &live, false));
	atomic_store(&block->freed_at, cl_now());
	atomic_fetch_add(&block->frees, 1);
	return CUDA_SUCCESS;
}
/* culimbo frees this to ask whether the driver would refuse a free. */
static CUresult fake_refusal(void)
{
	return fake.none_result ? fake.none_result : CUDA_ERROR_INVALID_VALUE;
}
static CUresult fake_free(CUdeviceptr p)
{
	driver_entered();
	if (p == STAND_IN)
		return fake_byte_free();
	if (p == NO_BLOCK)
		return fake_refusal();
	atomic_fetch_add(&fake.free_calls, 1);
	return really_free(p);
}
static CUresult fake_free_async(CUdeviceptr p, CUstream stream)
{
	driver_entered();
	if (p == NO_BLOCK)
		return fake_refusal();
	/* culimbo's own streams belong to the block's context, if it has one, and count as the frees they stand for */
	if (stream == OWN_STREAM && fake_at(p)->ctx)
		CHECK(fake_stack[fake_depth] == fake_at(p)->ctx);
	atomic_fetch_add(stream == OWN_STREAM ? &fake.free_calls : &fake.free_async_calls, 1);
	return really_free(p);
}
static CUresult fake_stream_create(CUstream *stream, unsigned int flags)
{
	driver_entered();
	CHECK_EQUAL(flags, CU_STREAM_NON_BLOCKING);
	fake.streams_made++;
	*stream = OWN_STREAM;
	return CUDA_SUCCESS;
}
static CUresult fake_stream_sync(CUstream stream)
{
	driver_entered();
	CHECK(stream == OWN_STREAM);
	return CUDA_SUCCESS;
}
/*
 * The driver's bytes 56 to 63 where GPUs are joined by a fabric: of @number, which is in bytes 0 to 3, and they may
 * differ from one export of a block to the next.
 */
static inline uint64_t fake_fabric_bytes(uint32_t number)
{
	return (uint64_t)~number << 32 | number;
}
/* Bytes 0 to 7 are an address, as in the driver: no process reads it.  Another place says where the block lies. */
static CUresult fake_get_handle(CUipcMemHandle *handle, CUdeviceptr p)
{
	struct fake_block *block = fake_find(p);
	uint64_t base = p - p % DEVICE_STEP;
	pid_t pid = getpid();

	driver_entered();
	atomic_fetch_add(&fake.handle_calls, 1);
	memset(handle, 0, sizeof *handle);
	if (!block || !atomic_load(&block->live))
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(handle->reserved, &base, sizeof base);
	memcpy(handle->reserved + 24, &pid, sizeof pid);
	memcpy(handle->reserved + 32, &base, sizeof base);
	if (fake.fabric) {
		uint32_t number = fake.fabric;
		uint64_t tail = fake_fabric_bytes(number);

		memcpy(handle->reserved, &number, sizeof number);
		memcpy(handle->reserved + 56, &tail, sizeof tail);
		handle->reserved[20] = 1;
	}
	return CUDA_SUCCESS;
}
static CUresult fake_open(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags)
{
	uint64_t base, tail;
	uint32_t number, low;
	pid_t pid;

	driver_entered();
	memcpy(&pid, handle.reserved + 24, sizeof pid);
	if (pid == getpid()) /* its own handle */
		return fake.none_result ? fake.none_result : CUDA_ERROR_INVALID_CONTEXT;
	atomic_fetch_add(&fake.open_calls, 1);
	memcpy(&base, handle.reserved + 32, sizeof base);
	/* the driver gets what it made, but for bytes 4 to 7 */
	memcpy(&number, handle.reserved, sizeof number);
	memcpy(&low, handle.reserved + CL_STAMP_LOW, sizeof low);
	memcpy(&tail, handle.reserved + 56, sizeof tail);
	CHECK(!low);
	CHECK_EQUAL(tail, handle.reserved[20] ? fake_fabric_bytes(number) : 0);
	*p = base + 0x10000000000;
	return CUDA_SUCCESS;
}
static CUresult fake_close(CUdeviceptr p)
{
	driver_entered();
	atomic_fetch_add(&fake.close_calls, 1);
	return p > DEVICE_BASE + 0x10000000000 - 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult fake_range(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	driver_entered();
	if (!p)
		return fake.none_result ? fake.none_result : CUDA_ERROR_NOT_FOUND;
	*base = p - p % DEVICE_STEP;
	*size = fake_at(p)->size;
	return CUDA_SUCCESS;
}
static CUresult fake_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
	driver_entered();
	if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT)
		*(CUcontext *)data = fake_at(p)->ctx;
	else
		*(int *)data = fake_at(p)->device;
	return CUDA_SUCCESS;
}

/* ----------------------------------------------------------------- contexts */
static CUresult fake_current(CUcontext *ctx)
{
	driver_entered();
	*ctx = fake_stack[fake_depth];
	return CUDA_SUCCESS;
}
static CUresult fake_push(CUcontext ctx)
{
	driver_entered();
	CHECK(!atomic_load(&fake.dead_a) || ctx != CONTEXT_A);
	CHECK(fake_depth < 7);
	fake_stack[++fake_depth] = ctx;
	return CUDA_SUCCESS;
}
static CUresult fake_pop(CUcontext *ctx)
{
	driver_entered();
	CHECK(fake_depth > 0);
	*ctx = fake_stack[fake_depth--];
	return CUDA_SUCCESS;
}
static CUresult fake_device(CUdevice *device)
{
	driver_entered();
	fake.device_calls++;
	*device = fake.device;
	return CUDA_SUCCESS;
}
static CUresult fake_total_mem(size_t *size, CUdevice device)
{
	driver_entered();
	*size = fake.device_size;
	return *size ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}
static CUresult fake_uuid(CUuuid *uuid, CUdevice device)
{
	driver_entered();
	memset(uuid->bytes, 0x40 + fake.first_uuid + device, sizeof uuid->bytes);
	return CUDA_SUCCESS;
}
static CUresult fake_memory_info(size_t *is_free, size_t *total)
{
	driver_entered();
	atomic_fetch_add(&fake.memory_asked, 1);
	*is_free = fake.memory_free;
	*total = 1ull << 40;
	return CUDA_SUCCESS;
}
static CUresult fake_primary_state(CUdevice device, unsigned int *flags, int *active)
{
	driver_entered();
	*active = 1;
	return CUDA_SUCCESS;
}
static CUresult fake_retain(CUcontext *ctx, CUdevice device)
{
	driver_entered();
	*ctx = CONTEXT_A;
	return CUDA_SUCCESS;
}
static CUresult fake_release(CUdevice device)
{
	driver_entered();
	return CUDA_SUCCESS;
}
static CUresult fake_exchange(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode before = fake_mode;

	driver_entered();
	fake_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

/* Returns true and the details when it is known which context is current in this thread; else false, NULL and 0. */
static inline bool known_current(CUcontext *ctx, CUdevice *device, bool *primary)
{
	struct cl_context_name name = cl_context_name_current();
	struct cl_context *context;

	cl_lock(&cl_exports_lock);
	context = cl_context_get_locked(&name, &cl_exports_lock);
	*ctx = context ? context->handle : NULL;
	*device = context ? context->device : 0;
	*primary = context && context->primary;
	cl_unlock(&cl_exports_lock);
	return context;
}

/* The two halves of a context's end, as a hook calls them, by the same thread. */
static __thread struct cl_context_end fake_ends[64];
static __thread unsigned int fake_ends_n;
static inline void context_ends(CUcontext ctx, CUdevice device)
{
	CHECK(fake_ends_n < 64);
	fake_ends[fake_ends_n++] = cl_context_end_begin(ctx, device);
}
static inline void context_ended(CUcontext ctx, CUdevice device, bool gone)
{
	CHECK(fake_ends_n > 0);
	fake_ends_n--;
	CHECK(fake_ends[fake_ends_n].handle == ctx && fake_ends[fake_ends_n].device == device);
	cl_context_end_done(&fake_ends[fake_ends_n], gone);
}

/* ------------------------------------------------------------------- events */
static CUresult fake_event_create(CUevent *event, unsigned int flags)
{
	uint32_t n;

	driver_entered();
	if (fake.event_create_result)
		return fake.event_create_result;
	n = atomic_fetch_add(&fake.event_n, 1);
	CHECK(n < EVENTS);
	atomic_store(&fake.event_live[n], true);
	fake.event_ctx[n] = fake_stack[fake_depth];
	*event = (CUevent)(uintptr_t)(0x1000 + n * 16);
	return CUDA_SUCCESS;
}
/* Without culimbo, a call on an event whose context has ended crashes. */
static inline uintptr_t fake_event_number(CUevent event)
{
	uintptr_t n = ((uintptr_t)event - 0x1000) / 16;

	CHECK(n < EVENTS);
	CHECK(fake.event_ctx[n] != CONTEXT_A || !atomic_load(&fake.dead_a));
	CHECK(fake.event_ctx[n] != CONTEXT_B || !atomic_load(&fake.dead_b));
	return n;
}
static CUresult fake_event_destroy(CUevent event)
{
	uintptr_t n = fake_event_number(event);

	driver_entered();
	/* without culimbo, a second destroy crashes */
	CHECK(atomic_exchange(&fake.event_live[n], false));
	pthread_mutex_lock(&order_lock);
	fake.destroyed[atomic_load(&fake.destroyed_n)] = event;
	atomic_fetch_add(&fake.destroyed_n, 1);
	pthread_mutex_unlock(&order_lock);
	return CUDA_SUCCESS;
}
static CUresult fake_event_handle(CUipcEventHandle *handle, CUevent event)
{
	uint64_t value = (uintptr_t)event;

	driver_entered();
	memset(handle, 0, sizeof *handle);
	memcpy(handle->reserved, &value, sizeof value);
	return CUDA_SUCCESS;
}
static CUresult fake_event_record(CUevent event, CUstream stream)
{
	driver_entered();
	fake.recorded_on = stream;
	atomic_fetch_add(&fake.recorded_n, 1);
	return CUDA_SUCCESS;
}
static CUresult fake_event_query(CUevent event)
{
	driver_entered();
	CHECK(atomic_load(&fake.event_live[fake_event_number(event)]));
	atomic_fetch_add(&fake.queries, 1);
	return (CUresult)atomic_load(&fake.query_result);
}
static CUresult fake_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
	driver_entered();
	*status = fake.capturing;
	return fake.capturing_result;
}
static CUresult fake_stream_ctx(CUstream stream, CUcontext *ctx)
{
	driver_entered();
	*ctx = fake.stream_ctx ? fake.stream_ctx : CONTEXT_A;
	return CUDA_SUCCESS;
}

static inline CUevent fake_event(void)
{
	CUevent event = NULL;

	CHECK_EQUAL(fake_event_create(&event, 0), CUDA_SUCCESS);
	return event;
}

/* ------------------------------------------------------------------- set up */
static char folder[64], log_path[128];

/* Called when a state change of a block is not in the table of states. */
static inline void end_the_test(const char *from, const char *to)
{
	dprintf(2, "a block that is %s cannot become %s\n", from, to);
	abort();
}

/* For a child that shares nothing yet.  @grace in ns. */
static inline void start_with(uint64_t grace, uint64_t collector)
{
	char *environment[] = { NULL };

	CHECK(folder[0]); /* else the files would lie among the user's */
	cl_block_impossible_step = end_the_test;
	cl_options_read(&cl_options, environment, NULL);
	snprintf(log_path, sizeof log_path, "%s/log-%d", folder, (int)getpid());
	cl_options.dir.text = folder;
	cl_options.log_file.text = log_path;
	cl_options.grace.number = grace;
	cl_options.collector.number = collector;
	cl_options.settle.number = 50 * MS;
	/* the tests of a program share a folder: no test may find an earlier one's files */
	cl_options.keep_dead.number = 0;
	cl_driver.cuMemAlloc_v2 = fake_mem_alloc;
	cl_driver.cuMemHostAlloc = fake_host_alloc;
	cl_driver.cuMemFreeHost = fake_host_free;
	cl_driver.cuMemFree_v2 = fake_free;
	cl_driver.cuStreamCreate = fake_stream_create;
	cl_driver.cuStreamSynchronize = fake_stream_sync;
	cl_driver.cuMemFreeAsync = fake_free_async;
	cl_driver.cuMemFreeAsync_ptsz = fake_free_async;
	cl_driver.cuIpcGetMemHandle = fake_get_handle;
	cl_driver.cuIpcOpenMemHandle_v2 = fake_open;
	cl_driver.cuIpcCloseMemHandle = fake_close;
	cl_driver.cuMemGetAddressRange_v2 = fake_range;
	cl_driver.cuPointerGetAttribute = fake_attribute;
	cl_driver.cuCtxGetCurrent = fake_current;
	cl_driver.cuCtxPushCurrent_v2 = fake_push;
	cl_driver.cuCtxPopCurrent_v2 = fake_pop;
	cl_driver.cuCtxGetDevice = fake_device;
	cl_driver.cuDeviceTotalMem_v2 = fake_total_mem;
	cl_driver.cuDeviceGetUuid_v2 = fake_uuid;
	cl_driver.cuMemGetInfo_v2 = fake_memory_info;
	cl_driver.cuCtxSynchronize = fake_sync;
	cl_driver.cuDevicePrimaryCtxGetState = fake_primary_state;
	cl_driver.cuDevicePrimaryCtxRetain = fake_retain;
	cl_driver.cuDevicePrimaryCtxRelease_v2 = fake_release;
	cl_driver.cuThreadExchangeStreamCaptureMode = fake_exchange;
	cl_driver.cuEventCreate = fake_event_create;
	cl_driver.cuEventDestroy_v2 = fake_event_destroy;
	cl_driver.cuIpcGetEventHandle = fake_event_handle;
	cl_driver.cuEventRecord = fake_event_record;
	cl_driver.cuEventRecord_ptsz = fake_event_record;
	cl_driver.cuEventQuery = fake_event_query;
	cl_driver.cuStreamIsCapturing = fake_capturing;
	cl_driver.cuStreamIsCapturing_ptsz = fake_capturing;
	cl_driver.cuStreamGetCtx = fake_stream_ctx;
	cl_driver.cuStreamGetCtx_ptsz = fake_stream_ctx;
}

/* How often @words occurs in this process's log. */
static inline unsigned int logged(const char *words)
{
	static char text[1 << 16];
	int fd = open(log_path, O_RDONLY);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
	unsigned int found = 0;

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	for (const char *at = text; (at = strstr(at, words)) != NULL; at++)
		found++;
	return found;
}

static inline struct cl_stamp stamp_of(const CUipcMemHandle *handle)
{
	return cl_stamp_unpack(cl_handle_stamp(handle->reserved, CL_MEMORY));
}

/* True if the driver's part of two handles is the same, and the stamps are not. */
static inline bool only_stamps_differ(CUipcMemHandle a, CUipcMemHandle b)
{
	bool stamps = cl_handle_stamp(a.reserved, CL_MEMORY) != cl_handle_stamp(b.reserved, CL_MEMORY);

	cl_handle_put_stamp(a.reserved, CL_MEMORY, 0);
	cl_handle_put_stamp(b.reserved, CL_MEMORY, 0);
	return stamps && !memcmp(&a, &b, sizeof a);
}

static inline CUipcMemHandle export_block(CUdeviceptr p)
{
	CUipcMemHandle handle;

	errno = ENOTUNIQ; /* errno is the program's */
	CHECK_EQUAL(cl_memory_export(&handle, p), CUDA_SUCCESS);
	CHECK_EQUAL(errno, ENOTUNIQ);
	return handle;
}
static inline CUdeviceptr exported_block(void)
{
	CUdeviceptr p = fake_alloc(1024, CONTEXT_A);

	export_block(p);
	return p;
}

static inline int make_folder(void **state)
{
	return make_folder_at(folder);
}
static inline int remove_folder(void **state)
{
	return remove_folder_at(folder);
}

#endif
