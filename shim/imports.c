/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Imports: what this process opened of others, memory and events.
 *
 * A hold is one of these per record, whatever the number of opens; it owns our
 * bit in the exporter's file from before the driver's first open until after
 * the driver's last close.  A mapping is one per address (event) that the
 * driver gave us.  Both are under cl_imports_lock, which is let go of around
 * the driver's calls; what is in flight meanwhile is counted (pending,
 * closing), so that neither goes away under it.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/blocks.h"
#include "shim/collector.h"
#include "shim/context.h"
#include "shim/gc.h"
#include "shim/imports.h"
#include "shim/limbo.h"
#include "shim/log.h"
#include "shim/notes.h"
#include "shim/self.h"
#include "shim/trace.h"

struct hold_key {
	uint32_t file_id, record;
};
struct hold {
	UT_hash_handle hh;
	struct hold_key key;
	struct cl_peer *peer;
	uint32_t generation;
	uint64_t opens;	  /* of all its mappings */
	uint64_t pending; /* threads in the driver's open with it */
	bool pinned;	  /* no bit of ours: the block is kept for good */
};
struct mapping {
	UT_hash_handle hh;     /* the newest of its address is in the hash, the others behind it */
	struct mapping *older; /* of the same address: in another context, or just being closed */
	uint64_t key;	       /* device address, or the CUevent */
	struct hold *hold;     /* NULL: unmanaged */
	CUcontext ctx;
	CUdevice device;
	uint64_t opens, closing, since, size;
	uint32_t note, stack, exporter_pid; /* for reports: its entry there, of the first open */
	bool primary;
};

static struct hold *holds;
static struct mapping *mappings[3]; /* a hash for each enum cl_kind */

static uint64_t tail_of(const void *handle)
{
	uint64_t tail;

	memcpy(&tail, (const char *)handle + 56, sizeof tail);
	return tail;
}

/* ------------------------------------------------------------ what a handle names */
/* A handle, and what was made out of it. */
struct named {
	struct cl_stamp stamp;
	bool known;	    /* the stamp names something of an exporter that we can look at */
	bool own;	    /* ... of this process itself */
	bool fileless;	    /* the stamp's file would be here, and is not */
	uint32_t pid;	    /* of its exporter, as the driver's handle has it */
	uint8_t handle[64]; /* as its driver made it */
};

static bool is_own(uint32_t file_id)
{
	bool own;

	pthread_mutex_lock(&cl_exports_lock);
	own = cl_own.header && cl_own.file_id == file_id;
	pthread_mutex_unlock(&cl_exports_lock);
	return own;
}

