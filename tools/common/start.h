/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How `culimbo run` and `culimbo check` start a program: with the library before
 * whatever LD_PRELOAD already holds.
 *
 * Must always hold: nobody believes to be under the library who isn't: where
 * ld.so would ignore or refuse it, CMD is not started, or a warning says so.
 */
#ifndef CU_START_H
#define CU_START_H

#include <limits.h>

#include "tools/common/cli.h"

/*
 * Finds program @name as execvp(3) does, into @path, and sets this process's
 * LD_PRELOAD (and LD_LIBRARY_PATH, for the simulated driver) for it.  Returns
 * CU_OK, or the exit status after a complaint.
 */
int cu_start_prepare(const struct cu_command *command, const char *name, bool preload, bool simulate,
		     char path[PATH_MAX]);
/* CULIMBO_SUPPRESSIONS of what is started is @file.  False, after a complaint: it cannot be read. */
bool cu_start_suppressions(const struct cu_command *command, const char *file);
/* Becomes the program at @path.  Returns the exit status after a complaint. */
int cu_start_become(const struct cu_command *command, const char *path, char **argv);

#endif
