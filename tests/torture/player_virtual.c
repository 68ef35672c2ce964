/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process under torture: virtual memory shared by legacy handles (CULIMBO_SHARE=all).
 *
 * An exporter has some reservations of a few pages.  It maps allocations there, of one page or two, side by
 * side or with holes between them; exports them by pointers to their beginning, into them, and to
 * the beginning of the reservation; unmaps one or all at once; maps the same memory anew, or other memory in
 * its place; and frees the reservation and makes another.  Importers look at all that they have opened.
 *
 * It checks: A handle of what is mapped opens.  Then all is there that was mapped all the time in which
 * it was opened: what lies side by side, or, from the beginning of the reservation, everything.  Each page
 * has the bytes of what was mapped there, and keeps them: also when its exporter has unmapped it, mapped
 * something else there, or has died.  An exporter without the option is refused as without culimbo.
 *
 * Rule: Memory is written once, before it is exported.  It counts as alive until just before the call that
 * unmaps it.
 */
#include "tests/torture/player.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PLAYER_FILE PLAYER_VIRTUAL

#define PAGE ((uint64_t)2 << 20)
#define PART ((uint64_t)4096) /* what is written and read, at the beginning and at the end of each page */

enum { VIEWS = 8, AT_REGION = 19, AT_SLOT = 16, MAKES = 1 << AT_SLOT };
#define VIRTUAL (UINT64_C(1) << 37) /* no block's serial number is so large */

/* An allocation, in the place of its first page. */
struct piece {
	CUmemGenericAllocationHandle memory; /* 0: only its mapping is left */
	uint32_t slots;			     /* 0: nothing is here */
	bool mapped;
	uint64_t serial, mappings;
	struct gift gift; /* the last one that told of it; .kind is 0 if there was none */
};

static struct region {
	CUdeviceptr base; /* 0: none */
	uint64_t number;  /* never used twice by this place */
	uint64_t makes;
	struct piece piece[REGION_SLOTS];
} regions[REGIONS];

/* An open by this process. */
static struct view {
	CUdeviceptr address; /* 0: none */
	struct gift gift;
	uint64_t key[REGION_SLOTS]; /* what was mapped at each page; 0: not looked at */
} views[VIEWS];

static uint64_t words[PART / 8];

/* ------------------------------------------------------------------ what is where */
/* What the table says of a page: which memory is mapped there, and for the how manieth time. */
static uint64_t key_of(uint64_t serial, uint64_t mappings)
{
	return serial << 16 | (mappings & 0xffff);
}

static uint64_t serial_of(uint64_t key)
{
	return key >> 16;
}

static uint32_t slot_of(uint64_t serial)
{
	return serial >> AT_SLOT & (REGION_SLOTS - 1);
}

static uint64_t now_mapped(const struct gift *gift, uint32_t slot)
{
	return atomic_load(&table->place[gift->place].mapped[gift->block][slot]);
}

static bool is_alive(const struct gift *gift)
{
	const struct place *from = &table->place[gift->place];

	return !atomic_load(&from->doomed) && atomic_load(&from->life) == gift->life &&
	       now_mapped(gift, slot_of(gift->serial)) == key_of(gift->serial, gift->mappings);
}

static void tell_table(const struct region *region, uint32_t slot, bool mapped)
{
	const struct piece *piece = &region->piece[slot];

	for (uint32_t i = 0; i < piece->slots; i++)
		atomic_store(&me->mapped[region - regions][slot + i],
			     mapped ? key_of(piece->serial, piece->mappings) : 0);
}

/* -------------------------------------------------------------------------- bytes */
static bool write_piece(const struct region *region, uint32_t slot)
{
	const struct piece *piece = &region->piece[slot];
	uint64_t bytes = piece->slots * PAGE;

	for (uint64_t at = 0; at < bytes; at += at % PAGE ? PART : PAGE - PART) {
		for (uint64_t i = 0; i < PART / 8; i++)
			words[i] = torture_word(here, piece->serial, at / 8 + i);
		if (!SURE(copy_to_device(region->base + slot * PAGE + at, words, PART)))
			return false;
	}
	return SURE(cu.cuCtxSynchronize());
}

