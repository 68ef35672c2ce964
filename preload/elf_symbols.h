/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds out which addresses and symbols a loaded object has.
 *
 * Only a callback of dl_iterate_phdr() may call these functions, in any thread.  There the list of
 * objects is locked, so they must not call dlsym(): it would wait for a second lock of the
 * linker, whose holder may wait for the list.  So they read the object's own tables.
 */
#ifndef CL_ELF_SYMBOLS_H
#define CL_ELF_SYMBOLS_H

#include <link.h>
#include <stdbool.h>

/* Returns true if @address lies in @object. */
bool cl_object_holds(const struct dl_phdr_info *object, const void *address);

/* Returns true if dlsym() would find @name in @object itself. */
bool cl_object_defines(const struct dl_phdr_info *object, const char *name);

#endif
