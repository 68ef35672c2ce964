/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The no_memory program: fills a device, and creates what the filler shares with a prober.
 */
#include "no_memory.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cuda.h>

struct driver cu;

const char *load_driver(void)
{
	static const char *missing;
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *found;

	if (!library)
		return "no libcuda.so.1";
#define X(name, params)                                 \
	found = dlsym(library, #name);                  \
	memcpy(&cu.name, &found, sizeof found);         \
	if (!found)                                     \
		missing = "libcuda.so.1 has no " #name;
	OTHER_CALLS(X)
	missing = NULL;
	NEEDED_CALLS(X)
#undef X
	return missing;
}

/*
 * Takes all that plain allocations can get, in chunks of @from bytes down to 512.  The list of the
 * pieces is itself kept in blocks, because it may be long.
 */
int fill(struct pieces *p, size_t from)
{
	for (size_t chunk = from; chunk >= 512; chunk /= 2)
		for (;;) {
			CUdeviceptr got;
			CUresult result = cu.cuMemAlloc_v2(&got, chunk);

			if (result == OOM)
				break;
			if (result)
				return (int)result;
			if (p->n == p->room) {
				p->room = p->room ? 2 * p->room : 4096;
				p->at = realloc(p->at, p->room * sizeof *p->at);
				if (!p->at)
					abort();
			}
			p->at[p->n++] = got;
			p->bytes += chunk;
		}
	return 0;
}

int empty(struct pieces *p)
{
	int result = 0;

	while (p->n) {
		int freed = (int)cu.cuMemFree_v2(p->at[--p->n]);

		if (freed)
			result = freed;
	}
	p->bytes = 0;
	return result;
}

#define SHARED_BYTES (1024 * MIB) /* less where the device is small: see share() */

/* Two descriptors are sent along: of the pool and of virtual memory. */
int pool_fd = -1, vmm_fd = -1;

static CUmemAllocationProp device_memory(void)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
	};
}

CUmemPoolProps device_pool(void)
{
	return (CUmemPoolProps){
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
	};
}

const CUmemAccessDesc device_access = {
	.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
	.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};

static int share_pool(struct shared *s)
{
	CUmemPoolProps props = device_pool();
	CUmemoryPool pool;
	CUdeviceptr block;

	TRY_IF(cuMemPoolCreate, &pool, &props);
	TRY_IF(cuMemPoolExportToShareableHandle, &pool_fd, pool,
	       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	TRY_IF(cuMemAllocFromPoolAsync, &block, s->bytes / 4, pool, NULL);
	TRY(cu.cuStreamSynchronize(NULL));
	TRY_IF(cuMemPoolExportPointer, &s->pointer, block);
	s->has_pool = true;
	return 0;
}

static int share_vmm(struct shared *s)
{
	CUmemAllocationProp prop = device_memory();
	CUmemGenericAllocationHandle handle;

	TRY_IF(cuMemCreate, &handle, s->bytes / 4, &prop, 0);
	TRY_IF(cuMemExportToShareableHandle, &vmm_fd, handle,
	       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	s->has_vmm = true;
	return 0;
}

int share(struct shared *s)
{
	size_t available, total;
	CUdeviceptr block;
	CUevent event;

	TRY(cu.cuMemGetInfo_v2(&available, &total));
	s->bytes = SHARED_BYTES;
	while (s->bytes > available / 8)
		s->bytes /= 2;
	TRY(cu.cuMemAlloc_v2(&block, s->bytes));
	TRY(cu.cuIpcGetMemHandle(&s->memory, block));
	TRY(cu.cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	TRY(cu.cuIpcGetEventHandle(&s->event, event));
	(void)share_pool(s);
	(void)share_vmm(s);
	return 0;
}

/* Sends two descriptors; -1: none. */
void send_shared(int to, const struct shared *s)
{
	int fds[2] = { pool_fd, vmm_fd }, n = 0, sent[2];
	struct iovec what = { (void *)s, sizeof *s };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof fds)];
	} control;
	struct msghdr message = { .msg_iov = &what, .msg_iovlen = 1 };

	for (int i = 0; i < 2; i++)
		if (fds[i] >= 0)
			sent[n++] = fds[i];
	if (n) {
		memset(&control, 0, sizeof control);
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)n);
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(sizeof(int) * (size_t)n);
		memcpy(CMSG_DATA(&control.head), sent, sizeof(int) * (size_t)n);
	}
	if (sendmsg(to, &message, 0) != (ssize_t)sizeof *s)
		_exit(1);
}

bool receive_shared(int from, struct shared *s)
{
	int fds[2] = { -1, -1 }, n = 0;
	struct iovec what = { s, sizeof *s };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof fds)];
	} control;
	struct msghdr message = { .msg_iov = &what,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof control };
	struct cmsghdr *head;

	if (recvmsg(from, &message, 0) != (ssize_t)sizeof *s)
		return false;
	head = CMSG_FIRSTHDR(&message);
	if (head)
		memcpy(fds, CMSG_DATA(head), head->cmsg_len - CMSG_LEN(0));
	pool_fd = s->has_pool ? fds[n++] : -1;
	vmm_fd = s->has_vmm ? fds[n] : -1;
	return true;
}