/* @page: the address of a page of what has @key. */
static bool read_page(CUdeviceptr page, uint32_t slot, uint64_t key, const struct gift *gift, const char *when)
{
	uint64_t serial = serial_of(key), begin = (slot - slot_of(serial)) * PAGE;

	COUNT(reads);
	for (uint64_t at = 0; at < PAGE; at += PAGE - PART) {
		if (!SURE(cu.cuMemcpyDtoH_v2(words, page + at, PART)))
			return false;
		for (uint64_t i = 0; i < PART / 8; i++) {
			uint64_t right = torture_word(gift->place, serial, (begin + at) / 8 + i);

			if (words[i] == right)
				continue;
			fprintf(stderr,
				"torture: FOREIGN %u (pid %d), %s: virtual memory of %u, page %u, byte %llu: "
				"0x%016llx instead of 0x%016llx; of life %u, which is at %u\n",
				here, (int)getpid(), when, gift->place, slot, (unsigned long long)(at + 8 * i),
				(unsigned long long)words[i], (unsigned long long)right, (unsigned int)gift->life,
				(unsigned int)atomic_load(&table->place[gift->place].life));
			COUNT(foreign);
			return false;
		}
		if (at)
			break;
	}
	return true;
}

static bool read_view(const struct view *view, const char *when)
{
	for (uint32_t slot = 0; slot < REGION_SLOTS; slot++) {
		CUdeviceptr page = view->address + slot * PAGE - view->gift.slot * PAGE;

		if (!view->key[slot])
			continue;
		if (now_mapped(&view->gift, slot) != view->key[slot])
			COUNT(virtual_old);
		if (!read_page(page, slot, view->key[slot], &view->gift, when))
			return false;
	}
	return true;
}

/* -------------------------------------------------------------------- an exporter */
static CUresult map(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle memory)
{
	CUmemAccessDesc access = { .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUresult result = CALL(cu.cuMemMap(address, bytes, 0, memory, 0));

	return result ? result : CALL(cu.cuMemSetAccess(address, bytes, &access, 1));
}

static void send_piece(struct region *region, uint32_t slot)
{
	struct piece *piece = &region->piece[slot];
	uint64_t into = dice(2) ? 0 : 8 * dice((uint32_t)(piece->slots * PAGE / 8));
	CUipcMemHandle handle;
	CUdeviceptr from = region->base + slot * PAGE + into;
	uint32_t first = 0, at = slot;
	CUresult result;

	/* the beginning of the reservation: the handle is of the first that is mapped there */
	if (dice(4) == 0) {
		while (!region->piece[first].mapped)
			first++;
		from = region->base;
		piece = &region->piece[slot = first];
		at = 0;
	}
	result = CALL(cu.cuIpcGetMemHandle(&handle, from));
	if (!shares_all()) {
		if (result != CUDA_ERROR_INVALID_VALUE)
			complain("cuIpcGetMemHandle of virtual memory, which is not shared here", result);
		COUNT(virtual_bare);
		return;
	}
	if (!SURE(result))
		return;
	COUNT(virtual_exports);
	piece->gift = (struct gift){ .kind = GIFT_VIRTUAL, .place = here, .life = my_life, .serial = piece->serial,
				     .mappings = piece->mappings, .block = (uint32_t)(region - regions), .slot = at };
	memcpy(piece->gift.handle, &handle, sizeof handle);
	for (uint32_t n = 1 + dice(2); n; n--)
		send_somewhere(&piece->gift);
}

static void map_piece(struct region *region, uint32_t slot)
{
	struct piece *piece = &region->piece[slot];

	if (!SURE(map(region->base + slot * PAGE, piece->slots * PAGE, piece->memory)))
		return;
	piece->mapped = true;
	piece->mappings++;
	/* the memory of a piece that was mapped before has its bytes */
	if (piece->mappings == 1 && !write_piece(region, slot))
		return;
	tell_table(region, slot, true);
	if (dice(2)) {
		SURE(cu.cuMemRelease(piece->memory));
		piece->memory = 0;
	}
	send_piece(region, slot);
}

static void make_piece(struct region *region, uint32_t slot)
{
	CUmemAllocationProp property = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					 .location.type = CU_MEM_LOCATION_TYPE_DEVICE };
	struct piece *piece = &region->piece[slot];
	CUmemGenericAllocationHandle memory;
	uint32_t slots = slot + 1 < REGION_SLOTS && !piece[1].slots ? 1 + dice(2) : 1;
	CUresult result;

	if (region->makes + 1 == MAKES)
		return;
	if (dice(4) == 0)
		property.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	result = CALL(cu.cuMemCreate(&memory, slots * PAGE, &property, 0));
	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		COUNT(no_memory);
		return;
	}
	if (!SURE(result))
		return;
	*piece = (struct piece){ .memory = memory, .slots = slots };
	piece->serial = VIRTUAL | region->number << AT_REGION | (uint64_t)slot << AT_SLOT | ++region->makes;
	map_piece(region, slot);
}

