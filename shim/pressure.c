/* SPDX-License-Identifier: Apache-2.0 */
/* Asking the host's other exporters for memory: see pressure.h. */
#include <dirent.h>
#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shim/blocks.h"
#include "shim/peers.h"
#include "shim/pressure.h"
#include "shim/self.h"
#include "shim/trace.h"

enum { ASKED = 256 }; /* exporters with something in limbo at one time; more are not waited for */

struct asked {
	struct cl_peer *peer;
	uint32_t ticket;
	uint64_t bytes;
	bool answered;
};

static bool is_own(uint32_t file_id)
{
	bool own;

	pthread_mutex_lock(&cl_exports_lock);
	own = cl_own.header && cl_own.file_id == file_id;
	pthread_mutex_unlock(&cl_exports_lock);
	return own;
}

/*
 * Exporters that did not answer in time (stopped, or in the driver): not waited
 * for again for a while, or each failing allocation of the host would cost it.
 */
enum { MUTE = 16 };
static struct {
	uint32_t file_id;
	uint64_t until;
} mute[MUTE]; /* under cl_imports_lock */
#define MUTE_FOR 10000000000ull

static bool is_mute(uint32_t file_id)
{
	for (int i = 0; i < MUTE; i++)
		if (mute[i].file_id == file_id && mute[i].until > cl_now())
			return true;
	return false;
}
static void note_mute(uint32_t file_id)
{
	int oldest = 0;

	for (int i = 0; i < MUTE; i++)
		if (mute[i].until < mute[oldest].until)
			oldest = i;
	mute[oldest].file_id = file_id;
	mute[oldest].until = cl_now() + MUTE_FOR;
}

static bool ask(struct cl_peer *peer, struct asked *asked)
{
	struct cl_header *h = peer->region.header;

	if (!atomic_load_explicit(&h->limbo_blocks, memory_order_relaxed) ||
	    !atomic_load_explicit(&h->serving, memory_order_relaxed) || is_mute(peer->file_id) ||
	    /* a dead one's counts stand in its file as it left them */
	    peer->region.locks->is_locked(&peer->region, CL_LOCK_EXPORTER) == 0)
		return false;
	asked->peer = peer;
	asked->bytes = atomic_load_explicit(&h->limbo_bytes, memory_order_relaxed);
	asked->ticket = atomic_fetch_add_explicit(&h->pressure_asked, 1, memory_order_acq_rel) + 1;
	cl_region_wake(&peer->region);
	peer->holds++; /* so that it stays while we wait without the lock */
	return true;
}

static unsigned int ask_all_locked(struct asked *asked)
{
	int fd = cl_self_open_dir(false);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;
	unsigned int n = 0;

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return 0;
	}
	while (n < ASKED && (entry = readdir(dir)) != NULL) {
		uint32_t id = cl_region_name_id(entry->d_name);
		struct cl_peer *peer;
		int err;

		if (!id || is_own(id))
			continue;
		peer = cl_peer_get_if(dirfd(dir), id, offsetof(struct cl_header, limbo_blocks), &err);
		if (peer && ask(peer, &asked[n]))
			n++;
		else if (peer)
			cl_peer_drop_unused(peer);
	}
	closedir(dir);
	return n;
}

/* False: it did not answer by then. */
static bool await(const struct asked *asked, uint64_t until)
{
	struct cl_header *h = asked->peer->region.header;
	struct timespec t = { (time_t)(until / 1000000000u), (long)(until % 1000000000u) };

	for (;;) {
		uint32_t done = atomic_load_explicit(&h->pressure_done, memory_order_acquire);

		if ((int32_t)(done - asked->ticket) >= 0)
			return true;
		if (cl_now() >= until)
			return false;
		syscall(SYS_futex, &h->pressure_done, FUTEX_WAIT_BITSET, done, &t, NULL,
			FUTEX_BITSET_MATCH_ANY);
	}
}

uint64_t cl_pressure_ask(uint64_t wait)
{
	/* (not on the stack: a thread of the program may have 16 KiB of it in all) */
	struct asked *asked = malloc(ASKED * sizeof *asked);
	uint64_t until = cl_now() + wait, freed = 0;
	unsigned int n;

	if (!asked)
		return 0;
	pthread_mutex_lock(&cl_imports_lock);
	n = ask_all_locked(asked);
	pthread_mutex_unlock(&cl_imports_lock);
	for (unsigned int i = 0; i < n; i++) {
		asked[i].answered = await(&asked[i], until);
		cl_trace(CL_TRACE_ASKED, .pid = asked[i].peer->region.header->exporter.pid,
			 .file_id = asked[i].peer->file_id, .size = asked[i].bytes,
			 .value = cl_now() - (until - wait),
			 .flags = asked[i].answered ? CL_TRACE_DONE : 0);
	}
	pthread_mutex_lock(&cl_imports_lock);
	for (unsigned int i = 0; i < n; i++) {
		uint64_t left = atomic_load_explicit(&asked[i].peer->region.header->limbo_bytes,
						     memory_order_relaxed);

		if (left < asked[i].bytes)
			freed += asked[i].bytes - left;
		if (!asked[i].answered)
			note_mute(asked[i].peer->file_id);
		asked[i].peer->holds--;
		/* a process that shares nothing keeps nothing open */
		cl_peer_drop_unused(asked[i].peer);
	}
	pthread_mutex_unlock(&cl_imports_lock);
	free(asked);
	return freed;
}
