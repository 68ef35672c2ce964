/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of one `culimbo check`: see check_folder.h. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/commands/check_folder.h"

bool cu_check_folder_make(const struct cu_command *command, struct cu_check_folder *f, bool limbo_too)
{
	char limbo[160];

	snprintf(f->path, sizeof(f->path), "%s/culimbo-check-XXXXXX",
		 access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
	if (!mkdtemp(f->path)) {
		cu_error(command, "%s: %s", f->path, strerror(errno));
		return false;
	}
	snprintf(f->reports, sizeof(f->reports), "%s/reports", f->path);
	snprintf(limbo, sizeof(limbo), "%s/limbo", f->path);
	f->own_limbo = limbo_too && !getenv("CULIMBO_DIR");
	if (mkdir(f->reports, 0700) || (f->own_limbo && mkdir(limbo, 0700))) {
		cu_error(command, "%s: %s", f->path, strerror(errno));
		return false;
	}
	return !f->own_limbo || !setenv("CULIMBO_DIR", limbo, 1);
}

static void empty(const char *path)
{
	DIR *dir = opendir(path);
	const struct dirent *d;

	while (dir && (d = readdir(dir)) != NULL)
		if (d->d_name[0] != '.')
			unlinkat(dirfd(dir), d->d_name, 0);
	if (dir)
		closedir(dir);
	rmdir(path);
}

void cu_check_folder_remove(const struct cu_check_folder *f)
{
	char limbo[160];

	snprintf(limbo, sizeof(limbo), "%s/limbo", f->path);
	empty(f->reports);
	if (f->own_limbo)
		empty(limbo);
	rmdir(f->path);
}