/* The exporters of the host, one after the other: for drivers that leave no room for a stamp. */
static bool find_by_whole_handle_locked(struct named *named)
{
	int fd = cl_self_open_dir(false), err;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;
	bool found = false;

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return false;
	}
	while (!found && (entry = readdir(dir)) != NULL) {
		uint32_t id = cl_region_name_id(entry->d_name);
		struct cl_peer *peer =
			id && !is_own(id) ? cl_peer_get_if(dirfd(dir), id,
							   offsetof(struct cl_header, by_handle), &err) :
					    NULL;

		found = peer && cl_record_find(&peer->region, named->handle, &named->stamp.record,
					       &named->stamp.generation) == 0;
		if (found)
			named->stamp.file_id = id;
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
 * Whether the tail of @named is a stamp of an exporter that there is.  Where one
 * says that it finds records by their whole handle, it is if it leads to just
 * this handle: somebody may have damaged that word.  *err: -ENOENT when there is
 * no such file.
 */
static bool is_stamped_locked(const struct named *named, int *err)
{
	uint32_t file_id = named->stamp.file_id, record = named->stamp.record, chunks;
	struct cl_peer *peer = is_own(file_id) ? NULL : cl_peer_get(file_id, err);
	uint8_t handle[64];

	if (!peer)
		return false;
	/* acquire: pairs with cl_region_need_by_handle() */
	if (!atomic_load_explicit(&peer->region.header->by_handle, memory_order_acquire))
		return true;
	chunks = atomic_load_explicit(&peer->region.header->record_chunks, memory_order_acquire);
	memcpy(handle, named->handle, 64);
	unstamp(handle);
	return chunks <= CL_CHUNKS && record / CL_CHUNK < chunks &&
	       cl_record_is(&peer->region, record, handle);
}

static void look_up(struct named *named, const void *handle, enum cl_kind kind)
{
	uint64_t tail = tail_of(handle);
	int err = 0;

	memset(named, 0, sizeof *named);
	memcpy(named->handle, handle, 64);
	memcpy(&named->pid, named->handle + (kind == CL_MEMORY ? 8 : 0), sizeof named->pid);
	if (!tail)
		return;
	named->stamp = cl_stamp_unpack(tail);
	pthread_mutex_lock(&cl_exports_lock);
	if (cl_own.header) {
		named->own = cl_own_by_handle ?
				     cl_record_find(&cl_own, named->handle, &named->stamp.record,
						    &named->stamp.generation) == 0 :
				     cl_own.file_id == named->stamp.file_id;
		if (named->own && !cl_own_by_handle)
			unstamp(named->handle);
	}
	pthread_mutex_unlock(&cl_exports_lock);
	named->known = named->own;
	if (named->own)
		return;
	pthread_mutex_lock(&cl_imports_lock);
	if (is_stamped_locked(named, &err)) {
		named->known = true;
		/* the driver gets its handle as it made it */
		unstamp(named->handle);
	} else {
		/* what is not known goes to the driver as it came: it ignores a stamp (measured) */
		named->known = find_by_whole_handle_locked(named);
	}
	pthread_mutex_unlock(&cl_imports_lock);
	/* its file would be here */
	named->fileless = !named->known && err == -ENOENT && named->stamp.tag == cl_self.tag;
}

static bool is_open_locked(enum cl_kind kind, uint64_t key, const struct hold *hold)
{
	const struct mapping *mapping;

	HASH_FIND(hh, mappings[kind], &key, sizeof key, mapping);
	for (; mapping; mapping = mapping->older)
		/* a close that is in the driver may be done there */
		if (mapping->hold == hold && mapping->opens > mapping->closing)
			return true;
	return false;
}

/*
 * Whether the exporter of what the driver has just opened is still there.
 *
 * The driver may open a dead process's handle, too, and map a later process's
 * block (seen in the torture on a GPU, doc/measurements.md).  As long as the exporter lives that cannot
 * be, so it is enough to ask afterwards.
 */
static bool exporter_is_there(const struct named *named, const struct hold *hold, enum cl_kind kind,
			      uint64_t key)
{
	bool there = true;

	if (named->fileless) /* it lives and has lost its file, or it has ended */
		return cl_liveness_is_exporter(named->pid, named->stamp.file_id);
	if (!hold)
		return true; /* of another directory, or without culimbo: nothing is known */
	pthread_mutex_lock(&cl_imports_lock);
	/*
	 * What was open here already, and has been all the while, is what was asked about
	 * when it was opened: an address maps one thing.
	 */
	if (is_open_locked(kind, key, hold))
		goto out;
	/* one system call, for the living; a descriptor that is gone tells nothing */
	if (hold->peer->region.locks->is_locked(&hold->peer->region, CL_LOCK_EXPORTER) == 0)
		there = cl_gc_judge(&hold->peer->region) < CL_LEAVING ||
			/* somebody has put another file in the place of its own */
			cl_liveness_is_exporter(hold->peer->region.header->exporter.pid,
						named->stamp.file_id);
out:
	pthread_mutex_unlock(&cl_imports_lock);
	return there;
}

/* -------------------------------------------------------------------- holds */
/*
 * We were taken for dead and have a new slot: holds again what we still have
 * open, where its exporter has not given it away.
 */
static void hold_again_locked(struct cl_peer *peer)
{
	struct hold *hold, *next;
	uint8_t handle[64];
	unsigned int lost = 0;

	HASH_ITER(hh, holds, hold, next) {
		const struct cl_record *r = &peer->region.record[hold->key.record];

		if (hold->peer != peer || hold->pinned || !hold->opens)
			continue;
		memcpy(handle, r->handle, 56);
		memcpy(handle + 56, &r->tail, 8);
		if (peer->slot < 0 ||
		    cl_record_hold(&peer->region, (unsigned int)peer->slot, hold->key.record,
				   hold->generation, handle)) {
			hold->pinned = true; /* no bit of ours to clear */
			lost++;
		}
	}
	cl_log(CL_LOG_WARN,
	       "the program closed culimbo's descriptors and was taken for dead by process %u, which is in "
	       "another PID namespace: %u blocks that are open here are not protected any more",
	       peer->region.header->exporter.pid, lost);
}

/* No memory for a hold: its exporter keeps the block. */
static int pin_unnoted(struct cl_peer *peer, struct cl_stamp stamp, const void *handle)
{
	int err = cl_record_pin(&peer->region, stamp.record, stamp.generation, handle);

	if (!err) {
		cl_count(pinned);
		cl_log_once(CL_LOG_WARN,
			    "no memory to note what is opened here of process %u: it is kept by it until it "
			    "ends, freed or not",
			    peer->region.header->exporter.pid);
	}
	return err;
}

/* Takes (or shares) the hold that @stamp names.  0 with *held set (NULL: unmanaged), or -errno. */
static int hold_get_locked(struct cl_stamp stamp, const void *handle, struct hold **held)
{
	struct hold_key key = { stamp.file_id, stamp.record };
	struct cl_peer *peer;
	struct hold *hold;
	bool lost;
	int err = 0;

	*held = NULL;
	HASH_FIND(hh, holds, &key, sizeof key, hold);
	if (hold) {
		/* our bit keeps its generation: any other is stale, and its bit must not be touched */
		if (hold->generation != stamp.generation)
			return -ESTALE;
		if (!cl_record_is(&hold->peer->region, stamp.record, handle))
			return -EBADMSG;
		hold->pending++;
		*held = hold;
		return 0;
	}
	peer = cl_peer_get(stamp.file_id, &err);
	if (!peer)
		return err == -ENOMEM ? err : 0; /* the driver decides, as without us */
	hold = calloc(1, sizeof *hold);
	if (!hold)
		return pin_unnoted(peer, stamp, handle);
	hold->key = key;
	hold->peer = peer;
	hold->generation = stamp.generation;
	hold->pending = 1;
	HASH_ADD(hh, holds, key, sizeof hold->key, hold);
	if (!hold->hh.tbl) {
		free(hold);
		return pin_unnoted(peer, stamp, handle);
	}
	err = cl_peer_need_slot(peer, &lost);
	if (lost)
		hold_again_locked(peer);
	if (!err)
		err = cl_record_hold(&peer->region, (unsigned int)peer->slot, stamp.record,
				     stamp.generation, handle);
	if (err && err != -ESTALE && err != -EBADMSG) {
		cl_log_once(CL_LOG_WARN,
			    "no room among the holders of process %u (error %d): what is opened here is kept "
			    "by it until it ends, freed or not",
			    peer->region.header->exporter.pid, -err);
		err = cl_record_pin(&peer->region, stamp.record, stamp.generation, handle);
		hold->pinned = !err;
		cl_count(pinned);
	}
	if (err) {
		HASH_DELETE(hh, holds, hold);
		free(hold);
		return err;
	}
	peer->holds++;
	*held = hold;
	return 0;
}

static void hold_put_locked(struct hold *hold)
{
	if (hold->opens || hold->pending)
		return;
	/* a slot that is not ours any more has no bit of ours */
	if (!hold->pinned && cl_peer_has_slot(hold->peer))
		cl_record_unhold(&hold->peer->region, (unsigned int)hold->peer->slot, hold->key.record);
	cl_peer_put(hold->peer);
	HASH_DELETE(hh, holds, hold);
	free(hold);
}

/* ----------------------------------------------------------------- mappings */
static struct mapping *mapping_find_locked(enum cl_kind kind, uint64_t key)
{
	struct mapping *newest;

	HASH_FIND(hh, mappings[kind], &key, sizeof key, newest);
	return newest;
}

/* Into our own file, for reports. */
static void mapping_note_locked(enum cl_kind kind, struct mapping *mapping)
{
	const struct hold *hold = mapping->hold;
	struct cl_import_note note = { .key = mapping->key,
				       .size = mapping->size,
				       .since = mapping->since,
				       .stack = mapping->stack,
				       .exporter_pid = mapping->exporter_pid,
				       .kind = (uint8_t)kind,
				       .device = (uint8_t)mapping->device };

	if (hold) {
		note.file_id = hold->key.file_id;
		note.record = hold->key.record;
		note.generation = hold->generation;
	}
	mapping->note = cl_notes_import(&note);
}

static void mapping_add_locked(enum cl_kind kind, uint64_t key, struct hold *hold, CUcontext ctx,
			       CUdevice device, bool primary, uint32_t exporter_pid, uint32_t stack)
{
	struct mapping *newest = mapping_find_locked(kind, key), *mapping;

	for (mapping = newest; mapping; mapping = mapping->older)
		if (mapping->hold == hold && mapping->ctx == ctx)
			break;
	if (!mapping) {
		mapping = calloc(1, sizeof *mapping);
		if (!mapping)
			return; /* the hold stays until we end: kept, not freed early */
		mapping->key = key;
		mapping->hold = hold;
		mapping->ctx = ctx;
		mapping->device = device;
		mapping->primary = primary;
		mapping->since = cl_now();
		mapping->stack = stack;
		mapping->exporter_pid = hold ? hold->peer->region.header->exporter.pid : exporter_pid;
		if (hold)
			mapping->size = hold->peer->region.record[hold->key.record].size;
		if (newest) {
			mapping->older = newest->older;
			newest->older = mapping;
		} else {
			HASH_ADD(hh, mappings[kind], key, sizeof mapping->key, mapping);
			if (!mapping->hh.tbl) {
				free(mapping);
				return;
			}
		}
	}
	/* (one that is just being closed for the last time has no entry any more) */
	if (!mapping->opens++)
		mapping_note_locked(kind, mapping);
	else
		cl_notes_import_opens(mapping->note, mapping->opens);
}

/* What the trace says of an open or a close here; @hold NULL: unmanaged. */
#define cl_trace_mapping(what_, kind_, key_, hold, ...)                                  \
	cl_trace(what_, .kind = (uint8_t)(kind_), .key = (key_),                         \
		 .size = (hold) ? (hold)->peer->region.record[(hold)->key.record].size : 0, \
		 .file_id = (hold) ? (hold)->key.file_id : 0,                            \
		 .record = (hold) ? (hold)->key.record : CL_NO_RECORD,                   \
		 .generation = (hold) ? (hold)->generation : 0,                          \
		 .pid = (hold) ? (hold)->peer->region.header->exporter.pid : 0, ##__VA_ARGS__)

/* Takes @mapping away once nothing is left of it. */
static void mapping_put_locked(enum cl_kind kind, struct mapping *mapping)
{
	struct mapping *newest = mapping_find_locked(kind, mapping->key), *older = mapping->older;

	if (mapping->opens || mapping->closing)
		return;
	if (newest != mapping) {
		while (newest->older != mapping)
			newest = newest->older;
		newest->older = older;
	} else {
		HASH_DELETE(hh, mappings[kind], mapping);
		if (older) { /* (no memory for that: its hold stays until we end) */
			HASH_ADD(hh, mappings[kind], key, sizeof older->key, older);
		}
	}
	free(mapping);
}

static void note_last_close(enum cl_kind kind, const struct mapping *mapping, uint32_t stack)
{
	const struct hold *hold = mapping->hold;
	struct cl_closed closed = { .key = mapping->key,
				    .size = mapping->size,
				    .when = cl_now(),
				    .stack = stack,
				    .pid = mapping->exporter_pid,
				    .kind = (uint8_t)kind,
				    .device = (uint8_t)mapping->device };

	if (hold) {
		closed.file_id = hold->key.file_id;
		closed.record = hold->key.record;
		closed.generation = hold->generation;
	}
	cl_notes_closed(&closed);
}

/* The driver has closed @mapping once (or not, when !@closed), at @stack. */
static void mapping_closed_locked(enum cl_kind kind, struct mapping *mapping, bool closed,
				  uint32_t stack)
{
	struct hold *hold = mapping->hold;

	mapping->closing--;
	if (closed) {
		cl_trace_mapping(CL_TRACE_CLOSED, kind, mapping->key, hold);
		if (mapping->opens) {
			cl_notes_import_opens(mapping->note, --mapping->opens);
			if (!mapping->opens)
				note_last_close(kind, mapping, stack);
		}
		if (hold) {
			hold->opens--;
			hold_put_locked(hold);
		}
		cl_count(closes);
	}
	mapping_put_locked(kind, mapping);
}

/* ------------------------------------------------------------------- opening */
/* A handle that this process made itself.  0, or -errno. */
static int open_own(const struct named *named, CUdeviceptr *dptr)
{
	struct cl_stamp stamp = named->stamp;
	struct cl_block *block;
	int err = -ESTALE;

	pthread_mutex_lock(&cl_exports_lock);
	block = cl_block_of_record(stamp.record);
	if (block && block->place != CL_PLACE_GONE && block->place != CL_PLACE_BUSY &&
	    cl_life_generation(cl_record_life(&cl_own, stamp.record)) == stamp.generation &&
	    memcmp(block->handle, named->handle, 64) == 0) {
		block->own_opens++;
		cl_trace_block(CL_TRACE_OPENED, block, .generation = stamp.generation, .flags = CL_TRACE_OWN);
		*dptr = (CUdeviceptr)block->key;
		err = 0;
	}
	pthread_mutex_unlock(&cl_exports_lock);
	return err;
}

static CUresult refuse(const struct named *named, enum cl_kind kind)
{
	struct cl_stamp stamp = named->stamp;
	struct cl_finding finding = { .kind = CL_FOUND_STALE_REFUSED,
				      .pid = named->pid,
				      .stack = cl_notes_stack(true),
				      .file_id = stamp.file_id,
				      .record = stamp.record,
				      .generation = stamp.generation,
				      .block_kind = (uint8_t)kind };

	cl_count(stale_refused);
	cl_notes_finding(&finding);
	cl_trace(CL_TRACE_STALE, .file_id = stamp.file_id, .record = stamp.record,
		 .generation = stamp.generation);
	cl_log(CL_LOG_INFO,
	       "refused a stale handle (exporter file %06x, record %u, generation %u): its block has been "
	       "freed",
	       stamp.file_id, stamp.record, stamp.generation);
	return CUDA_ERROR_INVALID_VALUE;
}

/*
 * The exporter's file has something else where the handle leads.  A handle that
 * a process made which had that file's number before is stale; else it is the file
 * that can't be trusted.
 */
static bool is_damaged(const struct named *named)
{
	return named->stamp.tag != cl_self.tag ||
	       cl_liveness_is_exporter(named->pid, named->stamp.file_id);
}

struct opening {
	struct hold *hold;
	CUcontext ctx;
	CUdevice device;
	bool primary;
	bool elsewhere; /* its exporter's file is not where ours are */
	bool again;	/* it is open here already: where from, is noted */
};

/* The first half of an open.  CUDA_SUCCESS: ask the driver, then open_end(). */
static CUresult open_begin(struct opening *o, const struct named *named, enum cl_kind kind)
{
	int err = 0;

	/* what lies elsewhere is worth a word; an exporter that is just ending is not */
	*o = (struct opening){ .elsewhere = tail_of(named->handle) &&
					    named->stamp.tag != cl_self.tag };
	/* most that have ended are seen before the driver is asked */
	if (named->fileless && !cl_liveness_is_exporter(named->pid, named->stamp.file_id))
		return refuse(named, kind);
	if (named->known && !named->own) {
		pthread_mutex_lock(&cl_imports_lock);
		err = hold_get_locked(named->stamp, named->handle, &o->hold);
		o->again = o->hold && o->hold->opens;
		pthread_mutex_unlock(&cl_imports_lock);
	}
	if (err == -ESTALE || (err == -EBADMSG && !is_damaged(named)))
		return refuse(named, kind);
	if (err == -EBADMSG) {
		o->elsewhere = false;
		cl_log_once(CL_LOG_WARN,
			    "exporter file %06x has something else in record %u than the handle that leads "
			    "there, though its process %u lives: it is damaged. What is imported so is not "
			    "protected, as without culimbo",
			    named->stamp.file_id, named->stamp.record, named->pid);
	}
	if (!o->hold)
		cl_count(unmanaged_imports);
	if (err == -ENOMEM)
		cl_log_once(CL_LOG_WARN, "no memory to note what is opened here: it is not protected, "
					 "as without culimbo");
	return CUDA_SUCCESS;
}

static void open_end(struct opening *o, const struct named *named, enum cl_kind kind, CUresult result,
		     uint64_t key)
{
	uint32_t stack = 0;

	if (result == CUDA_SUCCESS && !o->hold && o->elsewhere)
		cl_log_once(CL_LOG_WARN,
			    "opened something that a process under culimbo exported, but found no exporter "
			    "file of it: it is another user's, or has another CULIMBO_DIR or /dev/shm. What is "
			    "imported so is not protected, as without culimbo");
	if (result == CUDA_SUCCESS) {
		cl_count(imports);
		cl_driver.cuCtxGetCurrent(&o->ctx);
		cl_driver.cuCtxGetDevice(&o->device);
		o->primary = cl_context_is_primary(o->ctx, o->device);
		if (!o->again)
			stack = cl_notes_stack(true);
	}
	pthread_mutex_lock(&cl_imports_lock);
	if (o->hold)
		o->hold->pending--;
	if (result == CUDA_SUCCESS) {
		if (o->hold)
			o->hold->opens++;
		cl_trace_mapping(CL_TRACE_OPENED, kind, key, o->hold, .device = (uint8_t)o->device);
		mapping_add_locked(kind, key, o->hold, o->ctx, o->device, o->primary, named->pid, stack);
	} else if (o->hold) {
		hold_put_locked(o->hold);
	}
	pthread_mutex_unlock(&cl_imports_lock);
}

CUresult cl_memory_import(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags,
			  CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int))
{
	CL_UNCANCELLED;
	struct named named;
	struct opening o;
	CUresult result;

	if (!cl_self_start())
		return open(dptr, handle, flags);
	look_up(&named, &handle, CL_MEMORY);
	memcpy(&handle, named.handle, 64);
	if (named.own && dptr)
		return open_own(&named, dptr) ? refuse(&named, CL_MEMORY) : CUDA_SUCCESS;
	result = open_begin(&o, &named, CL_MEMORY);
	if (result != CUDA_SUCCESS)
		return result;
	result = open(dptr, handle, flags);
	if (result == CUDA_SUCCESS && !exporter_is_there(&named, o.hold, CL_MEMORY, (uint64_t)*dptr)) {
		cl_driver.cuIpcCloseMemHandle(*dptr);
		result = refuse(&named, CL_MEMORY);
	}
	open_end(&o, &named, CL_MEMORY, result, result == CUDA_SUCCESS ? (uint64_t)*dptr : 0);
	return result;
}

CUresult cl_event_import(CUevent *event, CUipcEventHandle handle)
{
	CL_UNCANCELLED;
	struct named named;
	struct opening o;
	CUresult result;

	if (!cl_self_start())
		return cl_driver.cuIpcOpenEventHandle(event, handle);
	look_up(&named, &handle, CL_EVENT);
	memcpy(&handle, named.handle, 64);
	if (named.own) /* the driver refuses a process's own; it knows how */
		return cl_driver.cuIpcOpenEventHandle(event, handle);
	result = open_begin(&o, &named, CL_EVENT);
	if (result != CUDA_SUCCESS)
		return result;
	result = cl_driver.cuIpcOpenEventHandle(event, handle);
	if (result == CUDA_SUCCESS &&
	    !exporter_is_there(&named, o.hold, CL_EVENT, (uint64_t)(uintptr_t)*event)) {
		cl_driver.cuEventDestroy_v2(*event);
		result = refuse(&named, CL_EVENT);
	}
	open_end(&o, &named, CL_EVENT, result, result == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*event : 0);
	return result;
}

/* ------------------------------------------------------------------- closing */
/* *last: nothing of it stays open, as far as can be said now. */
static struct mapping *close_begin(enum cl_kind kind, uint64_t key, bool *last)
{
	struct mapping *mapping = NULL;

	pthread_mutex_lock(&cl_imports_lock);
	/*
	 * One that another thread is not closing for the last time already: the driver
	 * may have done so, and given the address to a block (an event) of this process.
	 */
	for (struct mapping *m = mapping_find_locked(kind, key); m; m = m->older)
		if (m->opens > m->closing) {
			mapping = m;
			break;
		}
	if (mapping)
		mapping->closing++;
	*last = mapping && mapping->opens <= mapping->closing;
	pthread_mutex_unlock(&cl_imports_lock);
	return mapping;
}

static void close_end(enum cl_kind kind, struct mapping *mapping, bool closed, bool last)
{
	uint32_t stack = closed && last ? cl_notes_stack(true) : 0;

	pthread_mutex_lock(&cl_imports_lock);
	mapping_closed_locked(kind, mapping, closed, stack);
	pthread_mutex_unlock(&cl_imports_lock);
}

/* A close of what open_own() gave.  False: it gave nothing there. */
static bool close_own(CUdeviceptr dptr)
{
	struct cl_block *block;
	bool wake = false, ours = false;

	pthread_mutex_lock(&cl_exports_lock);
	block = cl_block_find(CL_MEMORY, dptr);
	if (block && block->own_opens) {
		ours = true;
		cl_trace_block(CL_TRACE_CLOSED, block, .flags = CL_TRACE_OWN);
		if (--block->own_opens == 0) {
			cl_limbo_look_again_locked(block);
			wake = block->place == CL_PLACE_DUE;
		}
	}
	pthread_mutex_unlock(&cl_exports_lock);
	if (wake)
		cl_collector_wake();
	return ours;
}

static void closed_again(CUdeviceptr dptr)
{
	struct cl_finding finding = { .kind = CL_FOUND_CLOSED_TWICE,
				      .key = dptr,
				      .stack = cl_notes_stack(true),
				      .block_kind = CL_MEMORY };
	struct cl_closed before;

	cl_count(closed_twice);
	if (cl_notes_find_closed(CL_MEMORY, dptr, &before)) {
		finding.pid = before.pid;
		finding.size = before.size;
		finding.other_stack = before.stack;
		finding.other_when = before.when;
		finding.file_id = before.file_id;
		finding.record = before.record;
		finding.generation = before.generation;
		finding.device = before.device;
	}
	cl_notes_finding(&finding);
}

CUresult cl_memory_close(CUdeviceptr dptr)
{
	CL_UNCANCELLED;
	struct mapping *mapping;
	CUresult result;
	bool last;

	if (cl_self_is_copy()) {
		cl_self_begin_anew();
		return cl_driver.cuIpcCloseMemHandle(dptr);
	}
	mapping = close_begin(CL_MEMORY, dptr, &last);
	if (!mapping && close_own(dptr))
		return CUDA_SUCCESS;
	cl_collector_called();
	result = cl_driver.cuIpcCloseMemHandle(dptr);
	if (mapping)
		close_end(CL_MEMORY, mapping, result == CUDA_SUCCESS, last);
	else if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_MAP_FAILED)
		closed_again(dptr);
	return result;
}

