/* SPDX-License-Identifier: Apache-2.0 */
/* Other exporters, as this process knows them: see peers.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/gc.h"
#include "shim/log.h"
#include "shim/peers.h"
#include "shim/self.h"

static struct cl_peer *peers;
static struct cl_slot_watch watch[CL_SLOTS]; /* for cl_holder_claim() when all slots are taken */

static void drop(struct cl_peer *peer)
{
	HASH_DELETE(hh, peers, peer);
	cl_region_close(&peer->region);
	free(peer);
}

/* True when it took a dead exporter's file away, or found it gone. */
static bool is_finished(struct cl_peer *peer, int dirfd)
{
	uint64_t free_since = 0;

	if (!cl_region_fd_intact(&peer->region))
		return false;
	return cl_liveness_judge(&peer->region, CL_LOCK_EXPORTER, &peer->region.header->exporter,
				 &free_since, cl_now(), cl_options.settle.number) == CL_DEAD &&
	       cl_gc_file(&peer->region, dirfd) != -EBUSY;
}

/* Peers whose exporter is dead and that nothing is held of: looked for when another comes. */
static void drop_finished(int dirfd)
{
	struct cl_peer *peer, *next;

	HASH_ITER(hh, peers, peer, next)
		if (!peer->holds && is_finished(peer, dirfd))
			drop(peer);
}

static struct cl_peer *no_memory(int *err)
{
	*err = -ENOMEM;
	cl_log_once(CL_LOG_WARN, "no memory to note another exporter: what is imported from it is not "
				 "protected, as without culimbo");
	return NULL;
}

struct cl_peer *cl_peer_get(uint32_t file_id, int *err)
{
	struct cl_peer *peer;
	const char *why = NULL;
	char path[256];
	int dirfd;

	HASH_FIND(hh, peers, &file_id, sizeof file_id, peer);
	if (peer)
		return peer;
	peer = calloc(1, sizeof *peer);
	if (!peer)
		return no_memory(err);
	dirfd = cl_self_open_dir(false);
	*err = dirfd;
	if (dirfd >= 0) {
		drop_finished(dirfd);
		*err = cl_region_open(&peer->region, dirfd, file_id, &why);
		close(dirfd);
	}
	if (*err) {
		if (*err != -ENOENT) {
			cl_self_dir_path(path, sizeof path);
			cl_log_once(CL_LOG_WARN,
				    "cannot use %s/exporter-%06x (%s): what is imported from its process is "
				    "not protected, as without culimbo",
				    path, file_id, why ? why : strerror(-*err));
		}
		free(peer);
		return NULL;
	}
	peer->file_id = file_id;
	peer->slot = -1;
	HASH_ADD(hh, peers, file_id, sizeof peer->file_id, peer);
	if (!peer->hh.tbl) {
		cl_region_close(&peer->region);
		free(peer);
		return no_memory(err);
	}
	return peer;
}

int cl_peer_need_slot(struct cl_peer *peer)
{
	if (peer->slot >= 0)
		return cl_self_keep_descriptor(&peer->region, CL_LOCK_SLOT(peer->slot)) ? 0 : -EBADF;
	if (!cl_self_keep_descriptor(&peer->region, -1))
		return -EBADF;
	memset(watch, 0, sizeof watch);
	peer->slot = cl_holder_claim(&peer->region, &cl_self.witness, watch, cl_now(),
				     cl_options.settle.number);
	return peer->slot < 0 ? peer->slot : 0;
}

void cl_peer_put(struct cl_peer *peer)
{
	/* an exporter that shared once is likely to again: its mapping and our slot stay */
	peer->holds--;
}

void cl_peers_drop_unused(void)
{
	struct cl_peer *peer, *next;

	HASH_ITER(hh, peers, peer, next)
		if (!peer->holds && peer->slot < 0)
			drop(peer);
}

bool cl_peer_is_open(uint32_t file_id)
{
	struct cl_peer *peer;

	HASH_FIND(hh, peers, &file_id, sizeof file_id, peer);
	return peer != NULL;
}

void cl_peer_each(void (*each)(struct cl_peer *peer, void *data), void *data)
{
	struct cl_peer *peer, *next;

	HASH_ITER(hh, peers, peer, next)
		each(peer, data);
}

void cl_peers_end(void)
{
	struct cl_peer *peer, *next;
	int dirfd = peers ? cl_self_open_dir(false) : -1;

	HASH_ITER(hh, peers, peer, next) {
		if (!peer->holds && peer->slot >= 0)
			cl_holder_release(&peer->region, (unsigned int)peer->slot);
		if (dirfd >= 0)
			is_finished(peer, dirfd);
	}
	if (dirfd >= 0)
		close(dirfd);
}

void cl_peers_forget(void)
{
	struct cl_peer *peer, *next;

	/* the mappings are not there in a child; closing here unlocks nothing of the parent's */
	HASH_ITER(hh, peers, peer, next)
		if (cl_region_fd_intact(&peer->region))
			close(peer->region.fd);
	peers = NULL;
}
