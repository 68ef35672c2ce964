/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the limbo, for the files of this folder alone.  All of it is under cl_exports_lock. */
#ifndef CL_LIMBO_STATE_H
#define CL_LIMBO_STATE_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>
#include "shim/base/burst.h"
#include "shim/base/list.h"
#include "shim/shm/layout.h"

enum {
	CL_LIMBO_DEVICES = 64,
	CL_LIMBO_HOST = CL_DEVICE_LIMBOS, /* the entry for pools on the host, which the header has not */
};

/* When the name of our exporter file was last seen to lead to it. */
struct cl_file_name {
	struct timespec changed; /* the file's time of change then */
	uint64_t looked;	 /* ns of cl_now(); 0: never */
};

struct cl_limbo_state {
	struct cl_list held, ready, blocked, untracked; /* by state */
	uint64_t held_bytes[CL_LIMBO_DEVICES]; /* of `held`, by device */
	struct cl_burst forced; /* what the log says of HELD blocks that were forced out */
	unsigned int forcing; /* threads in the driver with an event that they have taken off `events` */
	uint64_t orphaned; /* blocks */
	_Atomic uint64_t blocks; /* atomic because cl_limbo_is_empty() reads it without the lock */
	uint64_t bytes;
	struct cl_list events; /* those in the limbo that the driver still has, the oldest first */
	bool warned;
	/* our own copy of the header's `device`, which other processes can damage; and the host's */
	struct cl_limbo_device {
		uint64_t entered, returned, waits;
	} of[CL_LIMBO_HOST + 1];
	uint64_t returned; /* the sum of theirs */
	uint64_t pressed_until[CL_DEVICE_LIMBOS], pressed_last; /* see cl_limbo_press() */
	/*
	 * Not CL_QUIET_NOT after a collection that left work to the ready map alone: the next
	 * one then looks only there.  Each step that puts a block on a list, or takes one off, sets it
	 * back to CL_QUIET_NOT.
	 */
	_Atomic uint8_t quiet;
	struct cl_file_name name;
	_Atomic uint64_t events_back; /* relaxed: a thread that waits for an event asks the driver next */
};
enum { CL_QUIET_NOT, CL_QUIET_EMPTY, CL_QUIET_HELD };

#endif
