/* SPDX-License-Identifier: Apache-2.0 */
/* Scans what processes of other users share: see users.h. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/common/left.h"
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

/* Grows *list from @n to @n + @more entries.  Returns the first new one; NULL: no memory. */
static void *grow(void *list, size_t n, size_t more, size_t size)
{
	void **to = list, *longer = realloc(*to, (n + more + 1) * size);

	if (!longer)
		return NULL;
	*to = longer;
	return (char *)longer + n * size;
}

/* Moves all of *one to the end of *scan.  Returns false without memory; then it has freed *one. */
static bool append(struct cu_scan *scan, struct cu_scan *one)
{
	struct cu_process *process = grow(&scan->process, scan->processes, one->processes, sizeof(*process));
	struct cu_block *block = grow(&scan->block, scan->blocks, one->blocks, sizeof(*block));
	uint16_t *held_by = grow(&scan->held_by, scan->held_by_n, one->held_by_n, sizeof(*held_by));
	struct cu_left *left = grow(&scan->left, scan->lefts, one->lefts, sizeof(*left));

	if (!process || !block || !held_by || !left) {
		cu_scan_free(one);
		return false;
	}
	for (size_t i = 0; i < one->blocks; i++) {
		block[i] = one->block[i];
		block[i].process += (uint32_t)scan->processes;
		block[i].held_at += (uint32_t)scan->held_by_n;
	}
	for (size_t i = 0; i < one->lefts; i++) {
		left[i] = one->left[i];
		left[i].process += (uint32_t)scan->processes;
	}
	if (one->processes)
		memcpy(process, one->process, one->processes * sizeof(*process));
	if (one->held_by_n)
		memcpy(held_by, one->held_by, one->held_by_n * sizeof(*held_by));
	scan->processes += one->processes;
	scan->blocks += one->blocks;
	scan->held_by_n += one->held_by_n;
	scan->lefts += one->lefts;
	cu_gpus_append(&scan->gpus, &one->gpus);
	scan->now = one->now;
	scan->self = one->self;
	/* the holders of each process now belong to *scan */
	free(one->process);
	free(one->block);
	free(one->held_by);
	free(one->left);
	return true;
}

/* Adds what user @uid shares to *scan.  Returns 0 or -errno. */
static int add_user(const struct cu_command *command, struct cu_scan *scan, uid_t uid, int flags)
{
	struct cu_scan one = { .processes = 0 };
	int fd, error = 0;

	if (uid != geteuid() && seteuid(uid))
		return -errno;
	fd = cu_directory_open(command);
	if (fd >= 0)
		error = cu_scan(&one, fd, flags);
	else if (fd != -ENOENT)
		error = fd;
	if (fd >= 0)
		close(fd);
	if (geteuid() != getuid() && seteuid(getuid()))
		error = -errno;
	for (size_t i = 0; i < one.processes; i++) {
		one.process[i].user = uid;
		one.process[i].has_user = true;
	}
	return append(scan, &one) ? error : -ENOMEM;
}

/* Scans the default directories whose owner is the user in their name. */
static int add_all(const struct cu_command *command, struct cu_scan *scan, int flags)
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
		error = add_user(command, scan, (uid_t)uid, flags);
	}
	if (dir)
		closedir(dir);
	return error == -ENOMEM ? error : 0;
}

bool cu_users_begin(const struct cu_command *command, const struct cu_users *users, const char *dir,
		    int *status)
{
	*status = CU_FAILED;
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
	return true;
}

int cu_users_look(const struct cu_command *command, struct cu_scan *scan, const struct cu_users *users,
		  int flags)
{
	*scan = (struct cu_scan){ .now = 0 };
	return users->all ? add_all(command, scan, flags) : add_user(command, scan, users->uid, flags);
}

bool cu_users_scan(const struct cu_command *command, struct cu_scan *scan, const struct cu_users *users,
		   const char *dir, int flags, int *status)
{
	int error;

	if (!users->given)
		return cu_scan_all(command, scan, dir, flags, status);
	if (!cu_users_begin(command, users, dir, status))
		return false;
	error = cu_users_look(command, scan, users, flags);
	if (!error)
		return true;
	*status = CU_FAILED;
	if (error != -EPERM && error != -ELOOP && error != -ENOTDIR)
		cu_error(command, "cannot look at what user %u shares: %s", (unsigned int)users->uid, strerror(-error));
	cu_scan_free(scan);
	return false;
}

bool cu_users_become(const struct cu_command *command, const struct cu_users *users, int *status)
{
	const struct passwd *user;

	if (!users->given)
		return true;
	if (users->all) {
		*status = cu_usage_error(command, "--user: one user; all are for `culimbo ps`, `blocks` and `metrics`");
		return false;
	}
	if (users->uid == getuid())
		return true;
	*status = CU_FAILED;
	if (getuid()) {
		cu_error(command, "--user: only root may look at what others share");
		return false;
	}
	user = getpwuid(users->uid);
	if (setgroups(0, NULL) || (user && setgid(user->pw_gid)) || setuid(users->uid)) {
		cu_error(command, "cannot become user %u: %s", (unsigned int)users->uid, strerror(errno));
		return false;
	}
	*status = CU_OK;
	return true;
}
