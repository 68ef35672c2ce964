/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the mirrors of a reservation (mirror.h) have mapped already, for an open: its exporter need not hand that over
 * again.
 *
 * Any thread may call these functions, without a lock of ours.
 */
#ifndef CL_MIRROR_KNOWN_H
#define CL_MIRROR_KNOWN_H

#include "shim/importer/mirror.h"

/*
 * Finds the pieces that the newest mirror of @name, of @size bytes, has from @offset on: all if @offset is 0, else the
 * first ones that lie side by side.  Waits for threads that open or close something of the reservation.  *@piece becomes
 * an array, which the caller frees, without imports and descriptors.  Returns its length; 0 if there is none, or no
 * memory: then *@piece is NULL.
 */
uint64_t cl_mirror_known(const struct cl_mirror_name *name, uint64_t size, uint64_t offset,
			 struct cl_mirror_piece **piece);
/*
 * Merges the first @n of @piece with the @more after them, each in order of their offsets, so that all are in order.
 * Returns 0; -ESTALE if two overlap; or -ENOMEM.
 */
int cl_mirror_merge(struct cl_mirror_piece *piece, uint64_t n, uint64_t more);

#endif
