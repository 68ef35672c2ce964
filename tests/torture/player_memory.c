/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process under torture: its blocks and their bytes, its imports, and the handles ("gifts") that it
 * sends and receives.
 */
#include "tests/torture/player.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "preload/culimbo.h"

#define PLAYER_FILE PLAYER_MEMORY

#define WINDOW ((uint64_t)256 << 10) /* number of bytes that are written or read at a time */

#define LATER 8

#define POOL_BLOCK ((uint64_t)2 << 20) /* the largest block of a pool; its pages return only when the importer's process ends */

struct later {
	uint64_t when; /* 0: none */
	struct gift gift;
};

static struct later later[LATER];

static uint64_t window[WINDOW / 8];
static const struct gift *looked_at; /* the gift whose bytes are being read, for the complaint; NULL: the process's own block */

/* -------------------------------------------------------------------- bytes */
static bool write_block(CUdeviceptr address, uint64_t bytes, uint64_t serial)
{
	for (uint64_t at = 0; at < bytes; at += WINDOW) {
		uint64_t n = bytes - at < WINDOW ? bytes - at : WINDOW;

		for (uint64_t i = 0; i < n / 8; i++)
			window[i] = torture_word(here, serial, at / 8 + i);
		if (!SURE(copy_to_device(address + at, window, n)))
			return false;
	}
	/* such a copy may return before the bytes are in device memory, where other processes read them */
	return SURE(cu.cuCtxSynchronize());
}

/* Checks @n bytes of a block from @at; names the owner of any foreign words. */
static bool are_of(const uint64_t *words, uint64_t at, uint64_t n, uint32_t place, uint64_t serial,
		   const char *when)
{
	for (uint64_t i = 0; i < n / 8; i++) {
		if (words[i] == torture_word(place, serial, at / 8 + i))
			continue;
		fprintf(stderr,
			"torture: FOREIGN %u (pid %d), %s: block %llu of %u, byte %llu: "
			"0x%016llx (block %llu of %d); handed out by life %u of it, which is at %u\n",
			here, (int)getpid(), when, (unsigned long long)serial, place,
			(unsigned long long)(at + 8 * i), (unsigned long long)words[i],
			(unsigned long long)(words[i] >> 20 & ((UINT64_C(1) << 38) - 1)),
			(int)(words[i] >> 58) - 1, looked_at ? looked_at->life : my_life,
			(unsigned int)atomic_load(&table->place[place].life));
		COUNT(foreign);
		return false;
	}
	return true;
}

bool check_words(const uint64_t *words, uint64_t n, const struct gift *gift, const char *when)
{
	bool right;

	looked_at = gift;
	right = are_of(words, 0, 8 * n, gift->place, gift->serial, when);
	looked_at = NULL;
	return right;
}

/* Reads one window of a block, from @at. */
static bool read_window(CUdeviceptr address, uint64_t at, uint64_t n, uint32_t place, uint64_t serial,
			const char *when)
{
	if (!SURE(cu.cuMemcpyDtoH_v2(window, address + at, n)))
		return false;
	return are_of(window, at, n, place, serial, when);
}

/* Reads all of a small block; of a big one its start, its end and a window between. */
static bool read_block(CUdeviceptr address, uint64_t bytes, uint32_t place, uint64_t serial,
		       const char *when)
{
	uint64_t part = 4096;

	COUNT(reads);
	if (bytes <= WINDOW)
		return read_window(address, 0, bytes, place, serial, when);
	return read_window(address, 0, part, place, serial, when) &&
	       read_window(address, bytes - part, part, place, serial, when) &&
	       read_window(address, part * dice((uint32_t)((bytes - WINDOW) / part)), WINDOW / 4, place,
			   serial, when);
}

