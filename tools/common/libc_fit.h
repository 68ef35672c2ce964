/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a program's C library is new enough for our library.
 *
 * ld.so does not leave out a preloaded library that needs a newer C library: it ends the program
 * before main().  So the command looks before it starts one.
 */
#ifndef CU_LIBC_FIT_H
#define CU_LIBC_FIT_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Returns false if @program, which @loader loads, could not be started with @library preloaded
 * because of a version of a symbol that its libraries don't have.  Then @why, of @size bytes, says
 * which, in words of ld.so.  @own_loader is the loader of this command.
 *
 * @program is a dynamic 64-bit program of this machine and not setuid.  It is not run: its loader
 * is, in the way of ldd, and only where this command's own C library is not known to be the same.
 * If in doubt it returns true.
 */
bool cu_libc_fits(const char *library, const char *program, const char *loader, const char *own_loader,
		  char *why, size_t size);

#endif
