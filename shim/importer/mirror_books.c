/* SPDX-License-Identifier: Apache-2.0 */
/* Which mirrors there are, and whose turn it is: see mirror_books.h. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shim/importer/mirror_books.h"
#include "shim/self/self.h"

_Atomic uint64_t cl_mirrors_n;
uint64_t cl_mirror_pieces_n, cl_mirror_steps;

/* All that follows is under cl_imports_lock. */
static struct cl_table reservations = CL_TABLE_BEGIN(reservations);
static struct cl_mirror **by_address; /* in order */
static uint64_t by_address_room;
static uint64_t listed;
static uint64_t forks;
static pthread_cond_t turn_over = PTHREAD_COND_INITIALIZER;

/* ----------------------------------------------------------------------- turns */
void cl_mirror_turn_begin_locked(struct cl_mirror_turn *turn, struct cl_mirror_reservation *of)
{
	*turn = (struct cl_mirror_turn){ .of = of, .forks = forks };
	of->wanted++;
	while (of->taken)
		cl_lock_wait(&turn_over, &cl_imports_lock);
	of->taken = true;
}

void cl_mirror_turn_end_locked(struct cl_mirror_turn *turn)
{
	struct cl_mirror_reservation *of = turn->of;

	turn->of = NULL;
	if (of && turn->forks != forks)
		cl_mirrors_forget(); /* a child was forked meanwhile, and this thread is in it: forget again */
	if (!of || turn->forks != forks)
		return;
	of->taken = false;
	if (--of->wanted) {
		pthread_cond_broadcast(&turn_over);
	} else if (!of->mirrors.n) {
		cl_table_remove(&reservations, &of->link);
		free(of);
	}
}

struct cl_mirror_reservation *cl_mirror_reservation_get_locked(const struct cl_mirror_name *name)
{
	uint64_t key = cl_hash_word(name->exporter) ^ name->reservation;
	struct cl_link *link = cl_table_find(&reservations, key);
	struct cl_mirror_reservation *of;

	for (; link; link = link->next) {
		of = (struct cl_mirror_reservation *)(void *)link;
		if (link->key == key && of->name.exporter == name->exporter &&
		    of->name.reservation == name->reservation)
			return of;
	}
	of = calloc(1, sizeof *of);
	if (of) {
		of->link.key = key;
		of->name = *name;
		cl_table_add(&reservations, &of->link);
	}
	return of;
}

