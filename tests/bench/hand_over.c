/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What it takes until another process can use virtual memory:
 *
 *   hand_over own N ROUNDS     the program's own way: descriptors by SCM_RIGHTS, import, map, access
 *   hand_over handle N ROUNDS  a legacy handle and its open (under culimbo with CULIMBO_SHARE=all)
 *   hand_over alone BATCHES    allocations and frees of a process that shares nothing
 *
 * The last prints for each kind of memory what one allocation with its free takes, for each batch.  Of stream-ordered
 * memory there are three kinds: of the device's default pool ("async"), of a pool of the program's own that nobody
 * can export ("async-own"), and of one that can be exported ("async-exportable").  Under culimbo's option the default
 * pool is an exportable one.  "virtual-exportable" asks for a descriptor, as "virtual" does under the option.
 *
 * Where a pair is one call and one free, it also prints, as NAME-direct, what the driver's own functions take.  It calls
 * them past any preload, by turns with the functions that a program gets.
 *
 * Two things of the driver differ by chance (measured on H100s, doc/performance.md).  A process is
 * fast or slow as a whole: a pool's pair takes it 640 to 1,590 ns.  And in one process a pool may take 1 to 3 % more than
 * another one, of whatever kind, depending on how many pools are in use and which was used first.  So each process also
 * prints controls: memory that is made and freed past any preload, which no option changes.  And it makes all its pools
 * in random order, with a random number of controls among them.  The kinds take turns in another order in each batch.
 *
 * N allocations of 2 MiB lie side by side in one reservation.  In each round the exporter makes new
 * ones, the importer asks, and its time counts from there until all can be used.  Then it reads one
 * word of each.  Prints lines "NAME ns VALUE...", a value for each round.  hand_over.py compares them.
 *
 * Rule: The importer is forked before either process calls CUDA.
 */
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/library_file.h"
#include "tests/e2e/cuda_door.h"

#define PIECE ((size_t)2 << 20)
#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
enum { AT_ONCE = 64, MOST = 4096, AGAIN = 1000 };

#define MUST(condition)                                                                  \
	do {                                                                             \
		if (!(condition)) {                                                      \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
			_exit(1);                                                        \
		}                                                                        \
	} while (0)
#define CUDA(call)                                                                       \
	do {                                                                             \
		CUresult result_ = (call);                                               \
		if (result_) {                                                           \
			fprintf(stderr, "%s:%d: %s gives %d\n", __FILE__, __LINE__, #call, (int)result_); \
			_exit(1);                                                        \
		}                                                                        \
	} while (0)

static unsigned int n, rounds;
static bool own;
static CUdeviceptr kept;
static void *libcuda;
static CUresult(CUDAAPI *import_descriptor)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
static CUresult(CUDAAPI *pool_create)(CUmemoryPool *, const CUmemPoolProps *);
static CUresult(CUDAAPI *get_pool)(CUmemoryPool *, CUdevice);
static CUresult(CUDAAPI *set_pool)(CUdevice, CUmemoryPool);

/* What the exporter tells of its new allocations. */
struct offer {
	uint32_t value; /* the first word of the first allocation; the next has one more */
	CUipcMemHandle handle;
};

static uint64_t now_ns(void)
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
	libcuda = dlopen("libcuda.so.1", RTLD_NOW);
	MUST(libcuda);
	*(void **)&import_descriptor = dlsym(libcuda, "cuMemImportFromShareableHandle");
	*(void **)&pool_create = dlsym(libcuda, "cuMemPoolCreate");
	*(void **)&set_pool = dlsym(libcuda, "cuDeviceSetMemPool");
	*(void **)&get_pool = dlsym(libcuda, "cuDeviceGetDefaultMemPool");
	MUST(import_descriptor && pool_create && set_pool && get_pool);
	CUDA(cu.cuInit(0));
	CUDA(cu.cuDevicePrimaryCtxRetain(&context, 0));
	CUDA(cu.cuCtxSetCurrent(context));
}

static void let_in(CUdeviceptr at, size_t bytes)
{
	CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

	CUDA(cu.cuMemSetAccess(at, bytes, &access, 1));
}

