/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Green contexts in producer and consumer.  Blocks and events are created in one
 * and freed or destroyed in it, after its end, and in stream order.  Imports
 * outlive the green context in which they were opened.  One green context is the
 * last user of its primary context.  The client prints the result of each call,
 * which must be the same with and without culimbo.
 */
#include "driver.h"

#if CUDA_VERSION >= 12040
/* weak, because older drivers lack these calls */
#pragma weak cuDeviceGetDevResource
#pragma weak cuDevResourceGenerateDesc
#pragma weak cuGreenCtxCreate
#pragma weak cuCtxFromGreenCtx
#pragma weak cuGreenCtxDestroy

struct Green {
	CUgreenCtx green = NULL;
	CUcontext context = NULL, primary;

	/* Makes the green context current. */
	explicit Green(CUcontext of) : primary(of)
	{
		CUdevResource resource;
		CUdevResourceDesc description;
		CUcontext again;

		CU(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
		CU(cuDevResourceGenerateDesc(&description, &resource, 1));
		CU(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
		CU(cuCtxFromGreenCtx(&context, green));
		CU(cuCtxFromGreenCtx(&again, green));
		CU(cuCtxSetCurrent(context));
	}
	/* Must not be called while it is current. */
	CUresult end(CUcontext current)
	{
		CU(cuCtxSetCurrent(current));
		return cuGreenCtxDestroy(green);
	}
};

static bool primary_active()
{
	unsigned int flags;
	int active = 0;

	CU(cuDevicePrimaryCtxGetState(0, &flags, &active));
	return active != 0;
}

/* Opens a block in a green context (commands G ... H), or in one that alone keeps the primary context (G ... L). */
static int consumer(CUcontext primary)
{
	struct link link = link_consumer();
	std::vector<Green> greens;
	struct message m;

	while (link_receive(&link, &m, ANSWER_MS)) {
		CUdeviceptr p = (CUdeviceptr)(uintptr_t)m.address;
		CUipcEventHandle handle;
		CUevent event;

		switch (m.op) {
		case 'G':
			greens.emplace_back(primary);
			m.op = 'g';
			break;
		case 'H':
			m.other = greens.back().end(primary);
			greens.pop_back();
			m.op = 'h';
			break;
		case 'L':
			CU(cuDevicePrimaryCtxRelease(0));
			m.other = (uint64_t)primary_active();
			m.value = (unsigned char)greens.back().end(NULL);
			greens.pop_back();
			m.bytes = (uint64_t)primary_active();
			primary = driver_start(0);
			m.op = 'l';
			break;
		case 'O':
			CU(cuIpcOpenMemHandle(&p, m.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
			m.address = (void *)(uintptr_t)p;
			m.other = count_other(p, m.bytes, m.value);
			m.op = 'o';
			break;
		case 'V':
			m.other = count_other(p, m.bytes, m.value);
			m.op = 'v';
			break;
		case 'C':
			CU(cuIpcCloseMemHandle(p));
			m.op = 'c';
			break;
		case 'E':
			memcpy(&handle, &m.handle, sizeof(handle));
			CU(cuIpcOpenEventHandle(&event, handle));
			m.address = event;
			m.op = 'e';
			break;
		case 'D':
			m.other = cuEventDestroy((CUevent)m.address);
			m.op = 'd';
			break;
		case 'Q':
			return 0;
		default:
			die("what is '%c'?", m.op);
		}
		link_send(&link, &m);
	}
	die("the producer ended unexpectedly");
}

static struct message say(const struct link *link, char op, char answer)
{
	struct message m = {};

	m.op = op;
	link_ask(link, &m, answer);
	return m;
}

enum { IN_IT, IN_ITS_STREAM, ITS_STREAM_FROM_OUTSIDE, ASYNC_IN_IT, AFTER_IT };
static const char *const ways[] = {"freed in it", "freed on a stream of it",
				   "freed on a stream of it, from the primary context",
				   "freed on its default stream", "freed after its end"};

static void block_of_one(const struct link *link, CUcontext primary, int way)
{
	Green green(primary);
	Block block;
	struct message m = open_there(link, block.address, BYTES, OURS);
	CUresult freed = CUDA_SUCCESS, ended;
	CUstream stream;

	CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	if (way == ITS_STREAM_FROM_OUTSIDE)
		CU(cuCtxSetCurrent(primary));
	if (way == IN_IT)
		freed = cuMemFree(block.address);
	else if (way == ASYNC_IN_IT)
		freed = cuMemFreeAsync(block.address, 0);
	else if (way != AFTER_IT)
		freed = cuMemFreeAsync(block.address, stream);
	if (way != IN_IT && way != AFTER_IT)
		CU(cuStreamSynchronize(way == ASYNC_IN_IT ? 0 : stream));
	CU(cuStreamDestroy(stream));
	ended = green.end(primary);
	if (way == AFTER_IT)
		freed = cuMemFree(block.address);
	block.reuse();
	printf("client=green %s: %s, its end %s result=%s\n", ways[way], cu_name(freed), cu_name(ended),
	       word(own_there(link, m)));
	close_there(link, m);
	block.free_others();
}

static void event_of_one(const struct link *link, CUcontext primary, bool after)
{
	Green green(primary);
	struct message m = {};
	CUresult destroyed = CUDA_SUCCESS, ended;
	CUipcEventHandle handle;
	CUevent event;

	CU(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	CU(cuEventRecord(event, 0));
	CU(cuIpcGetEventHandle(&handle, event));
	memcpy(&m.handle, &handle, sizeof(handle));
	m.op = 'E';
	link_ask(link, &m, 'e');
	if (!after)
		destroyed = cuEventDestroy(event);
	ended = green.end(primary);
	if (after)
		destroyed = cuEventDestroy(event);
	m.op = 'D';
	link_ask(link, &m, 'd');
	printf("client=green event destroyed %s: %s, there %s, its end %s\n", after ? "after it" : "in it",
	       cu_name(destroyed), cu_name((CUresult)m.other), cu_name(ended));
}

static void import_of_one(const struct link *link)
{
	Block block;
	struct message m, answer;

	say(link, 'G', 'g');
	m = open_there(link, block.address, BYTES, OURS);
	CU(cuMemFree(block.address));
	answer = say(link, 'H', 'h');
	block.reuse();
	printf("client=green opened in one, its end there %s result=%s\n", cu_name((CUresult)answer.other),
	       word(own_there(link, m)));
	close_there(link, m);
	block.free_others();
}

static void last_of_all(const struct link *link)
{
	Block block;
	struct message answer;

	say(link, 'G', 'g');
	open_there(link, block.address, BYTES, OURS);
	CU(cuMemFree(block.address));
	answer = say(link, 'L', 'l');
	printf("client=green the last that has the primary context: %s, its end %s, then %s\n",
	       answer.other ? "active" : "inactive", cu_name((CUresult)answer.value),
	       answer.bytes ? "active" : "inactive");
	block.reuse();
	block.free_others();
}

int main(int argc, char **)
{
	CUcontext primary;
	struct link link;

	program_start();
	if (!cuDeviceGetDevResource || !cuDevResourceGenerateDesc) {
		printf("skip=this driver has no green contexts\n");
		return SKIPPED;
	}
	primary = driver_start(0);
	if (argc > 1)
		return consumer(primary);
	tell_version();
	link = link_start("green");
	fact("consumer=%d", (int)link.pid);
	for (int way = IN_IT; way <= AFTER_IT; way++)
		block_of_one(&link, primary, way);
	event_of_one(&link, primary, false);
	event_of_one(&link, primary, true);
	import_of_one(&link);
	last_of_all(&link);
	import_of_one(&link);
	/* blocks that wait for their grace period are released after the green contexts have ended */
	pause_ms(2500);
	event_of_one(&link, primary, false);
	link_end(&link);
	return 0;
}
#else
int main()
{
	printf("skip=compiled with a CUDA before 12.4\n");
	return SKIPPED;
}
#endif
