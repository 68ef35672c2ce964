/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: which are primary, and what goes with one that ends (see shim/context_end.h). */
#ifndef CL_CONTEXT_H
#define CL_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/driver/driver.h"
#include "shim/base/hash.h"

/*
 * Whether @ctx is the primary context of @device: such contexts end by
 * cuDevicePrimaryCtxRelease and Reset, which name the device.  Asks the driver
 * once for each context; no lock of ours may be held.
 */
bool cl_context_is_primary(CUcontext ctx, CUdevice device);
/*
 * What is to be noted for *@ctx: of a green context the primary one that it is a part of,
 * NULL where it is not known what it is, else itself.  Returns whether that is primary.
 */
bool cl_context_resolve(CUcontext *ctx, CUdevice device);

/*
 * This thread's current context (resolved, as above), its device and whether it is primary.
 * False, and 0 in all of them: there is none, or it is not known which.  Asks the driver for
 * the device once for each context that a thread comes to; no lock of ours may be held.
 */
bool cl_context_current(CUcontext *ctx, CUdevice *device, bool *primary);
/*
 * The same without the question whether it is primary, for a process that does not share
 * yet: it retains the primary context for a moment, and nobody waits there who releases
 * it, so that it would live on after what is the last time for the program.  *@primary:
 * it is known to be.
 */
bool cl_context_current_unasked(CUcontext *ctx, CUdevice *device, bool *primary);

/*
 * What the driver says now to a call with a pointer that it does not know: that, or what it
 * looks at first (there is no context, or it has ended, or failed).  By a question that it answers
 * likewise, and that does nothing.
 */
CUresult cl_context_refusal(void);

/* @ctx (NULL: the primary context of @device) is no more: its address may be another's from now on. */
void cl_contexts_gone(CUcontext ctx, CUdevice device);
/*
 * Told that the primary context of @device has ended because we gave back the last reference
 * to it: the program had released it past our hooks.  Set by who begins to share.
 */
extern void (*cl_context_lost)(CUdevice device);
void cl_contexts_forget(void); /* in a forked child */

/*
 * How many things (blocks, imports) there are of each context, so that the end of one that
 * has none of them does not look at all of them.  By a hash: "none" is certain.  No lock of
 * its own.
 */
enum { CL_TALLIES = 256 };
struct cl_context_tally {
	uint32_t of[CL_TALLIES];      /* by the context's address */
	uint32_t primary[CL_TALLIES]; /* by the device whose primary one it is */
};

static inline uint32_t *cl_context_tally_of(struct cl_context_tally *tally, CUcontext ctx)
{
	return &tally->of[cl_hash_word((uint64_t)(uintptr_t)ctx) >> 56];
}

/* @by: 1, one more of that context (NULL: it is not known which), or -1, one less. */
static inline void cl_context_tally(struct cl_context_tally *tally, CUcontext ctx, CUdevice device,
				    bool primary, int by)
{
	*cl_context_tally_of(tally, ctx) += (uint32_t)by;
	if (primary)
		tally->primary[(uint8_t)device] += (uint32_t)by;
}

/* @ctx NULL: of the primary context of @device. */
static inline bool cl_context_has_any(struct cl_context_tally *tally, CUcontext ctx, CUdevice device)
{
	return (ctx ? *cl_context_tally_of(tally, ctx) : tally->primary[(uint8_t)device]) != 0;
}
static inline bool cl_context_any_unknown(struct cl_context_tally *tally)
{
	return *cl_context_tally_of(tally, NULL) != 0;
}

#endif
