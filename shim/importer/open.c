/* SPDX-License-Identifier: Apache-2.0 */
/* Opens handles of other exporters: see open.h. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "shim/base/log.h"
#include "shim/diag/happened.h"
#include "shim/diag/report_data.h"
#include "shim/diag/recent_closes.h"
#include "shim/diag/trace.h"
#include "shim/driver/context.h"
#include "shim/importer/close.h"
#include "shim/importer/mappings.h"
#include "shim/importer/open.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"
#include "shim/shm/gc.h"
#include "shim/shm/view.h"

/* Returns true if @hold has been open at this address all the while: an address maps one block. */
static bool is_open(const struct cl_mapping *newest, const struct cl_hold *hold)
{
	const struct cl_mapping *mapping;

	CL_CHAIN_EACH (mapping, newest, const struct cl_mapping, node)
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
static bool is_there_locked(const struct cl_resolved *resolved, struct cl_hold *hold)
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

/* Fills in where and when the block of @resolved was freed, if its exporter's file still says so. */
static void find_free(const struct cl_resolved *resolved, struct cl_about *about)
{
	struct cl_view view = { .now = cl_now() };
	const struct cl_region *region;
	uint32_t stack;
	bool own;

	cl_lock(&cl_imports_lock);
	cl_lock(&cl_exports_lock);
	region = resolved->known ? cl_peer_has_open(resolved->stamp.file_id, &own) : NULL;
		/* cl_view_freed() reads by the descriptor, which the program may have closed */
	if (region && cl_region_fd_intact(region)) {
		view.region = *region;
		if (cl_view_freed(&view, resolved->stamp.record, resolved->stamp.generation, resolved->handle,
				  &about->when, &stack))
			about->stack = own ? stack : cl_stack_copy_locked(&view, stack);
		/* of a handle alone nobody knows more; what the driver has opened has an address here, too */
		if (about->when && cl_observes()) {
			const struct cl_record *record = &region->record[resolved->stamp.record];

			if (!about->key)
				about->key = record->base;
			if (!about->size && about->kind != CL_EVENT) {
				about->size = record->size;
				about->device = record->device;
			}
		}
		/*
		 * Who was killed had freed nothing.  Our own lock would look free to us, and a living
		 * exporter loses its own when its program closes all descriptors.
		 */
		if (!about->when && !own && cl_gc_judge(&view.region) == CL_DEAD)
			about->exporter_gone = true;
	}
	cl_unlock(&cl_exports_lock);
	cl_unlock(&cl_imports_lock);
}

void cl_open_tell_stale(const struct cl_resolved *resolved, enum cl_kind kind, uint64_t key, CUresult result)
{
	struct cl_stamp stamp = resolved->stamp;
	struct cl_about about = { .key = key,
				  .result = (uint32_t)result,
				  .pid = resolved->pid,
				  .file_id = stamp.file_id,
				  .record = stamp.record,
				  .generation = stamp.generation,
				  .kind = (uint8_t)kind,
				  .exporter_gone = resolved->exporter_gone };
	uint32_t stack = cl_stack_write(true);

	find_free(resolved, &about);
	cl_happened(cl_observes() ? CL_FINDING_OPENED_AFTER_FREE : CL_FINDING_STALE_REFUSED, &about, stack);
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

void cl_open_say_namesake(const struct cl_resolved *resolved)
{
	cl_log_once(CL_LOG_WARN,
		    "the driver does not open an event of process %u, whose exporter file is %06x: this "
		    "process has the number %u, too, in another PID namespace, so the driver takes the two for "
		    "one. Give them different numbers, for example by one PID namespace for both containers "
		    "(docker run --pid=container:NAME, shareProcessNamespace in Kubernetes). Memory is not "
		    "affected",
		    resolved->pid, resolved->stamp.file_id, resolved->pid);
}

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
 * Returns true if the block ended with its exporter's context.  What we have of it stays ours.  It
 * may be opened again if the driver returns the mapping that we have; else it has opened another
 * block.
 */
static bool is_orphaned(const struct cl_hold *hold)
{
	return cl_life_state(cl_record_life(&hold->peer->region, cl_hold_record(hold))) == CL_ORPHANED;
}

/* Warns that an open is not protected, because the exporter's file is not where we look. */
static void say_unprotected(enum cl_sight sight)
{
	unsigned int user = geteuid(), was = cl_self.user;

	if (sight == CL_OUT_OF_SIGHT)
		cl_log_once(CL_LOG_WARN,
			    "this process does not see the directory of exporter files any more (chroot?): what "
			    "it opens from now on of exporters that it has not met is not protected, as without "
			    "culimbo, and may be of one that has ended");
	else if (user != was)
		/* e.g. a process that gave up root's rights can't read root's files */
		cl_log_once(CL_LOG_WARN,
			    "this process began to share as user %u and is user %u now: what it opens of user "
			    "%u's exporters that it has not met is not protected, as without culimbo, and may be "
			    "of one that has ended",
			    was, user, was);
	else
		cl_log_once(CL_LOG_WARN,
			    "this program opened something that a process under culimbo exported, but found no exporter "
			    "file of it: it is another user's, or has another CULIMBO_DIR or /dev/shm. What is "
			    "imported so is not protected, as without culimbo");
}

/* Fills @about in, of an open of a late hold, which is told of once. */
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

/* @about has what was opened after its exporter had freed it. */
static __attribute__((noinline, cold)) void tell_late(const struct cl_resolved *resolved,
						      struct cl_about *about, uint32_t stack)
{
	find_free(resolved, about);
	cl_happened(CL_FINDING_OPENED_AFTER_FREE, about, stack);
}

/*
 * Returns true if what the driver has opened for @o may be given to the program.  The pool of a block
 * that was imported lives on when its exporter has ended, and nobody uses its memory again (measured).
 */
static inline bool is_good_locked(const struct cl_opening *o, const struct cl_resolved *resolved,
				  enum cl_kind kind, const struct cl_mapping *newest)
{
	bool there;

	if (is_open(newest, o->hold))
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
	struct cl_mapping *newest, *mapping = NULL;
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
	newest = cl_mapping_find_locked(kind, key);
	/* an unmanaged import (another directory, or no culimbo) cannot be checked */
	if (o->hold)
		there = is_good_locked(o, resolved, kind, newest);
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
		mapping = cl_mapping_add_locked(kind, key, newest, o, resolved->pid);
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
		tell_late(resolved, &about, o->stack);
	if (__builtin_expect(!o->hold, 0)) {
		if (o->unmanaged)
			cl_count(unmanaged_imports);
		if (o->sight != CL_HERE)
			say_unprotected(o->sight);
	}
	return true;
}

bool cl_open_end(struct cl_opening *o, const struct cl_resolved *resolved, enum cl_kind kind, uint64_t key)
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
