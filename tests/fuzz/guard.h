/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a fuzz target is built, -include adds this to shm/region.c.  The mapping of an
 * exporter file then has no neighbours, so an access outside it crashes and does not hit
 * another mapping.
 */
#ifndef CL_FUZZ_GUARD_H
#define CL_FUZZ_GUARD_H

#include <sys/mman.h>

void *guarded_mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset);
void *guarded_mremap(void *at, size_t length, size_t new_length, int flags);
int guarded_munmap(void *at, size_t length);

#define mmap guarded_mmap
#define mremap guarded_mremap
#define munmap guarded_munmap

#endif
