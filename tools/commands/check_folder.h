/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of one `culimbo check`: what CMD's processes write goes there, and it is gone afterwards. */
#ifndef CU_CHECK_FOLDER_H
#define CU_CHECK_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/common/cli.h"

struct cu_check_folder {
	char path[128];	   /* ours */
	char reports[160]; /* in it */
	bool own_limbo;	   /* the exporter files are in it too */
	int lock;	   /* of its file "lock", as long as this process lives */
};

/*
 * Makes it.  With @limbo_too it is also for exporter files: sets CULIMBO_DIR where it is not set.
 * Returns false after a complaint.
 */
bool cu_check_folder_make(const struct cu_command *command, struct cu_check_folder *f, bool limbo_too);
/* Removes it with all that is in it, also if it was made only in part. */
void cu_check_folder_remove(const struct cu_check_folder *f);

/*
 * Calls @each with each folder of this user whose `culimbo check` has ended without removing it, so
 * that nobody needs it: its path, the memory that its files take, and whether it was
 * removed, which is tried if @remove.  A folder in which some process still shares is none of these.
 */
void cu_check_folders_left(bool remove, void (*each)(void *data, const char *path, uint64_t bytes, bool removed),
			   void *data);

#endif
