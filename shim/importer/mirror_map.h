/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver does for mirrors (mirror.h).  The caller has the turn with the mirror's reservation and
 * holds no lock.
 */
#ifndef CL_MIRROR_MAP_H
#define CL_MIRROR_MAP_H

#include "shim/importer/mirror_books.h"

static inline uint64_t cl_mirror_piece_end(const struct cl_mirror_piece *piece)
{
	return piece->offset + piece->size;
}

/* Returns false if the driver lacks a call that mirrors need. */
bool cl_mirror_driver_can(void);
/*
 * Reserves @mirror if it has no address yet, and then enters it into the books.  Maps those of @piece
 * that @mirror does not have, and gives access to all: to @must, and to those of @others that the driver
 * lets reach it.  Returns the first error.  What was done before it stays: .mapped of each piece tells.
 */
CUresult cl_mirror_map(struct cl_mirror *mirror, struct cl_mirror_piece *piece, uint64_t pieces, uint64_t must,
		       uint64_t others);
/* Gives @must and @others access, in the same way, to all that @mirror has. */
CUresult cl_mirror_give_access(struct cl_mirror *mirror, uint64_t must, uint64_t others);
/*
 * Unmaps what no import has.  If nothing is left, frees the reservation, and @mirror.  Returns the first
 * error.
 */
CUresult cl_mirror_sweep(struct cl_mirror *mirror);

#endif
