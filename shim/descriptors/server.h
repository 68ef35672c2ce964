/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptor service of an exporter: a thread that hands the descriptors of what a live handle
 * names to processes of the same user.  protocol.h has what the two sides say.  No ptrace right and
 * no shared PID namespace is needed.
 *
 * What must hold:
 *  - Only what a live handle names leaves: each piece's generation is looked at after its descriptor
 *    was made, and nothing is sent if one of them is over.  Only a process with our effective user
 *    gets anything but an error.
 *  - Descriptors exist only under way: CL_SERVE_BATCH of each connection at most.
 *  - A peer costs nothing but its place.  No send waits.  A peer that does not ask for
 *    CL_SERVE_IDLE, or for CL_SERVE_CROWDED while all places are taken, loses its
 *    place.  There are CL_SERVE_CLIENTS places, or fewer if the program has few descriptors left.  Memory is one
 *    session, of a fixed size.
 *  - The thread has no lock of ours when it waits, for a peer or for the driver.  The callback alone takes
 *    a lock, to read and write tables, and no thread holds that lock while it is in the driver.  So the
 *    thread works while the program's threads are busy, and no thread waits for a peer under a lock.
 *  - If the process has no descriptor left, the peer gets that error, and the service goes on.  Without a
 *    thread, memory or room for the socket cl_server_need() returns why, and leaves nothing behind.
 *  - A descriptor that the program has closed is not used again: see base/own_fd.h.  When the listening
 *    one has gone, or the socket's name, the session ends and the next need begins another.
 *  - All descriptors are close-on-exec.  A forked child has no service, and neither answers nor
 *    ends its parent's.
 *  - The socket's name goes with the exporter's file: first the socket, then the file, so that it is
 *    never a later exporter's with the same id.  See cl_region_unlink(), gc.h.
 *
 * The service logs nothing.  It counts what it refuses, and returns each error to its caller.  The code
 * that begins it calls cl_server_end() at the end of the process, before the file goes, and
 * cl_server_forget() in a forked child.
 *
 * Any thread may call these functions.  It must hold no lock of ours.
 */
#ifndef CL_SERVE_SERVER_H
#define CL_SERVE_SERVER_H

#include "shim/self/locks.h"
#include "shim/descriptors/protocol.h"
#include "shim/shm/region.h"

#define CL_SERVE_CLIENTS 128u
#define CL_SERVE_IDLE 10000000000ull   /* ns */
#define CL_SERVE_CROWDED 250000000ull /* ns */
/*
 * For this long (ns) a look at the listening descriptor and the socket's name counts, see cl_server_was_up(): 1 ms.
 * Only tests change it: under single steps a call takes longer.
 */
extern uint64_t cl_serve_look;

/*
 * The exporter's callback: makes descriptors of the pieces from @request->from on.  Makes up to @request->most of them
 * and up to CL_SERVE_BATCH.  They are in flight (flight.h).  Writes them to @fds, what they are to @piece, and how many
 * pieces there are in all to *@total.  Returns how many it has written, or -errno; then it has closed what it made.
 * The service closes the descriptors.
 *
 * The service's thread calls it, without a lock of ours.  After the program has closed our descriptors, two
 * threads may call it at once for a moment.
 */
typedef int cl_serve_export(void *arg, const struct cl_request *request, struct cl_piece *piece, int *fds,
			    uint32_t *total);

struct cl_session;

struct cl_server {
	struct cl_lock lock; /* .session */
	const struct cl_region *region; /* the exporter's own, a file */
	cl_serve_export *export;
	void *arg; /* for it */
	struct cl_session *_Atomic session; /* to use it takes the lock: another thread may end it */
	_Atomic pid_t pid;		    /* of the process that has begun one; 0: none has */
	_Atomic bool ended;
	_Atomic uint64_t looked; /* cl_now() before the last cl_server_need() that found all in order; 0: none did */
	_Atomic uint32_t records; /* no record from this one on was ever served; other processes can write the header's count */
	struct cl_served {
		_Atomic uint64_t answers;   /* with pieces */
		_Atomic uint64_t strangers; /* other users */
		_Atomic uint64_t malformed; /* made-up requests and other versions' */
		_Atomic uint64_t dropped;   /* peers that did not ask, or did not read */
		_Atomic uint64_t shortages; /* peers that got no answer because there were no descriptors */
	} served;
};
#define CL_SERVER_INIT(its_region, its_export, its_arg)                                             \
	{ .lock = CL_LOCK_INIT(CL_RANK_SERVER), .region = its_region, .export = its_export, .arg = its_arg }

/*
 * Makes sure that the service is there, and answers for @record: before a handle of that leaves.  Two
 * system calls if it is.  Returns 0, or -errno: -ESHUTDOWN after cl_server_end().
 */
int cl_server_need(struct cl_server *server, uint32_t record);
/*
 * For a handle that leaves again, at @now: returns true if the service answered for @record less than 1 ms
 * ago.  Makes no system call and takes no lock.  If false, the caller calls cl_server_need().  So if the program closes
 * our descriptors, the handles that leave in the next millisecond may be as useless as those that left before.
 */
static inline bool cl_server_was_up(const struct cl_server *server, uint32_t record, uint64_t now)
{
	uint64_t looked = atomic_load_explicit(&server->looked, memory_order_relaxed);

	/* if another thread has looked after @now, the difference is huge */
	return looked && now - looked < cl_serve_look &&
	       record < atomic_load_explicit(&server->records, memory_order_relaxed);
}
/*
 * Ends the service for good and removes the socket.  Waits up to @wait ns for the lock and the thread.
 * Returns false if the thread runs on, in the callback, or if the lock is not free: then the socket stays,
 * and goes with the exporter's file.  Does nothing in a child without fork handlers.
 */
bool cl_server_end(struct cl_server *server, uint64_t wait);
/* In a forked child: closes what it has of its parent's service, and begins with none. */
void cl_server_forget(struct cl_server *server);

/* Returns true if generation @generation of @record, which the file has, lives: a handle of it can be opened. */
bool cl_serve_is_live(const struct cl_region *region, uint32_t record, uint32_t generation);

#endif
