/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo doctor` checks whether processes that share run with another copy of the library, which may
 * be of another version: one that was installed after they began, or one that they were given by its path.
 */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/self/self.h"
#include "tools/common/scan.h"
#include "tools/common/where.h"
#include "tools/doctor/checks.h"

enum library { UNKNOWN, OURS, ANOTHER, REPLACED };

/* Finds the library that @pid has mapped.  *path, of @size bytes, becomes its path. */
static enum library library_of(pid_t pid, const struct stat *ours, char *path, size_t size)
{
	char name[32], file[4200], *line = NULL;
	enum library is = UNKNOWN;
	size_t room = 0;
	struct stat st;
	FILE *maps;

	snprintf(name, sizeof(name), "/proc/%d/maps", (int)pid);
	maps = fopen(name, "re");
	while (maps && is == UNKNOWN && getline(&line, &room, maps) > 0) {
		const char *begin = strchr(line, '/'), *last = strrchr(line, '/');
		char *deleted;

		if (!begin || strncmp(last, "/libculimbo.so", 14))
			continue;
		line[strcspn(line, "\n")] = 0;
		deleted = strstr(line, " (deleted)");
		if (deleted)
			*deleted = 0;
		snprintf(path, size, "%s", begin);
		snprintf(file, sizeof(file), "/proc/%d/root%.4000s", (int)pid, begin);
		is = deleted || stat(file, &st)						? REPLACED :
		     st.st_dev == ours->st_dev && st.st_ino == ours->st_ino ? OURS :
									      ANOTHER;
	}
	free(line);
	if (maps)
		fclose(maps);
	return is;
}

void cu_check_versions(void)
{
	static const char advice[] = "if their culimbo is another version, the two may not see what the other holds: restart them";
	unsigned int n[REPLACED + 1] = { 0 }, of_another_layout = 0;
	char ours[PATH_MAX], path[PATH_MAX], first[256] = "";
	int dirfd = cl_self_open_dir(false);
	struct cu_scan scan;
	struct stat st;

	if (dirfd < 0 || cu_where(CU_LIBRARY, ours, sizeof(ours)) || stat(ours, &st)) {
		if (dirfd >= 0)
			close(dirfd);
		return;
	}
	if (!cu_scan(&scan, dirfd, 0))
		for (size_t i = 0; i < scan.processes; i++) {
			const struct cu_process *p = &scan.process[i];
			enum library is;

			of_another_layout += p->error == -EPROTO;
			if (p->error || p->elsewhere || p->state != CL_ALIVE)
				continue;
			is = library_of((pid_t)p->who.pid, &st, path, sizeof(path));
			n[is]++;
			if ((is == ANOTHER || is == REPLACED) && !first[0])
				snprintf(first, sizeof(first), "process %" PRIu32 " with %.180s%s", p->who.pid, path,
					 is == REPLACED ? ", which was replaced since" : "");
		}
	if (first[0])
		cu_found("versions", WARN, advice, "%u of %u processes that share run with another libculimbo.so: %s",
			 n[ANOTHER] + n[REPLACED], n[ANOTHER] + n[REPLACED] + n[OURS], first);
	else if (n[OURS])
		cu_found("versions", OK, NULL, "%u process%s, with this libculimbo.so", n[OURS],
			 n[OURS] == 1 ? " shares" : "es share");
	if (of_another_layout)
		cu_found("versions", WARN, "`culimbo ps` lists them", "%u file%s of a culimbo of another version", of_another_layout,
			 of_another_layout == 1 ? "" : "s");
	cu_scan_free(&scan);
	close(dirfd);
}
