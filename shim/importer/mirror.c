/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes what is mirrored: see mirror.h. */
#include <stdlib.h>
#include <string.h>

#include "shim/importer/mirror_map.h"
#include "shim/self/self.h"

uint64_t cl_mirror_pieces_most = 1 << 20;

/* ------------------------------------------------------------------------ opens */
struct cl_mirror_opening {
	const struct cl_mirror_want *want;
	struct cl_mirror_piece *piece; /* the first that it takes, the others follow */
	uint64_t pieces;
	uint64_t added; /* how many of the pieces are not mapped yet */
	struct cl_mirror *mirror;
	bool fresh;		      /* a new mirror is needed */
	struct cl_mirror_run *run;    /* the runs that it takes */
	struct cl_mirror_run *united; /* room for these and the runs that its address has already */
	uint64_t runs;
};

/* Finds out which pieces @open takes.  Returns false if there are none, or if they overlap or leave the reservation. */
static bool choose_pieces(struct cl_mirror_opening *open)
{
	const struct cl_mirror_want *want = open->want;
	uint64_t end = 0, i;

	for (i = 0; i < want->pieces; i++) {
		struct cl_mirror_piece *piece = &want->piece[i];

		piece->mapped = false;
		if (!piece->size || piece->offset < end || piece->offset > want->size ||
		    piece->size > want->size - piece->offset)
			return false;
		end = cl_mirror_piece_end(piece);
	}
	open->piece = want->piece;
	open->pieces = want->pieces;
	if (!want->offset)
		return want->pieces != 0;
	for (i = 0; i < want->pieces && cl_mirror_piece_end(&want->piece[i]) <= want->offset; i++)
		;
	if (i == want->pieces || want->piece[i].offset > want->offset)
		return false;
	open->piece = &want->piece[i];
	for (open->pieces = 1; i + open->pieces < want->pieces; open->pieces++)
		if (open->piece[open->pieces].offset != cl_mirror_piece_end(&open->piece[open->pieces - 1]))
			break;
	return true;
}

static bool is_same(const struct cl_mirrored *a, const struct cl_mirror_piece *b)
{
	return a->id == b->id && a->offset == b->offset && a->size == b->size && a->from == b->from;
}

/*
 * Returns true if all that @open takes is mapped in @mirror or has room there.  Then *added is how many
 * pieces are not mapped, *ready says whether all of those have a descriptor, and *has_first
 * whether the first piece is mapped.
 */
static bool fits(const struct cl_mirror_opening *open, const struct cl_mirror *mirror, uint64_t *added, bool *ready,
		 bool *has_first)
{
	uint64_t i = cl_mirror_piece_from(mirror, open->piece[0].offset);

	*added = 0;
	*ready = true;
	*has_first = i < mirror->pieces && is_same(&mirror->piece[i], &open->piece[0]);
	if (open->want->size != mirror->size)
		return false;
	for (uint64_t k = 0; k < open->pieces; k++) {
		const struct cl_mirror_piece *piece = &open->piece[k];

		while (i < mirror->pieces && mirror->piece[i].offset + mirror->piece[i].size <= piece->offset)
			i++;
		if (i == mirror->pieces || mirror->piece[i].offset >= cl_mirror_piece_end(piece)) {
			++*added;
			*ready = *ready && (piece->fd >= 0 || piece->memory);
		} else if (!is_same(&mirror->piece[i], piece)) {
			return false;
		}
	}
	return true;
}

/*
 * Chooses the mirror for @open, of those that fit: one that has an import of the same allocation at the
 * same address, else one that has the allocation, else any; of several the oldest.  If none fits, a new one
 * is needed.  Returns false if descriptors are missing.
 */
