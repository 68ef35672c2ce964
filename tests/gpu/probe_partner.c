/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the questions about pools (probe_pools.h): the driver's calls, blocks, blocked streams,
 * and the partner process.
 *
 * Rule: The partner is forked before this process calls CUDA, and ends with it.
 */
#include "probe_pools.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct pool_calls p;

void begin_pools(void)
{
	void *library, *found;

	begin();
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
#define X(name, params)                                                                            \
	found = library ? dlsym(library, #name) : NULL;                                            \
	must(found ? 0 : -1, "dlsym of " #name);                                                   \
	memcpy(&p.name, &found, sizeof(found));
	POOL_CALLS(X)
#undef X
}

CUmemoryPool new_pool(int device, bool shareable)
{
	uint64_t keep_all = UINT64_MAX;
	CUmemPoolProps properties;
	CUmemoryPool pool;

	memset(&properties, 0, sizeof(properties));
	properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	properties.handleTypes = shareable ? POSIX_FD : CU_MEM_HANDLE_TYPE_NONE;
	properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	properties.location.id = device;
	MUST(p.cuMemPoolCreate(&pool, &properties));
	MUST(p.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all));
	return pool;
}

CUdeviceptr new_block(CUmemoryPool pool, size_t bytes, unsigned char value)
{
	CUdeviceptr block;

	MUST(p.cuMemAllocFromPoolAsync(&block, bytes, pool, stream));
	MUST(cu.cuStreamSynchronize(stream));
	MUST(cu.cuMemsetD8_v2(block, value, bytes));
	MUST(cu.cuCtxSynchronize());
	return block;
}

int byte_at(CUdeviceptr pointer)
{
	unsigned char byte = 0;
	int result = DO(cu.cuMemcpyDtoH_v2(&byte, pointer, 1));

	return result ? -result : byte;
}

/* ---- the partner process ---- */

static int to_partner;
static pid_t partner_pid;

int send_with(int socket, const void *bytes, size_t n, int fd)
{
	char control[CMSG_SPACE(sizeof(fd))];
	struct iovec vector = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = n };
	struct msghdr message = { .msg_iov = &vector, .msg_iovlen = 1 };
	struct cmsghdr *header;

	if (fd >= 0) {
		memset(control, 0, sizeof(control));
		message.msg_control = control;
		message.msg_controllen = sizeof(control);
		header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	}
	return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)n ? 0 : -1;
}

int receive_with(int socket, void *bytes, size_t n, int *fd)
{
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec vector = { .iov_base = bytes, .iov_len = n };
	struct msghdr message = { .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *header;

	if (recvmsg(socket, &message, 0) != (ssize_t)n)
		return -1;
	header = CMSG_FIRSTHDR(&message);
	if (fd && header)
		memcpy(fd, CMSG_DATA(header), sizeof(*fd));
	return 0;
}

static atomic_bool going_on, blocked;

static void CUDA_CB wait_to_go_on(void *unused)
{
	(void)unused;
	atomic_store(&blocked, true);
	while (!atomic_load(&going_on))
		usleep(100);
}

void block_stream(CUstream in)
{
	atomic_store(&going_on, false);
	atomic_store(&blocked, false);
	MUST(cu.cuLaunchHostFunc(in, wait_to_go_on, NULL));
	while (!atomic_load(&blocked))
		usleep(100);
}

void go_on(void)
{
	atomic_store(&going_on, true);
}

/* The exporter: creates a pool on @device and one block of it. */
static void partner(int socket, int device)
{
	unsigned char value = OURS; /* the contents of the first block, then of the next one */
	CUmemoryPool pool;
	CUdeviceptr block = 0;
	enum order order;
	int fd = -1;

	begin_pools();
	if (device) {
		MUST(cu.cuDevicePrimaryCtxRetain(&primary, device));
		MUST(cu.cuCtxSetCurrent(primary));
		MUST(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	}
	pool = new_pool(device, true);
	MUST(p.cuMemPoolExportToShareableHandle(&fd, pool, POSIX_FD, 0));
	if (send_with(socket, "", 1, fd))
		_exit(3);
	while (!receive_with(socket, &order, sizeof(order), NULL)) {
		struct answer answer = { 0 };

		switch (order) {
		case EXPORT:
			block = new_block(pool, LARGE, value);
			value = NEXT;
			answer.result = (int)p.cuMemPoolExportPointer(&answer.data, block);
			break;
		case FREE_PENDING:
			block_stream(stream);
			answer.result = (int)cu.cuMemFreeAsync(block, stream);
			break;
		case FREE:
			answer.result = (int)cu.cuMemFreeAsync(block, stream);
			cu.cuStreamSynchronize(stream);
			break;
		case BUSY:
			block_stream(stream);
			break;
		case DESTROY:
			answer.result = (int)p.cuMemPoolDestroy(pool);
			break;
		case END:
			break;
		}
		if (send_with(socket, &answer, sizeof(answer), -1) || order == END)
			break;
	}
	exit(0); /* a normal exit */
}

struct answer tell(enum order order)
{
	struct answer answer = { .result = -1 };

	snprintf(at, 128, "the exporter's part");
	if (send_with(to_partner, &order, sizeof(order), -1) ||
	    receive_with(to_partner, &answer, sizeof(answer), NULL))
		must(-1, "the exporter");
	if (order == END)
		waitpid(partner_pid, NULL, 0);
	return answer;
}

CUmemoryPool begin_with_partner(int device)
{
	CUmemoryPool pool;
	int ends[2], fd = -1;
	char byte;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends))
		exit(3);
	partner_pid = fork();
	if (!partner_pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		partner(ends[1], device);
	}
	close(ends[1]);
	to_partner = ends[0];
	snprintf(at, 128, "the exporter's beginning");
	if (receive_with(to_partner, &byte, 1, &fd) || fd < 0)
		must(-1, "the exporter");
	begin_pools();
	MUST(p.cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, POSIX_FD, 0));
	close(fd);
	return pool;
}

struct answer exported;
CUmemoryPool imported_pool;

int import_again(CUdeviceptr *pointer)
{
	return DO(p.cuMemPoolImportPointer(pointer, imported_pool, &exported.data));
}

CUdeviceptr begin_with_import(void)
{
	CUdeviceptr pointer;

	imported_pool = begin_with_partner(0);
	exported = tell(EXPORT);
	must(exported.result, "cuMemPoolExportPointer");
	must(import_again(&pointer), "cuMemPoolImportPointer");
	return pointer;
}

int known(CUdeviceptr pointer)
{
	CUdeviceptr base;
	size_t size;

	return DO(cu.cuMemGetAddressRange_v2(&base, &size, pointer));
}

/* ---- the exporter's side in this process ---- */

CUstream other_stream;
CUmemoryPool own_pool;
CUdeviceptr subject;

void prepare_export(void)
{
	subject = new_block(own_pool, LARGE, OURS);
}

void begin_exporter(void)
{
	int fd;

	begin_pools();
	MUST(cu.cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING));
	own_pool = new_pool(0, true);
	MUST(p.cuMemPoolExportToShareableHandle(&fd, own_pool, POSIX_FD, 0));
}

int call_export(void)
{
	CUmemPoolPtrExportData data;

	return DO(p.cuMemPoolExportPointer(&data, subject));
}
