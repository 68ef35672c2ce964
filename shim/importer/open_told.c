/* SPDX-License-Identifier: Apache-2.0 */
/* What the reports and the log say of an open: see open_told.h. */
#include <unistd.h>

#include "shim/base/log.h"
#include "shim/diag/happened.h"
#include "shim/importer/open.h"
#include "shim/importer/open_told.h"
#include "shim/self/own_file.h"
#include "shim/shm/gc.h"
#include "shim/shm/liveness.h"
#include "shim/shm/view.h"

/* --------------------------------------------------------------------- findings */
/* Fills in where and when the block of @resolved was freed, if its exporter's file still says so. */
static void find_free(const struct cl_resolved *resolved, struct cl_about *about)
{
	struct cl_view view = { .now = cl_now() };
	struct cl_identity exporter = { 0 };
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
		 * The block was not freed: perhaps its exporter was killed.  Not asked of our own file, whose lock
		 * looks free to us.  A living exporter may have lost its lock, too, when its program closed all
		 * descriptors: so its lock alone does not decide.
		 */
		if (!about->when && !own) {
			about->exporter_gone |= cl_gc_judge(&view.region) == CL_DEAD;
			exporter = region->header->exporter;
		}
	}
	cl_unlock(&cl_exports_lock);
	cl_unlock(&cl_imports_lock);
	/* without a lock: /proc waits while that process changes its memory map, as its fork() does */
	if (exporter.pid && !about->exporter_gone)
		about->exporter_gone = cl_liveness_has_left(&exporter, resolved->stamp.file_id);
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

void cl_open_tell_late(const struct cl_resolved *resolved, struct cl_about *about, uint32_t stack)
{
	find_free(resolved, about);
	cl_happened(CL_FINDING_OPENED_AFTER_FREE, about, stack);
}

/* ---------------------------------------------------------------------- the log */
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

void cl_open_say_unprotected(enum cl_sight sight)
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
