/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a loaded object holds and defines.
 *
 * It is read from the object's own tables, because this is asked while
 * dl_iterate_phdr() holds the list of objects still, where dlsym() would wait
 * for a lock that its holder may be waiting for us with.  Within the callback of
 * that function only; any thread.
 */
#ifndef CL_ELF_SYMBOLS_H
#define CL_ELF_SYMBOLS_H

#include <link.h>
#include <stdbool.h>

/* Whether @address lies in @object. */
bool cl_object_holds(const struct dl_phdr_info *object, const void *address);

/* Whether dlsym() would find @name in @object itself. */
bool cl_object_defines(const struct dl_phdr_info *object, const char *name);

#endif
