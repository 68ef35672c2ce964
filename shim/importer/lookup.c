/* SPDX-License-Identifier: Apache-2.0 */
/* What a handle names: see lookup.h. */
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "shim/importer/lookup.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"

static uint64_t tail_of(const void *handle)
{
	uint64_t tail;

	memcpy(&tail, (const char *)handle + 56, sizeof tail);
	return tail;
}

static bool is_own(uint32_t file_id)
{
	bool own;

	/* with the lock: ours may be just being made, and to open and close it would drop our locks on it */
	cl_lock(&cl_exports_lock);
	own = cl_own.header && cl_own.file_id == file_id;
	cl_unlock(&cl_exports_lock);
	return own;
}

/* The exporters of the host, one after the other: for drivers that leave no room for a stamp. */
static struct cl_peer *find_by_whole_handle_locked(struct cl_named *named)
{
	int fd = cl_self_open_dir(false), err;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;
	struct cl_peer *found = NULL;

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	while (!found && (entry = readdir(dir)) != NULL) {
		uint32_t id = cl_region_name_id(entry->d_name);
		struct cl_peer *peer =
			id && !is_own(id) ? cl_peer_get_if(dirfd(dir), id,
							   offsetof(struct cl_header, by_handle), &err) :
					    NULL;

		if (!peer || cl_record_find(&peer->region, named->handle, &named->stamp.record,
					    &named->stamp.generation))
			continue;
		named->stamp.file_id = id;
		found = peer;
	}
	closedir(dir);
	return found;
}

/* @handle without its stamp. */
static void unstamp(uint8_t handle[64])
{
	memset(handle + 56, 0, 8);
}

/*
 * Whether the tail of @named is a stamp of @peer, whose file its file id names.
 * Where one says that it finds records by their whole handle, it is if it leads to
 * just this handle: somebody may have damaged that word.
 */
static bool is_stamped(const struct cl_named *named, const struct cl_peer *peer)
{
	uint32_t record = named->stamp.record, chunks;
	uint8_t handle[64];

	/* acquire: pairs with cl_region_need_by_handle() */
	if (!atomic_load_explicit(&peer->region.header->by_handle, memory_order_acquire))
		return true;
	chunks = atomic_load_explicit(&peer->region.header->record_chunks, memory_order_acquire);
	memcpy(handle, named->handle, 64);
	unstamp(handle);
	return chunks <= CL_CHUNKS && record / CL_CHUNK < chunks &&
	       cl_record_is(&peer->region, record, handle);
}

/* Whether it is of this process itself.  Returns whether it names the file of this process, of whatever block. */
static bool look_up_own(struct cl_named *named)
{
	bool ours = false;

	cl_lock(&cl_exports_lock);
	if (cl_own.header) {
		ours = cl_own.file_id == named->stamp.file_id;
		named->own = cl_own_by_handle ?
				     cl_record_find(&cl_own, named->handle, &named->stamp.record,
						    &named->stamp.generation) == 0 :
				     ours && cl_region_has_stamped(&cl_own, &named->stamp);
		if (named->own && !cl_own_by_handle)
			unstamp(named->handle);
	}
	cl_unlock(&cl_exports_lock);
	return ours;
}

/*
 * Where @peer, to whose file the handle with @tail led, refuses it: another may have that
 * file's number by now.  True: so it is, and is to be looked up.
 */
static __attribute__((noinline)) bool look_up_successor_locked(struct cl_named *named, struct cl_peer *peer,
								uint64_t tail, int *err)
{
	if (!cl_hold_succeeded_locked(peer))
		return false;
	memcpy(named->handle + 56, &tail, sizeof tail);
	named->stamp = cl_stamp_unpack(tail);
	named->err = *err = 0;
	return true;
}

/* What is not of this process itself, whose file's number @ours says that the handle has. */
static inline void look_up_others_locked(struct cl_named *named, bool ours, uint64_t tail, int *err)
{
	for (int tries = 0; tries < 2; tries++) {
		struct cl_peer *peer = ours ? NULL : cl_peer_get(named->stamp.file_id, err);
		struct cl_peer *stamped = peer && is_stamped(named, peer) ? peer : NULL;

		if (stamped && __builtin_expect(!cl_region_has_stamped(&stamped->region, &named->stamp), 0)) {
			/* of another file of that number, which is not here */
			*err = -ENOENT;
			if (tries || !look_up_successor_locked(named, stamped, tail, err))
				return;
			continue;
		}
		if (stamped)
			/* the driver gets its handle as it made it */
			unstamp(named->handle);
		else
			/* what is not known goes to the driver as it came: it ignores a stamp (measured) */
			peer = find_by_whole_handle_locked(named);
		named->known = peer != NULL;
		if (peer)
			named->err = cl_hold_get_locked(peer, &named->stamp, named->handle, &named->hold);
		/* (once: what the successor refuses is refused, whoever may have its number by now) */
		if (__builtin_expect(!cl_hold_is_refusal(named->err), 1) || !stamped || tries ||
		    !look_up_successor_locked(named, stamped, tail, err))
			return;
	}
}

void cl_look_up(struct cl_named *named, void *handle, enum cl_kind kind)
{
	uint64_t tail = tail_of(handle);
	bool ours = false; /* the file that it names */
	int err = 0;

	*named = (struct cl_named){ .handle = handle };
	memcpy(&named->pid, named->handle + (kind == CL_MEMORY ? 8 : 0), sizeof named->pid);
	if (!tail)
		return;
	named->stamp = cl_stamp_unpack(tail);
	cl_lock(&cl_imports_lock);
	if (cl_own_may_be(named->stamp.file_id))
		ours = look_up_own(named);
	named->known = named->own;
	if (named->own)
		goto out;
	if (ours && !cl_own_by_handle)
		err = -ENOENT;
	look_up_others_locked(named, ours, tail, &err);
	named->again = named->hold && named->hold->opens;
out:
	cl_unlock(&cl_imports_lock);
	if (named->known || !tail)
		return;
	if (err != -ENOENT)
		return;
	named->sight = cl_self_sight(named->stamp);
	named->fileless = named->sight == CL_HERE;
}
