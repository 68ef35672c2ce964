/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two devices: blocks of one are opened on the other and on both, copied by peer
 * access, and held while one device is reset.  For some importers
 * CUDA_VISIBLE_DEVICES reverses the devices or hides one.
 *
 * A failed open is a result; its error name is printed.
 */
#include "driver.h"

/* Opens blocks on the devices that the producer names in m.other. */
static int consumer()
{
	struct link link = link_consumer();
	struct message m;
	CUcontext contexts[2];
	int count;

	CU(cuInit(0));
	CU(cuDeviceGetCount(&count));
	for (int i = 0; i < count && i < 2; i++)
		contexts[i] = driver_start(i);
	while (link_receive(&link, &m, ANSWER_MS)) {
		CUdeviceptr p = (CUdeviceptr)(uintptr_t)m.address;
		CUresult result = CUDA_SUCCESS;

		if (m.op != 'Q') {
			if (m.other >= (uint64_t)count)
				die("no device %d here", (int)m.other);
			CU(cuCtxSetCurrent(contexts[m.other]));
		}
		switch (m.op) {
		case 'O':
			result = cuIpcOpenMemHandle(&p, m.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
			m.address = (void *)(uintptr_t)p;
			m.op = 'o';
			m.other = result;
			break;
		case 'V':
			m.other = count_other(p, m.bytes, m.value);
			m.op = 'v';
			break;
		case 'C':
			m.other = cuIpcCloseMemHandle(p);
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

struct There {
	struct link link;
	struct message m;
	int device;
	CUresult opened;

	There(const struct link &to, const struct message &handle, int on) : link(to), m(handle), device(on)
	{
		m.other = (uint64_t)on;
		link_ask(&link, &m, 'o');
		opened = (CUresult)m.other;
	}
	const char *look()
	{
		struct message asked = m;

		if (opened != CUDA_SUCCESS)
			return "none";
		asked.op = 'V';
		asked.other = (uint64_t)device;
		link_ask(&link, &asked, 'v');
		return word(!asked.other);
	}
	CUresult close()
	{
		struct message asked = m;

		if (opened != CUDA_SUCCESS)
			return opened;
		asked.op = 'C';
		asked.other = (uint64_t)device;
		link_ask(&link, &asked, 'c');
		return (CUresult)asked.other;
	}
};

static struct link start_seeing(const char *devices)
{
	const char *was = getenv("CUDA_VISIBLE_DEVICES");
	struct link link;
	char kept[256];

	snprintf(kept, sizeof(kept), "%s", was ? was : "");
	if (devices)
		setenv("CUDA_VISIBLE_DEVICES", devices, 1);
	link = link_start("devices");
	fact("consumer=%d", (int)link.pid);
	if (was)
		setenv("CUDA_VISIBLE_DEVICES", kept, 1);
	else
		unsetenv("CUDA_VISIBLE_DEVICES");
	return link;
}

/* Frees a block of device @from while the consumer has it open on each device of @on. */
static void opened_on(struct link *link, const char *what, CUcontext *contexts, int from,
		      const std::vector<int> &on)
{
	std::vector<There> opens;
	struct message m;

	CU(cuCtxSetCurrent(contexts[from]));
	Block block;
	m = to_open(block.address, BYTES, OURS);
	for (int device : on)
		opens.emplace_back(*link, m, device);
	CU(cuMemFree(block.address));
	block.reuse();
	for (There &open : opens)
		printf("client=devices %s: device %d's block on its device %d: open %s result=%s\n", what,
		       from, open.device, cu_name(open.opened), open.look());
	for (There &open : opens)
		printf("client=devices %s: closed on %d: %s\n", what, open.device,
		       cu_name(open.close()));
	block.free_others();
}

static void peer_copies(struct link *link, CUcontext *contexts)
{
	CUresult enabled;
	CUdeviceptr there, here;
	int can = 0;

	CU(cuDeviceCanAccessPeer(&can, 0, 1));
	CU(cuCtxSetCurrent(contexts[1]));
	there = make(BYTES, 0);
	CU(cuCtxSetCurrent(contexts[0]));
	enabled = cuCtxEnablePeerAccess(contexts[1], 0);
	Block block;
	here = block.address;
	There open(*link, to_open(here, BYTES, OURS), 0);
	CU(cuMemcpyPeer(there, contexts[1], here, contexts[0], BYTES));
	CU(cuCtxSynchronize());
	CU(cuMemFree(here));
	block.reuse();
	printf("client=devices peer access %d, enabled %s: copy is %s, result=%s\n", can,
	       cu_name(enabled), count_other(there, BYTES, OURS) ? "wrong" : "right", open.look());
	open.close();
	if (enabled == CUDA_SUCCESS)
		CU(cuCtxDisablePeerAccess(contexts[1]));
	block.free_others();
	CU(cuCtxSetCurrent(contexts[1]));
	CU(cuMemFree(there));
}

/* Resets device 1 while blocks of both devices are open; device 0's must be unaffected. */
static void reset_of_one(struct link *link, CUcontext *contexts)
{
	CUdevice second;
	CUdeviceptr theirs;

	CU(cuCtxSetCurrent(contexts[1]));
	theirs = make(BYTES, OURS);
	There other(*link, to_open(theirs, BYTES, OURS), 1);
	CU(cuCtxSetCurrent(contexts[0]));
	Block block;
	There open(*link, to_open(block.address, BYTES, OURS), 0);
	CU(cuMemFree(block.address));
	CU(cuDeviceGet(&second, 1));
	CU(cuDevicePrimaryCtxReset(second));
	block.reuse();
	printf("client=devices device 1 reset: device 0's block: result=%s\n", open.look());
	contexts[1] = driver_start(1);
	for (int i = 0; i < 4 * TRIES; i++)
		make(BYTES, THEIRS);
	printf("client=devices device 1 reset: its block there: result=%s\n", other.look());
	printf("client=devices closed: %s, %s\n", cu_name(open.close()), cu_name(other.close()));
	CU(cuCtxSetCurrent(contexts[0]));
	block.free_others();
	/* the device works again */
	opened_on(link, "after the reset", contexts, 1, {1});
}

int main(int argc, char **)
{
	CUcontext contexts[2];
	struct link link;
	int count;

	program_start();
	if (argc > 1)
		return consumer();
	CU(cuInit(0));
	CU(cuDeviceGetCount(&count));
	if (count < 2) {
		printf("skip=there is one device\n");
		return SKIPPED;
	}
	contexts[1] = driver_start(1);
	contexts[0] = driver_start(0);
	tell_version();
	link = start_seeing(NULL);
	opened_on(&link, "as they are", contexts, 0, {0});
	opened_on(&link, "as they are", contexts, 0, {1});
	opened_on(&link, "as they are", contexts, 1, {0, 1});
	peer_copies(&link, contexts);
	reset_of_one(&link, contexts);
	link_end(&link);

	link = start_seeing("1,0");
	opened_on(&link, "seen as 1,0", contexts, 0, {1});
	opened_on(&link, "seen as 1,0", contexts, 1, {0});
	opened_on(&link, "seen as 1,0", contexts, 0, {0, 1});
	link_end(&link);
	link = start_seeing("1");
	opened_on(&link, "1 alone seen", contexts, 1, {0});
	opened_on(&link, "1 alone seen", contexts, 0, {0});
	link_end(&link);
	printf("client=devices done\n");
	return 0;
}
