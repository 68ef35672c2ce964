/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marks (struct cl_block, drained) that are of another context than their block.
 *
 * A block may be freed in the order of a stream of any context, and the event that
 * marks the place is of the stream's.  It goes when that context ends, and to ask
 * about it or to destroy it after that is a crash.  So whoever is in the driver with
 * such a block is there with both contexts.
 *
 * Few programs have any.  All of it is under cl_exports_lock.
 */
#ifndef CL_MARKS_H
#define CL_MARKS_H

#include "shim/blocks.h"

struct cl_mark {
	struct cl_link link; /* its key: the block */
	CUcontext ctx;
	CUdevice device;
	bool primary;
	/* of a stray: */
	CUevent event;
	struct cl_mark *next;
};

/* How many there are. */
uint64_t cl_marks_n(void);
/* @mark, from malloc() and filled in but for the link, is of @block from now on. */
void cl_mark_add(struct cl_block *block, struct cl_mark *mark);
/* NULL: @block has no mark, or one of its own context. */
const struct cl_mark *cl_mark_of(const struct cl_block *block);
/* The mark of @block is gone, or is of its own context. */
void cl_mark_drop(struct cl_block *block);
/* @block is no more, its mark is to be destroyed: by whoever takes it off this list. */
void cl_mark_stray(struct cl_block *block);
extern struct cl_mark *cl_stray_marks;
/* All but the strays, in no order.  @each may drop its own. */
void cl_mark_each(void (*each)(struct cl_block *block, const struct cl_mark *mark, void *data),
		  void *data);
void cl_marks_forget(void); /* in a forked child */

#endif