/* -------------------------------------------------------------------- gifts */
/* Sends to any process; one that does not read gets no more messages. */
void send_with(const struct gift *gift, uint32_t to, int fd)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(fd))] = { 0 };
	struct iovec part = { .iov_base = (void *)(uintptr_t)gift, .iov_len = sizeof(*gift) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	struct cmsghdr *header;
	ssize_t n;

	if (fd >= 0) {
		message.msg_control = control;
		message.msg_controllen = sizeof(control);
		header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	}
	n = sendmsg(table->place[to].inbox[1], &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	(void)n;
}

/* *fd: the descriptor that came with it, or -1. */
static bool receive(struct gift *gift, int *fd)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(*fd))];
	struct iovec part = { .iov_base = gift, .iov_len = sizeof(*gift) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *header;
	ssize_t n = recvmsg(me->inbox[0], &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	*fd = -1;
	header = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
	if (header && header->cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(header), sizeof(*fd));
	return n == sizeof(*gift);
}

void send_somewhere(const struct gift *gift)
{
	/* an importer is eight times as likely as another exporter */
	uint32_t to = dice(9) ? EXPORTERS + dice(IMPORTERS) : dice(EXPORTERS);

	send_with(gift, to, gift->kind == GIFT_POOL ? pool_descriptor(gift) : -1);
}

static void put_by(const struct gift *gift)
{
	struct later *free_one = &later[dice(LATER)];

	for (int i = 0; i < LATER; i++)
		if (!later[i].when)
			free_one = &later[i];
	free_one->gift = *gift;
	/* half of them within the grace period, half after it */
	free_one->when = torture_now() + table->grace_ns * dice(2000) / 1000;
}

bool gift_alive(const struct gift *gift)
{
	struct place *from = &table->place[gift->place];

	return !atomic_load(&from->doomed) && atomic_load(&from->life) == gift->life &&
	       atomic_load(&from->alive[gift->block]) == gift->serial;
}

/* ------------------------------------------------------------------- blocks */
static struct gift gift_of(uint32_t slot)
{
	struct gift gift = { .place = here, .life = my_life, .block = slot };

	gift.serial = blocks[slot].serial;
	gift.bytes = blocks[slot].bytes;
	gift.pool = blocks[slot].pool;
	gift.kind = gift.pool ? GIFT_POOL : blocks[slot].async ? GIFT_ASYNC : GIFT_MEMORY;
	memcpy(gift.handle, &blocks[slot].handle, sizeof(gift.handle));
	return gift;
}

void free_block(uint32_t slot)
{
	struct block *block = &blocks[slot];
	struct gift gift = gift_of(slot);

	read_block(block->address, block->bytes, here, block->serial, "the exporter, before its free");
	atomic_store(&me->alive[slot], 0);
	if (block->async && dice(3) == 0) {
		async_free_behind_a_copy(block);
		COUNT(frees_async);
	} else if (dice(2) && !is_counted(block)) {
		SURE(cu.cuMemFree_v2(block->address));
		COUNT(frees);
	} else {
		SURE(cu.cuMemFreeAsync(block->address, stream));
		if (dice(2))
			SURE(cu.cuStreamSynchronize(stream));
		COUNT(frees_async);
	}
	block->address = 0;
	/* sent at once, within the grace period, or after it */
	if (dice(3) == 0)
		send_somewhere(&gift);
	else if (dice(2))
		put_by(&gift);
}

void free_blocks_from(CUmemoryPool pool)
{
	if (!table->gpu)
		return;
	for (uint32_t slot = 0; slot < BLOCKS; slot++)
		if (blocks[slot].address && blocks[slot].from == pool)
			free_block(slot);
	SURE(cu.cuStreamSynchronize(stream));
}

static uint64_t any_size(void)
{
	static const uint64_t small[] = { 256, 1024, 1024, 4096, 65536, 1 << 20 };

	if (dice(4))
		return small[dice(6)];
	return (uint64_t)2 << 20 << dice(table->big_bytes > (8 << 20) ? 5 : 3);
}

static bool export_block(struct block *block)
{
	if (block->async)
		return async_export(block);
	return block->pool ? pool_export(block) : SURE(cu.cuIpcGetMemHandle(&block->handle, block->address));
}

static bool make_block(uint32_t slot)
{
	struct block *block = &blocks[slot];
	uint64_t bytes = any_size();
	CUresult result;

	if (bytes > table->big_bytes)
		bytes = table->big_bytes;
	block->pool = 0;
	block->from = NULL;
	block->async = table->asyncs && dice(4) == 0;
	if (block->async) {
		bytes = bytes > POOL_BLOCK ? POOL_BLOCK : bytes;
		result = async_alloc(block, bytes);
	} else if (table->pools == POOLS_MOST || (table->pools && dice(3) == 0)) {
		bytes = bytes > POOL_BLOCK ? POOL_BLOCK : bytes;
		result = pool_alloc(block, bytes);
	} else {
		result = CALL(cu.cuMemAlloc_v2(&block->address, bytes));
	}
	if (result) {
		block->address = 0;
		if (result == CUDA_ERROR_OUT_OF_MEMORY)
			COUNT(no_memory);
		else
			complain(block->pool || block->async ? "cuMemAllocFromPoolAsync" : "cuMemAlloc", result);
		return false;
	}
	block->bytes = bytes;
	block->serial = 1 + atomic_fetch_add(&me->serial, 1);
	write_block(block->address, bytes, block->serial);
	if (!export_block(block)) {
		(void)(is_counted(block) ? cu.cuMemFreeAsync(block->address, stream) : cu.cuMemFree_v2(block->address));
		block->address = 0;
		return false;
	}
	COUNT(exports);
	if (block->pool)
		COUNT(pool_blocks);
	atomic_store(&me->alive[slot], block->serial);
	return true;
}

void do_make(void)
{
	uint32_t slot = dice(BLOCKS);
	struct gift gift;

	if (blocks[slot].address)
		free_block(slot);
	if (!make_block(slot))
		return;
	gift = gift_of(slot);
	for (uint32_t n = 1 + dice(3); n; n--)
		send_somewhere(&gift);
}

void do_tell(void)
{
	uint32_t slot = dice(BLOCKS);
	struct gift gift;

	if (!blocks[slot].address)
		return;
	/* exports the block again, or uses the handle it has */
	if (dice(2) && !export_block(&blocks[slot]))
		return;
	gift = gift_of(slot);
	send_somewhere(&gift);
}

void do_free(void)
{
	uint32_t slot = dice(BLOCKS);

	if (blocks[slot].address)
		free_block(slot);
}

/* Allocates, overwrites and frees memory that is not shared. */
void do_noise(void)
{
	CUdeviceptr address;
	uint64_t bytes = 256 << 2 * dice(4);
	CUresult result = CALL(cu.cuMemAlloc_v2(&address, bytes));

	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		COUNT(no_memory);
		return;
	}
	if (!SURE(result))
		return;
	write_block(address, bytes, 0);
	SURE(cu.cuMemFree_v2(address));
}

