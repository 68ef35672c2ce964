/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Freed structs that are kept for reuse.  What makes and frees such a struct in turn then needs no malloc() and no free():
 * beside a driver that empties the processor's caches their code and their data would have to come from far.
 *
 * They are on a list, by a struct cl_node that is written over their first bytes.  All structs of a list have the same
 * size, at least that of a node, and are memory of malloc() or calloc().  What a reused one holds is not defined.  There is
 * no lock: the caller holds one.
 *
 * A sanitizer finds a use after free only of memory that is freed, so its builds keep none.  Valgrind, which runs the plain
 * build, does not find a use of what is kept.
 */
#ifndef CL_SPARE_H
#define CL_SPARE_H

#include <stdlib.h>

#include "shim/base/list.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define CL_FREED_IS_FREED 1
#endif
#ifdef __has_feature /* clang's way to say so */
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CL_FREED_IS_FREED 1
#endif
#endif
#ifndef CL_FREED_IS_FREED
#define CL_FREED_IS_FREED 0
#endif

/* Returns a struct of @spares, which is no longer there, or NULL: there is none. */
static inline void *cl_spare_take(struct cl_list *spares)
{
	struct cl_node *spare = spares->first;

	if (spare)
		cl_list_remove(spares, spare);
	return spare;
}

/* Keeps @freed, which is on no list, for reuse.  Frees it if @most are kept. */
static inline void cl_spare_give(struct cl_list *spares, void *freed, uint64_t most)
{
	if (CL_FREED_IS_FREED || spares->n >= most)
		free(freed);
	else
		cl_list_add_front(spares, freed);
}

#endif
