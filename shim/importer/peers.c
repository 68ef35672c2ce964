/* SPDX-License-Identifier: Apache-2.0 */
/* Peers: see peers.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/base/hot.h"
#include "shim/self/outlive.h"
#include "shim/self/own_file.h"
#include "shim/shm/gc.h"
#include "shim/base/log.h"
#include "shim/importer/peers.h"
#include "shim/self/self.h"
#include "shim/shm/view.h"

static struct cl_peer *peers;
static struct cl_peer *last; /* the one that was got last: most processes import from one for a while */

/*
 * Idle peers: nothing is held of them.  The list has them in the order in which they became idle.
 * A listed peer may have a hold again; it leaves the list when its turn comes.  Whenever another
 * peer is opened, a few idle ones are looked at, and those whose exporter has ended are closed.
 * The oldest are closed where there are too many, since each has one of the program's descriptors:
 * of those that it may have, idle ones take no more than a 16th.
 */
enum { IDLE = 64, SHARE = 16, LOOKS = 4 };
static struct {
	struct cl_list peers; /* the oldest first */
	struct cl_peer *next; /* to be looked at next; NULL: the oldest */
	unsigned int most;    /* how many may stay; asked for when a peer is opened */
} idle = { .most = IDLE };

static void idle_add(struct cl_peer *peer)
{
	peer->listed = true;
	cl_list_add(&idle.peers, &peer->node);
}

CL_HOT_SHARING static void idle_remove(struct cl_peer *peer)
{
	if (!peer->listed)
		return;
	if (idle.next == peer)
		idle.next = CL_LIST_NEXT(peer, struct cl_peer, node);
	cl_list_remove(&idle.peers, &peer->node);
	peer->listed = false;
}

static void take_out(struct cl_peer *peer)
{
	if (peer == last)
		last = NULL;
	idle_remove(peer);
	HASH_DELETE(hh, peers, peer);
}

static void drop(struct cl_peer *peer)
{
	if (!peer->detached)
		take_out(peer);
	cl_region_close(&peer->region);
	free(peer);
}

/* Removes a dead exporter's file, unless it stays for reports.  Returns false if the exporter may live. */
static bool is_finished(struct cl_peer *peer, int dirfd)
{
	if (!cl_region_fd_intact(&peer->region))
		return false;
	return cl_gc_judge(&peer->region) == CL_DEAD &&
	       (cl_gc_is_kept(&peer->region) || cl_gc_file(&peer->region, dirfd) != -EBUSY);
}

/* Looks at some of the idle peers, in turn, and closes those whose exporter is dead. */
static void drop_finished(int dirfd)
{
	uint64_t looks = idle.peers.n < LOOKS ? idle.peers.n : LOOKS;

	while (looks-- && idle.peers.n) {
		struct cl_peer *peer = idle.next ? idle.next :
						   CL_LIST_FIRST(&idle.peers, struct cl_peer, node);

		idle.next = CL_LIST_NEXT(peer, struct cl_peer, node);
		if (peer->holds)
			idle_remove(peer);
		else if (is_finished(peer, dirfd))
			drop(peer);
	}
}

static void give_slot_back(struct cl_peer *peer)
{
	if (!cl_peer_has_slot(peer) || !cl_region_fd_intact(&peer->region))
		return;
	cl_holder_release(&peer->region, (unsigned int)peer->slot);
	peer->slot = -1;
}

/* Closes the oldest idle peer if there are more than @most.  Returns false if it closed none. */
CL_HOT_SHARING static bool drop_oldest(unsigned int most)
{
	while (idle.peers.n > most) {
		struct cl_peer *peer = CL_LIST_FIRST(&idle.peers, struct cl_peer, node);

		if (peer->holds) {
			idle_remove(peer);
			continue;
		}
		give_slot_back(peer);
		drop(peer);
		return true;
	}
	return false;
}