/* After its unmap: its memory stays, to be mapped anew, or not. */
static void unmapped(struct region *region, uint32_t slot)
{
	struct piece *piece = &region->piece[slot];

	piece->mapped = false;
	/* a handle that was still under way */
	if (piece->gift.kind && dice(2))
		send_somewhere(&piece->gift);
	if (piece->memory && dice(2))
		return;
	if (piece->memory)
		SURE(cu.cuMemRelease(piece->memory));
	*piece = (struct piece){ .slots = 0 };
}

/* Unmaps the pieces from @slot on that lie side by side, @most of them, with one call. */
static void unmap(struct region *region, uint32_t slot, uint32_t most)
{
	uint32_t end = slot;

	for (; most && end < REGION_SLOTS && region->piece[end].mapped; most--) {
		uint32_t slots = region->piece[end].slots;

		for (uint32_t i = 0; i < slots; i++)
			read_page(region->base + (end + i) * PAGE, end + i,
				  key_of(region->piece[end].serial, region->piece[end].mappings),
				  &(struct gift){ .place = here, .life = my_life }, "the exporter, before its unmap");
		tell_table(region, end, false);
		end += slots;
	}
	if (end == slot || !SURE(cu.cuMemUnmap(region->base + slot * PAGE, (end - slot) * PAGE)))
		return;
	COUNT(virtual_unmaps);
	while (slot < end) {
		uint32_t slots = region->piece[slot].slots;

		unmapped(region, slot);
		slot += slots;
	}
}

static void end_region(struct region *region)
{
	if (!region->base)
		return;
	for (uint32_t slot = 0; slot < REGION_SLOTS; slot++) {
		struct piece *piece = &region->piece[slot];

		unmap(region, slot, REGION_SLOTS);
		if (piece->slots && piece->memory)
			SURE(cu.cuMemRelease(piece->memory));
		*piece = (struct piece){ .slots = 0 };
	}
	SURE(cu.cuMemAddressFree(region->base, REGION_SLOTS * PAGE));
	region->base = 0;
}

static void begin_region(struct region *region)
{
	*region = (struct region){ .number = atomic_fetch_add(&me->regions, 1) };
	if (region->number >> (37 - AT_REGION) ||
	    !SURE(cu.cuMemAddressReserve(&region->base, REGION_SLOTS * PAGE, 0, 0, 0)))
		region->base = 0;
}

/* Returns true if @slot lies in a piece that begins before it. */
static bool is_covered(const struct region *region, uint32_t slot)
{
	return slot && region->piece[slot - 1].slots == 2;
}

static void play_region(struct region *region)
{
	uint32_t slot = dice(REGION_SLOTS), what = dice(20);
	struct piece *piece = &region->piece[slot];

	if (!region->base)
		begin_region(region);
	else if (what == 0)
		end_region(region);
	else if (what == 1)
		unmap(region, slot, REGION_SLOTS);
	else if (is_covered(region, slot))
		return;
	else if (!piece->slots)
		make_piece(region, slot);
	else if (!piece->mapped)
		map_piece(region, slot);
	else if (what < 7)
		unmap(region, slot, 1);
	else
		send_piece(region, slot);
}

/* -------------------------------------------------------------------- an importer */
static void close_view(struct view *view)
{
	read_view(view, "before a close");
	SURE(cu.cuIpcCloseMemHandle(view->address));
	*view = (struct view){ .address = 0 };
}