static bool choose_mirror(struct cl_mirror_opening *open, const struct cl_mirror_reservation *of)
{
	struct cl_mirror none = { .size = open->want->size }, *mirror;
	bool ready, chosen_ready, has_first;
	int rank, best = -1;
	uint64_t added;

	fits(open, &none, &open->added, &chosen_ready, &has_first);
	CL_LIST_EACH (mirror, &of->mirrors, struct cl_mirror, node) {
		if (!fits(open, mirror, &added, &ready, &has_first))
			continue;
		rank = !has_first ? 0 : cl_mirror_import_at(mirror, open->want->offset) ? 2 : 1;
		if (rank <= best)
			continue;
		best = rank;
		open->mirror = mirror;
		open->added = added;
		chosen_ready = ready;
	}
	open->fresh = !open->mirror;
	return chosen_ready;
}

/* Returns how many runs @open takes, and writes them to @run if that is not NULL. */
static uint64_t runs_of(const struct cl_mirror_opening *open, struct cl_mirror_run *run)
{
	uint64_t n = 0, end = UINT64_MAX;

	for (uint64_t i = 0; i < open->pieces; i++) {
		const struct cl_mirror_piece *piece = &open->piece[i];

		if (piece->offset != end && ++n && run)
			run[n - 1].begin = piece->offset;
		end = cl_mirror_piece_end(piece);
		if (run)
			run[n - 1].end = end;
	}
	return n;
}

static bool take_room(const struct cl_mirror_opening *open)
{
	bool room;

	cl_lock(&cl_imports_lock);
	room = cl_mirror_pieces_n + open->added <= cl_mirror_pieces_most &&
	       cl_mirrors_room_locked(cl_mirrors_n + open->fresh);
	if (room) {
		cl_mirror_pieces_n += open->added;
		cl_mirrors_n += open->fresh;
	}
	cl_unlock(&cl_imports_lock);
	return room;
}

/* Allocates all that @open needs. */
static bool allocate(struct cl_mirror_opening *open, struct cl_mirror_reservation *of)
{
	struct cl_mirror *mirror = open->mirror;
	const struct cl_mirror_import *import;
	void *wide;

	if (open->fresh) {
		mirror = open->mirror = calloc(1, sizeof *mirror);
		if (!mirror)
			return false;
		mirror->of = of;
		mirror->size = open->want->size;
	}
	if (open->added > mirror->piece_room - mirror->pieces) {
		uint64_t room = 2 * mirror->pieces + open->added;

		wide = realloc(mirror->piece, room * sizeof *mirror->piece);
		if (!wide)
			return false;
		mirror->piece = wide;
		mirror->piece_room = room;
	}
	if (mirror->imports == mirror->import_room) {
		uint64_t room = 2 * mirror->imports + 1;

		cl_lock(&cl_imports_lock);
		wide = realloc(mirror->import, room * sizeof *mirror->import);
		if (wide) {
			mirror->import = wide;
			mirror->import_room = room;
		}
		cl_unlock(&cl_imports_lock);
		if (!wide)
			return false;
	}
	open->runs = runs_of(open, NULL);
	open->run = malloc(open->runs * sizeof *open->run);
	if (!open->run)
		return false;
	runs_of(open, open->run);
	import = cl_mirror_import_at(mirror, open->want->offset);
	open->united = malloc((open->runs + (import ? import->runs : 0)) * sizeof *open->united);
	return open->united;
}

/* Enters the pieces that @open has mapped into its mirror, from the last to the first.  No import has them yet. */
static void enter_pieces(struct cl_mirror_opening *open)
{
	struct cl_mirror *mirror = open->mirror;
	uint64_t from = mirror->pieces, to, entered = 0;

	for (uint64_t i = 0; i < open->pieces; i++)
		entered += open->piece[i].mapped;
	to = from + entered;
	mirror->pieces = to;
	for (uint64_t i = open->pieces; to > from; i--) {
		const struct cl_mirror_piece *piece = &open->piece[i - 1];

		if (!piece->mapped)
			continue;
		while (from && mirror->piece[from - 1].offset > piece->offset)
			mirror->piece[--to] = mirror->piece[--from];
		mirror->piece[--to] = (struct cl_mirrored){ piece->offset, piece->size, piece->from, piece->id, 0 };
	}
	cl_lock(&cl_imports_lock);
	cl_mirror_pieces_n -= open->added - entered;
	cl_unlock(&cl_imports_lock);
}

