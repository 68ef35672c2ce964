/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers: the other exporters that this process knows.  Each has a region, with one
 * descriptor, and our slot in its file once we hold something of it.  Some 64 peers of
 * which nothing is held any more are kept open.
 *
 * The caller holds cl_imports_lock.
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
	uint64_t claim;	    /* our claim of the slot: if another is there, we were taken for dead */
	uint64_t holds;	    /* records that we hold of it */
	bool detached;	    /* cannot be found: a successor has its file id; freed with its last hold */
	bool listed;	    /* among the idle ones, of which mostly nothing is held; see peers.c */
	struct cl_node node; /* in that list */
	/* the next two also without the lock; cl_now(), ns */
	_Atomic uint64_t unserved; /* since when no service of it answers; 0: one may */
	_Atomic uint64_t in_vain;  /* when a request last ended that it had not answered in time; 0: it has answered since */
	struct cl_region region;
};

/*
 * Finds the peer of exporter file @file_id, or opens the file.  That may close idle peers.
 * Returns NULL with *err if it cannot be had: -ENOENT if there is no such file, else as
 * cl_region_open().  A file that cannot be used is logged once.
 */
struct cl_peer *cl_peer_get(uint32_t file_id, int *err);
/* Returns the peer of @file_id if it is open here already, else NULL. */
struct cl_peer *cl_peer_find(uint32_t file_id);
/*
 * Makes sure that we have a slot in @peer's file, and our lock on it.  Returns 0 or -errno.
 * Sets *lost if we had a slot and were taken for dead: then the bits of our holds are cleared,
 * and the slot, if one is had, is a new one.
 */
int cl_peer_keep_slot(struct cl_peer *peer, bool *lost);
/* Returns true if the slot is still ours, so that we may set and clear its bits. */
static inline bool cl_peer_has_slot(const struct cl_peer *peer)
{
	return peer->slot >= 0 &&
	       atomic_load_explicit(&peer->region.slot[peer->slot].claim, memory_order_acquire) ==
		       peer->claim;
}
/*
 * As cl_peer_keep_slot(), but makes no system call while the slot is ours.  So it does not see that
 * the program has closed our descriptor, and the lock with it: cl_hold_keep_locked() asks that
 * before the program gets what was opened.
 */
static inline int cl_peer_need_slot(struct cl_peer *peer, bool *lost)
{
	*lost = false;
	return cl_peer_has_slot(peer) ? 0 : cl_peer_keep_slot(peer, lost);
}
/* Counts one hold less.  @peer may be freed. */
void cl_peer_put(struct cl_peer *peer);

/*
 * Returns true if @peer's exporter has ended, or at least its file has, and another exporter has its file
 * id by now, as one of 16,384 has.  Makes some system calls: ask only when a handle does not lead where it should.
 */
bool cl_peer_is_succeeded(struct cl_peer *peer);
/* Makes room for the successor of @peer.  @peer is freed if nothing is held of it. */
void cl_peer_detach(struct cl_peer *peer);

/* Closes @peer unless we have a slot or a hold in its file.  Removes the file if its exporter is dead. */
void cl_peer_drop_unused(struct cl_peer *peer);
/* A cl_view_has_open_fn, for cl_view_open().  The caller holds cl_exports_lock, too. */
const struct cl_region *cl_peer_has_open(uint32_t file_id, bool *own);
/* Calls @each for every peer.  @each may not drop any. */
void cl_peer_each(void (*each)(struct cl_peer *peer, void *data), void *data);
/*
 * At the end of the process: gives back the slots that hold nothing, and removes the files of
 * dead exporters.  A slot with holds stays: our kernels may write until the process is dead,
 * and then a reaper clears it.
 */
void cl_peers_end(void);
void cl_peers_forget(void); /* in a forked child */

#endif
