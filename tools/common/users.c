/* SPDX-License-Identifier: Apache-2.0 */
/* What processes of other users share: see users.h. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/common/users.h"

#define DEFAULTS "/dev/shm"
#define PREFIX "culimbo-"

bool cu_users_read(const struct cu_command *command, const char *text, struct cu_users *users)
{
	const struct passwd *user;
	long long number;

	*users = (struct cu_users){ .given = true, .all = !strcmp(text, "all") };
	if (users->all)
		return true;
	user = getpwnam(text);
	if (!user && !cu_number(text, &number)) {
		cu_usage_error(command, "--user: there is no user '%s'", text);
		return false;
	}
	users->uid = user ? user->pw_uid : (uid_t)number;
	return true;
}

/* Adds what user @uid shares to *scan.  Returns 0 or -errno. */
static int add_user(const struct cu_command *command, struct cu_scan *scan, uid_t uid)
{
	struct cu_scan one = { .processes = 0 };
	struct cu_process *more;
	int fd, error = 0;

	if (uid != geteuid() && seteuid(uid))
		return -errno;
	fd = cu_directory_open(command);
	if (fd >= 0)
		error = cu_scan(&one, fd, 0);
	else if (fd != -ENOENT)
		error = fd;
	if (fd >= 0)
		close(fd);
	if (geteuid() != getuid() && seteuid(getuid()))
		error = -errno;
	more = realloc(scan->process, (scan->processes + one.processes + 1) * sizeof(*more));
	if (!more) {
		cu_scan_free(&one);
		return -ENOMEM;
	}
	scan->process = more;
	for (size_t i = 0; i < one.processes; i++) {
		one.process[i].user = uid;
		one.process[i].has_user = true;
	}
	if (one.processes)
		memcpy(more + scan->processes, one.process, one.processes * sizeof(*more));
	scan->processes += one.processes;
	/* the holders of each process are now the other scan's */
	free(one.process);
	free(one.block);
	free(one.held_by);
	return error;
}

/* The default directories that belong to the user whose number they have. */
static int add_all(const struct cu_command *command, struct cu_scan *scan)
{
	DIR *dir = opendir(DEFAULTS);
	const struct dirent *d;
	int error = 0;

	while (dir && (d = readdir(dir)) != NULL && error != -ENOMEM) {
		struct stat st;
		long long uid;

		if (strncmp(d->d_name, PREFIX, strlen(PREFIX)) || !cu_number(d->d_name + strlen(PREFIX), &uid) ||
		    fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(st.st_mode) ||
		    st.st_uid != (uid_t)uid)
			continue;
		error = add_user(command, scan, (uid_t)uid);
	}
	if (dir)
		closedir(dir);
	return error == -ENOMEM ? error : 0;
}

bool cu_users_scan(const struct cu_command *command, struct cu_scan *scan, const struct cu_users *users,
		   const char *dir, int *status)
{
	int error;

	*status = CU_FAILED;
	*scan = (struct cu_scan){ .now = 0 };
	if (users->all && dir) {
		*status = cu_usage_error(command, "--user=all looks into the default directories, not into --dir");
		return false;
	}
	if (getuid() && (users->all || users->uid != getuid())) {
		cu_error(command, "--user: only root may look at what others share");
		return false;
	}
	if (users->all && unsetenv("CULIMBO_DIR"))
		return false;
	cu_directory_set(command, dir);
	error = users->all ? add_all(command, scan) : add_user(command, scan, users->uid);
	if (!error)
		return true;
	if (error != -EPERM && error != -ELOOP && error != -ENOTDIR)
		cu_error(command, "cannot look at what user %u shares: %s", (unsigned int)users->uid, strerror(-error));
	cu_scan_free(scan);
	return false;
}
