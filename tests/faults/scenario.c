/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See scenario.h.  It is linked against libcuda, as programs are, and does not use culimbo, but for where
 * holds lie in an exporter's file.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <cuda.h>

#include "shim/shm/layout.h"
#include "tests/faults/scenario.h"

enum {
	SMALL = 1024,		 /* shares a 2 MiB chunk with others */
	BIG = 4 << 20,		 /* an allocation of its own */
	OWN = 17,
	OWN_BIG = 18,
	NEXT_OWNERS = 99,
	CLAIMS = 8,
	PIECE = 2 << 20,	 /* of virtual memory */
	PARTNER_MS = 8000,	 /* how long each process waits for the other */
	BACK_MS = 1500,		 /* how long memory may take to come back */
	BACK_BY_ITSELF_MS = 40,	 /* the same without a call that asks for it */
};

void (*scenario_condition)(void), (*scenario_later)(void);
int scenario_more_blocks;
bool scenario_virtual, scenario_async;
static struct verdict verdict;

static void expect(CUresult result, CUresult wanted, int line)
{
	verdict.calls++;
	if (result == wanted || verdict.wrong_line)
		return;
	verdict.wrong_line = line;
	verdict.wrong_result = (int)result;
	verdict.wrong_wanted = (int)wanted;
}
#define MUST(call) expect((call), CUDA_SUCCESS, __LINE__)
#define MUST_SAY(wanted, call) expect((call), (wanted), __LINE__)

static void begin(void)
{
	CUcontext ctx;

	MUST(cuInit(0));
	MUST(cuDevicePrimaryCtxRetain(&ctx, 0));
	MUST(cuCtxSetCurrent(ctx));
}

static void hand(int fd, const void *data, size_t size)
{
	if (send(fd, data, size, MSG_NOSIGNAL) != (ssize_t)size)
		_exit(90);
}

static void take(int fd, void *data, size_t size)
{
	struct pollfd ready = { .fd = fd, .events = POLLIN };
	int n;

	do
		n = poll(&ready, 1, PARTNER_MS);
	while (n < 0 && errno == EINTR);
	if (n != 1 || recv(fd, data, size, 0) != (ssize_t)size)
		_exit(91);
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

struct shared {
	CUipcMemHandle virtual; /* and small, if scenario_virtual */
	CUipcMemHandle small, twice, big;
	CUipcEventHandle event;
	bool refused; /* an export failed for lack of memory: the importer opens nothing */
};

/*
 * A program whose export fails for lack of memory tries once more.  True: it may go on without
 * the export.
 */
static bool is_refused(CUresult result)
{
	verdict.refused += result == CUDA_ERROR_OUT_OF_MEMORY;
	return result == CUDA_ERROR_OUT_OF_MEMORY;
}

static bool export_block(CUipcMemHandle *handle, CUdeviceptr block)
{
	CUresult result = cuIpcGetMemHandle(handle, block);

	if (is_refused(result) && is_refused(result = cuIpcGetMemHandle(handle, block)))
		return false;
	MUST(result);
	return true;
}

static bool export_event(CUipcEventHandle *handle, CUevent event)
{
	CUresult result = cuIpcGetEventHandle(handle, event);

	if (is_refused(result) && is_refused(result = cuIpcGetEventHandle(handle, event)))
		return false;
	MUST(result);
	return true;
}

static CUdeviceptr block(size_t bytes, unsigned char value)
{
	CUdeviceptr address = 0;

	MUST(cuMemAlloc(&address, bytes));
	MUST(cuMemsetD8(address, value, bytes));
	return address;
}

/*
 * Asks for as much memory as the device has.  That can't succeed while anything is allocated, so
 * culimbo first releases all that it can.  For a larger request it would release nothing.
 */
static void press(size_t device)
{
	CUdeviceptr none = 0;

	MUST_SAY(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&none, device));
}