/* What was mapped all the while, and is in what @gift opens, is looked at from now on. */
static void look_around(struct view *view, const uint64_t *before)
{
	const struct gift *gift = &view->gift;
	uint32_t pages = 0;
	CUdeviceptr base = 0;
	size_t size = 0;

	if (!SURE(cu.cuMemGetAddressRange_v2(&base, &size, view->address)))
		return;
	for (uint32_t slot = gift->slot; slot < REGION_SLOTS; slot++) {
		uint64_t key = now_mapped(gift, slot);

		view->key[slot] = key == before[slot] ? key : 0;
		if (view->key[slot])
			pages = slot + 1 - gift->slot;
		else if (gift->slot)
			break;
	}
	/* of what has been unmapped meanwhile, the memory that the handle names is there */
	view->key[slot_of(gift->serial)] = key_of(gift->serial, gift->mappings);
	if (base != view->address || size < pages * PAGE) {
		fprintf(stderr, "torture: ERROR %u: an import of %u pages at 0x%llx has %llu bytes from 0x%llx\n", here, pages,
			(unsigned long long)view->address, (unsigned long long)size, (unsigned long long)base);
		COUNT(errors);
	}
	if (pages > 1)
		COUNT(virtual_several);
	if (atomic_load(&table->place[gift->place].life) != gift->life)
		memset(view->key, 0, sizeof view->key);
	view->key[slot_of(gift->serial)] = key_of(gift->serial, gift->mappings);
}

/* It is the program's own address, which ends with what is mapped there. */
static void close_own(CUdeviceptr address, const struct gift *gift)
{
	if (address != regions[gift->block].base + gift->slot * PAGE) {
		fprintf(stderr, "torture: ERROR %u: its own virtual memory at another address\n", here);
		COUNT(errors);
	}
	SURE(cu.cuIpcCloseMemHandle(address));
}

static void refused(const struct gift *gift, CUresult result, bool alive)
{
	if (!alive) {
		COUNT(refused);
		COUNT(virtual_refused);
	} else {
		COUNT(refused_alive);
	}
	if (alive || (result != CUDA_ERROR_INVALID_VALUE && result != CUDA_ERROR_INVALID_HANDLE)) {
		fprintf(stderr, "torture: ERROR: virtual memory of %u, life %u, page %u, %s\n", gift->place,
			(unsigned int)gift->life, slot_of(gift->serial), alive ? "which is mapped" : "which is gone");
		complain("cuIpcOpenMemHandle of virtual memory", result);
	}
}

void virtual_open(const struct gift *gift)
{
	bool own = gift->place == here && gift->life == my_life, alive = is_alive(gift);
	struct view *view = &views[dice(VIEWS)];
	uint64_t before[REGION_SLOTS];
	CUipcMemHandle handle;
	CUdeviceptr address;
	CUresult result;

	for (int i = 0; i < VIEWS; i++)
		if (!views[i].address)
			view = &views[i];
	if (view->address)
		close_view(view);
	for (uint32_t slot = 0; slot < REGION_SLOTS; slot++)
		before[slot] = now_mapped(gift, slot);
	memcpy(&handle, gift->handle, sizeof handle);
	result = CALL(cu.cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	if (result) {
		refused(gift, result, alive && is_alive(gift));
		return;
	}
	COUNT(opens);
	COUNT(virtual_opens);
	if (!is_alive(gift))
		COUNT(opens_freed);
	if (own) {
		COUNT(opens_own);
		close_own(address, gift);
		return;
	}
	*view = (struct view){ .address = address, .gift = *gift };
	look_around(view, before);
	read_view(view, "just opened");
}

/* ------------------------------------------------------------------------- deeds */
void do_virtual(void)
{
	struct view *view = &views[dice(VIEWS)];

	if (!table->virtuals)
		return;
	if (exporter() && dice(8))
		play_region(&regions[dice(REGIONS)]);
	else if (!view->address)
		return;
	else if (dice(3) == 0)
		close_view(view);
	else
		read_view(view, "while open");
}

bool virtual_in_child(void)
{
	return (!views[0].address || cu.cuIpcCloseMemHandle(views[0].address)) &&
	       (!regions[0].base || cu.cuMemUnmap(regions[0].base, REGION_SLOTS * PAGE));
}

void end_virtual(void)
{
	for (uint32_t i = 0; i < REGIONS; i++)
		end_region(&regions[i]);
	for (int i = 0; i < VIEWS; i++)
		if (views[i].address)
			close_view(&views[i]);
}
