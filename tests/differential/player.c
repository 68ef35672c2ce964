/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A player: makes one driver call for each order and returns the results.
 *
 * Rules: No answer depends on addresses, on time, or on earlier calls, except where the driver's own result
 * does.  A player makes only the call that is asked for, unless the order stands for several calls
 * (DO_EXHAUST, DO_SETTLE).
 */
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/differential/play.h"

enum { SAMPLE = 1024, PAGE = 2 << 20, PAGES_MAX = 512 };

static struct {
	CUcontext ctx[CONTEXTS];
	CUdeviceptr block[BLOCKS], import[IMPORTS], pool_block[POOL_BLOCKS], pool_import[POOL_IMPORTS];
	CUstream stream[STREAMS];
	CUevent event[EVENTS];
#if CUDA_VERSION >= 12040
	CUgreenCtx green;
#endif
} my;

uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

const char *die_said_as;

void die(const char *format, ...)
{
	FILE *to = die_said_as ? stdout : stderr;
	va_list args;

	fflush(stdout);
	if (die_said_as)
		fputs(die_said_as, to);
	va_start(args, format);
	vfprintf(to, format, args);
	va_end(args);
	fputc('\n', to);
	fflush(to);
	_exit(99);
}

void die_without_context(const char *format, ...)
{
	va_list args;

	fflush(stdout);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	_exit(NO_CONTEXT);
}

void player_begin(void)
{
	const char *why = cuda_door_open();
	CUresult result;

	if (why)
		die("%s", why);
	result = cu.cuInit(0);
	if (result)
		die_without_context("a player has no context: cuInit gave %d", (int)result);
	my.stream[PER_THREAD] = CU_STREAM_PER_THREAD;
}

static CUdeviceptr pointer(const struct order *o)
{
	switch ((enum at)o->at) {
	case AT_BLOCK:
		return my.block[o->slot] + o->offset;
	case AT_IMPORT:
		return my.import[o->slot] + o->offset;
	case AT_POOL_BLOCK:
		return my.pool_block[o->slot] + o->offset;
	case AT_POOL_IMPORT:
		return my.pool_import[o->slot] + o->offset;
	case AT_UNKNOWN:
		return 0x1000;
	case AT_NULL:
		break;
	}
	return 0;
}

/* The place number of a context; -1: it has none. */
static int number_of(CUcontext ctx)
{
	for (int c = 0; c < CONTEXTS; c++)
		if (ctx && my.ctx[c] == ctx)
			return c;
	return -1;
}

/* The value of all bytes in the first and the last KiB, or that they differ. */
static CUresult sample(const struct order *o, char *text, size_t room)
{
	unsigned char bytes[2 * SAMPLE];
	CUdeviceptr p = pointer(o);
	CUresult result = cu.cuMemcpyDtoH_v2(bytes, p, SAMPLE);

	if (!result)
		result = cu.cuMemcpyDtoH_v2(bytes + SAMPLE, p + o->bytes - SAMPLE, SAMPLE);
	if (result)
		return result;
	for (unsigned int i = 1; i < 2 * SAMPLE; i++)
		if (bytes[i] != bytes[0]) {
			snprintf(text, room, "bytes=mixed");
			return result;
		}
	snprintf(text, room, "bytes=%u", bytes[0]);
	return result;
}

/*
 * The driver's attributes of a pointer: results and everything that is not an address.  An import's offset in its
 * pages is not included: it depends on what its exporter has freed.
 */
static CUresult query(const struct order *o, char *text, size_t room)
{
	CUdeviceptr p = pointer(o), base = 0, start = 0, same = 0;
	unsigned int type = 0;
	size_t size = 0, range = 0;
	int ordinal = -1, r[6];
	CUcontext ctx = NULL;
	bool import = o->at == AT_IMPORT;
	CUresult result = cu.cuMemGetAddressRange_v2(&base, &size, p);

	r[0] = cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p);
	r[1] = cu.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p);
	r[2] = cu.cuPointerGetAttribute(&ctx, CU_POINTER_ATTRIBUTE_CONTEXT, p);
	r[3] = cu.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p);
	r[4] = cu.cuPointerGetAttribute(&range, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p);
	r[5] = cu.cuPointerGetAttribute(&same, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, p);
	snprintf(text, room, "+%llu/%zu type=%d:%u ordinal=%d:%d context=%d:%d start=%d:%d size=%d:%zu self=%d:%d",
		 result || import ? 0ull : (unsigned long long)(p - base), size, r[0], type, r[1], ordinal, r[2],
		 number_of(ctx), r[3], r[3] ? 0 : start == base, r[4], range, r[5], same == p);
	return result;
}

