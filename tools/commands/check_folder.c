/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of one `culimbo check`: see check_folder.h. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/commands/check_folder.h"
#include "tools/common/scan.h"

bool cu_check_folder_make(const struct cu_command *command, struct cu_check_folder *f, bool limbo_too)
{
	char limbo[160], lock[160];

	snprintf(f->path, sizeof(f->path), "%s/culimbo-check-XXXXXX",
		 access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
	if (!mkdtemp(f->path)) {
		cu_error(command, "%s: %s", f->path, strerror(errno));
		return false;
	}
	snprintf(lock, sizeof(lock), "%s/lock", f->path);
	/* the lock ends when this process ends, in whatever way; CMD does not inherit it */
	f->lock = open(lock, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (f->lock < 0 || flock(f->lock, LOCK_EX | LOCK_NB)) {
		cu_error(command, "%s: %s", lock, strerror(errno));
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

static bool take_away(const char *path)
{
	static const char *const parts[] = { "reports", "limbo" };
	char part[160];

	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		snprintf(part, sizeof(part), "%s/%s", path, parts[i]);
		empty(part);
	}
	/* last, so that the folder is found again if the removal is killed */
	snprintf(part, sizeof(part), "%s/lock", path);
	unlink(part);
	return !rmdir(path);
}

void cu_check_folder_remove(const struct cu_check_folder *f)
{
	take_away(f->path);
}

/* ------------------------------------------------------- those of killed checks */
static uint64_t taken_by(const char *path, const char *part)
{
	char name[160];
	const struct dirent *d;
	uint64_t bytes = 0;
	struct stat st;
	DIR *dir;

	snprintf(name, sizeof(name), "%s/%s", path, part);
	dir = opendir(name);
	while (dir && (d = readdir(dir)) != NULL)
		if (!fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode))
			bytes += (uint64_t)st.st_blocks * 512;
	if (dir)
		closedir(dir);
	return bytes;
}

/* Returns true if a process still shares there: CMD may have left one running. */
static bool is_in_use(const char *path)
{
	struct cu_scan scan;
	bool living = false;
	char limbo[160];
	int fd;

	snprintf(limbo, sizeof(limbo), "%s/limbo", path);
	fd = open(limbo, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return errno != ENOENT;
	living = cu_scan(&scan, fd, 0) != 0;
	close(fd);
	for (size_t i = 0; i < scan.processes; i++)
		living |= scan.process[i].state != CL_DEAD || scan.process[i].error;
	cu_scan_free(&scan);
	return living;
}

void cu_check_folders_left(bool remove, void (*each)(void *data, const char *path, uint64_t bytes, bool removed),
			   void *data)
{
	static const char *const places[] = { "/dev/shm", "/tmp" };

	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
		DIR *dir = opendir(places[i]);
		const struct dirent *d;

		while (dir && (d = readdir(dir)) != NULL) {
			char path[128], name[160];
			struct stat st;
			int lock;

			if (strncmp(d->d_name, "culimbo-check-", 14) != 0 || strlen(d->d_name) != 20 ||
			    fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(st.st_mode) ||
			    st.st_uid != geteuid())
				continue;
			snprintf(path, sizeof(path), "%s/%.20s", places[i], d->d_name);
			snprintf(name, sizeof(name), "%s/lock", path);
			/*
			 * a folder without a lock is being made, or is an older culimbo's, which
			 * has none
			 */
			lock = open(name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
			if (lock < 0)
				continue;
			if (!flock(lock, LOCK_EX | LOCK_NB) && !is_in_use(path)) {
				uint64_t bytes = taken_by(path, "reports") + taken_by(path, "limbo");

				each(data, path, bytes, remove && take_away(path));
			}
			close(lock);
		}
		if (dir)
			closedir(dir);
	}
}
