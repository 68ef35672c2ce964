/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process shares virtual memory and a memory pool with another by descriptors, as PyTorch and NCCL do:
 * three allocations of 2 MiB, one of them twice, and one of 4 MiB; the importer maps all but the last
 * of them.  Prints both process ids, waits for a byte, and exits with 0.  "nothing": it allocates shareable
 * memory, but shares none.
 */
#include "bug.h"

#include <sys/socket.h>

enum { MIB = 1 << 20, ALLOCATIONS = 4, EXPORTS = 5 };

static const CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					  .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					  .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };

static void send_descriptor(int to, int fd)
{
	char byte = 0, room[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room) };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);

	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &fd, sizeof(int));
	if (sendmsg(to, &message, 0) != 1)
		exit(3);
	close(fd);
}

static int receive_descriptor(int from)
{
	char byte, room[CMSG_SPACE(sizeof(int))];
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room) };
	int fd;

	if (recvmsg(from, &message, 0) != 1 || !CMSG_FIRSTHDR(&message))
		exit(3);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
	return fd;
}

__attribute__((noinline)) static void export_one(int to, CUmemGenericAllocationHandle handle)
{
	int fd;

	CHECK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	send_descriptor(to, fd);
}

__attribute__((noinline)) static CUmemGenericAllocationHandle import_one(int from)
{
	CUmemGenericAllocationHandle handle;
	int fd = receive_descriptor(from);

	CHECK(cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	return handle;
}

static void consume(int from)
{
	CUmemGenericAllocationHandle handle[EXPORTS];
	CUmemoryPool pool;
	CUdeviceptr at;
	int fd;

	/* one at a line of its own */
	handle[0] = import_one(from);
	for (int i = 1; i < EXPORTS; i++)
		handle[i] = import_one(from);
	CHECK(cuMemAddressReserve(&at, EXPORTS * 4 * MIB, 0, 0, 0));
	for (int i = 0; i + 1 < EXPORTS; i++)
		CHECK(cuMemMap(at + (CUdeviceptr)i * 4 * MIB, 2 * MIB, 0, handle[i], 0));
	/* mapped again, it is not another import */
	CHECK(cuMemUnmap(at, 2 * MIB));
	CHECK(cuMemMap(at, 2 * MIB, 0, handle[0], 0));
	fd = receive_descriptor(from);
	CHECK(cuMemPoolImportFromShareableHandle(&pool, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	close(fd);
}

static void produce(int to)
{
	CUmemPoolProps pools = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				 .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				 .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	CUmemGenericAllocationHandle handle[ALLOCATIONS];
	CUmemoryPool pool;
	int fd;

	for (int i = 0; i < ALLOCATIONS; i++)
		CHECK(cuMemCreate(&handle[i], i == 3 ? 4 * MIB : 2 * MIB, &prop, 0));
	if (to < 0)
		return;
	export_one(to, handle[0]);
	for (int i = 0; i < ALLOCATIONS; i++)
		export_one(to, handle[i]);
	CHECK(cuMemPoolCreate(&pool, &pools));
	CHECK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	send_descriptor(to, fd);
}

int main(int argc, char **argv)
{
	int pair[2], end[2];
	pid_t consumer;
	char byte;

	(void)argv;
	if (argc > 1) {
		use_gpu();
		produce(-1);
		return 0;
	}
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || pipe(end))
		return 2;
	consumer = fork();
	use_gpu();
	if (consumer == 0) {
		close(end[1]);
		consume(pair[1]);
		pass(pair[1], "r", 1);
		return read(end[0], &byte, 1) != 0; /* until the other ends */
	}
	produce(pair[0]);
	receive(pair[0], &byte, 1);
	printf("%d %d\n", (int)getpid(), (int)consumer);
	fflush(stdout);
	if (read(0, &byte, 1) < 0)
		return 3;
	close(end[1]);
	waitpid(consumer, NULL, 0);
	return 0;
}
