/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps a descriptor for later in such a way that no child of this process keeps its file.  A child that was
 * made without fork handlers (clone(), _Fork()) and makes no call of ours closes nothing that it has inherited.
 *
 * So the descriptor waits in a message in the queue of a socket.  A child inherits the socket.  The queue is shared:
 * when this process takes the message out, the message is gone for the child as well.  Where the kernel refuses
 * that, the descriptor itself is kept.
 *
 * These functions have no state.  The caller sees to it that two threads don't use the same one.
 */
#ifndef CL_SERVE_PARK_H
#define CL_SERVE_PARK_H

#include "shim/descriptors/socket.h"

struct cl_parked {
	struct cl_own_fd fd; /* the socket; .ino 0: nothing is parked */
	bool itself;	     /* it is no socket, but what was parked */
};

/* Takes @fd, which the caller does not close any more.  If the kernel does not know it, nothing is parked. */
struct cl_parked cl_park(int fd);
/* Returns a copy of the descriptor for the caller to close, or -errno; -EIO: the program has closed ours. */
int cl_parked_copy(const struct cl_parked *parked);
/* Ends it: in no process anything is left of it. */
void cl_parked_end(struct cl_parked *parked);
/* In a forked child: closes what the child has of it.  The parent's stays. */
void cl_parked_forget(struct cl_parked *parked);

#endif
