/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a program's C library is new enough for culimbo's library.
 *
 * ld.so does not skip a preloaded library that needs a newer C library: it ends the program
 * before main().  So the command checks that before it starts a program.
 */
#ifndef CU_LIBC_FIT_H
#define CU_LIBC_FIT_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Returns false if @program, which @loader loads, could not be started with @library preloaded,
 * because its libraries lack a version of a symbol.  Then @why, of @size bytes, names it, in
 * ld.so's words.  @own_loader is the loader of this command.
 *
 * @program is a dynamic 64-bit program for this machine and not setuid.  It is not run.  Only its
 * loader is, as ldd does, and only if @program's C library may differ from this command's.
 * If in doubt the function returns true.
 */
bool cu_libc_fits(const char *library, const char *program, const char *loader, const char *own_loader,
		  char *why, size_t size);

#endif
