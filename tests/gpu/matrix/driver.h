/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common.h for the C++ clients that call the driver API: checked calls, the
 * primary context of a device, contents by copies, and a consumer that opens,
 * reads and closes on command.
 *
 * Rules: The clients run on the simulated driver as on a GPU and know nothing of
 * culimbo.  What they print is the same in each run, except for "result=".
 */
#ifndef GPU_MATRIX_DRIVER_H
#define GPU_MATRIX_DRIVER_H

#define COMMON_DRIVER_API
#define PROGRAM_SECONDS (120 + run_seconds)
#define ANSWER_MS 60000 /* long, because a test machine may be busy */
static unsigned int run_seconds;
#include "../common.h"
#include <vector>

enum { BYTES = 1024, NEIGHBOURS = 8, TRIES = 64, OURS = 17, THEIRS = 238, BESIDE = 90 };
enum { SKIPPED = 77 }; /* matrix.sh takes this exit status for "cannot run here" */

static inline const char *cu_name(CUresult result)
{
	const char *name = NULL;

	return cuGetErrorName(result, &name) == CUDA_SUCCESS && name ? name : "?";
}

static inline void cu_check(CUresult result, const char *call, const char *file, int line)
{
	if (result != CUDA_SUCCESS)
		die("%s:%d: %s: %s (%d)", file, line, call, cu_name(result), (int)result);
}
#define CU(call) cu_check((call), #call, __FILE__, __LINE__)

/* Retains the primary context of @device and makes it current. */
static inline CUcontext driver_start(int device)
{
	CUcontext context;
	CUdevice found;

	CU(cuInit(0));
	CU(cuDeviceGet(&found, device));
	CU(cuDevicePrimaryCtxRetain(&context, found));
	CU(cuCtxSetCurrent(context));
	return context;
}

static inline void tell_version(void)
{
	int version = 0;

	CU(cuDriverGetVersion(&version));
	fact("version=driver API %d.%d", version / 1000, version % 1000 / 10);
	fact("producer=%d", (int)getpid());
}

static inline CUdeviceptr make(size_t bytes, unsigned char value)
{
	CUdeviceptr p;

	CU(cuMemAlloc(&p, bytes));
	CU(cuMemsetD8(p, value, bytes));
	CU(cuStreamSynchronize(0));
	return p;
}

/* Returns how many of the @bytes at @p differ from @value. */
static inline uint64_t count_other(CUdeviceptr p, size_t bytes, unsigned char value)
{
	std::vector<unsigned char> copy(bytes);
	uint64_t other = 0;

	CU(cuMemcpyDtoH(copy.data(), p, bytes));
	for (unsigned char byte : copy)
		other += byte != value;
	return other;
}

/* A block of BYTES between live neighbours, so that its chunk stays allocated. */
struct Block {
	std::vector<CUdeviceptr> beside;
	CUdeviceptr address = 0;

	explicit Block(unsigned char value = OURS)
	{
		for (int i = 0; i < NEIGHBOURS; i++)
			beside.push_back(make(BYTES, BESIDE));
		address = make(BYTES, value);
		for (int i = 0; i < NEIGHBOURS; i++)
			beside.push_back(make(BYTES, BESIDE));
	}

	/* Allocates until the freed address comes again, up to a limit, and overwrites each block. */
	void reuse()
	{
		for (int i = 0; i < TRIES; i++) {
			beside.push_back(make(BYTES, THEIRS));
			if (beside.back() == address)
				break;
		}
	}

	void free_others()
	{
		for (CUdeviceptr p : beside)
			CU(cuMemFree(p));
		beside.clear();
	}
};

static inline struct message to_open(CUdeviceptr block, size_t bytes, unsigned char value)
{
	struct message m = {};

	CU(cuIpcGetMemHandle(&m.handle, block));
	m.op = 'O';
	m.bytes = bytes;
	m.value = value;
	return m;
}

/* Has the consumer open the block; the answer has its address and its number of wrong bytes. */
static inline struct message open_there(const struct link *link, CUdeviceptr block, size_t bytes,
					unsigned char value)
{
	struct message m = to_open(block, bytes, value);

	link_ask(link, &m, 'o');
	if (m.other)
		die("%llu bytes are wrong right after the open", (unsigned long long)m.other);
	return m;
}

static inline bool own_there(const struct link *link, struct message m)
{
	m.op = 'V';
	link_ask(link, &m, 'v');
	return !m.other;
}

static inline void close_there(const struct link *link, struct message m)
{
	m.op = 'C';
	link_ask(link, &m, 'c');
}

/* The standard consumer: holds any number of imports, named by address. */
static inline int plain_consumer(void)
{
	struct link link = link_consumer();
	struct message m;
	CUresult opened;

	while (link_receive(&link, &m, 1e3 * PROGRAM_SECONDS)) {
		CUdeviceptr p = (CUdeviceptr)(uintptr_t)m.address;

		switch (m.op) {
		case 'O':
			opened = cuIpcOpenMemHandle(&p, m.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
			/* bare, a block freed while we map it is not checked: its bytes are not ours */
			if (opened == CUDA_ERROR_ALREADY_MAPPED)
				p = 0;
			else
				CU(opened);
			m.address = (void *)(uintptr_t)p;
			m.other = p ? count_other(p, m.bytes, m.value) : m.bytes;
			m.op = 'o';
			break;
		case 'V':
			m.other = p ? count_other(p, m.bytes, m.value) : m.bytes;
			m.op = 'v';
			break;
		case 'C':
			if (p)
				CU(cuIpcCloseMemHandle(p));
			m.op = 'c';
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

static inline const char *word(bool own)
{
	return own ? "own" : "foreign";
}

#endif
