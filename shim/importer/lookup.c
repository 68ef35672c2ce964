/* SPDX-License-Identifier: Apache-2.0 */
/* Resolves handles: see lookup.h. */
#include <errno.h>
#include <string.h>

#include "shim/base/log.h"
#include "shim/importer/lookup.h"
#include "shim/importer/turns.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"
#include "shim/shm/pool_data.h"

static uint64_t tail_of(const void *handle)
{
	uint64_t tail;

	memcpy(&tail, (const char *)handle + 56, sizeof tail);
	return tail;
}

/* Makes the handle what the driver made: zeros where the stamp was. */
static void unstamp(uint8_t handle[64])
{
	memset(handle + 56, 0, 8);
}

/*
 * Sets ->own if the handle is of this process.  Returns true if it names our file, even if it
 * is of an earlier process that had the same file id.
 */
static bool look_up_own(struct cl_resolved *resolved)
{
	bool ours = false;

	cl_lock(&cl_exports_lock);
	ours = cl_own.file_id == resolved->stamp.file_id;
	resolved->own = ours && cl_region_has_stamped(&cl_own, &resolved->stamp);
	if (resolved->own)
		unstamp(resolved->handle);
	cl_unlock(&cl_exports_lock);
	return ours;
}

/*
 * @peer's file refuses the handle with @tail.  Returns true if @peer has ended and another exporter
 * has its file id: then the caller looks the handle up again.
 */
static __attribute__((noinline)) bool look_up_successor_locked(struct cl_resolved *resolved, struct cl_peer *peer,
								uint64_t tail, int *err)
{
	if (!cl_hold_succeeded_locked(peer))
		return false;
	memcpy(resolved->handle + 56, &tail, sizeof tail);
	resolved->stamp = cl_stamp_unpack(tail);
	resolved->err = *err = 0;
	return true;
}

/* Looks up a handle of another process.  Sets *err if its exporter's file cannot be had. */
static inline __attribute__((always_inline)) void look_up_others_locked(struct cl_resolved *resolved, uint64_t tail, int *err)
{
	for (int tries = 0; tries < 2; tries++) {
		struct cl_peer *peer = cl_peer_get(resolved->stamp.file_id, err);

		if (!peer) {
			resolved->known = false;
			return;
		}
		if (__builtin_expect(!cl_region_has_stamped(&peer->region, &resolved->stamp), 0)) {
			/* another exporter file had this id when the handle was made, and that file is gone */
			*err = -ENOENT;
			if (tries || !look_up_successor_locked(resolved, peer, tail, err))
				return;
			continue;
		}
		/* the driver must get the handle as it made it */
		unstamp(resolved->handle);
		resolved->known = true;
		resolved->err = cl_hold_get_locked(peer, &resolved->stamp, resolved->handle, &resolved->hold);
		/* only once: what the successor refuses is refused, even if it has a successor by now */
		if (__builtin_expect(!cl_hold_is_refusal(resolved->err), 1) || tries ||
		    !look_up_successor_locked(resolved, peer, tail, err))
			return;
	}
}

/* always_inline: it is compiled once for pools, whose @turn it takes, and once for the rest, with NULL */
static inline __attribute__((always_inline)) void
look_up(struct cl_resolved *resolved, uint64_t tail, struct cl_turn *turn, uint64_t key)
{
	bool ours = false; /* the stamp names our own file */
	int err = 0;

	resolved->stamp = cl_stamp_unpack(tail);
	/* no file has id 0: the bytes are not a stamp, but a driver's that uses them */
	if (!resolved->stamp.file_id)
		return;
	cl_lock(&cl_imports_lock);
	if (cl_own_may_be(resolved->stamp.file_id))
		ours = look_up_own(resolved);
	resolved->known = resolved->own;
	if (resolved->own)
		goto out;
	if (ours)
		err = -ENOENT;
	else
		look_up_others_locked(resolved, tail, &err);
	if (turn && resolved->hold)
		cl_turn_begin_locked(turn, key);
	resolved->again = resolved->hold && resolved->hold->opens;
out:
	cl_unlock(&cl_imports_lock);
	if (resolved->known || err != -ENOENT)
		return;
	resolved->sight = cl_self_sight(resolved->stamp);
	resolved->exporter_gone = resolved->sight == CL_HERE;
}

void cl_look_up(struct cl_resolved *resolved, void *handle, enum cl_kind kind)
{
	*resolved = (struct cl_resolved){ .handle = handle };
	memcpy(&resolved->pid, resolved->handle + (kind == CL_MEMORY ? 8 : 0), sizeof resolved->pid);
	look_up(resolved, tail_of(handle), NULL, 0);
}

/* Says that the data of a pool's block have a stamp of process @pid with @version, which is not ours. */
static __attribute__((noinline, cold)) void say_other_version(uint32_t pid, unsigned int version)
{
	cl_log_once(CL_LOG_WARN,
		    "process %u has another culimbo, which stamps pointers into memory pools in another way (%u; here %u): "
		    "what is imported from its pools is not protected, as without culimbo",
		    pid, version, CL_POOL_VERSION);
}

bool cl_look_up_pool(struct cl_resolved *resolved, struct cl_pool_form *form, struct cl_turn *turn, uint64_t *key)
{
	uint64_t fingerprint = cl_pool_fingerprint(form->data), stamp = cl_word_at(form->data, 7);
	unsigned int version;

	*resolved = (struct cl_resolved){ .handle = form->zeros };
	*key = cl_turn_key(fingerprint);
	turn->key = 0;
	version = cl_pool_stamp_version(form->data, fingerprint, &resolved->pid);
	if (__builtin_expect(version != CL_POOL_VERSION, 0)) {
		if (version)
			say_other_version(resolved->pid, version);
		else
			resolved->pid = 0;
		return version != 0;
	}
	memset(form->data + CL_POOL_DRIVERS, 0, sizeof form->data - CL_POOL_DRIVERS);
	look_up(resolved, stamp, turn, *key);
	/* the place of a handle's stamp, which may be there again */
	memset(form->data + CL_POOL_DRIVERS, 0, 8);
	return true;
}
