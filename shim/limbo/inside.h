/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of this folder share of the limbo's state; no other folder includes it.
 *
 * All of it is under cl_exports_lock.
 */
#ifndef CL_LIMBO_INSIDE_H
#define CL_LIMBO_INSIDE_H

#include "shim/base/list.h"
#include "shim/driver/gate.h"
#include "shim/limbo/fence.h"
#include "shim/limbo/limbo.h"
#include "shim/shm/slot.h"

enum { CL_LIMBO_DEVICES = 64 };

/* Whether a block without a record may go: as a last resort, or never. */
enum cl_untracked_why { CL_UNTRACKED_LARGE, CL_UNTRACKED_FOR_GOOD, CL_UNTRACKED_WHYS };

struct cl_limbo_state {
	struct cl_list held, ready, blocked, untracked[CL_UNTRACKED_WHYS]; /* by state */
	uint64_t held_bytes[CL_LIMBO_DEVICES]; /* of `held`, by device */
	unsigned int forcing; /* threads that are in the driver with an event that is none of `events` any more */
	uint64_t orphaned; /* blocks */
	_Atomic uint64_t blocks; /* atomic for cl_limbo_is_empty() alone */
	uint64_t bytes;
	struct cl_list events; /* that the driver still has, the oldest first: a second order of theirs */
	bool warned;
	/* as the header's `device` says to others, who can damage it */
	struct cl_limbo_device {
		uint64_t entered, returned, waits;
	} of[CL_DEVICE_LIMBOS];
	uint64_t pressed_until[CL_DEVICE_LIMBOS], pressed_last; /* see cl_limbo_press() */
	/*
	 * The answer of a collection that found nothing to do but by the ready map, while
	 * it holds: taken back by whatever changes a state.
	 */
	_Atomic uint8_t quiet;
};
enum { CL_QUIET_NOT, CL_QUIET_EMPTY, CL_QUIET_HELD };
extern struct cl_limbo_state cl_limbo;

/* Takes back what `quiet` says. */
void cl_limbo_not_quiet(void);
/* Puts @block into the state where it belongs by what is known of it at @now.  @end_grace: it waits for no grace. */
void cl_limbo_settle(struct cl_block *block, uint64_t now, bool end_grace);
/* Counts @block in (@sign 1) or out (-1), here and in our file. */
void cl_limbo_account(const struct cl_block *block, int sign);
/* An event goes: off the order of events.  Nothing, if it was not on it. */
void cl_limbo_event_forget(struct cl_block *block);

/* Whether anybody holds @block, this process included. */
bool cl_limbo_is_held(const struct cl_block *block);
/* Whether what is held of the device of @block is more than CULIMBO_HELD_BYTES. */
bool cl_limbo_is_too_much_held(const struct cl_block *block);

/* Whether somebody needs memory of which @block is, or may be: see cl_limbo_press(). */
bool cl_limbo_is_pressed_now(const struct cl_block *block, uint64_t now);
static inline bool cl_limbo_is_pressed(const struct cl_block *block, uint64_t now)
{
	return __builtin_expect(cl_limbo.pressed_last > now, 0) && cl_limbo_is_pressed_now(block, now);
}

/* Whether the context of @block is just ending. */
static inline bool cl_limbo_context_ends(const struct cl_block *block)
{
	return cl_context_ends(block->of.context);
}

#endif