/* --------------------------------------------------------------------- look-ups */
/* Returns how many mirrors begin at @address or below. */
static uint64_t count_below_locked(CUdeviceptr address)
{
	uint64_t low = 0, high = listed;

	while (low < high) {
		uint64_t middle = (low + high) / 2;

		if (by_address[middle]->base <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct cl_mirror *cl_mirror_at_locked(CUdeviceptr address)
{
	uint64_t n = count_below_locked(address);

	return n ? by_address[n - 1] : NULL;
}

bool cl_mirrors_room_locked(uint64_t n)
{
	uint64_t room = by_address_room ? by_address_room : 32;
	void *wide;

	if (!n) {
		free(by_address);
		by_address = NULL;
		by_address_room = 0;
	}
	if (n <= by_address_room)
		return true;
	while (room < n)
		room *= 2;
	wide = realloc(by_address, room * sizeof *by_address);
	if (!wide)
		return false;
	by_address = wide;
	by_address_room = room;
	return true;
}

void cl_mirrors_gone_locked(uint64_t n)
{
	cl_mirrors_n -= n;
	if (!cl_mirrors_n)
		cl_mirrors_room_locked(0);
}

void cl_mirror_list_locked(struct cl_mirror *mirror)
{
	uint64_t n = count_below_locked(mirror->base);

	/* a child that was forked by a signal handler amid an open has forgotten all mirrors */
	if (listed == by_address_room)
		return;
	memmove(by_address + n + 1, by_address + n, (listed - n) * sizeof *by_address);
	by_address[n] = mirror;
	listed++;
}

void cl_mirror_unlist_locked(const struct cl_mirror *mirror)
{
	uint64_t n = count_below_locked(mirror->base) - 1;

	if (!listed)
		return;
	listed--;
	memmove(by_address + n, by_address + n + 1, (listed - n) * sizeof *by_address);
}

uint64_t cl_mirror_imports_below(const struct cl_mirror *mirror, uint64_t offset)
{
	uint64_t low = 0, high = mirror->imports;

	while (low < high) {
		uint64_t middle = (low + high) / 2;

		if (mirror->import[middle].offset <= offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct cl_mirror_import *cl_mirror_import_at(const struct cl_mirror *mirror, uint64_t offset)
{
	uint64_t n = cl_mirror_imports_below(mirror, offset);

	return n && mirror->import[n - 1].offset == offset ? &mirror->import[n - 1] : NULL;
}

static uint64_t import_end(const struct cl_mirror_import *import)
{
	return import->run[import->runs - 1].end;
}

void cl_mirror_imports_changed_locked(struct cl_mirror *mirror, uint64_t from)
{
	uint64_t reach = from ? mirror->import[from - 1].reach : 0;

	for (uint64_t i = from; i < mirror->imports; i++) {
		if (import_end(&mirror->import[i]) > reach)
			reach = import_end(&mirror->import[i]);
		mirror->import[i].reach = reach;
	}
}

uint64_t cl_mirror_piece_from(const struct cl_mirror *mirror, uint64_t offset)
{
	uint64_t low = 0, high = mirror->pieces;

	while (low < high) {
		uint64_t middle = (low + high) / 2;

		if (mirror->piece[middle].offset + mirror->piece[middle].size <= offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Returns @offset, or the end of the hole of @import in which it lies. */
static uint64_t not_in_a_hole(const struct cl_mirror_import *import, uint64_t offset)
{
	uint64_t low = 0, high = import->runs - 1; /* the last run ends above @offset */

	while (low < high) {
		uint64_t middle = (low + high) / 2;

		if (import->run[middle].end <= offset)
			low = middle + 1;
		else
			high = middle;
	}
	return import->run[low].begin > offset ? import->run[low].begin : offset;
}

bool cl_mirror_find(CUdeviceptr address, CUdeviceptr *base, uint64_t *size, CUdeviceptr *mapped)
{
	const struct cl_mirror *mirror;
	bool found = false;

	cl_lock(&cl_imports_lock);
	mirror = cl_mirror_at_locked(address);
	/* a program also asks of its own memory, above all mirrors */
	if (mirror && address - mirror->base >= mirror->size)
		mirror = NULL;
	for (uint64_t n = mirror ? cl_mirror_imports_below(mirror, address - mirror->base) : 0; n && !found; n--) {
		const struct cl_mirror_import *import = &mirror->import[n - 1];
		uint64_t end = import_end(import);

		if (address - mirror->base >= import->reach) /* nor does an earlier one reach there */
			break;
		cl_mirror_steps++;
		found = address - mirror->base < end;
		if (found) {
			*base = mirror->base + import->offset;
			*size = end - import->offset;
			if (mapped)
				*mapped = mirror->base + not_in_a_hole(import, address - mirror->base);
		}
	}
	cl_unlock(&cl_imports_lock);
	return found;
}

struct cl_mirror *cl_mirror_next_without_locked(CUdeviceptr from, CUdevice of, CUdevice device)
{
	for (uint64_t i = from ? count_below_locked(from - 1) : 0; i < listed; i++)
		if ((by_address[i]->devices >> of & 1) && !(by_address[i]->devices >> device & 1))
			return by_address[i];
	return NULL;
}

void cl_mirrors_forget(void)
{
	/* their memory is not freed: a thread of the parent may have been changing it */
	reservations = (struct cl_table)CL_TABLE_BEGIN(reservations);
	by_address = NULL;
	listed = by_address_room = cl_mirror_pieces_n = 0;
	atomic_store(&cl_mirrors_n, 0);
	forks++;
	turn_over = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}
