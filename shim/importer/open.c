/* SPDX-License-Identifier: Apache-2.0 */
/* Opens handles of other exporters: see open.h. */
#include <errno.h>
#include <string.h>

#include "shim/base/hot.h"
#include "shim/base/log.h"
#include "shim/diag/report_data.h"
#include "shim/diag/recent_closes.h"
#include "shim/diag/trace.h"
#include "shim/driver/context.h"
#include "shim/importer/close.h"
#include "shim/importer/mappings.h"
#include "shim/importer/open.h"
#include "shim/importer/open_told.h"
#include "shim/importer/turns.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"
#include "shim/shm/gc.h"
#include "shim/shm/handle.h"
#include "shim/shm/pool_data.h"

/* ------------------------------------------------------------- which block it is */
/* Makes the handle what the driver made, as far as the driver reads it: zeros where the stamp was. */
static inline void unstamp(struct cl_resolved *resolved)
{
	cl_handle_put_stamp(resolved->handle, resolved->kind, 0);
}

static void stamp_again(struct cl_resolved *resolved, uint64_t stamp)
{
	cl_handle_put_stamp(resolved->handle, resolved->kind, stamp);
	resolved->stamp = cl_stamp_unpack(stamp);
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
		unstamp(resolved);
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
	stamp_again(resolved, tail);
	resolved->err = *err = 0;
	return true;
}

/*
 * Looks up a handle of another process.  Sets *err if its exporter's file cannot be had.  @last: the caller has
 * waited long enough for an exporter that may be freeing the block.
 */
static inline __attribute__((always_inline)) void look_up_others_locked(struct cl_resolved *resolved, uint64_t tail,
									 bool last, int *err)
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
		unstamp(resolved);
		resolved->known = true;
		resolved->err = cl_hold_get_locked(peer, &resolved->stamp, resolved->handle, &resolved->hold);
		if (last && resolved->err == -EAGAIN)
			resolved->err = -ESTALE;
		/* only once: what the successor refuses is refused, even if it has a successor by now */
		if (__builtin_expect(!cl_hold_is_refusal(resolved->err), 1) || tries ||
		    !look_up_successor_locked(resolved, peer, tail, err))
			return;
	}
}

/*
 * always_inline: it is compiled once for pools, whose @turn it takes, and once for the rest, with NULL.  Returns false
 * if the exporter may just be freeing the block: then nothing is known yet.
 */
static inline __attribute__((always_inline)) bool
look_up_once(struct cl_resolved *resolved, uint64_t tail, struct cl_turn *turn, uint64_t key, bool last)
{
	bool ours = false; /* the stamp names our own file */
	int err = 0;

	cl_lock(&cl_imports_lock);
	if (cl_own_may_be(resolved->stamp.file_id))
		ours = look_up_own(resolved);
	resolved->known = resolved->own;
	if (resolved->own)
		goto out;
	if (ours)
		err = -ENOENT;
	else
		look_up_others_locked(resolved, tail, last, &err);
	if (turn && resolved->hold)
		cl_turn_begin_locked(turn, key);
	resolved->again = resolved->hold && resolved->hold->opens;
out:
	cl_unlock(&cl_imports_lock);
	if (resolved->known)
		return resolved->err != -EAGAIN;
	if (err == -ENOENT) {
		resolved->sight = cl_self_sight(resolved->stamp);
		resolved->exporter_gone = resolved->sight == CL_HERE;
	}
	return true;
}

/* Waits without a lock, and looks @resolved up again, which look_up_once() has left as it was but for its handle. */
static __attribute__((noinline, cold)) void look_up_later(struct cl_resolved *resolved, uint64_t tail,
							    struct cl_turn *turn, uint64_t key)
{
	struct cl_hold_wait wait = { 0 };
	bool last;

	do {
		last = !cl_hold_wait(&wait);
		stamp_again(resolved, tail);
		resolved->err = 0;
	} while (!look_up_once(resolved, tail, turn, key, last));
}