/* For cl_event_destroy(): an imported event is closed by destroying it. */
bool cl_import_event_destroy(CUevent event, CUresult (*destroy)(CUevent), CUresult *result)
{
	bool last;
	struct mapping *mapping = close_begin(CL_EVENT, (uint64_t)(uintptr_t)event, &last);

	if (!mapping)
		return false;
	*result = destroy(event);
	close_end(CL_EVENT, mapping, *result == CUDA_SUCCESS, last);
	return true;
}

/* ---------------------------------------------------------------------- rest */
/* Each mapping; @each may take away the one that it is given. */
static void mappings_each_locked(void (*each)(enum cl_kind kind, struct mapping *mapping, void *data),
				 void *data)
{
	for (int kind = CL_MEMORY; kind <= CL_EVENT; kind++) {
		struct mapping *newest, *next, *mapping, *older;

		HASH_ITER(hh, mappings[kind], newest, next)
			for (mapping = newest; mapping; mapping = older) {
				older = mapping->older;
				each((enum cl_kind)kind, mapping, data);
			}
	}
}

struct gone {
	CUcontext ctx;
	CUdevice device;
};
static void drop_if_gone(enum cl_kind kind, struct mapping *mapping, void *data)
{
	const struct gone *gone = data;

	if (gone->ctx ? mapping->ctx != gone->ctx :
			!mapping->primary || mapping->device != gone->device)
		return;
	cl_trace_mapping(CL_TRACE_CLOSED, kind, mapping->key, mapping->hold, .value = mapping->opens);
	if (mapping->hold) {
		mapping->hold->opens -= mapping->opens;
		hold_put_locked(mapping->hold);
		mapping->hold = NULL;
	}
	if (mapping->opens)
		cl_notes_import_opens(mapping->note, 0);
	mapping->opens = 0;
	mapping_put_locked(kind, mapping);
}