/* Allocates all free pages, and frees them. */
static CUresult exhaust(char *text, size_t room)
{
	static CUdeviceptr page[PAGES_MAX];
	CUresult result = CUDA_SUCCESS, freed = CUDA_SUCCESS;
	unsigned int n = 0;

	while (n < PAGES_MAX && (result = cu.cuMemAlloc_v2(&page[n], PAGE)) == CUDA_SUCCESS)
		n++;
	for (unsigned int i = n; i; i--) {
		CUresult each = cu.cuMemFree_v2(page[i - 1]);

		if (each)
			freed = each;
	}
	snprintf(text, room, "pages=%u freed=%d", n, freed);
	return result;
}

/* Waits for all work of the contexts in the mask. */
static CUresult settle(uint32_t mask)
{
	CUresult first = CUDA_SUCCESS;
	CUcontext popped;

	for (int c = 0; c < CONTEXTS; c++) {
		CUresult result;

		if (!(mask >> c & 1) || cu.cuCtxPushCurrent_v2(my.ctx[c]))
			continue;
		result = cu.cuCtxSynchronize();
		cu.cuCtxPopCurrent_v2(&popped);
		first = first ? first : result;
	}
	return first;
}

/* ------------------------------------------- work that runs until it is let go */
static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t held_changed = PTHREAD_COND_INITIALIZER;
static bool held;

static void CUDA_CB hold_stream(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&held_lock);
	while (held)
		pthread_cond_wait(&held_changed, &held_lock);
	pthread_mutex_unlock(&held_lock);
}

static CUresult hold_or_let_go(const struct order *o)
{
	bool hold = o->call == DO_HOLD;

	pthread_mutex_lock(&held_lock);
	held = hold;
	pthread_cond_broadcast(&held_changed);
	pthread_mutex_unlock(&held_lock);
	return hold ? cu.cuLaunchHostFunc(my.stream[o->other], hold_stream, NULL) : settle(o->flags);
}

/* What a child does with what it inherited.  After a fork the driver refuses all calls. */
static int child_calls(const struct order *o)
{
	CUipcMemHandle handle;
	CUdeviceptr p = pointer(o), opened;
	int sum = cu.cuMemFree_v2(p);

	sum = sum * 7 + (int)cu.cuIpcGetMemHandle(&handle, p);
	memcpy(&handle, o->handle, sizeof(handle));
	sum = sum * 7 + (int)cu.cuIpcOpenMemHandle_v2(&opened, handle, 1);
	sum = sum * 7 + (int)cu.cuIpcCloseMemHandle(p);
	sum = sum * 7 + (int)cu.cuMemAlloc_v2(&opened, 1024);
	return sum & 0x7f;
}

static CUresult fork_one(const struct order *o, char *text, size_t room)
{
	int status = 0;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		die("fork fails");
	if (!pid) {
		switch (o->flags % 3) {
		case 0: { /* continues without CUDA */
			char *p = malloc(1 << 16);

			memset(p, 1, 1 << 16);
			_exit(p[9]);
		}
		case 1: /* exits normally */
			exit(4);
		default:
			_exit(child_calls(o));
		}
	}
	if (waitpid(pid, &status, 0) != pid)
		die("waitpid fails");
	snprintf(text, room, "status=%x", (unsigned int)status);
	return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 12040
static CUresult green_create(CUdevice device)
{
	CUdevResource resource;
	CUdevResourceDesc description;
	CUresult result = CUDA_ERROR_NOT_SUPPORTED;

	if (!cu.cuGreenCtxCreate)
		return result;
	result = cu.cuDeviceGetDevResource(device, &resource, CU_DEV_RESOURCE_TYPE_SM);
	if (!result)
		result = cu.cuDevResourceGenerateDesc(&description, &resource, 1);
	if (!result)
		result = cu.cuGreenCtxCreate(&my.green, description, device, CU_GREEN_CTX_DEFAULT_STREAM);
	if (!result)
		result = cu.cuCtxFromGreenCtx(&my.ctx[GREEN], my.green);
	return result;
}
static CUresult green_destroy(void)
{
	return cu.cuGreenCtxDestroy(my.green);
}
#else
static CUresult green_create(CUdevice device)
{
	(void)device;
	return CUDA_ERROR_NOT_SUPPORTED;
}
static CUresult green_destroy(void)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}
#endif

