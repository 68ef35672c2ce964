/* SPDX-License-Identifier: Apache-2.0 */
/* What mirrors have mapped already: see mirror_known.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shim/importer/mirror_books.h"
#include "shim/importer/mirror_known.h"
#include "shim/self/self.h"

/* Returns the newest mirror of @of, or NULL.  The caller has the turn with @of. */
static const struct cl_mirror *newest(const struct cl_mirror_reservation *of)
{
	const struct cl_mirror *mirror, *last = NULL;

	CL_LIST_EACH (mirror, &of->mirrors, struct cl_mirror, node)
		last = mirror;
	return last;
}

/* Copies what @mirror has from @offset on.  The caller has its turn. */
static uint64_t copy(const struct cl_mirror *mirror, uint64_t offset, struct cl_mirror_piece **piece)
{
	uint64_t first = cl_mirror_piece_from(mirror, offset), end = first, n;

	while (end < mirror->pieces && (!offset || end == first || mirror->piece[end].offset ==
					mirror->piece[end - 1].offset + mirror->piece[end - 1].size))
		end++;
	n = end - first;
	*piece = n ? calloc(n, sizeof **piece) : NULL;
	if (!*piece)
		return 0;
	for (uint64_t i = 0; i < n; i++) {
		const struct cl_mirrored *its = &mirror->piece[first + i];

		(*piece)[i] = (struct cl_mirror_piece){ .offset = its->offset, .size = its->size, .from = its->from,
							.id = its->id, .fd = -1 };
	}
	return n;
}

uint64_t cl_mirror_known(const struct cl_mirror_name *name, uint64_t size, uint64_t offset,
			 struct cl_mirror_piece **piece)
{
	struct cl_mirror_turn turn = { .of = NULL };
	struct cl_mirror_reservation *of;
	const struct cl_mirror *mirror;
	uint64_t n = 0;

	*piece = NULL;
	if (!cl_mirrors_any())
		return 0;
	cl_lock(&cl_imports_lock);
	of = cl_mirror_reservation_get_locked(name);
	if (of)
		cl_mirror_turn_begin_locked(&turn, of);
	cl_unlock(&cl_imports_lock);
	if (!of)
		return 0;
	mirror = newest(of);
	if (mirror && mirror->size == size)
		n = copy(mirror, offset, piece);
	cl_lock(&cl_imports_lock);
	cl_mirror_turn_end_locked(&turn);
	cl_unlock(&cl_imports_lock);
	return n;
}

int cl_mirror_merge(struct cl_mirror_piece *piece, uint64_t n, uint64_t more)
{
	struct cl_mirror_piece *left, *right = piece + n;
	uint64_t i = 0, end = 0;

	if (!n || !more)
		return 0;
	left = malloc(n * sizeof *left);
	if (!left)
		return -ENOMEM;
	memcpy(left, piece, n * sizeof *left);
	for (struct cl_mirror_piece *to = piece; i < n || more; to++) {
		if (i < n && (!more || left[i].offset < right->offset)) {
			*to = left[i++];
		} else {
			*to = *right++;
			more--;
		}
	}
	free(left);
	for (i = 0; piece + i < right; i++) {
		if (piece[i].offset < end)
			return -ESTALE;
		end = piece[i].offset + piece[i].size;
	}
	return 0;
}
