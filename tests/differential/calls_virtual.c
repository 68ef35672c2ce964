/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory.  Players reserve addresses, map pages there, read, query, unmap and free them, and ask for
 * legacy handles, by pointers to the beginning of the reservation, of a page, and into one.  Without
 * CULIMBO_SHARE=all nothing differs.
 *
 * With it these differ: such a handle, and what opens it (rule virtual); and the amount of free memory, since
 * importers keep pages that their exporter has unmapped.  Without culimbo there is no handle, and sixty-four
 * zero bytes are opened in its place.  Under culimbo each open is checked, and what is open is looked at now
 * and then; these calls have no lines, since nothing corresponds to them without culimbo.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/differential/calls.h"
#include "tests/differential/stage.h"

enum { NONE = -1, V_PAGES = 4, V_HANDLES = 6 };

struct page_life {
	bool alive, filled;
	bool unsure; /* on a GPU, after the end of a context of its process: what is there then was not measured */
	uint8_t player, value;
};
static struct page_life page_life[LIVES];
static int page_lives;

static struct {
	struct {
		bool reserved;
		int page[V_PAGES]; /* what is mapped there, or NONE */
	} region[V_REGIONS];
	struct v_import {
		bool open;
		uint8_t ctx;
		int life; /* of the page that its handle names */
		uint64_t address;
		unsigned int since; /* grows; the same for all that one context has open there by handles of one page */
		int page[V_PAGES]; /* what is looked at, from the handle's page on */
	} import[V_IMPORTS];
} has[PLAYERS];

static struct {
	int life; /* what it names; NONE: no handle */
	uint8_t player, region, page; /* the page that it opens to */
	uint8_t bytes[64];
} handle[V_HANDLES];

bool virtual_shares_all(void)
{
	const char *share = getenv("CULIMBO_SHARE");

	return share && !strcmp(share, "all");
}

static bool some_were_opened;

void virtual_opened_some(void)
{
	some_were_opened = true;
}

bool virtual_may_take_memory(void)
{
	return some_were_opened;
}

void virtual_begin(unsigned int p)
{
	memset(&has[p], 0, sizeof has[p]);
	for (unsigned int i = 0; i < V_HANDLES && !page_lives; i++)
		handle[i].life = NONE;
}

void virtual_player_ended(unsigned int p)
{
	for (int l = 0; l < page_lives; l++)
		page_life[l].alive &= page_life[l].player != p;
}

void virtual_context_ended(uint8_t ctx)
{
	for (int l = 0; l < page_lives; l++)
		if (settings->gpu && page_life[l].player == op.player) {
			page_life[l].unsure = true;
			page_life[l].filled = false;
		}
	for (unsigned int i = 0; i < V_IMPORTS; i++)
		if (has[op.player].import[i].ctx == ctx)
			has[op.player].import[i].open = false;
}

/* True if memory of device 0 can be read and written now, and nothing has to wait. */
bool virtual_can_work(void)
{
	return context_alive(me(), current()) && device_of(current()) == 0 && !me()->busy && !captures(me());
}

/* ---------------------------------------------------------------- one's own memory */
/*
 * With settings->gpu a region is aligned to 32 MiB.  Under culimbo it may get another address than bare, because freed
 * blocks and imports take addresses.  One driver gave wrong bases, as if it rounded pointers down to 16 MiB
 * (doc/measurements.md, fact 21).  If it does, the same pages of an aligned region get a wrong base, bare and under culimbo.
 * So regions that touch each other are played only without settings->gpu.
 */
static void reserve(unsigned int slot)
{
	struct order o = { .call = DO_V_RESERVE, .slot = (uint8_t)slot, .pages = V_PAGES, .flags = settings->gpu };
	struct answer a = tell(op.player, &o);

	with("region %u", slot);
	print("cuMemAddressReserve", &a, NULL);
	if (a.result)
		return;
	me()->taken++;
	has[op.player].region[slot].reserved = true;
	for (unsigned int i = 0; i < V_PAGES; i++)
		has[op.player].region[slot].page[i] = NONE;
}

static void map(unsigned int slot, unsigned int page)
{
	struct order o = { .call = DO_V_MAP, .slot = (uint8_t)slot, .page = (uint8_t)page, .flags = op.c % 3 == 0 };
	struct answer a = tell(op.player, &o);
	struct page_life *l;

	with("region %u, page %u, types %u", slot, page, o.flags);
	print("cuMemCreate and cuMemMap", &a, NULL);
	if (a.result)
		return;
	has[op.player].region[slot].page[page] = page_lives;
	l = &page_life[page_lives];
	*l = (struct page_life){ .alive = true, .player = op.player, .value = (uint8_t)(1 + page_lives % 250) };
	page_lives++;
	if (!virtual_can_work())
		return;
	o = (struct order){ .call = DO_V_FILL, .slot = (uint8_t)slot, .page = (uint8_t)page, .flags = l->value };
	a = tell(op.player, &o);
	with("region %u, page %u, value %u", slot, page, l->value);
	print("cuMemsetD8", &a, NULL);
	l->filled = !a.result;
}