/* Allocates the freed addresses if the driver gives them, and writes other bytes. */
static void reuse(CUdeviceptr small, CUdeviceptr twice, CUdeviceptr big)
{
	CUdeviceptr claimed;

	for (int i = 0; i < CLAIMS; i++) {
		claimed = block(SMALL, NEXT_OWNERS);
		verdict.reused |= claimed == small || claimed == twice;
	}
	claimed = block(BIG, NEXT_OWNERS);
	verdict.reused |= claimed == big;
	MUST(cuMemFree(claimed));
}

/* Waits until less than @bytes of the memory that was free are missing.  Whether @pressed: asks for memory. */
static bool comes_back(size_t free_before, size_t bytes, bool pressed)
{
	static const struct timespec moment = { 0, 500000 };
	int64_t begun = now_ms();
	size_t now = 0, total;

	for (;;) {
		MUST(cuMemGetInfo(&now, &total));
		if (now + bytes > free_before)
			return true;
		if (now_ms() > begun + BACK_MS)
			return false;
		if (pressed && now_ms() > begun + BACK_BY_ITSELF_MS)
			press(total);
		nanosleep(&moment, NULL);
	}
}

static void look(CUdeviceptr address, unsigned char value)
{
	unsigned char bytes[SMALL];

	memset(bytes, 0, sizeof bytes);
	MUST(cuMemcpyDtoH(bytes, address, sizeof bytes));
	for (int i = 0; i < SMALL; i++)
		verdict.foreign |= bytes[i] != value;
}

/* -------------------------------------------------------------- virtual memory */
/*
 * Counts the holds of the exporter's own blocks that processes have.  The descriptor stays open: to close it
 * would drop the locks of this process's file.
 */
static int count_holds(void)
{
	enum { RECORDS = 64 };
	uint64_t word[RECORDS];
	struct dirent *entry;
	char path[600];
	int n = 0;
	DIR *dir = opendir(getenv("CULIMBO_DIR"));

	while (dir && (entry = readdir(dir)) != NULL) {
		if (strncmp(entry->d_name, "exporter-", 9) != 0)
			continue;
		snprintf(path, sizeof path, "%s/%s", getenv("CULIMBO_DIR"), entry->d_name);
		if (pread(open(path, O_RDONLY | O_CLOEXEC), word, sizeof word, CL_AT_HOLDERS) != sizeof word)
			continue;
		for (int i = 0; i < RECORDS; i++)
			n += __builtin_popcountll(word[i]);
	}
	if (dir)
		closedir(dir);
	return n;
}

/* Counts the descriptors of this process. */
static int count_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

/* The same in one block of the default pool. */
static CUdeviceptr allocate_two(void)
{
	CUdeviceptr address = 0;

	MUST(cuMemAllocAsync(&address, 2 * PIECE, NULL));
	MUST(cuStreamSynchronize(NULL));
	MUST(cuMemsetD8(address, OWN, PIECE));
	MUST(cuMemsetD8(address + PIECE, OWN_BIG, PIECE));
	return address;
}

/* The driver gives no memory of a shared pool back to the device: the pool must use it again. */
static bool is_used_again(CUdeviceptr address)
{
	int64_t until = now_ms() + BACK_MS;
	CUdeviceptr next = 0;

	do {
		MUST(cuMemAllocAsync(&next, 2 * PIECE, NULL));
		if (next == address)
			return true;
		/* each keeps what it got, or the next one would get that again */
		nanosleep(&(struct timespec){ 0, 25000000 }, NULL);
	} while (now_ms() < until);
	return false;
}

static CUdeviceptr map_two(void)
{
	CUmemAllocationProp property = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					 .location.type = CU_MEM_LOCATION_TYPE_DEVICE };
	CUmemAccessDesc access = { .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle memory = 0;
	CUdeviceptr address = 0;

	MUST(cuMemAddressReserve(&address, 2 * PIECE, 0, 0, 0));
	for (int i = 0; i < 2; i++) {
		MUST(cuMemCreate(&memory, PIECE, &property, 0));
		MUST(cuMemMap(address + i * PIECE, PIECE, 0, memory, 0));
		MUST(cuMemRelease(memory));
	}
	MUST(cuMemSetAccess(address, 2 * PIECE, &access, 1));
	MUST(cuMemsetD8(address, OWN, PIECE));
	MUST(cuMemsetD8(address + PIECE, OWN_BIG, PIECE));
	return address;
}

