/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What it takes until another process can use virtual memory:
 *
 *   hand_over own N ROUNDS     the program's own way: descriptors by SCM_RIGHTS, import, map, access
 *   hand_over handle N ROUNDS  a legacy handle and its open (under culimbo with CULIMBO_SHARE=all)
 *   hand_over alone BATCHES    allocations and frees of a process that shares nothing
 *   hand_over default BATCHES  the same of a process that uses no pool but the default one
 *
 * The last two are hand_over_alone.c's.
 *
 * N allocations of 2 MiB lie side by side in one reservation.  In each round the exporter makes new
 * ones, the importer asks, and its time counts from there until all can be used.  Then it reads one
 * word of each.  Prints lines "NAME ns VALUE...", a value for each round.  hand_over.py compares them.
 *
 * Rule: The importer is forked before either process calls CUDA.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/bench/hand_over.h"
#include "tests/e2e/descriptors.h"

enum { MOST = 4096, AGAIN = 1000 };

static unsigned int n, rounds;
static bool own;
void *hand_over_library;
static CUresult(CUDAAPI *import_descriptor)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);

/* What the exporter tells of its new allocations. */
struct offer {
	uint32_t value; /* the first word of the first allocation; the next has one more */
	CUipcMemHandle handle;
};

uint64_t hand_over_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void start_cuda(void)
{
	const char *why = cuda_door_open();
	CUcontext context;

	if (why) {
		fprintf(stderr, "%s\n", why);
		_exit(77);
	}
	hand_over_library = dlopen("libcuda.so.1", RTLD_NOW);
	MUST(hand_over_library);
	*(void **)&import_descriptor = dlsym(hand_over_library, "cuMemImportFromShareableHandle");
	MUST(import_descriptor);
	CUDA(cu.cuInit(0));
	CUDA(cu.cuDevicePrimaryCtxRetain(&context, 0));
	CUDA(cu.cuCtxSetCurrent(context));
}

void hand_over_let_in(CUdeviceptr at, size_t bytes)
{
	CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

	CUDA(cu.cuMemSetAccess(at, bytes, &access, 1));
}

/* ------------------------------------------------------------------ the exporter */
static CUmemGenericAllocationHandle made[MOST];

static CUdeviceptr make(uint32_t value)
{
	CUmemAllocationProp properties = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					   .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
					   .requestedHandleTypes = own ? POSIX_FD : CU_MEM_HANDLE_TYPE_NONE };
	CUdeviceptr at;

	CUDA(cu.cuMemAddressReserve(&at, n * PIECE, 0, 0, 0));
	for (unsigned int i = 0; i < n; i++) {
		CUDA(cu.cuMemCreate(&made[i], PIECE, &properties, 0));
		CUDA(cu.cuMemMap(at + i * PIECE, PIECE, 0, made[i], 0));
	}
	hand_over_let_in(at, n * PIECE);
	for (unsigned int i = 0; i < n; i++)
		CUDA(cu.cuMemsetD8_v2(at + i * PIECE, (unsigned char)(value + i), 4));
	CUDA(cu.cuCtxSynchronize());
	return at;
}

static void unmake(CUdeviceptr at)
{
	CUDA(cu.cuMemUnmap(at, n * PIECE));
	for (unsigned int i = 0; i < n; i++)
		CUDA(cu.cuMemRelease(made[i]));
	CUDA(cu.cuMemAddressFree(at, n * PIECE));
}

static void hand_over(int socket)
{
	for (unsigned int i = 0; i < n; i += DESCRIPTORS_AT_ONCE) {
		unsigned int count = descriptors_next(n, i);
		int fd[DESCRIPTORS_AT_ONCE];

		for (unsigned int k = 0; k < count; k++)
			CUDA(cu.cuMemExportToShareableHandle(&fd[k], made[i + k], POSIX_FD, 0));
		MUST(descriptors_send(socket, fd, count));
		for (unsigned int k = 0; k < count; k++)
			close(fd[k]);
	}
}