static bool has_mapped(unsigned int slot, unsigned int page, unsigned int pages)
{
	for (; pages; pages--, page++)
		if (has[op.player].region[slot].page[page] >= 0)
			return true;
	return false;
}

/* Of one page, or of several, with holes or without; on a GPU without, since it was not measured what is unmapped then. */
static void unmap(unsigned int slot, unsigned int page)
{
	unsigned int n = op.d % 3 ? 1 : 1 + op.c % (V_PAGES - page);
	struct order o = { .call = DO_V_UNMAP, .slot = (uint8_t)slot, .page = (uint8_t)page };
	struct answer a;

	for (unsigned int i = 1; settings->gpu && i < n; i++)
		if (!has_mapped(slot, page, 1) || !has_mapped(slot, page + i, 1))
			n = i;
	o.pages = (uint8_t)n;
	a = tell(op.player, &o);
	with("region %u, page %u, %u pages", slot, page, n);
	print("cuMemUnmap", &a, NULL);
	for (; !a.result && n; n--, page++) {
		int *l = &has[op.player].region[slot].page[page];

		if (*l >= 0)
			page_life[*l].alive = false;
		*l = NONE;
	}
}

static void play_region(void)
{
	unsigned int slot = op.a % V_REGIONS, page = op.b % V_PAGES;
	struct order o = { .call = DO_V_FREE, .slot = (uint8_t)slot, .pages = V_PAGES };
	struct answer a;

	/* it was not measured what captures do with these calls */
	if (me()->busy || (settings->gpu && captures(me())))
		return;
	if (!has[op.player].region[slot].reserved) {
		reserve(slot);
	} else if (op.d % 16 == 0) {
		/* also with something mapped there: the simulated driver refuses; what others do was not measured */
		if (settings->gpu && has_mapped(slot, 0, V_PAGES))
			return;
		a = tell(op.player, &o);
		with("region %u", slot);
		print("cuMemAddressFree", &a, NULL);
		has[op.player].region[slot].reserved = a.result != CUDA_SUCCESS;
	} else if (has[op.player].region[slot].page[page] == NONE && op.d % 8) {
		map(slot, page);
	} else {
		unmap(slot, page);
	}
}

static void play_look_at_own(void)
{
	unsigned int slot = op.a % V_REGIONS, page = op.b % V_PAGES;
	bool reads = op.c % 2;
	struct order o = { .call = reads ? DO_V_READ : DO_V_QUERY, .slot = (uint8_t)slot,
			   .page = (uint8_t)page, .offset = reads ? 0 : op.d % 2 * 512 };
	char expected[16];
	struct answer a;
	int l;

	if (!has[op.player].region[slot].reserved)
		return;
	l = has[op.player].region[slot].page[page];
	if (reads && (l < 0 || !page_life[l].filled || !virtual_can_work()))
		return;
	a = tell(op.player, &o);
	if (reads) {
		snprintf(expected, sizeof(expected), "bytes=%u", page_life[l].value);
		promised(a.result || !strcmp(a.text, expected), "foreign bytes");
	}
	with("region %u, page %u%s", slot, page, o.offset ? " + 512" : "");
	print(reads ? "cuMemcpyDtoH" : "cuMemGetAddressRange", &a, NULL);
}

static void play_handle(void)
{
	unsigned int slot = op.a % V_REGIONS, page = op.b % 3 ? op.b / 3 % V_PAGES : 0, to = op.c % V_HANDLES, first = page;
	struct order o = { .call = DO_V_EXPORT, .slot = (uint8_t)slot,
			   .page = (uint8_t)page, .offset = op.d % 3 == 0 ? 4096 : 0 };
	const int *mapped = has[op.player].region[slot].page;
	bool good, unsure, begins = !page && !o.offset;
	struct answer a;

	if (!has[op.player].region[slot].reserved)
		return;
	/* the beginning of the reservation: of the first page that is mapped */
	while (begins && first + 1 < V_PAGES && mapped[first] < 0)
		first++;
	good = virtual_shares_all() && mapped[first] >= 0 && context_alive(me(), current());
	unsure = mapped[first] >= 0 && page_life[mapped[first]].unsure;
	a = tell(op.player, &o);
	promised(!good || unsure || !a.result, "virtual memory has no handle");
	promised(mapped[first] >= 0 || a.result, "nothing is mapped there, and it has a handle");
	with("region %u, page %u%s, handle %u", slot, page, o.offset ? " + 4096" : "", to);
	print("cuIpcGetMemHandle", &a, good ? "virtual" : NULL);
	if (!good || unsure)
		return;
	handle[to].life = mapped[first];
	handle[to].player = op.player;
	handle[to].region = (uint8_t)slot;
	handle[to].page = (uint8_t)page;
	memcpy(handle[to].bytes, a.handle, sizeof(handle[to].bytes));
}

