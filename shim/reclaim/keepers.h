/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keepers: which processes map freed blocks that an allocation lacked.
 *
 * The limbo keeps a freed block as long as another process maps it.  The driver alone keeps the memory of most of them
 * then, too.  It uses again only what is freed of a pool, for the same pool, and blocks of less than 2 MiB, for
 * others of that size (cl_block_outlasts_its_free()).  If one of these is large enough for the allocation that failed, it
 * may have failed because of culimbo, and the log warns.  Otherwise it would fail without culimbo, and the log says who
 * maps what at level info.
 */
#ifndef CL_KEEPERS_H
#define CL_KEEPERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "shim/reclaim/pressure.h"

/* What an allocation that failed asked for. */
struct cl_lacked {
	size_t bytes;	     /* 0: not known */
	const uint8_t *uuid; /* CL_UUID bytes: the device; NULL: any */
	bool small;	     /* the driver may use a freed block of less than 2 MiB for it, if it is no larger itself */
	uint64_t pool;	     /* a CUmemoryPool whose freed blocks the driver may use for it; 0: none */
};
/*
 * An allocation has failed, and is not tried again.  @others: what it has seen of the other exporters.  Logs the three
 * processes that map most: warns of those that map what the driver may have used for it, and tells, at level info, of the
 * others.  Each at most once in ten seconds, since a program may try in a loop.  A block that several processes map counts
 * for one of them.
 *
 * The warning needs one block that is large enough, since two need not lie side by side.  Whether the driver had used
 * it is not known: the last block of a piece of 2 MiB may take the piece away with it.  Nor is it looked at whether a small
 * block is of the context that the call is made in.
 *
 * Any thread; the caller holds no lock.  Looks at 16,384 blocks of this process, counts the 256 oldest that matter, and at
 * level info reads 4,096 records of others, so that it takes milliseconds at most.  Makes no CUDA call, and never fails.
 * errno may change.
 */
void cl_keepers_tell(const struct cl_pressure *others, const struct cl_lacked *lacked);

#endif