static CUresult memory_call(const struct order *o, struct answer *a)
{
	char *text = a->text;
	CUipcMemHandle handle;
	CUdeviceptr opened = 0;
	size_t free_bytes = 0, total = 0;
	CUresult result;

	memcpy(&handle, o->handle, sizeof(handle));
	switch ((enum call)o->call) {
	case DO_ALLOC:
		return cu.cuMemAlloc_v2(&my.block[o->slot], o->bytes);
	case DO_ALLOC_ASYNC:
		return cu.cuMemAllocAsync(&my.block[o->slot], o->bytes, my.stream[o->other]);
	case DO_FREE:
		return cu.cuMemFree_v2(pointer(o));
	case DO_FREE_ASYNC:
		return cu.cuMemFreeAsync(pointer(o), my.stream[o->other]);
	case DO_EXPORT:
		memset(&handle, 0, sizeof(handle));
		result = cu.cuIpcGetMemHandle(&handle, pointer(o));
		memcpy(a->handle, &handle, sizeof(handle));
		return result;
	case DO_OPEN:
	case DO_OPEN_OLD:
		result = o->call == DO_OPEN ? cu.cuIpcOpenMemHandle_v2(&opened, handle, o->flags) :
					      cu.cuIpcOpenMemHandle(&opened, handle, o->flags);
		/* reports whether the address is the same as before */
		if (!result && o->at == AT_IMPORT) {
			if (o->bytes)
				snprintf(text, sizeof(a->text), "same=%d", opened == my.import[o->slot]);
			my.import[o->slot] = opened;
		}
		return result;
	case DO_CLOSE:
		return cu.cuIpcCloseMemHandle(pointer(o));
	case DO_READ:
		return sample(o, text, sizeof(a->text));
	case DO_FILL:
		result = cu.cuMemsetD8_v2(pointer(o), (unsigned char)o->flags, o->bytes);
		/* The driver does not wait for the fill.  Another process may read before it ends, and a free of
		   pool memory, which does not wait either, makes it a fault (measured). */
		return result || o->other ? result : cu.cuStreamSynchronize(NULL);
	case DO_QUERY:
		return query(o, text, sizeof(a->text));
	case DO_MEMORY:
		result = cu.cuMemGetInfo_v2(&free_bytes, &total);
		snprintf(text, sizeof(a->text), "free=%zuMiB", free_bytes >> 20);
		return result;
	case DO_EXHAUST:
		return exhaust(text, sizeof(a->text));
	case DO_SETTLE:
		return settle(o->flags);
	default:
		die("no call %u", o->call);
	}
}

static CUresult event_call(const struct order *o, struct answer *a)
{
	CUevent *event = &my.event[o->slot];
	CUipcEventHandle handle;
	CUresult result;

	memcpy(&handle, o->handle, sizeof(handle));
	switch ((enum call)o->call) {
	case DO_EVENT_CREATE:
		return cu.cuEventCreate(event, o->flags);
	case DO_EVENT_DESTROY:
		return cu.cuEventDestroy_v2(*event);
	case DO_EVENT_RECORD:
		return cu.cuEventRecord(*event, my.stream[o->other]);
	case DO_EVENT_QUERY:
		return cu.cuEventQuery(*event);
	case DO_EVENT_WAIT:
		return cu.cuEventSynchronize(*event);
	case DO_STREAM_WAIT_EVENT:
		return cu.cuStreamWaitEvent(my.stream[o->other], *event, 0);
	case DO_EVENT_EXPORT:
		memset(&handle, 0, sizeof(handle));
		result = cu.cuIpcGetEventHandle(&handle, *event);
		memcpy(a->handle, &handle, sizeof(handle));
		return result;
	default:
		return cu.cuIpcOpenEventHandle(event, handle);
	}
}

static bool is_held(void)
{
	bool is;

	pthread_mutex_lock(&held_lock);
	is = held;
	pthread_mutex_unlock(&held_lock);
	return is;
}

/*
 * Queries @stream.  Where nothing is held all work is short, and only chance decides whether it is done by
 * now: then "not ready" counts after a second of it.
 */
static CUresult query_stream(CUstream stream)
{
	struct timespec now, end;
	CUresult result;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec++;
	do {
		result = cu.cuStreamQuery(stream);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (result == CUDA_ERROR_NOT_READY && !is_held() &&
		 (now.tv_sec < end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec < end.tv_nsec)));
	return result;
}