/* Adds @by to the number of imports of each piece in @run. */
static void count(struct cl_mirror *mirror, const struct cl_mirror_run *run, uint64_t runs, uint64_t by)
{
	for (uint64_t i = 0; i < runs; i++)
		for (uint64_t at = cl_mirror_piece_from(mirror, run[i].begin);
		     at < mirror->pieces && mirror->piece[at].offset < run[i].end; at++)
			mirror->piece[at].imports += by;
}

/* Writes the union of the runs @a and @b to @to, and returns its length. */
static uint64_t unite(struct cl_mirror_run *to, const struct cl_mirror_run *a, uint64_t as,
		      const struct cl_mirror_run *b, uint64_t bs)
{
	uint64_t n = 0;

	while (as || bs) {
		bool of_a = as && (!bs || a->begin <= b->begin);
		struct cl_mirror_run next = of_a ? *a++ : *b++;

		*(of_a ? &as : &bs) -= 1;
		if (!n || to[n - 1].end < next.begin)
			to[n++] = next;
		else if (to[n - 1].end < next.end)
			to[n - 1].end = next.end;
	}
	return n;
}

/* Counts @open, which has succeeded, as an import of its address. */
static void enter_import(struct cl_mirror_opening *open)
{
	struct cl_mirror *mirror = open->mirror;
	uint64_t offset = open->want->offset, n;
	struct cl_mirror_import *import = cl_mirror_import_at(mirror, offset);
	struct cl_mirror_run *old = import ? import->run : NULL;
	uint64_t olds = import ? import->runs : 0;
	uint64_t runs = unite(open->united, old, olds, open->run, open->runs);

	count(mirror, open->united, runs, 1);
	count(mirror, old, olds, UINT64_MAX);
	cl_lock(&cl_imports_lock);
	if (!import) {
		n = cl_mirror_imports_below(mirror, offset);
		import = &mirror->import[n];
		memmove(import + 1, import, (mirror->imports++ - n) * sizeof *import);
		*import = (struct cl_mirror_import){ .offset = offset };
	}
	import->opens++;
	import->run = open->united;
	import->runs = runs;
	cl_mirror_imports_changed_locked(mirror, (uint64_t)(import - mirror->import));
	open->united = old;
	/* also what the driver has refused: it is not asked again */
	mirror->devices |= open->want->devices | UINT64_C(1) << open->want->device;
	cl_unlock(&cl_imports_lock);
}

/* Undoes what was reserved for @open, which has failed. */
static void give_up(const struct cl_mirror_opening *open)
{
	cl_lock(&cl_imports_lock);
	cl_mirror_pieces_n -= open->added;
	cl_mirrors_gone_locked(open->fresh);
	cl_unlock(&cl_imports_lock);
	if (open->fresh && open->mirror) {
		free(open->mirror->piece);
		free(open->mirror->import);
		free(open->mirror);
	}
}

/* The caller has the turn with @of. */
static CUresult open_in_turn(struct cl_mirror_opening *open, struct cl_mirror_reservation *of, CUdeviceptr *address)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (!choose_mirror(open, of))
		return CUDA_ERROR_NOT_FOUND;
	if (!take_room(open))
		return result;
	if (!allocate(open, of)) {
		give_up(open);
		return result;
	}
	result = cl_mirror_map(open->mirror, open->piece, open->pieces, UINT64_C(1) << open->want->device,
			       open->want->devices);
	if (!open->mirror->base) {
		give_up(open);
		return result;
	}
	enter_pieces(open);
	if (!result) {
		enter_import(open);
		*address = open->mirror->base + open->want->offset;
	}
	if (result || open->mirror->refused)
		cl_mirror_sweep(open->mirror);
	return result;
}