/* An export that cannot be served gets the driver's own refusal, or that of any export without memory. */
static bool export_virtual(CUipcMemHandle *handle, CUdeviceptr address)
{
	CUresult result = cuIpcGetMemHandle(handle, address);

	if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_OUT_OF_MEMORY) {
		verdict.refused++;
		return false;
	}
	MUST(result);
	return true;
}

__attribute__((noreturn)) static void play_virtual_exporter(int other, int up)
{
	struct shared shared = { .refused = false };
	size_t before = 0, total;
	CUdeviceptr address;
	char word;

	MUST(cuIpcGetMemHandle(&shared.small, block(SMALL, OWN)));
	MUST(cuMemGetInfo(&before, &total));
	if (scenario_condition)
		scenario_condition();
	address = scenario_async ? allocate_two() : map_two();
	shared.refused = !export_virtual(&shared.virtual, address) && !export_virtual(&shared.virtual, address);
	MUST(cuCtxSynchronize());
	hand(other, &shared, sizeof shared);
	take(other, &word, 1); /* the importer has closed all but the block */
	verdict.left = count_holds() - (word == 'b');
	if (scenario_async) {
		MUST(cuMemFree(address));
	} else {
		MUST(cuMemUnmap(address, 2 * PIECE));
		MUST(cuMemAddressFree(address, 2 * PIECE));
	}
	hand(other, "u", 1);
	take(other, &word, 1);
	verdict.kept = !(scenario_async ? is_used_again(address) : comes_back(before, 1, false));
	hand(up, &verdict, sizeof verdict);
	exit(EXPORTER_STATUS);
}

/* Returns the address, or 0 if the open gave an error that is allowed. */
static CUdeviceptr open_virtual(CUipcMemHandle handle)
{
	CUdeviceptr address = 0;
	CUresult result = cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

	if (result == CUDA_SUCCESS)
		return address;
	verdict.failed++;
	if (result != CUDA_ERROR_INVALID_VALUE && result != CUDA_ERROR_OPERATING_SYSTEM)
		MUST_SAY(CUDA_ERROR_OUT_OF_MEMORY, result);
	return 0;
}

/* The exporter may have had no memory to remember what lies there. */
static void look_if_mapped(CUdeviceptr address, unsigned char value)
{
	char byte;

	if (cuMemcpyDtoH(&byte, address, 1) == CUDA_SUCCESS)
		look(address, value);
	else
		verdict.failed++;
}

static void close_virtual(CUdeviceptr address)
{
	if (!address)
		return;
	look_if_mapped(address + PIECE - SMALL, OWN);
	look_if_mapped(address + PIECE, OWN_BIG);
	MUST(cuIpcCloseMemHandle(address));
}

