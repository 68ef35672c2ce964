/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process under torture: its blocks, their bytes, its imports, and the gifts that it gives
 * and gets.
 */
#include "tests/torture/player.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PLAYER_FILE PLAYER_MEMORY

#define WINDOW ((uint64_t)256 << 10) /* bytes that are written and read at a time */

#define LATER 8

struct later {
	uint64_t when; /* 0: none */
	struct gift gift;
};

static struct later later[LATER];

static uint64_t window[WINDOW / 8];
static const struct gift *looked_at; /* whose bytes are being read, for the complaint; NULL: our own */

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
	/* such a copy may return before it is in the device's memory, where others read */
	return SURE(cu.cuCtxSynchronize());
}

/* One window of a block, from @at; says whose words are there if not its own. */
static bool read_window(CUdeviceptr address, uint64_t at, uint64_t n, uint32_t place, uint64_t serial,
			const char *when)
{
	if (!SURE(cu.cuMemcpyDtoH_v2(window, address + at, n)))
		return false;
	for (uint64_t i = 0; i < n / 8; i++) {
		if (window[i] == torture_word(place, serial, at / 8 + i))
			continue;
		fprintf(stderr,
			"torture: FOREIGN %u (pid %d), %s: block %llu of %u, byte %llu: "
			"0x%016llx (block %llu of %d); handed out by life %u of it, which is at %u\n",
			here, (int)getpid(), when, (unsigned long long)serial, place,
			(unsigned long long)(at + 8 * i), (unsigned long long)window[i],
			(unsigned long long)(window[i] >> 20 & ((UINT64_C(1) << 38) - 1)),
			(int)(window[i] >> 58) - 1, looked_at ? looked_at->life : my_life,
			(unsigned int)atomic_load(&table->place[place].life));
		COUNT(foreign);
		return false;
	}
	return true;
}

/* All of a small block; of a big one its head, its tail and a window between. */
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
/* To whoever it is; one who doesn't read gets no more, that is all. */
static void send_gift(const struct gift *gift, uint32_t to)
{
	ssize_t n = send(table->place[to].inbox[1], gift, sizeof(*gift), MSG_DONTWAIT | MSG_NOSIGNAL);

	(void)n;
}

void send_somewhere(const struct gift *gift)
{
	/* importers are eight times as likely as other exporters */
	send_gift(gift, dice(9) ? EXPORTERS + dice(IMPORTERS) : dice(EXPORTERS));
}

static void put_by(const struct gift *gift)
{
	struct later *free_one = &later[dice(LATER)];

	for (int i = 0; i < LATER; i++)
		if (!later[i].when)
			free_one = &later[i];
	free_one->gift = *gift;
	/* half of them within the grace, half beyond */
	free_one->when = torture_now() + table->grace_ns * dice(2000) / 1000;
}

static bool gift_alive(const struct gift *gift)
{
	struct place *from = &table->place[gift->place];

	return !atomic_load(&from->doomed) && atomic_load(&from->life) == gift->life &&
	       atomic_load(&from->alive[gift->block]) == gift->serial;
}

/* ------------------------------------------------------------------- blocks */
static struct gift gift_of(uint32_t slot)
{
	struct gift gift = { .kind = GIFT_MEMORY, .place = here, .life = my_life, .block = slot };

	gift.serial = blocks[slot].serial;
	gift.bytes = blocks[slot].bytes;
	memcpy(gift.handle, &blocks[slot].handle, sizeof(gift.handle));
	return gift;
}

void free_block(uint32_t slot)
{
	struct block *block = &blocks[slot];
	struct gift gift = gift_of(slot);

	read_block(block->address, block->bytes, here, block->serial, "the exporter, before its free");
	atomic_store(&me->alive[slot], 0);
	if (dice(2)) {
		SURE(cu.cuMemFree_v2(block->address));
		COUNT(frees);
	} else {
		SURE(cu.cuMemFreeAsync(block->address, stream));
		if (dice(2))
			SURE(cu.cuStreamSynchronize(stream));
		COUNT(frees_async);
	}
	block->address = 0;
	/* sent late: at once, within the grace, beyond it */
	if (dice(3) == 0)
		send_somewhere(&gift);
	else if (dice(2))
		put_by(&gift);
}