static void play_exporter(int socket)
{
	uint64_t first = 0, again = 0;
	char byte;

	start_cuda();
	for (unsigned int round = 0; round < rounds; round++) {
		struct offer offer = { .value = round + 1 };
		CUdeviceptr at = make(offer.value);

		if (!own) {
			uint64_t start = hand_over_now_ns();

			CUDA(cu.cuIpcGetMemHandle(&offer.handle, at));
			first = hand_over_now_ns() - start;
			start = hand_over_now_ns();
			for (int i = 0; i < AGAIN; i++)
				CUDA(cu.cuIpcGetMemHandle(&offer.handle, at));
			again = (hand_over_now_ns() - start) / AGAIN;
		}
		MUST(send(socket, &offer, sizeof(offer), 0) == sizeof(offer));
		if (own) {
			MUST(recv(socket, &byte, 1, 0) == 1);
			hand_over(socket);
		}
		MUST(recv(socket, &byte, 1, 0) == 1);
		unmake(at);
	}
	if (!own)
		printf("get-first ns %llu\nget-again ns %llu\n", (unsigned long long)first, (unsigned long long)again);
}

/* ------------------------------------------------------------------ the importer */
static CUdeviceptr take(int socket)
{
	CUdeviceptr at;

	MUST(send(socket, "", 1, 0) == 1);
	CUDA(cu.cuMemAddressReserve(&at, n * PIECE, 0, 0, 0));
	for (unsigned int i = 0; i < n; i += DESCRIPTORS_AT_ONCE) {
		unsigned int count = descriptors_next(n, i);
		int fd[DESCRIPTORS_AT_ONCE];

		MUST(descriptors_receive(socket, fd, count));
		for (unsigned int k = 0; k < count; k++) {
			CUmemGenericAllocationHandle piece;

			CUDA(import_descriptor(&piece, (void *)(intptr_t)fd[k], POSIX_FD));
			CUDA(cu.cuMemMap(at + (i + k) * PIECE, PIECE, 0, piece, 0));
			CUDA(cu.cuMemRelease(piece));
			close(fd[k]);
		}
	}
	hand_over_let_in(at, n * PIECE);
	return at;
}

static void check(CUdeviceptr at, uint32_t value)
{
	for (unsigned int i = 0; i < n; i++) {
		uint32_t word = 0, right = 0x01010101u * (unsigned char)(value + i);

		CUDA(cu.cuMemcpyDtoH_v2(&word, at + i * PIECE, sizeof(word)));
		if (word == right)
			continue;
		fprintf(stderr, "allocation %u of %u has %x, not %x\n", i, n, word, right);
		_exit(1);
	}
}

static void play_importer(int socket)
{
	uint64_t *took = calloc(rounds, sizeof(*took));

	MUST(took);
	start_cuda();
	for (unsigned int round = 0; round < rounds; round++) {
		struct offer offer;
		CUdeviceptr at;
		uint64_t start;

		MUST(recv(socket, &offer, sizeof(offer), 0) == sizeof(offer));
		start = hand_over_now_ns();
		if (own)
			at = take(socket);
		else
			CUDA(cu.cuIpcOpenMemHandle_v2(&at, offer.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		took[round] = hand_over_now_ns() - start;
		check(at, offer.value);
		if (own) {
			CUDA(cu.cuMemUnmap(at, n * PIECE));
			CUDA(cu.cuMemAddressFree(at, n * PIECE));
		} else {
			CUDA(cu.cuIpcCloseMemHandle(at));
		}
		MUST(send(socket, "", 1, 0) == 1);
	}
	printf("open ns");
	for (unsigned int round = 0; round < rounds; round++)
		printf(" %llu", (unsigned long long)took[round]);
	printf("\n");
}

int main(int argc, char **argv)
{
	int pair_of[2], status = 0;
	pid_t importer;

	if (argc == 3 && (!strcmp(argv[1], "alone") || !strcmp(argv[1], "default"))) {
		hand_over_shift_heap(); /* what the driver allocates at its start lies elsewhere, too */
		start_cuda();
		(strcmp(argv[1], "alone") ? hand_over_default : hand_over_alone)((unsigned int)atoi(argv[2]));
		return 0;
	}
	own = argc == 4 && !strcmp(argv[1], "own");
	n = argc == 4 ? (unsigned int)atoi(argv[2]) : 0;
	rounds = argc == 4 ? (unsigned int)atoi(argv[3]) : 0;
	if (!n || n > MOST || !rounds || (!own && strcmp(argv[1], "handle"))) {
		fprintf(stderr, "usage: hand_over own|handle N ROUNDS, or hand_over alone|default BATCHES\n");
		return 2;
	}
	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair_of) == 0);
	importer = fork();
	MUST(importer >= 0);
	if (!importer) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pair_of[0]);
		play_importer(pair_of[1]);
		exit(0);
	}
	close(pair_of[1]);
	play_exporter(pair_of[0]);
	fflush(stdout);
	MUST(waitpid(importer, &status, 0) == importer);
	return status ? 1 : 0;
}