/* --------------------------------------------------------------------- imports */
/* Looks at what @slot has open.  The next line says what is wrong. */
static void look(unsigned int slot)
{
	for (unsigned int i = 0; i < V_PAGES; i++) {
		struct order o = { .call = DO_V_LOOK, .slot = (uint8_t)slot, .page = (uint8_t)i };
		int l = has[op.player].import[slot].page[i];
		char expected[16];
		struct answer a;

		if (l < 0 || !page_life[l].filled)
			continue;
		snprintf(expected, sizeof(expected), "bytes=%u", page_life[l].value);
		a = tell(op.player, &o);
		promised(!a.result, "an import of virtual memory cannot be read");
		promised(a.result || !strcmp(a.text, expected), "foreign bytes");
	}
}

/* True if a close of an address that both have open ends @a before @b. */
static bool ends_before(const struct v_import *a, const struct v_import *b)
{
	bool of_current = a->ctx == whole(current());

	return of_current == (b->ctx == whole(current())) ? a->since < b->since : of_current;
}

/*
 * Closes @slot.  Of several contexts that have its address open it is the current one's open that ends, or else the
 * oldest one's; what is left goes with the context that it is of (shim/importer/close.c).
 */
static void close_import(unsigned int slot)
{
	struct v_import *closed = &has[op.player].import[slot], *import = has[op.player].import, *of = closed;
	struct order o = { .call = DO_V_CLOSE, .slot = (uint8_t)slot };
	struct answer a = tell(op.player, &o);

	promised(!a.result, "an import of virtual memory cannot be closed");
	/* one's own memory is closed as well, and is nobody's import */
	for (unsigned int i = 0; closed->open && i < V_IMPORTS; i++)
		if (import[i].open && import[i].address == closed->address && ends_before(&import[i], of))
			of = &import[i];
	of->ctx = closed->ctx;
	of->life = closed->life;
	of->since = closed->since;
	closed->open = false;
}

static void opened(unsigned int from, unsigned int slot, const struct answer *a)
{
	struct v_import *import = has[op.player].import, *new = &import[slot];
	static unsigned int opens;
	const int *mapped = has[handle[from].player].region[handle[from].region].page;
	unsigned int page = handle[from].page;
	bool goes_on = true;

	new->open = true;
	new->ctx = whole(current());
	new->life = handle[from].life;
	new->since = ++opens;
	memcpy(&new->address, a->handle, sizeof(new->address));
	for (unsigned int i = 0; i < V_IMPORTS; i++)
		if (import[i].open && import[i].address == new->address && import[i].ctx == new->ctx &&
		    import[i].life == new->life && import[i].since < new->since)
			new->since = import[i].since;
	for (unsigned int i = 0; i < V_PAGES; i++) {
		int l = page + i < V_PAGES ? mapped[page + i] : NONE;

		/* from the beginning of the reservation: all of it; else what lies side by side */
		goes_on &= l >= 0 || !page;
		new->page[i] = goes_on ? l : NONE;
	}
	look(slot);
}

static void play_import(void)
{
	unsigned int from = op.b % V_HANDLES, slot = op.a % V_IMPORTS;
	struct order o = { .call = DO_V_OPEN, .slot = (uint8_t)slot };
	struct answer a;
	bool own, alive;

	if (handle[from].life < 0)
		return;
	if (settings->players > 1 && op.c % 5 && handle[from].player == op.player)
		op.player = !op.player;
	if (me()->busy || captures(me()) || (context_alive(me(), current()) && !virtual_can_work()))
		return;
	own = handle[from].player == op.player;
	alive = page_life[handle[from].life].alive;
	/* without a context the open fails, and what is open stays */
	if (has[op.player].import[slot].open && virtual_can_work()) {
		look(slot);
		close_import(slot);
	}
	o.other = own;
	o.flags = handle[from].region;
	o.page = handle[from].page;
	memcpy(o.handle, handle[from].bytes, sizeof(o.handle));
	some_were_opened = true;
	a = tell(op.player, &o);
	me()->taken++;
	if (under_culimbo && context_alive(me(), current())) {
		promised(!alive || page_life[handle[from].life].unsure || !a.result, "virtual memory that is mapped cannot be opened");
		promised(alive || a.result, "a stale handle of virtual memory opens");
		promised(a.result || !strcmp(a.text, own ? "own=1" : "known=1"), "an import is not known");
		if (!a.result && own)
			close_import(slot);
		else if (!a.result)
			opened(from, slot, &a);
	}
	with("virtual handle %u%s", from, own ? " own" : "");
	print("cuIpcOpenMemHandle", &a, context_alive(me(), current()) ? "virtual" : NULL);
}

static void play_look(void)
{
	unsigned int slot = op.a % V_IMPORTS;
	struct answer nothing = { 0 };

	if (!virtual_can_work() || !virtual_shares_all())
		return;
	if (has[op.player].import[slot].open) {
		look(slot);
		if (op.b % 3 == 0)
			close_import(slot);
	}
	with("virtual import %u", slot);
	print("a look", &nothing, NULL);
}

/* ------------------------------------------------------------------------- all */
void virtual_play(uint32_t dice)
{
	dice %= 100;
	if (dice < 40)
		play_region();
	else if (dice < 52)
		play_look_at_own();
	else if (dice < 72)
		play_handle();
	else if (dice < 90)
		play_import();
	else
		play_look();
}
