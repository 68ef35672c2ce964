/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of one `culimbo check`.  CMD's processes write into it; afterwards it is removed. */
#ifndef CU_CHECK_FOLDER_H
#define CU_CHECK_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/common/cli.h"

struct cu_check_folder {
	char path[128];	   /* the folder */
	char reports[160]; /* the folder of reports in it */
	bool own_limbo;	   /* it has the exporter files as well */
	int lock;	   /* of its file "lock", as long as this process lives */
};

/*
 * Makes the folder.  With @limbo_too it is for exporter files as well, and CULIMBO_DIR is set to
 * it unless it is set already.  Returns false after an error message.
 */
bool cu_check_folder_make(const struct cu_command *command, struct cu_check_folder *f, bool limbo_too);
/* Removes the folder with its contents, even if it was made only in part. */
void cu_check_folder_remove(const struct cu_check_folder *f);

/*
 * Calls @each for each folder of this user that a `culimbo check` has left behind: with its path,
 * the memory that its files take, and whether it was removed, which is tried if @remove.  It skips
 * a folder in which some process still shares.
 */
void cu_check_folders_left(bool remove, void (*each)(void *data, const char *path, uint64_t bytes, bool removed),
			   void *data);

#endif