/* ------------------------------------------------------------------ descriptors */
static void send_some(int socket, const int *fd, unsigned int count)
{
	union {
		char bytes[CMSG_SPACE(AT_ONCE * sizeof(int))];
		struct cmsghdr align;
	} control = { { 0 } };
	char byte = 0;
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
				  .msg_controllen = CMSG_SPACE(count * sizeof(int)) };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);

	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(count * sizeof(int));
	memcpy(CMSG_DATA(head), fd, count * sizeof(int));
	MUST(sendmsg(socket, &message, 0) == 1);
}

static void receive_some(int socket, int *fd, unsigned int count)
{
	union {
		char bytes[CMSG_SPACE(AT_ONCE * sizeof(int))];
		struct cmsghdr align;
	} control;
	char byte;
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
				  .msg_controllen = sizeof(control.bytes) };
	struct cmsghdr *head;

	MUST(recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1);
	head = CMSG_FIRSTHDR(&message);
	MUST(head && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(count * sizeof(int)));
	memcpy(fd, CMSG_DATA(head), count * sizeof(int));
}

static unsigned int next_count(unsigned int from)
{
	return n - from < AT_ONCE ? n - from : AT_ONCE;
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
	let_in(at, n * PIECE);
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
	for (unsigned int i = 0; i < n; i += AT_ONCE) {
		unsigned int count = next_count(i);
		int fd[AT_ONCE];

		for (unsigned int k = 0; k < count; k++)
			CUDA(cu.cuMemExportToShareableHandle(&fd[k], made[i + k], POSIX_FD, 0));
		send_some(socket, fd, count);
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
			uint64_t start = now_ns();

			CUDA(cu.cuIpcGetMemHandle(&offer.handle, at));
			first = now_ns() - start;
			start = now_ns();
			for (int i = 0; i < AGAIN; i++)
				CUDA(cu.cuIpcGetMemHandle(&offer.handle, at));
			again = (now_ns() - start) / AGAIN;
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
	for (unsigned int i = 0; i < n; i += AT_ONCE) {
		unsigned int count = next_count(i);
		int fd[AT_ONCE];

		receive_some(socket, fd, count);
		for (unsigned int k = 0; k < count; k++) {
			CUmemGenericAllocationHandle piece;

			CUDA(import_descriptor(&piece, (void *)(intptr_t)fd[k], POSIX_FD));
			CUDA(cu.cuMemMap(at + (i + k) * PIECE, PIECE, 0, piece, 0));
			CUDA(cu.cuMemRelease(piece));
			close(fd[k]);
		}
	}
	let_in(at, n * PIECE);
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
		start = now_ns();
		if (own)
			at = take(socket);
		else
			CUDA(cu.cuIpcOpenMemHandle_v2(&at, offer.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		took[round] = now_ns() - start;
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

/* ------------------------------------------------------------- who shares nothing */
static CUdeviceptr room; /* a reservation of PIECE bytes */

static void pair_virtual_of(unsigned int types)
{
	CUmemAllocationProp properties = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					   .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
					   .requestedHandleTypes = (CUmemAllocationHandleType)types };
	CUmemGenericAllocationHandle memory;

	CUDA(cu.cuMemCreate(&memory, PIECE, &properties, 0));
	CUDA(cu.cuMemMap(room, PIECE, 0, memory, 0));
	let_in(room, PIECE);
	CUDA(cu.cuMemUnmap(room, PIECE));
	CUDA(cu.cuMemRelease(memory));
}

static void pair_virtual(void)
{
	pair_virtual_of(CU_MEM_HANDLE_TYPE_NONE);
}

static void pair_virtual_exportable(void)
{
	pair_virtual_of(POSIX_FD);
}

static void pair(void)
{
	CUdeviceptr at;

	CUDA(cu.cuMemAlloc_v2(&at, 4096));
	CUDA(cu.cuMemFree_v2(at));
}

static unsigned int at_random(unsigned int below)
{
	unsigned int number;

	MUST(getrandom(&number, sizeof(number), 0) == sizeof(number));
	return number % below;
}

/* Writes the numbers below @count to @order, in random order. */
static void shuffle(unsigned int *order, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++) {
		unsigned int k = at_random(i + 1);

		order[i] = order[k];
		order[k] = i;
	}
}

/* What comes from the heap afterwards lies elsewhere in each process.  It stays allocated. */
static void shift_heap(void)
{
	static char *last;
	char *more = malloc(sizeof(last) + at_random(256) * 16);

	MUST(more);
	memcpy(more, &last, sizeof(last));
	last = more;
}

enum { DEFAULT, OWN, EXPORTABLE, CONTROL, MOST_CONTROLS = 9, POOLS = CONTROL + MOST_CONTROLS };
static CUmemoryPool pools[POOLS];
static unsigned int controls;

/* The driver's own functions, past any preload. */
static struct cuda_door direct;
static CUresult(CUDAAPI *direct_pool_create)(CUmemoryPool *, const CUmemPoolProps *);
static CUresult(CUDAAPI *direct_set_pool)(CUdevice, CUmemoryPool);

static void find_direct(void)
{
	static const struct file_function called[] = {
		{ "cuMemAlloc_v2", &direct.cuMemAlloc_v2 },
		{ "cuMemFree_v2", &direct.cuMemFree_v2 },
		{ "cuMemAllocAsync", &direct.cuMemAllocAsync },
		{ "cuMemFreeAsync", &direct.cuMemFreeAsync },
		{ "cuMemCreate", &direct.cuMemCreate },
		{ "cuMemMap", &direct.cuMemMap },
		{ "cuMemSetAccess", &direct.cuMemSetAccess },
		{ "cuMemUnmap", &direct.cuMemUnmap },
		{ "cuMemRelease", &direct.cuMemRelease },
		{ "cuMemPoolCreate", &direct_pool_create },
		{ "cuDeviceSetMemPool", &direct_set_pool },
	};

	find_functions(libcuda, called, sizeof(called) / sizeof(called[0]));
	direct.cuCtxSynchronize = cu.cuCtxSynchronize;
}

/* What is kept spares the driver a new chunk of 2 MiB for each pair, which takes it 70 us and varies. */
static void make_pool(unsigned int i)
{
	CUmemPoolProps properties = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
				      .handleTypes = i == EXPORTABLE ? POSIX_FD : CU_MEM_HANDLE_TYPE_NONE };

	shift_heap();
	if (i == DEFAULT)
		CUDA(get_pool(&pools[i], 0));
	else
		CUDA((i < CONTROL ? pool_create : direct_pool_create)(&pools[i], &properties));
	CUDA((i < CONTROL ? set_pool : direct_set_pool)(0, pools[i]));
	CUDA((i < CONTROL ? cu.cuMemAllocAsync : direct.cuMemAllocAsync)(&kept, 4096, NULL));
}

/* Makes the pools in random order, with 2 to MOST_CONTROLS controls. */
static void make_pools(void)
{
	unsigned int order[POOLS], count;

	controls = 2 + at_random(MOST_CONTROLS - 1);
	count = CONTROL + controls;
	shuffle(order, count);
	for (unsigned int i = 0; i < count; i++) {
		make_pool(order[i]);
		for (unsigned int k = 0; k < i; k++)
			MUST(pools[order[k]] != pools[order[i]]);
	}
}

static void pair_async(void)
{
	CUdeviceptr at;

	CUDA(cu.cuMemAllocAsync(&at, 4096, NULL));
	CUDA(cu.cuMemFreeAsync(at, NULL));
}

/* Returns how many ns one @op takes, of @times. */
static double timed(void (*op)(void), unsigned int times)
{
	uint64_t start;
	double took;

	op();
	CUDA(cu.cuCtxSynchronize());
	start = now_ns();
	for (unsigned int k = 0; k < times; k++)
		op();
	took = (double)(now_ns() - start) / times;
	CUDA(cu.cuCtxSynchronize());
	return took;
}

static void say(const char *name, const char *how, const double *took)
{
	printf("%s%s ns", name, how);
	/* the first batch warms up */
	for (unsigned int batch = 1; batch <= rounds; batch++)
		printf(" %.1f", took[batch]);
	printf("\n");
}

static double *batches(void)
{
	double *took = calloc(rounds + 1, sizeof(*took));

	MUST(took);
	return took;
}

static double timed_direct(void (*op)(void), unsigned int times)
{
	const struct cuda_door given = cu;
	double took;

	cu = direct;
	took = timed(op, times);
	cu = given;
	return took;
}

/* The batches of all kinds take turns on one processor.  They are short, so that many of them meet no interrupt. */
static void play_alone(void)
{
	static const struct {
		const char *name;
		void (*op)(void);
		int pool;
		unsigned int times; /* in a batch */
		const char *direct; /* the driver's own functions take turns with it, and this is behind the name then */
	} ops[] = { { "virtual", pair_virtual, DEFAULT, 4, "-control" },
		    { "virtual-exportable", pair_virtual_exportable, DEFAULT, 4, NULL },
		    { "plain", pair, DEFAULT, 200, "-direct" },
		    { "async", pair_async, DEFAULT, 400, "-direct" },
		    { "async-own", pair_async, OWN, 400, "-direct" },
		    { "async-exportable", pair_async, EXPORTABLE, 400, "-direct" } };
	enum { OPS = sizeof(ops) / sizeof(ops[0]) };
	double *took[OPS], *past[OPS], *control[MOST_CONTROLS];
	int processor = sched_getcpu();
	cpu_set_t one;

	MUST(processor >= 0);
	for (unsigned int i = 0; i < OPS; i++) {
		took[i] = batches();
		past[i] = batches();
	}
	for (unsigned int i = 0; i < MOST_CONTROLS; i++)
		control[i] = batches();
	CPU_ZERO(&one);
	CPU_SET((unsigned int)processor, &one);
	MUST(!sched_setaffinity(0, sizeof(one), &one));
	find_direct();
	CUDA(cu.cuMemAddressReserve(&room, PIECE, 0, 0, 0));
	CUDA(cu.cuMemAlloc_v2(&kept, 4096));
	make_pools();
	for (unsigned int batch = 0; batch <= rounds; batch++) {
		unsigned int order[OPS];

		shuffle(order, OPS);
		for (unsigned int n_th = 0; n_th < OPS; n_th++) {
			unsigned int i = order[n_th];

			CUDA(set_pool(0, pools[ops[i].pool]));
			for (unsigned int turn = 0; turn < 2; turn++) {
				if (!((turn ^ batch) & 1))
					took[i][batch] = timed(ops[i].op, ops[i].times);
				else if (ops[i].direct)
					past[i][batch] = timed_direct(ops[i].op, ops[i].times);
			}
		}
		for (unsigned int i = 0; i < controls; i++) {
			CUDA(direct_set_pool(0, pools[CONTROL + i]));
			control[i][batch] = timed_direct(pair_async, 400);
		}
	}
	for (unsigned int i = 0; i < OPS; i++) {
		say(ops[i].name, "", took[i]);
		if (ops[i].direct)
			say(ops[i].name, ops[i].direct, past[i]);
		free(took[i]);
		free(past[i]);
	}
	for (unsigned int i = 0; i < MOST_CONTROLS; i++) {
		char name[24];

		snprintf(name, sizeof(name), "pool-control-%u", i);
		if (i < controls)
			say(name, "", control[i]);
		free(control[i]);
	}
}

int main(int argc, char **argv)
{
	int pair_of[2], status = 0;
	pid_t importer;

	if (argc == 3 && !strcmp(argv[1], "alone")) {
		rounds = (unsigned int)atoi(argv[2]);
		shift_heap();
		start_cuda();
		play_alone();
		return 0;
	}
	own = argc == 4 && !strcmp(argv[1], "own");
	n = argc == 4 ? (unsigned int)atoi(argv[2]) : 0;
	rounds = argc == 4 ? (unsigned int)atoi(argv[3]) : 0;
	if (!n || n > MOST || !rounds || (!own && strcmp(argv[1], "handle"))) {
		fprintf(stderr, "usage: hand_over own|handle N ROUNDS, or hand_over alone BATCHES\n");
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
