/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of the limbo, for the files of this folder alone.  All of it is under
 * cl_exports_lock, and no function here lets go of that or makes a CUDA call.
 */
#ifndef CL_LIMBO_INSIDE_H
#define CL_LIMBO_INSIDE_H

#include "shim/base/list.h"
#include "shim/driver/gate.h"
#include "shim/limbo/fence.h"
#include "shim/limbo/limbo.h"
#include "shim/shm/slot.h"

enum { CL_LIMBO_DEVICES = 64 };

/* Why an UNTRACKED block stays: a large one may go as a last resort, another never does. */
enum cl_untracked_why { CL_UNTRACKED_LARGE, CL_UNTRACKED_FOR_GOOD, CL_UNTRACKED_WHYS };

struct cl_limbo_state {
	struct cl_list held, ready, blocked, untracked[CL_UNTRACKED_WHYS]; /* by state */
	uint64_t held_bytes[CL_LIMBO_DEVICES]; /* of `held`, by device */
	unsigned int forcing; /* threads in the driver with an event that they have taken off `events` */
	uint64_t orphaned; /* blocks */
	_Atomic uint64_t blocks; /* atomic because cl_limbo_is_empty() reads it without the lock */
	uint64_t bytes;
	struct cl_list events; /* those in the limbo that the driver still has, the oldest first */
	bool warned;
	/* our own copy of the header's `device`, which other processes can damage */
	struct cl_limbo_device {
		uint64_t entered, returned, waits;
	} of[CL_DEVICE_LIMBOS];
	uint64_t pressed_until[CL_DEVICE_LIMBOS], pressed_last; /* see cl_limbo_press() */
	/*
	 * Not CL_QUIET_NOT after a collection that left work to the ready map alone: the next
	 * one then looks only there.  Each change of a state sets it back to CL_QUIET_NOT.
	 */
	_Atomic uint8_t quiet;
};
enum { CL_QUIET_NOT, CL_QUIET_EMPTY, CL_QUIET_HELD };
extern struct cl_limbo_state cl_limbo;

/* Sets `quiet` back: the next collection looks at all lists. */
void cl_limbo_not_quiet(void);
/* Moves @block into the state that it belongs in at @now.  @end_grace: not into GRACE. */
void cl_limbo_settle(struct cl_block *block, uint64_t now, bool end_grace);
/* Counts that @block has entered (@sign 1) or left (-1) the limbo, here and in our file. */
void cl_limbo_account(const struct cl_block *block, int sign);
/* Takes the event @block off `events`, if it is on it. */
void cl_limbo_event_forget(struct cl_block *block);

/* Returns true if any process holds @block, this one included. */
bool cl_limbo_is_held(const struct cl_block *block);
/* Returns true if the HELD blocks of @block's device take more than CULIMBO_HELD_BYTES. */
bool cl_limbo_is_too_much_held(const struct cl_block *block);

/* Returns true if cl_limbo_press() is in force for the device of @block, or for one that it may be on. */
bool cl_limbo_is_pressed_now(const struct cl_block *block, uint64_t now);
static inline bool cl_limbo_is_pressed(const struct cl_block *block, uint64_t now)
{
	return __builtin_expect(cl_limbo.pressed_last > now, 0) && cl_limbo_is_pressed_now(block, now);
}

static inline bool cl_limbo_context_ends(const struct cl_block *block)
{
	return cl_context_ends(block->of.context);
}

#endif
