/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CU_WHERE_H
#define CU_WHERE_H

#include <stddef.h>

/* Finds culimbo's own files beside this executable, built or installed. */
enum cu_file { CU_LIBRARY, CU_SIMULATED_DRIVER };

/*
 * Stores the absolute path of @file in @path of @size bytes.  Returns 0, or -ENOENT
 * (then @path is where it was expected), or another -errno.
 */
int cu_where(enum cu_file file, char *path, size_t size);

#endif
