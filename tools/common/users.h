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
/* To stand among the options; the first for commands that take "all". */
#define CU_USERS_OPTION(option)                                                       \
	{ "user", option, "UID|all", "as root: look at the processes of this user, or of all" }
#define CU_USER_OPTION(option)                                                        \
	{ "user", option, "UID", "as root: look at the processes of this user, as that user" }

/*
 * As cu_scan_all(), of the processes of @users, whose `user` is set; if none are given, of our own.
 * All users' processes are those in the default directories.
 */
bool cu_users_scan(const struct cu_command *command, struct cu_scan *scan, const struct cu_users *users,
		   const char *dir, int flags, int *status);
/*
 * The same in two steps, for a command that looks more than once.  The first is called once; the
 * second returns 0 or -errno, and *scan is to be freed in each case.
 */
bool cu_users_begin(const struct cu_command *command, const struct cu_users *users, const char *dir,
		    int *status);
int cu_users_look(const struct cu_command *command, struct cu_scan *scan, const struct cu_users *users,
		  int flags);
/*
 * Becomes the user that is given, for good: for a command that opens more than a scan does.  Before
 * anything is opened.  Returns false after a complaint, with the exit status in *status.
 */
bool cu_users_become(const struct cu_command *command, const struct cu_users *users, int *status);

#endif