CUresult cl_mirror_open(const struct cl_mirror_want *want, CUdeviceptr *address)
{
	struct cl_mirror_opening open = { .want = want };
	struct cl_mirror_reservation *of;
	struct cl_mirror_turn turn = { .of = NULL };
	CUresult result;

	if (!cl_mirror_driver_can())
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!choose_pieces(&open))
		return CUDA_ERROR_NOT_MAPPED;
	cl_lock(&cl_imports_lock);
	of = cl_mirror_reservation_get_locked(&want->name);
	if (of)
		cl_mirror_turn_begin_locked(&turn, of);
	cl_unlock(&cl_imports_lock);
	if (!of)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = open_in_turn(&open, of, address);
	cl_lock(&cl_imports_lock);
	cl_mirror_turn_end_locked(&turn);
	cl_unlock(&cl_imports_lock);
	free(open.run);
	free(open.united);
	return result;
}

/* ------------------------------------------------------------ closes, and devices */
bool cl_mirror_close(CUdeviceptr address, CUresult *result)
{
	struct cl_mirror_turn turn = { .of = NULL };
	struct cl_mirror *mirror;
	struct cl_mirror_import *import, closed = { .opens = 1 };
	bool found;

	*result = CUDA_SUCCESS;
	cl_lock(&cl_imports_lock);
	for (;;) { /* until it is found with its turn */
		mirror = cl_mirror_at_locked(address);
		import = mirror ? cl_mirror_import_at(mirror, address - mirror->base) : NULL;
		if (!import || turn.of == mirror->of)
			break;
		cl_mirror_turn_end_locked(&turn);
		cl_mirror_turn_begin_locked(&turn, mirror->of);
	}
	found = import;
	if (found && !--import->opens) {
		closed = *import;
		mirror->imports--;
		memmove(import, import + 1,
			(size_t)(mirror->import + mirror->imports - import) * sizeof *import);
		cl_mirror_imports_changed_locked(mirror, (uint64_t)(import - mirror->import));
	}
	cl_unlock(&cl_imports_lock);
	if (!closed.opens) {
		count(mirror, closed.run, closed.runs, UINT64_MAX);
		free(closed.run);
		*result = cl_mirror_sweep(mirror);
	}
	cl_lock(&cl_imports_lock);
	cl_mirror_turn_end_locked(&turn);
	cl_unlock(&cl_imports_lock);
	return found;
}

CUresult cl_mirrors_add_device(CUdevice of, CUdevice device)
{
	CUresult result, first = CUDA_SUCCESS;
	struct cl_mirror_turn turn = { .of = NULL };
	CUdeviceptr from = 0;
	struct cl_mirror *mirror;

	if (of < 0 || of >= CL_MIRROR_DEVICES || device < 0 || device >= CL_MIRROR_DEVICES)
		return CUDA_ERROR_INVALID_DEVICE;
	cl_lock(&cl_imports_lock);
	while ((mirror = cl_mirror_next_without_locked(from, of, device)) != NULL) {
		if (turn.of != mirror->of) { /* it may go while its turn is waited for */
			cl_mirror_turn_end_locked(&turn);
			cl_mirror_turn_begin_locked(&turn, mirror->of);
			continue;
		}
		cl_unlock(&cl_imports_lock);
		cl_rank_none();
		result = cl_mirror_give_access(mirror, UINT64_C(1) << device, 0);
		cl_lock(&cl_imports_lock);
		if (!result) {
			mirror->devices |= UINT64_C(1) << device;
			mirror->lacks &= ~(UINT64_C(1) << device);
		}
		first = first ? first : result;
		from = mirror->base + 1;
	}
	cl_mirror_turn_end_locked(&turn);
	cl_unlock(&cl_imports_lock);
	return first;
}

