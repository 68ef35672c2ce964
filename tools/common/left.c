/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of exporters that have ended: see left.h. */
#include "config.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "shim/shm/liveness.h"
#include "tools/common/left.h"

bool cu_left_add(struct cu_scan *scan, uint32_t process, const struct cl_view_import *import)
{
	struct cu_left *left;

	/* an import of a process without culimbo has no file, and a dead process has nothing open */
	if (!import->file_id || import->kind == CL_EVENT || scan->process[process].state == CL_DEAD)
		return true;
	if (scan->lefts == scan->left_room) {
		size_t room = 2 * scan->left_room + 16;

		left = realloc(scan->left, room * sizeof(*left));
		if (!left)
			return false;
		scan->left = left;
		scan->left_room = room;
	}
	scan->left[scan->lefts++] = (struct cu_left){ .process = process, .is = *import };
	return true;
}

/* Returns true if the exporter of @left may live, or its file tells the rest. */
static bool has_its_exporter(const struct cu_scan *scan, const struct cu_left *left, int dirfd)
{
	char name[16];

	for (size_t i = 0; i < scan->processes; i++)
		if (scan->process[i].file_id == left->is.file_id)
			return true;
	/* it may have begun to share while the files were read */
	cl_region_name(name, left->is.file_id);
	if (!faccessat(dirfd, name, F_OK, AT_SYMLINK_NOFOLLOW))
		return true;
	/* of a process in another PID namespace nobody here can ask whether its exporter lives */
	if (scan->process[left->process].elsewhere)
		return true;
	/* somebody else may have removed the file of a process that lives: that still maps it */
	return left->is.exporter_pid && cl_liveness_is_exporter(left->is.exporter_pid, left->is.file_id, false);
}

static int order(uint32_t a, uint32_t b)
{
	return (a > b) - (a < b);
}

/* By block, and for each by process. */
static int by_block(const void *x, const void *y)
{
	const struct cu_left *a = x, *b = y;
	int is = order(a->is.file_id, b->is.file_id);

	is = is ? is : order(a->is.record, b->is.record);
	is = is ? is : order(a->is.generation, b->is.generation);
	return is ? is : order(a->process, b->process);
}

static bool same_block(const struct cl_view_import *a, const struct cl_view_import *b)
{
	return a->file_id == b->file_id && a->record == b->record && a->generation == b->generation;
}

static bool same_question(const struct cu_scan *scan, const struct cu_left *a, const struct cu_left *b)
{
	return a->is.file_id == b->is.file_id && a->is.exporter_pid == b->is.exporter_pid &&
	       scan->process[a->process].elsewhere == scan->process[b->process].elsewhere;
}

void cu_left_settle(struct cu_scan *scan, int dirfd)
{
	const struct cu_left *asked = NULL;
	struct cu_left *left = scan->left;
	bool has_exporter = false;
	size_t n = 0;

	if (scan->lefts)
		qsort(left, scan->lefts, sizeof(*left), by_block);
	for (size_t i = 0; i < scan->lefts; i++) {
		struct cu_left is = left[i];
		bool same;

		/* many imports are of one exporter, and each question reads its /proc/PID/maps */
		if (!asked || !same_question(scan, asked, &is))
			has_exporter = has_its_exporter(scan, &is, dirfd);
		asked = &left[i];
		same = n && same_block(&left[n - 1].is, &is.is);
		/* a process that has it open at several addresses holds one block, as in an exporter's file */
		if (has_exporter || (same && left[n - 1].process == is.process))
			continue;
		is.again = same;
		scan->process[is.process].pins++;
		scan->process[is.process].pin_bytes += is.is.size;
		left[n++] = is;
	}
	scan->lefts = n;
}

bool cu_left_has(const struct cu_scan *scan, uint32_t process, const struct cl_view_import *import)
{
	const struct cu_left one = { .process = process, .is = *import };

	return scan->lefts && bsearch(&one, scan->left, scan->lefts, sizeof(one), by_block);
}