static uint64_t any_size(void)
{
	static const uint64_t small[] = { 256, 1024, 1024, 4096, 65536, 1 << 20 };

	if (dice(4))
		return small[dice(6)];
	return (uint64_t)2 << 20 << dice(table->big_bytes > (8 << 20) ? 5 : 3);
}

static bool make_block(uint32_t slot)
{
	struct block *block = &blocks[slot];
	uint64_t bytes = any_size();
	CUresult result;

	if (bytes > table->big_bytes)
		bytes = table->big_bytes;
	result = CALL(cu.cuMemAlloc_v2(&block->address, bytes));
	if (result) {
		block->address = 0;
		if (result == CUDA_ERROR_OUT_OF_MEMORY)
			COUNT(no_memory);
		else
			complain("cuMemAlloc", result);
		return false;
	}
	block->bytes = bytes;
	block->serial = 1 + atomic_fetch_add(&me->serial, 1);
	write_block(block->address, bytes, block->serial);
	if (!SURE(cu.cuIpcGetMemHandle(&block->handle, block->address))) {
		cu.cuMemFree_v2(block->address);
		block->address = 0;
		return false;
	}
	COUNT(exports);
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
	/* exported once more, or the handle it has */
	if (dice(2) && !SURE(cu.cuIpcGetMemHandle(&blocks[slot].handle, blocks[slot].address)))
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

/* Memory that is not shared comes and goes, and is written to. */
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

/* All that is free, for a moment; what is asked for then must come from limbos. */
void do_pressure(void)
{
	CUdeviceptr all = 0, one[8];
	size_t memory, total;
	uint64_t bytes = 1 << 20, until = torture_now() + PRESSURE_MS * UINT64_C(1000000);
	int n = 0;

	if (!SURE(cu.cuMemGetInfo_v2(&memory, &total)))
		return;
	COUNT(pressures);
	/* (each that fails waits for the limbos of all: tens of them are half a minute on a big device) */
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
	SURE(cu.cuIpcCloseMemHandle(import->address));
	if (--import->opens == 0)
		import->address = 0;
}

static void open_memory(const struct gift *gift)
{
	bool own = gift->place == here && gift->life == my_life;
	struct import *import = &imports[dice(IMPORTS)];
	bool alive_before, alive_after, right;
	CUipcMemHandle handle;
	CUdeviceptr address;
	CUresult result;

	for (int i = 0; i < IMPORTS; i++)
		if (!imports[i].address)
			import = &imports[i];
	while (import->address)
		close_once(import);
	memcpy(&handle, gift->handle, sizeof(handle));
	alive_before = gift_alive(gift);
	result = CALL(cu.cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	alive_after = gift_alive(gift);
	if (result) {
		if (!alive_before || !alive_after || (own && table->control)) {
			COUNT(refused);
		} else {
			COUNT(refused_alive);
			complain("cuIpcOpenMemHandle of a living block", result);
		}
		/* the driver's own words: wrong value, not permitted, gone, one's own, none left */
		if (result != CUDA_ERROR_INVALID_VALUE && result != CUDA_ERROR_NOT_PERMITTED &&
		    result != CUDA_ERROR_INVALID_HANDLE && result != CUDA_ERROR_INVALID_CONTEXT)
			complain("cuIpcOpenMemHandle", result);
		return;
	}
	COUNT(opens);
	if (own)
		COUNT(opens_own);
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
	/* (what is open may be opened again, freed or not) */
	if (CALL(cu.cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))) {
		if (alive_after && gift_alive(gift))
			complain("cuIpcOpenMemHandle, the second time", CUDA_ERROR_UNKNOWN);
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
	else
		open_memory(gift);
}

void do_hear(void)
{
	struct gift gift;

	if (recv(me->inbox[0], &gift, sizeof(gift), MSG_DONTWAIT) != sizeof(gift))
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

/* What was put by: opened now, or sent. */
void do_late(void)
{
	uint64_t now = torture_now();

	for (int i = 0; i < LATER; i++) {
		if (!later[i].when || later[i].when > now)
			continue;
		later[i].when = 0;
		if (exporter() && dice(4))
			send_somewhere(&later[i].gift);
		else
			open_gift(&later[i].gift);
	}
}

void do_open_own(void)
{
	uint32_t slot = dice(BLOCKS);
	struct gift gift;

	if (!blocks[slot].address)
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