/* Takes all free memory for a moment; further allocations must get memory from limbos. */
void do_pressure(void)
{
	CUdeviceptr all = 0, one[8];
	size_t memory, total;
	uint64_t bytes = 1 << 20, until = torture_now() + PRESSURE_MS * UINT64_C(1000000);
	int n = 0;

	if (!SURE(cu.cuMemGetInfo_v2(&memory, &total)))
		return;
	COUNT(pressures);
	/* each failed allocation waits for the limbos of all processes: tens of them take half a minute on a big device */
	while (memory > 4 * bytes && CALL(cu.cuMemAlloc_v2(&all, memory - 2 * bytes))) {
		all = 0;
		memory -= memory / 8;
		if (torture_now() > until || atomic_load(&table->phase) != PHASE_PLAY)
			return;
	}
	while (n < 8) {
		CUresult result = CALL(cu.cuMemAlloc_v2(&one[n], 2 * bytes));

		if (result == CUDA_ERROR_OUT_OF_MEMORY) {
			COUNT(no_memory);
			break;
		}
		if (!SURE(result))
			break;
		n++;
	}
	while (n)
		SURE(cu.cuMemFree_v2(one[--n]));
	if (all)
		SURE(cu.cuMemFree_v2(all));
}

/* ------------------------------------------------------------------ imports */
void close_once(struct import *import)
{
	looked_at = &import->gift;
	read_block(import->address, import->gift.bytes, import->gift.place, import->gift.serial,
		   "before a close");
	looked_at = NULL;
	if (import->gift.kind == GIFT_POOL)
		pool_free_import(import);
	else
		SURE(cu.cuIpcCloseMemHandle(import->address));
	if (--import->opens == 0)
		import->address = 0;
}