__attribute__((noreturn)) static void play_virtual_importer(int other, int up)
{
	CUdeviceptr small = 0, one, two, late;
	struct shared shared;
	int64_t begun;
	int before;
	char word;

	take(other, &shared, sizeof shared);
	MUST(cuIpcOpenMemHandle(&small, shared.small, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	look(small, OWN);
	before = count_descriptors();
	if (scenario_condition)
		scenario_condition();
	if (!shared.refused) {
		begun = now_ms();
		one = open_virtual(shared.virtual);
		verdict.waited = now_ms() > begun + PARTNER_MS / 2;
		two = verdict.waited ? 0 : open_virtual(shared.virtual);
		verdict.foreign |= one && two && one != two;
		close_virtual(one);
		close_virtual(two);
		if (!verdict.waited)
			close_virtual(open_virtual(shared.virtual));
	}
	hand(other, "b", 1);
	take(other, &word, 1); /* the exporter has unmapped it */
	late = shared.refused ? 0 : open_virtual(shared.virtual);
	if (late && scenario_async) {
		/* its exporter keeps it, since no hold could be noted; that must have been said */
		close_virtual(late);
		verdict.failed += 2;
	} else {
		MUST_SAY(0, late != 0);
	}
	verdict.failed -= !shared.refused;
	verdict.left = count_descriptors() - before;
	MUST(cuIpcCloseMemHandle(small));
	hand(other, "c", 1);
	hand(up, &verdict, sizeof verdict);
	_exit(IMPORTER_STATUS);
}

/* --------------------------------------------------------- blocks and an event */
void play_exporter(int other, int up)
{
	CUdeviceptr small, twice, big, *more;
	struct shared shared;
	size_t before = 0, total;
	CUevent event = NULL;
	char word;

	begin();
	if (scenario_virtual)
		play_virtual_exporter(other, up);
	more = calloc((size_t)scenario_more_blocks + 1, sizeof *more);
	for (int i = 0; more && i < scenario_more_blocks; i++)
		more[i] = block(SMALL, OWN);
	block(SMALL, OWN); /* a neighbour that stays */
	MUST(cuMemGetInfo(&before, &total));
	small = block(SMALL, OWN);
	twice = block(SMALL, OWN);
	big = block(BIG, OWN_BIG);
	MUST(cuCtxSynchronize());
	if (scenario_condition)
		scenario_condition();
	shared.refused = !export_block(&shared.small, small);
	shared.refused |= !export_block(&shared.big, big);
	shared.refused |= !export_block(&shared.twice, twice);
	shared.refused |= !export_block(&shared.small, small); /* the same handle again */
	MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
	MUST(cuEventRecord(event, NULL));
	shared.refused |= !export_event(&shared.event, event);
	hand(other, &shared, sizeof shared);
	take(other, &word, 1); /* the importer has opened them */
	if (scenario_later)
		scenario_later();
	for (int i = 0; i < scenario_more_blocks; i++) {
		CUipcMemHandle handle;

		export_block(&handle, more[i]);
	}

	MUST(cuMemFree(small));
	MUST_SAY(CUDA_ERROR_INVALID_VALUE, cuMemFree(small));
	MUST(cuMemFree(twice));
	for (int i = 0; i < scenario_more_blocks; i++)
		MUST(cuMemFree(more[i]));
	MUST(cuMemFree(big));
	MUST(cuEventDestroy(event));
	press(total);
	reuse(small, twice, big);
	MUST(cuCtxSynchronize());
	hand(other, "f", 1);
	take(other, &word, 1); /* the importer has closed them */

	/* only the big block counts: the small one lies in a chunk that stays */
	verdict.kept = !comes_back(before, BIG, true);
	hand(up, &verdict, sizeof verdict);
	exit(EXPORTER_STATUS);
}

void play_importer(int other, int up)
{
	CUdeviceptr small = 0, twice = 0, again = 0, big = 0;
	struct shared shared;
	CUevent event = NULL;
	char word;

	begin();
	if (scenario_virtual)
		play_virtual_importer(other, up);
	take(other, &shared, sizeof shared);
	if (shared.refused) {
		hand(other, "o", 1);
		take(other, &word, 1);
		goto closed;
	}
	if (scenario_condition)
		scenario_condition();
	MUST(cuIpcOpenMemHandle(&small, shared.small, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	MUST(cuIpcOpenMemHandle(&twice, shared.twice, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	MUST(cuIpcOpenMemHandle(&again, shared.twice, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	MUST(cuIpcOpenMemHandle(&big, shared.big, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	MUST(cuIpcOpenEventHandle(&event, shared.event));
	look(small, OWN);
	look(twice, OWN);
	MUST(cuIpcCloseMemHandle(again)); /* it is still open once */
	hand(other, "o", 1);
	take(other, &word, 1); /* the exporter has freed them */

	look(small, OWN);
	look(big, OWN_BIG);
	look(twice, OWN);
	MUST(cuEventSynchronize(event));
	MUST(cuIpcCloseMemHandle(small));
	MUST(cuIpcCloseMemHandle(twice));
	MUST(cuIpcCloseMemHandle(big));
	MUST(cuEventDestroy(event));
closed:
	hand(other, "c", 1);
	hand(up, &verdict, sizeof verdict);
	_exit(IMPORTER_STATUS);
}
