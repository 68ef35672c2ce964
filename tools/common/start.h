/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts a program for `culimbo run` and `culimbo check`, with the library as the
 * first entry of LD_PRELOAD.
 *
 * A user must never believe that a program runs under the library when it does not.
 * Where ld.so would ignore or refuse the library, CMD is not started, or a warning says so.
 */
#ifndef CU_START_H
#define CU_START_H

#include <limits.h>

#include "tools/common/cli.h"

/*
 * Finds program @name as execvp(3) does, into @path, and sets this process's
 * LD_PRELOAD (and LD_LIBRARY_PATH, for the simulated driver) for it.  Returns
 * CU_OK, or the exit status after an error message.
 */
int cu_start_prepare(const struct cu_command *command, const char *name, bool preload, bool simulate,
		     char path[PATH_MAX]);
/*
 * Warns if @argv is a shell with -c, or a command such as env(1), and the program that it is told to run
 * is statically linked: then the library sees nothing.  cu_start_prepare() warns of @argv itself.
 */
void cu_start_look_behind(const struct cu_command *command, char **argv);
/*
 * Sets CULIMBO_SUPPRESSIONS to @file for the program.  Returns false, after an error message, if
 * it cannot be read, or a line names a class that does not exist.
 */
bool cu_start_suppressions(const struct cu_command *command, const char *file);
/* Becomes the program at @path.  If that fails, returns the exit status after an error message. */
int cu_start_become(const struct cu_command *command, const char *path, char **argv);

#endif
