/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other exporters, as this process knows them: one region (and one
 * descriptor) a file, and our slot in it once we hold something of it.
 *
 * All of it is under cl_imports_lock, which the caller holds.
 */
#ifndef CL_PEERS_H
#define CL_PEERS_H

#include "shim/hash.h"
#include "shim/shm_holder.h"

struct cl_peer {
	UT_hash_handle hh;
	uint32_t file_id;
	int slot;	    /* ours, or -1 */
	uint64_t holds;	    /* records that we hold of it */
	struct cl_region region;
};

/*
 * Finds or opens exporter @file_id.  NULL with *err: -ENOENT when there is no
 * such file, else as cl_region_open(); a file that cannot be trusted is
 * complained about once.
 */
struct cl_peer *cl_peer_get(uint32_t file_id, int *err);
/* Makes sure that we have a slot there.  0 or -errno. */
int cl_peer_need_slot(struct cl_peer *peer);
/* One hold less. */
void cl_peer_put(struct cl_peer *peer);

/* Forgets those that we have neither slot nor hold with. */
void cl_peers_drop_unused(void);
bool cl_peer_is_open(uint32_t file_id);
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