/* Asks how many idle peers may stay, and closes the oldest so that there is room for one more. */
static void make_room(void)
{
	struct rlimit limit;

	idle.most = IDLE;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur / SHARE < IDLE)
		/* at least 1: a peer that becomes idle is not closed by that same cl_peer_put() */
		idle.most = limit.rlim_cur < SHARE ? 1 : (unsigned int)(limit.rlim_cur / SHARE);
	while (drop_oldest(idle.most - 1))
		;
}

static struct cl_peer *no_memory(int *err)
{
	*err = -ENOMEM;
	cl_log_once(CL_LOG_WARN, "no memory to keep track of another exporter: what is imported from it is not "
				 "protected, as without culimbo");
	return NULL;
}

static int open_file(struct cl_peer *peer, uint32_t file_id, const char **why)
{
	int dirfd = cl_self_open_dir(false), err;

	if (dirfd < 0) {
		*why = dirfd == -EPERM ? "its directory is another user's, or others may write there" :
					 "its directory cannot be opened";
		return dirfd;
	}
	drop_finished(dirfd);
	err = cl_region_open_knowing(&peer->region, dirfd, file_id, &cl_self_known, why);
	close(dirfd);
	return err;
}

/*
 * Opens the file with our spare descriptor, which cannot stay open.  Without a descriptor
 * there is no lock and so no slot, but what is opened can be pinned.
 */
static int open_file_by_path(struct cl_peer *peer, uint32_t file_id, const char **why)
{
	char path[4096];
	size_t n;
	int err;

	cl_self_dir_path(path, sizeof path - 24);
	n = strlen(path);
	path[n++] = '/';
	cl_region_name(path + n, file_id);
	err = cl_region_open_path(&peer->region, path, file_id, &cl_self_known, why);
	if (!err)
		cl_region_close_descriptor(&peer->region);
	return err;
}

