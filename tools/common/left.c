/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of exporters that have ended: see left.h. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tools/common/left.h"

bool cu_left_add(struct cu_scan *scan, uint32_t process, const struct cl_view *view,
		 const struct cl_view_import *import)
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
	left = &scan->left[scan->lefts++];
	*left = (struct cu_left){ .process = process, .is = *import };
	left->has_gpu = cu_gpu_of_device(view, import->device, left->gpu);
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
	/* somebody else may have removed the file of a process that lives */
	return !scan->process[left->process].elsewhere && left->is.exporter_pid &&
	       (!kill((pid_t)left->is.exporter_pid, 0) || errno == EPERM);
}

void cu_left_settle(struct cu_scan *scan, int dirfd)
{
	size_t n = 0;

	for (size_t i = 0; i < scan->lefts; i++) {
		struct cu_process *importer = &scan->process[scan->left[i].process];

		if (has_its_exporter(scan, &scan->left[i], dirfd))
			continue;
		importer->pins++;
		importer->pin_bytes += scan->left[i].is.size;
		scan->left[n++] = scan->left[i];
	}
	scan->lefts = n;
}

bool cu_left_has(const struct cu_scan *scan, uint32_t process, const struct cl_view_import *import)
{
	for (size_t i = 0; i < scan->lefts; i++)
		if (scan->left[i].process == process && scan->left[i].is.key == import->key &&
		    scan->left[i].is.file_id == import->file_id && scan->left[i].is.record == import->record &&
		    scan->left[i].is.generation == import->generation)
			return true;
	return false;
}
