/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives a test its own mount namespace, so that it can mount a file system and fill it.
 *
 * Who is not root gets it in a user namespace, where both ids must be mapped: on a
 * tmpfs that is mounted there nobody can make a file whose user or group is not
 * (EOVERFLOW).  The process must have one thread; there is no way back.
 */
#ifndef OWN_MOUNTS_H
#define OWN_MOUNTS_H

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

static inline bool own_mounts_write(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return written;
}

/* Makes later mounts visible only to this process and its children.  Returns 0 or -errno. */
static inline int own_mounts(void)
{
	unsigned int uid = geteuid(), gid = getegid();
	char users[64], groups[64];

	if (unshare(CLONE_NEWNS)) {
		snprintf(users, sizeof(users), "%u %u 1", uid, uid);
		snprintf(groups, sizeof(groups), "%u %u 1", gid, gid);
		if (unshare(CLONE_NEWUSER | CLONE_NEWNS) ||
		    !own_mounts_write("/proc/self/uid_map", users) ||
		    !own_mounts_write("/proc/self/setgroups", "deny") ||
		    !own_mounts_write("/proc/self/gid_map", groups))
			return -errno;
	}
	return mount("none", "/", "none", MS_REC | MS_PRIVATE, "") ? -errno : 0;
}

#endif
