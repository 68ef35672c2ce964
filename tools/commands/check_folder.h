/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of one `culimbo check`: what CMD's processes write goes there, and it is gone afterwards. */
#ifndef CU_CHECK_FOLDER_H
#define CU_CHECK_FOLDER_H

#include <stdbool.h>

#include "tools/common/cli.h"

struct cu_check_folder {
	char path[128];	   /* ours */
	char reports[160]; /* in it */
	bool own_limbo;	   /* the exporter files are in it too */
};

/*
 * Makes it.  With @limbo_too it is also for exporter files: sets CULIMBO_DIR where it is not set.
 * Returns false after a complaint.
 */
bool cu_check_folder_make(const struct cu_command *command, struct cu_check_folder *f, bool limbo_too);
/* Removes it with all that is in it, also if it was made only in part. */
void cu_check_folder_remove(const struct cu_check_folder *f);

#endif