/* Returns false when the gift cannot be opened here, because its pool is not known. */
static bool open_once(const struct gift *gift, CUdeviceptr *address, CUresult *result)
{
	CUipcMemHandle handle;

	if (gift->kind == GIFT_POOL)
		return pool_import(gift, address, result);
	memcpy(&handle, gift->handle, sizeof(handle));
	*result = CALL(cu.cuIpcOpenMemHandle_v2(address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	return true;
}

/* Returns how many opens culimbo has refused in this process, 0 without culimbo. */
static uint64_t refusals(void)
{
	struct culimbo_stats stats = { 0 };
	culimbo_stats_fn *ask;

	*(void **)&ask = dlsym(RTLD_DEFAULT, "culimbo_stats");
	return ask && !ask(&stats, sizeof(stats)) ? stats.refused : 0;
}

/* A handle of a living block was refused: says by whom, after how long, and whether the next open works. */
static void say_refused_alive(const struct gift *gift, CUresult result, uint64_t us, bool own)
{
	uint64_t before = refusals();
	CUdeviceptr address;
	CUresult next = CUDA_ERROR_UNKNOWN;

	if (!open_once(gift, &address, &next))
		next = CUDA_ERROR_UNKNOWN;
	fprintf(stderr,
		"torture: ERROR: the refused block is alive: %s block of %llu bytes, serial %llu, of place %u, life %u; "
		"result %d after %llu us; culimbo has refused %llu opens of this process; again: %d, refused %llu\n",
		own ? "its own" : gift->kind == GIFT_MEMORY ? "a" : gift->kind == GIFT_POOL ? "a pool's" : "a stream-ordered", (unsigned long long)gift->bytes,
		(unsigned long long)gift->serial, gift->place, (unsigned int)gift->life, (int)result, (unsigned long long)us,
		(unsigned long long)before, (int)next, (unsigned long long)refusals());
	if (!next && gift->kind == GIFT_POOL)
		pool_free_import(&(struct import){ .gift = *gift, .address = address, .opens = 1 });
	else if (!next)
		SURE(cu.cuIpcCloseMemHandle(address));
}

static void open_memory(const struct gift *gift)
{
	const char *call = gift->kind == GIFT_POOL ? "cuMemPoolImportPointer" : "cuIpcOpenMemHandle";
	bool own = gift->place == here && gift->life == my_life;
	struct import *import = &imports[dice(IMPORTS)];
	bool alive_before, alive_after, right;
	uint64_t began, took;
	CUdeviceptr address;
	CUresult result;

	for (int i = 0; i < IMPORTS; i++)
		if (!imports[i].address)
			import = &imports[i];
	while (import->address)
		close_once(import);
	alive_before = gift_alive(gift);
	began = torture_now();
	if (!open_once(gift, &address, &result))
		return;
	took = torture_now() - began;
	alive_after = gift_alive(gift);
	if (result) {
		if (!alive_before || !alive_after || (own && table->control)) {
			COUNT(refused);
		} else {
			COUNT(refused_alive);
			say_refused_alive(gift, result, took / 1000, own);
			complain(call, result);
		}
		/* the driver's errors: wrong value, not permitted, gone, one's own handle, none left */
		if (result != CUDA_ERROR_INVALID_VALUE && result != CUDA_ERROR_NOT_PERMITTED &&
		    result != CUDA_ERROR_INVALID_HANDLE && result != CUDA_ERROR_INVALID_CONTEXT)
			complain(call, result);
		return;
	}
	COUNT(opens);
	if (own)
		COUNT(opens_own);
	if (gift->kind == GIFT_ASYNC)
		COUNT(async_opens);
	if (!alive_after)
		COUNT(opens_freed);
	import->address = address;
	import->gift = *gift;
	import->opens = 1;
	looked_at = gift;
	right = read_block(address, gift->bytes, gift->place, gift->serial, "just opened");
	looked_at = NULL;
	if (!right)
		return;
	if (dice(4))
		return;
	/* an open block may be opened again, freed or not */
	if (!open_once(gift, &address, &result) || result) {
		if (alive_after && gift_alive(gift))
			complain("a second open or import", result);
		return;
	}
	COUNT(opens);
	COUNT(opens_twice);
	import->opens++;
	if (address != import->address) {
		fprintf(stderr, "torture: ERROR %u: opened twice, at two addresses\n", here);
		COUNT(errors);
	}
}

static void open_event(const struct gift *gift)
{
	CUipcEventHandle handle;
	uint32_t slot = dice(EVENTS);
	CUresult result;

	if (gift->place == here)
		return;
	memcpy(&handle, gift->handle, sizeof(handle));
	if (open_events[slot]) {
		SURE(cu.cuEventDestroy_v2(open_events[slot]));
		open_events[slot] = NULL;
	}
	result = CALL(cu.cuIpcOpenEventHandle(&open_events[slot], handle));
	if (result) {
		open_events[slot] = NULL;
		COUNT(events_refused);
		return;
	}
	COUNT(events);
	result = cu.cuEventQuery(open_events[slot]);
	if (result && result != CUDA_ERROR_NOT_READY)
		complain("cuEventQuery of an event that was opened", result);
}

static void open_gift(const struct gift *gift)
{
	if (gift->kind == GIFT_EVENT)
		open_event(gift);
	else if (gift->kind == GIFT_VIRTUAL)
		virtual_open(gift);
	else
		open_memory(gift);
}

void do_hear(void)
{
	struct gift gift;
	int fd;

	if (!receive(&gift, &fd))
		return;
	if (fd >= 0)
		pool_arrived(&gift, fd);
	/* pages that an exporter imported would not return while it lives (player_pool.c) */
	if (gift.kind == GIFT_POOL && exporter())
		return;
	switch (dice(8)) {
	case 0:
		put_by(&gift);
		break;
	case 1:
		send_somewhere(&gift);
		break;
	default:
		open_gift(&gift);
	}
}

/* Opens or sends a gift that was put on the late list. */
void do_late(void)
{
	uint64_t now = torture_now();

	for (int i = 0; i < LATER; i++) {
		if (!later[i].when || later[i].when > now)
			continue;
		later[i].when = 0;
		if (exporter() && (dice(4) || later[i].gift.kind == GIFT_POOL))
			send_somewhere(&later[i].gift);
		else
			open_gift(&later[i].gift);
	}
}

void do_open_own(void)
{
	uint32_t slot = dice(BLOCKS);
	struct gift gift;

	if (!blocks[slot].address || blocks[slot].pool)
		return;
	gift = gift_of(slot);
	open_memory(&gift);
	if (dice(4) == 0 && blocks[slot].address)
		free_block(slot);
}

void do_read(void)
{
	struct import *import = &imports[dice(IMPORTS)];

	looked_at = &import->gift;
	if (import->address)
		read_block(import->address, import->gift.bytes, import->gift.place,
			   import->gift.serial, "while open");
	looked_at = NULL;
}

void do_close(void)
{
	struct import *import = &imports[dice(IMPORTS)];

	if (import->address)
		close_once(import);
}