void cl_imports_context_gone(CUcontext ctx, CUdevice device)
{
	struct gone gone = { ctx, device };

	pthread_mutex_lock(&cl_imports_lock);
	mappings_each_locked(drop_if_gone, &gone);
	pthread_mutex_unlock(&cl_imports_lock);
}

struct telling {
	void (*each)(const struct cl_import *import, void *data);
	void *data;
};
static struct cl_import describe_locked(enum cl_kind kind, const struct mapping *mapping)
{
	const struct hold *hold = mapping->hold;
	struct cl_import import = { .key = mapping->key,
				    .size = mapping->size,
				    .opens = mapping->opens,
				    .since = mapping->since,
				    .exporter_pid = mapping->exporter_pid,
				    .stack = mapping->stack,
				    .device = (uint8_t)mapping->device,
				    .kind = kind,
				    .managed = hold != NULL };

	if (hold) {
		const struct cl_region *region = &hold->peer->region;

		import.file_id = hold->key.file_id;
		import.record = hold->key.record;
		import.generation = hold->generation;
		import.stays = cl_life_state(cl_record_life(region, hold->key.record)) != CL_EXPORTED;
	}
	return import;
}

static void tell(enum cl_kind kind, struct mapping *mapping, void *data)
{
	const struct telling *telling = data;
	struct cl_import import = describe_locked(kind, mapping);

	telling->each(&import, telling->data);
}

bool cl_import_find(CUdeviceptr dptr, struct cl_import *import)
{
	const struct mapping *mapping;

	pthread_mutex_lock(&cl_imports_lock);
	mapping = mapping_find_locked(CL_MEMORY, dptr);
	if (mapping)
		*import = describe_locked(CL_MEMORY, mapping);
	pthread_mutex_unlock(&cl_imports_lock);
	return mapping != NULL;
}

void cl_imports_each(void (*each)(const struct cl_import *import, void *data), void *data)
{
	struct telling telling = { each, data };

	mappings_each_locked(tell, &telling);
}

void cl_imports_forget(void)
{
	/* their memory is left: another thread of the parent may have been in the middle of it */
	holds = NULL;
	memset(mappings, 0, sizeof mappings);
	cl_peers_forget();
}