static CUresult stream_call(const struct order *o, struct answer *a)
{
	CUstreamCaptureMode mode = (CUstreamCaptureMode)o->flags;
	CUstream *stream = &my.stream[o->other];
	CUgraph graph = NULL;
	CUresult result;

	switch ((enum call)o->call) {
	case DO_STREAM_CREATE:
		return cu.cuStreamCreate(stream, o->flags);
	case DO_STREAM_DESTROY:
		return cu.cuStreamDestroy_v2(*stream);
	case DO_STREAM_QUERY:
		return query_stream(*stream);
	case DO_STREAM_WAIT:
		return cu.cuStreamSynchronize(*stream);
	case DO_CAPTURE:
		return cu.cuStreamBeginCapture_v2(*stream, mode);
	case DO_CAPTURE_END:
		result = cu.cuStreamEndCapture(*stream, &graph);
		if (graph)
			cu.cuGraphDestroy(graph);
		return result;
	default:
		result = cu.cuThreadExchangeStreamCaptureMode(&mode);
		snprintf(a->text, sizeof(a->text), "was=%u", (unsigned int)mode);
		return result;
	}
}

static CUresult context_call(const struct order *o, struct answer *a)
{
	CUcontext ctx = NULL, of = o->slot < CONTEXTS ? my.ctx[o->slot] : NULL;
	CUresult result;

	switch ((enum call)o->call) {
	case DO_CTX_CREATE:
		return cu.cuCtxCreate_v2(&my.ctx[o->slot], 0, o->other);
	case DO_CTX_DESTROY:
		result = cu.cuCtxDestroy_v2(of);
		if (!result)
			my.ctx[o->slot] = NULL;
		return result;
	case DO_CTX_SET:
		return cu.cuCtxSetCurrent(of);
	case DO_CTX_PUSH:
		return cu.cuCtxPushCurrent_v2(of);
	case DO_CTX_POP:
	case DO_CTX_GET:
		result = o->call == DO_CTX_POP ? cu.cuCtxPopCurrent_v2(&ctx) : cu.cuCtxGetCurrent(&ctx);
		snprintf(a->text, sizeof(a->text), "context=%d", number_of(ctx));
		return result;
	case DO_CTX_WAIT:
		return cu.cuCtxSynchronize();
	case DO_RETAIN:
		return cu.cuDevicePrimaryCtxRetain(&my.ctx[o->slot], o->slot);
	case DO_RELEASE:
		return cu.cuDevicePrimaryCtxRelease_v2(o->slot);
	case DO_RESET:
		return cu.cuDevicePrimaryCtxReset_v2(o->slot);
	case DO_GREEN_CREATE:
		return green_create(0);
	default:
		result = green_destroy();
		my.ctx[GREEN] = NULL;
		return result;
	}
}

static void do_plant(enum plant plant)
{
	switch (plant) {
	case PLANT_CRASH:
		raise(SIGSEGV);
		break;
	case PLANT_KILL:
		raise(SIGKILL);
		break;
	case PLANT_EXIT:
		exit(3);
	case PLANT_HANG:
		for (;;)
			pause();
	case PLANT_REFUSE:
	case PLANT_NONE:
		break;
	}
}

void player_do(const struct order *o, struct answer *a)
{
	memset(a, 0, sizeof(*a));
	do_plant(o->plant);
	if (o->plant == PLANT_REFUSE)
		a->result = CUDA_ERROR_UNKNOWN;
	else if (o->call <= DO_SETTLE)
		a->result = memory_call(o, a);
	else if (o->call <= DO_EVENT_OPEN)
		a->result = event_call(o, a);
	else if (o->call <= DO_CAPTURE_MODE)
		a->result = stream_call(o, a);
	else if (o->call <= DO_GREEN_DESTROY)
		a->result = context_call(o, a);
	else if (o->call <= DO_POOL_IMPORT)
		a->result = pool_call(o, a, o->at == AT_POOL_IMPORT ? &my.pool_import[o->slot] : &my.pool_block[o->slot],
				      my.stream[o->other % STREAMS]);
	else if (o->call <= DO_V_CLOSE)
		a->result = virtual_call(o, a);
	else if (o->call != DO_FORK)
		a->result = hold_or_let_go(o);
	else
		a->result = fork_one(o, a->text, sizeof(a->text));
}

int player_end(unsigned int how)
{
	fflush(stdout);
	switch (how % 4) {
	case 1:
		exit(5);
	case 2:
		_exit(6);
	case 3:
		raise(SIGKILL);
	}
	return 7;
}

int player_serve(int fd)
{
	struct order order;
	struct answer answer;

	player_begin();
	while (recv(fd, &order, sizeof(order), 0) == (ssize_t)sizeof(order)) {
		if (order.call == DO_END)
			return player_end(order.flags);
		player_do(&order, &answer);
		if (send(fd, &answer, sizeof(answer), MSG_NOSIGNAL) != (ssize_t)sizeof(answer))
			break;
	}
	return 98; /* the director has ended */
}
