/* SPDX-License-Identifier: Apache-2.0 */
/* What a program asks of culimbo itself: see asked.h. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/asked.h"
#include "shim/door.h"
#include "shim/importer/mappings.h"
#include "shim/limbo/reap.h"
#include "shim/report/exit.h"
#include "shim/self/sharing.h"

/* ------------------------------------------------------------------ collecting */
static uint64_t released(const struct cl_exporter *ex)
{
	(void)ex;
	return cl_count_get(limbo_released);
}

bool cl_asked_collect(void)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	uint64_t before = cl_count_get(limbo_released), until = cl_now() + cl_options.pressure_wait.number;

	if (!shares || !cl_sharing() || cl_self.ended)
		return false;
	cl_limbo_reap(&cl_exporter);
	cl_limbo_collect_from_dying(&cl_exporter, false, until, NULL);
	/* blocks that another thread has just taken to the driver count, too */
	cl_limbo_wait_for_others(&cl_exporter, until, released, UINT64_MAX);
	cl_limbo_collect(&cl_exporter, false);
	return cl_count_get(limbo_released) != before;
}

/* ------------------------------------------------------------------- the report */
/* Copies all of @from to @to.  Returns 0 or -errno.  write(2) of libc is a point of cancellation. */
static int copy(int from, int to)
{
	char text[4096];
	ssize_t n, written;

	for (off_t at = 0; (n = pread(from, text, sizeof text, at)) > 0; at += n)
		for (ssize_t done = 0; done < n; done += written) {
			written = syscall(SYS_write, to, text + done, (size_t)(n - done));
			if (written < 0 && errno == EINTR)
				written = 0;
			if (written < 0)
				return -errno;
		}
	return n < 0 ? -errno : 0;
}

int cl_asked_report(int fd, bool json)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);
	uint64_t findings = 0;
	int memory, err;

	if (fcntl(fd, F_GETFL) < 0)
		return -errno;
	/* into memory first: the reader of @fd may be slow, and the locks must not wait for that */
	memory = (int)syscall(SYS_memfd_create, "culimbo-report", 1u /* MFD_CLOEXEC */);
	if (memory < 0)
		return -errno;
	if (shares && cl_sharing() && !cl_self.ended) {
		cl_lock(&cl_imports_lock);
		cl_lock(&cl_exports_lock);
		findings = cl_report_write_now(memory, json);
		cl_unlock(&cl_exports_lock);
		cl_unlock(&cl_imports_lock);
	} else {
		cl_report_nothing_to(memory, json);
	}
	err = copy(memory, fd);
	close(memory);
	return err ? err : findings > INT_MAX ? INT_MAX : (int)findings;
}

/* ------------------------------------------------------------------- the counts */
static void add_open(const struct cl_import *import, void *data)
{
	struct cl_asked_numbers *stats = data;

	stats->open++;
	stats->open_bytes += import->size;
}

void cl_asked_stats(struct cl_asked_numbers *stats)
{
	CL_DOOR(shares, CL_DOOR_OF_SHARERS);

	*stats = (struct cl_asked_numbers){ 0 };
	if (!shares || !cl_sharing())
		return;
	stats->exports = cl_count_get(exports);
	stats->opens = cl_count_get(imports);
	stats->closes = cl_count_get(closes);
	stats->kept = cl_count_get(limbo_entered);
	stats->returned = cl_count_get(limbo_released);
	stats->returned_bytes = cl_count_get(limbo_bytes_released);
	stats->refused = cl_count_get(findings[CL_FINDING_STALE_REFUSED]);
	stats->dead_holders = cl_count_get(dead_holders);
	stats->short_of_memory = cl_count_get(calls_short);
	for (unsigned int kind = 0; !cl_finding_is_note(kind); kind++)
		stats->findings += cl_count_get(findings[kind]);
	cl_lock(&cl_imports_lock);
	cl_imports_each(add_open, stats);
	cl_lock(&cl_exports_lock);
	stats->limbo = atomic_load_explicit(&cl_exporter.limbo.blocks, memory_order_relaxed);
	stats->limbo_bytes = cl_exporter.limbo.bytes;
	stats->held = cl_exporter.limbo.held.n;
	for (unsigned int device = 0; device < CL_LIMBO_DEVICES; device++)
		stats->held_bytes += cl_exporter.limbo.held_bytes[device];
	cl_unlock(&cl_exports_lock);
	cl_unlock(&cl_imports_lock);
}