static inline __attribute__((always_inline)) void
look_up(struct cl_resolved *resolved, uint64_t tail, struct cl_turn *turn, uint64_t key)
{
	resolved->stamp = cl_stamp_unpack(tail);
	/* no file has id 0: the bytes are not a stamp, but a driver's that uses them */
	if (resolved->stamp.file_id && __builtin_expect(!look_up_once(resolved, tail, turn, key, false), 0))
		look_up_later(resolved, tail, turn, key);
}

CL_HOT_SHARING void cl_look_up(struct cl_resolved *resolved, void *handle, enum cl_kind kind)
{
	*resolved = (struct cl_resolved){ .handle = handle, .kind = kind };
	memcpy(&resolved->pid, resolved->handle + (kind == CL_EVENT ? 0 : 8), sizeof resolved->pid);
	look_up(resolved, cl_handle_stamp(handle, kind), NULL, 0);
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

	*resolved = (struct cl_resolved){ .handle = form->zeros, .kind = CL_POOL };
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

/* ------------------------------------------------ before and after the driver's call */
/* Returns true if @hold has been open at this address all the while: an address maps one block. */
static bool is_open(const struct cl_mapping *oldest, const struct cl_hold *hold)
{
	const struct cl_mapping *mapping;

	CL_CHAIN_EACH (mapping, oldest, const struct cl_mapping, node)
		/* a close that is in the driver may have unmapped it already */
		if (mapping->hold == hold && mapping->opens > mapping->closing && !cl_mapping_is_going(mapping))
			return true;
	return false;
}

static bool is_in_our_pid_ns(const struct cl_region *region)
{
	uint64_t pid_ns = region->header->exporter.pid_ns;

	return pid_ns && pid_ns == cl_self.identity.pid_ns;
}

/*
 * Returns true if the exporter of what the driver has just opened is still there, and our
 * hold stands.
 *
 * The driver also opens a dead process's handle, and may map a later process's block for it
 * (seen in the torture on a GPU, doc/measurements.md).  It cannot do so while the exporter
 * lives, so it is enough to ask after the driver's open.
 *
 * For a living exporter this is one system call.  If its process has a lock on just that byte,
 * then it lives; and our descriptor is still of its file, so that our own lock stands, too.
 * The program may have closed our descriptor and reused its number, so that F_GETLK asks about
 * another file.  A wrong "locked" is harmless: it names the exporter's pid, so the exporter
 * lives, and within one PID namespace a live process that maps the file is never reaped.
 */
CL_HOT_SHARING static bool is_there_locked(const struct cl_resolved *resolved, struct cl_hold *hold)
{
	struct cl_peer *peer = hold->peer;
	const struct cl_identity *exporter = &peer->region.header->exporter;

	if (cl_peer_has_slot(peer) && is_in_our_pid_ns(&peer->region) &&
	    cl_region_is_locked_by(&peer->region, CL_LOCK_EXPORTER, exporter->pid))
		return !hold->stale;
	if (peer->slot >= 0 && !hold->pinned)
		cl_hold_keep_locked(hold, resolved->stamp, resolved->handle);
	if (hold->stale)
		return false;
	/*
	 * Without the descriptor is_locked() fails, which counts as locked here.  Where the lock is
	 * free and /proc cannot tell, the exporter has ended: alive, it could only just have lost
	 * its lock.
	 */
	return peer->region.locks->is_locked(&peer->region, CL_LOCK_EXPORTER) != 0 ||
	       cl_gc_judge(&peer->region) == CL_ALIVE ||
	       /* or it lives, and somebody has replaced its file by another */
	       (is_in_our_pid_ns(&peer->region) &&
		cl_liveness_is_exporter(exporter->pid, resolved->stamp.file_id, true));
}

/*
 * The directory that the stamp of @resolved names is here, without the exporter's file.  Returns
 * true if the exporter lives and has lost its file (logind's RemoveIPC), false if it has ended.
 * The first is rare: where /proc does not show it (another PID namespace, no /proc), it has ended.
 */
static bool has_lost_its_file(const struct cl_resolved *resolved)
{
	return cl_liveness_is_exporter(resolved->pid, resolved->stamp.file_id, false);
}

CUresult cl_open_refuse(const struct cl_resolved *resolved, enum cl_kind kind)
{
	cl_open_tell_stale(resolved, kind, 0, CUDA_SUCCESS);
	/* a refused open spoils no stream capture, as one of the driver's does not (measured) */
	return cl_context_refusal();
}

/*
 * The record has another driver handle than @resolved.  Returns true if the file is damaged, false
 * if the handle is stale: it was made by a process that had the file's id before.
 */
static bool is_damaged(const struct cl_resolved *resolved)
{
	const struct cl_region *region;
	bool own, is_its, here;

	cl_lock(&cl_imports_lock);
	region = cl_peer_has_open(resolved->stamp.file_id, &own);
	is_its = region && !own && region->header->exporter.pid == resolved->pid;
	here = !region || is_in_our_pid_ns(region);
	cl_unlock(&cl_imports_lock);
	return here ? cl_liveness_is_exporter(resolved->pid, resolved->stamp.file_id, true) : is_its;
}

/* Refuses what @o begins, or under CULIMBO_MODE=observe lets the driver decide. */
static CUresult refuse(struct cl_opening *o, const struct cl_resolved *resolved, enum cl_kind kind)
{
	o->stale = cl_observes();
	return o->stale ? CUDA_SUCCESS : cl_open_refuse(resolved, kind);
}

CUresult cl_open_unheld(struct cl_opening *o, const struct cl_resolved *resolved, enum cl_kind kind)
{
	/*
	 * Most exporters that have ended are noticed here, before the driver is asked.  It would import a
	 * pool's block of one (measured), but without the file nobody knows which block it is by now.
	 */
	if (resolved->exporter_gone && !has_lost_its_file(resolved))
		return refuse(o, resolved, kind);
	if (resolved->err == -ESTALE || (resolved->err == -EBADMSG && !is_damaged(resolved)))
		return refuse(o, resolved, kind);
	if (resolved->err == -EBADMSG)
		cl_log_once(CL_LOG_WARN,
			    "exporter file %06x has something else in record %u than the handle that leads "
			    "there, though its process %u lives: it is damaged. What is imported so is not "
			    "protected, as without culimbo",
			    resolved->stamp.file_id, resolved->stamp.record, resolved->pid);
	else
		/* logged after the open if the file lies elsewhere; not if its exporter is just ending */
		o->sight = resolved->sight;
	o->unmanaged = true;
	return CUDA_SUCCESS;
}

/* ------------------------------------------------- exporters with our process number */
CUipcMemHandle cl_open_rename(const struct cl_resolved *resolved, CUipcMemHandle handle)
{
	/* Linux gives no number above 2^22, and a file's id has 24 bits */
	uint32_t pid = 1u << 30 | resolved->stamp.file_id;

	memcpy(handle.reserved + 8, &pid, sizeof pid);
	return handle;
}

/* ------------------------------------------------------------ after the driver's call */
void cl_open_give_up(const struct cl_opening *o)
{
	if (!o->hold)
		return;
	cl_lock(&cl_imports_lock);
	o->hold->pending--;
	cl_hold_put_locked(o->hold);
	cl_unlock(&cl_imports_lock);
}

/*
 * Returns true if the block of @hold ended with its exporter's context.  A mapping of it that we have stays
 * valid.  If the driver returns that mapping, the block may be opened again; else the driver has opened
 * another block.
 */
static bool is_orphaned(const struct cl_hold *hold)
{
	return cl_life_state(cl_record_life(&hold->peer->region, cl_hold_record(hold))) == CL_ORPHANED;
}

/* Fills in @about for the report of a late open: each late hold is reported once. */
static __attribute__((noinline, cold)) void take_late_locked(const struct cl_opening *o,
							     const struct cl_resolved *resolved,
							     enum cl_kind kind, uint64_t key,
							     struct cl_about *about)
{
	const struct cl_region *region = &o->hold->peer->region;

	o->hold->late = false;
	*about = (struct cl_about){ .key = key,
				    .size = region->record[resolved->stamp.record].size,
				    .pid = region->header->exporter.pid,
				    .file_id = resolved->stamp.file_id,
				    .record = resolved->stamp.record,
				    .generation = resolved->stamp.generation,
				    .kind = (uint8_t)kind,
				    .device = (uint8_t)o->device };
}

/*
 * Returns true if what the driver has opened for @o may be given to the program.  The pool of a block
 * that was imported lives on when its exporter has ended, and nobody uses its memory again (measured).
 */
static inline bool is_good_locked(const struct cl_opening *o, const struct cl_resolved *resolved,
				  enum cl_kind kind, const struct cl_mapping *oldest)
{
	bool there;

	if (is_open(oldest, o->hold))
		return true;
	there = is_there_locked(resolved, o->hold) || (kind == CL_POOL && !o->hold->stale);
	return there && !is_orphaned(o->hold);
}

/* Sets the context and the device of @o.  A pool's block belongs to no context (measured). */
static inline void set_owner_locked(struct cl_opening *o, enum cl_kind kind,
				    const struct cl_context_name *current)
{
	if (kind == CL_POOL)
		return;
	o->context = cl_context_get_locked(current, &cl_imports_lock);
	o->device = o->context ? o->context->device : 0;
}

/* inline: it is compiled once for pools and once for the rest, which so has nothing of pools */
static inline __attribute__((always_inline)) bool
open_end(struct cl_opening *o, const struct cl_resolved *resolved, enum cl_kind kind, uint64_t key,
	 cl_open_added_fn *also, void *data)
{
	struct cl_context_name current = { .handle = NULL };
	struct cl_mapping *oldest, *mapping = NULL;
	struct cl_about about;
	bool there = true, late = false;

	if (__builtin_expect(o->stale, 0)) {
		cl_open_tell_stale(resolved, kind, key, CUDA_SUCCESS);
		return true;
	}
	if (resolved->exporter_gone)
		there = has_lost_its_file(resolved);
	if (!there)
		return false;
	if (kind != CL_POOL)
		current = cl_context_name_current();
	if (!resolved->again)
		o->stack = cl_stack_write(true);
	cl_lock(&cl_imports_lock);
	set_owner_locked(o, kind, &current);
	oldest = cl_mapping_find_locked(kind, key);
	/* an unmanaged import (another directory, or no culimbo) cannot be checked */
	if (o->hold)
		there = is_good_locked(o, resolved, kind, oldest);
	if (there) {
		if (o->hold) {
			if (kind == CL_POOL && resolved->again)
				o->device = o->hold->device;
			else if (kind == CL_POOL)
				o->hold->device = o->device;
			o->hold->pending--;
			o->hold->opens++;
			late = o->hold->late;
			if (__builtin_expect(late, 0))
				take_late_locked(o, resolved, kind, key, &about);
		}
		cl_trace_mapping(CL_TRACE_OPENED, kind, key, o->hold, .device = (uint8_t)o->device,
				 .value = o->stack);
		mapping = cl_mapping_add_locked(kind, key, oldest, o, resolved->pid);
		cl_count_locked(imports);
		if (cl_own_has_file())
			cl_live_add_locked(&cl_own, CL_LIVE_OPENS, 1);
		if (kind == CL_POOL)
			also(mapping, data);
	}
	cl_unlock(&cl_imports_lock);
	if (!there)
		return false;
	/* or an earlier close at @key would make the close of this import look like a second one */
	if (kind == CL_EVENT)
		cl_import_event_created((CUevent)(uintptr_t)key);
	else if (!mapping)
		cl_recent_closes_remove(kind == CL_VIRTUAL ? CL_MEMORY : kind, key);
	if (__builtin_expect(late, 0))
		cl_open_tell_late(resolved, &about, o->stack);
	if (__builtin_expect(!o->hold, 0)) {
		if (o->unmanaged)
			cl_count(unmanaged_imports);
		if (o->sight != CL_HERE)
			cl_open_say_unprotected(o->sight);
	}
	return true;
}

CL_HOT_SHARING bool cl_open_end(struct cl_opening *o, const struct cl_resolved *resolved, enum cl_kind kind, uint64_t key)
{
	if (kind == CL_POOL)
		__builtin_unreachable();
	return open_end(o, resolved, kind, key, NULL, NULL);
}

bool cl_open_pool_end(struct cl_opening *o, const struct cl_resolved *resolved, uint64_t key,
		      cl_open_added_fn *also, void *data)
{
	return open_end(o, resolved, CL_POOL, key, also, data);
}