/* Apart from cl_peer_get(), which is short and needs few registers without it. */
static __attribute__((noinline)) struct cl_peer *get_other(uint32_t file_id, int *err)
{
	struct cl_peer *peer;
	const char *why = NULL;
	char path[256];

	HASH_FIND(hh, peers, &file_id, sizeof file_id, peer);
	if (peer)
		return last = peer;
	peer = calloc(1, sizeof *peer);
	if (!peer)
		return no_memory(err);
	make_room();
	/* an idle peer is closed before the last descriptor is used up */
	do
		*err = open_file(peer, file_id, &why);
	while ((*err == -EMFILE || *err == -ENFILE) && drop_oldest(0));
	if ((*err == -EMFILE || *err == -ENFILE) && cl_self_spare_release()) {
		/* open_file() needs two descriptors, for the directory and the file: one too many */
		*err = open_file_by_path(peer, file_id, &why);
		cl_self_spare_restore();
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
	peer->region.is_outlived = cl_outlive_is_outlived;
	cl_holder_reap_former(&peer->region, &cl_self.identity);
	peer->file_id = file_id;
	peer->slot = -1;
	HASH_ADD(hh, peers, file_id, sizeof peer->file_id, peer);
	if (!peer->hh.tbl) {
		cl_region_close(&peer->region);
		free(peer);
		return no_memory(err);
	}
	idle_add(peer);
	return peer;
}

CL_HOT_SHARING struct cl_peer *cl_peer_get(uint32_t file_id, int *err)
{
	return last && last->file_id == file_id ? last : get_other(file_id, err);
}

struct cl_peer *cl_peer_find(uint32_t file_id)
{
	struct cl_peer *peer;

	HASH_FIND(hh, peers, &file_id, sizeof file_id, peer);
	return peer;
}

int cl_peer_keep_slot(struct cl_peer *peer, bool *lost)
{
	bool is_open;

	*lost = false;
	if (peer->slot >= 0) {
		is_open = cl_self_keep_descriptor(&peer->region, CL_LOCK_SLOT(peer->slot));
		if (cl_peer_has_slot(peer))
			return is_open ? 0 : -EBADF;
		/* our descriptor was closed, and a process in another PID namespace reaped our slot */
		if (is_open)
			peer->region.locks->unlock(&peer->region, CL_LOCK_SLOT(peer->slot));
		peer->slot = -1;
		*lost = true;
	}
	if (!cl_self_keep_descriptor(&peer->region, -1))
		return -EBADF;
	peer->slot = cl_holder_claim(&peer->region, &cl_self.identity, cl_now(), cl_options.settle.number);
	if (peer->slot < 0)
		return peer->slot;
	peer->claim = atomic_load_explicit(&peer->region.slot[peer->slot].claim, memory_order_relaxed);
	return 0;
}

CL_HOT_SHARING void cl_peer_put(struct cl_peer *peer)
{
	if (--peer->holds)
		return;
	/* this exporter is likely to share again: its mapping and our slot stay for a while */
	if (peer->detached) {
		drop(peer);
	} else {
		idle_remove(peer);
		idle_add(peer);
		drop_oldest(idle.most);
	}
}

/* Returns true if the exporter that made the file which is named @file_id now has its lock on that. */
static bool has_living_exporter(int dirfd, uint32_t file_id)
{
	struct cl_region region;
	bool lives;

	if (cl_region_open_knowing(&region, dirfd, file_id, &cl_self_known, NULL))
		return false;
	lives = region.locks->is_locked(&region, CL_LOCK_EXPORTER) == 1;
	/* drops no lock of ours: this process has none on a file that is not among its peers */
	cl_region_close(&region);
	return lives;
}

bool cl_peer_is_succeeded(struct cl_peer *peer)
{
	int dirfd = cl_self_open_dir(false);
	char name[16];
	struct stat st;
	bool replaced, succeeded;

	if (dirfd < 0)
		return false;
	cl_region_name(name, peer->file_id);
	/* only the inode is compared: the device is not always the one that fstat() says */
	replaced = fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_ino != peer->region.ino;
	/*
	 * A file goes before its process: at exit(), and after exec().  So while @peer's process runs, a
	 * living exporter has the name rightly, and anything else was put there by somebody.
	 */
	succeeded = replaced && ((cl_region_fd_intact(&peer->region) && cl_gc_judge(&peer->region) == CL_DEAD) ||
				 has_living_exporter(dirfd, peer->file_id));
	close(dirfd);
	return succeeded;
}

void cl_peer_detach(struct cl_peer *peer)
{
	take_out(peer);
	peer->detached = true;
	if (!peer->holds)
		drop(peer);
}

void cl_peer_drop_unused(struct cl_peer *peer)
{
	int dirfd;

	if (peer->holds || (peer->slot >= 0 && !peer->detached))
		return;
	/* one system call if the exporter lives; if it is dead its file goes, also if we share nothing */
	if (peer->region.locks->is_locked(&peer->region, CL_LOCK_EXPORTER) == 0) {
		dirfd = cl_self_open_dir(false);
		if (dirfd >= 0) {
			is_finished(peer, dirfd);
			close(dirfd);
		}
	}
	drop(peer);
}

const struct cl_region *cl_peer_has_open(uint32_t file_id, bool *own)
{
	struct cl_peer *peer;

	*own = cl_own.file_id == file_id;
	if (*own)
		return &cl_own;
	HASH_FIND(hh, peers, &file_id, sizeof file_id, peer);
	return peer ? &peer->region : NULL;
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
		if (!peer->holds) /* a late open claims another slot */
			give_slot_back(peer);
		if (dirfd >= 0)
			is_finished(peer, dirfd);
	}
	if (dirfd >= 0)
		close(dirfd);
}

void cl_peers_forget(void)
{
	struct cl_peer *peer, *next;

	/* a child does not have the mappings, and its close() drops no lock of the parent's */
	HASH_ITER(hh, peers, peer, next)
		if (cl_region_fd_intact(&peer->region))
			close(peer->region.fd);
	peers = NULL;
	last = NULL;
	memset(&idle, 0, sizeof idle);
}
