/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scans what processes of other users share, for root.
 *
 * A process trusts only its own user's directory of exporter files, since other users could have
 * put anything into theirs.  So each directory is read with the effective user id of its owner.
 * Nothing is written.
 */
#ifndef CU_USERS_H
#define CU_USERS_H

#include <sys/types.h>

#include "tools/common/scan.h"

/* The users whose processes are scanned. */
struct cu_users {
	bool given, all;
	uid_t uid;
};

/*
 * Parses a user id, a user's name or "all".  Returns false after an error message: exit with
 * CU_USAGE.
 */
bool cu_users_read(const struct cu_command *command, const char *text, struct cu_users *users);
/* Options; the first is for commands that accept "all". */
#define CU_USERS_OPTION(option)                                                       \
	{ "user", option, "UID|all", "as root: look at the processes of this user, or of all" }
#define CU_USER_OPTION(option)                                                        \
	{ "user", option, "UID", "as root: look at the processes of this user, as that user" }

/*
 * Does what cu_scan_all() does for the processes of @users, and sets their `user`; if no users are
 * given, for our own processes.  For "all" it scans the default directories.
 */
bool cu_users_scan(const struct cu_command *command, struct cu_scan *scan, const struct cu_users *users,
		   const char *dir, int flags, int *status);
/*
 * The same in two steps, for a command that scans more than once.  The first is called once.  The
 * second returns 0 or -errno; free *scan in both cases.
 */
bool cu_users_begin(const struct cu_command *command, const struct cu_users *users, const char *dir,
		    int *status);
int cu_users_look(const struct cu_command *command, struct cu_scan *scan, const struct cu_users *users,
		  int flags);
/*
 * Becomes the given user for good, for a command that opens more than a scan does.  Call it before
 * anything is opened.  Returns false after an error message, with the exit status in *status.
 */
bool cu_users_become(const struct cu_command *command, const struct cu_users *users, int *status);

#endif
