/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other exporters, as this process knows them: one region (and one
 * descriptor) a file, and our slot in it once we hold something of it.
 * Of those that nothing is held of any more some 64 are kept.
 *
 * All of it is under cl_imports_lock, which the caller holds.
 */
#ifndef CL_PEERS_H
#define CL_PEERS_H

#include "shim/base/hash.h"
#include "shim/base/list.h"
#include "shim/shm/slot.h"

struct cl_peer {
	UT_hash_handle hh;
	uint32_t file_id;
	int slot;	    /* ours, or -1 */
	uint64_t claim;	    /* our claim of it: another's there means that we were taken for dead */
	uint64_t holds;	    /* records that we hold of it */
	bool detached;	    /* not found any more: another has its number; it goes with the last hold */
	bool listed;	    /* among those that nothing is held of, most likely; see peers.c */
	struct cl_node node; /* there */
	struct cl_region region;
};

/*
 * Finds or opens exporter @file_id; others may be gone then that nothing is held of.  NULL with *err: -ENOENT when there is no
 * such file, else as cl_region_open(); a file that cannot be trusted is
 * complained about once.
 */
struct cl_peer *cl_peer_get(uint32_t file_id, int *err);
/* If it is open here already; else NULL. */
struct cl_peer *cl_peer_find(uint32_t file_id);
/*
 * Makes sure that we have a slot there, and our lock on it.  0 or -errno.
 * *lost is set when we had one and were taken for dead: its holds are gone, and
 * the slot is a new one.
 */
int cl_peer_keep_slot(struct cl_peer *peer, bool *lost);
/* Whether the slot is still ours to clear bits of. */
static inline bool cl_peer_has_slot(const struct cl_peer *peer)
{
	return peer->slot >= 0 &&
	       atomic_load_explicit(&peer->region.slot[peer->slot].claim, memory_order_acquire) ==
		       peer->claim;
}
/*
 * The same as cl_peer_keep_slot() without a system call, so that the program may have closed
 * our descriptor and with it the lock: to be asked before what was opened is used.
 */
static inline int cl_peer_need_slot(struct cl_peer *peer, bool *lost)
{
	*lost = false;
	return cl_peer_has_slot(peer) ? 0 : cl_peer_keep_slot(peer, lost);
}
/* One hold less.  @peer may be gone then. */
void cl_peer_put(struct cl_peer *peer);

/*
 * Whether its exporter has ended and another has a file of that number by now (one of
 * 16,384 has).  Some system calls: for when a handle does not lead where it should.
 */
bool cl_peer_is_succeeded(struct cl_peer *peer);
/* Makes room for the successor.  @peer may be gone then. */
void cl_peer_detach(struct cl_peer *peer);

/* Forgets @peer, takes its file away if its exporter is dead, unless we have a slot or a hold there. */
void cl_peer_drop_unused(struct cl_peer *peer);
bool cl_peer_is_open(uint32_t file_id);
/* For who opens views: see cl_view_has_open_fn.  The caller has cl_exports_lock, too. */
const struct cl_region *cl_peer_has_open(uint32_t file_id, bool *own);
/* Every peer; @each may not drop any. */
void cl_peer_each(void (*each)(struct cl_peer *peer, void *data), void *data);
/*
 * At the end of the process: gives back slots that hold nothing (what is held
 * is taken back when we are dead: our kernels may write until then), and takes
 * dead exporters' files away.
 */
void cl_peers_end(void);
void cl_peers_forget(void); /* in a forked child */

#endif
