/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The importer's side of the descriptor service: asks an exporter for the descriptors of what a
 * handle names.  protocol.h has what the two sides say.
 *
 * What must hold:
 *  - It returns by its deadline, whatever the other side does or fails to do.  Each batch that gets further than
 *    .most puts the deadline off, because a driver can need tens of milliseconds for each descriptor
 *    (doc/measurements.md), but never past the latest one.  So does, with .queues, what the exporter gives others while
 *    this process waits for its turn: many may open at once.  An answer without any piece is nothing given.  A caller that asks anew, because something was mapped or
 *    unmapped meanwhile, decides whether what came before counts: else an exporter that does so all the time could
 *    have an importer begin anew for minutes.  If the exporter is dead it returns at once, even if another process
 *    has its socket open.
 *  - A descriptor is given to the caller only from the process that has made the exporter's file, as far
 *    as the kernel can tell: the same effective user, and the pid of the file or, from another PID
 *    namespace, of the process that has its lock.  A process that this one cannot see is known by its user alone.
 *  - The sizes, counts and order in an answer are checked before any of it is used.  If it fails a check,
 *    the descriptors that came with it are closed.  A descriptor is close-on-exec from the start, and no
 *    more than one batch is received at a time.
 */
#ifndef CL_SERVE_ASK_H
#define CL_SERVE_ASK_H

#include "shim/descriptors/patience.h"
#include "shim/descriptors/protocol.h"
#include "shim/shm/region.h"

struct cl_asking {
	struct cl_region *region; /* the exporter's file, not our own; it stays open meanwhile */
	uint32_t record, generation;
	uint64_t offset; /* for the exporter's callback */
	const struct cl_serve_run *run; /* what the caller has already: in order, no two overlap */
	uint64_t runs;
	struct cl_patience wait; /* cl_ask() puts its deadline off */
	bool queues;	 /* it waits, too, while the exporter works for others */
	uint32_t most;	 /* pieces that have come at most, in this call and in earlier ones since the caller set 0 */
	/*
	 * Is given each piece in order, and a descriptor that is closed when it returns.  It returns
	 * 0, or an error below 0 that ends the asking.
	 */
	int (*take)(void *arg, const struct cl_piece *piece, int fd);
	void *arg;
};

/*
 * Returns how many pieces there are but for those in @asking->run, all of which take() was given; the error of take();
 * or -errno:
 *   -ETIMEDOUT         the deadline has come: the exporter is stopped, or too busy
 *   -ETOOMANYREFS      the same, but it has answered: too many of this user's descriptors lie in sockets (unix(7))
 *   -ESRCH             the exporter is dead
 *   -ENOENT, -ECONNREFUSED, -ECONNRESET   it has no service, or not any more
 *   -EPERM             somebody else listens there, or we are another user
 *   -ESTALE            the generation is over
 *   -EPROTO            the exporter's service is of another version
 *   -EMFILE            here or there no descriptor was to be had
 *   -EBADMSG           what came is not an answer
 * take() may have been given some pieces before.  The caller has no lock of ours.
 */
int cl_ask(struct cl_asking *asking);

#endif
