/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking at what processes of other users share, as root.
 *
 * A directory of exporter files is believed only by its owner, for others could have put anything
 * there.  So each is read with the effective user id of its owner.  Reads only.
 */
#ifndef CU_USERS_H
#define CU_USERS_H

#include <sys/types.h>

#include "tools/common/scan.h"

/* Whose processes are looked at. */
struct cu_users {
	bool given, all;
	uid_t uid;
};

/* Reads a user id, a user's name or "all".  Returns false after a complaint: then the status is CU_USAGE. */
bool cu_users_read(const struct cu_command *command, const char *text, struct cu_users *users);
/*
 * As cu_scan_all() without blocks, of the processes of @users, whose `user` is set.  All users'
 * processes are those in the default directories.
 */
bool cu_users_scan(const struct cu_command *command, struct cu_scan *scan, const struct cu_users *users,
		   const char *dir, int *status);

#endif
