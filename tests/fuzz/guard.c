/* SPDX-License-Identifier: Apache-2.0 */
/* Maps files with nothing on either side: see guard.h. */
#include <stddef.h>
#include <sys/mman.h>

#include "tests/fuzz/guard.h"
#undef mmap
#undef mremap
#undef munmap

#define NOTHING ((size_t)1 << 32) /* no index of 32 bits reaches past this, in bytes */

static char *nothing_with_room_for(size_t length)
{
	return mmap(NULL, length + 2 * NOTHING, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
		    0);
}

void *guarded_mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset)
{
	char *all = nothing_with_room_for(length), *in;

	(void)at;
	if (all == MAP_FAILED)
		return MAP_FAILED;
	in = mmap(all + NOTHING, length, protection, flags | MAP_FIXED, fd, offset);
	if (in == MAP_FAILED)
		munmap(all, length + 2 * NOTHING);
	return in;
}

/* The mapping always moves, whatever @flags say. */
void *guarded_mremap(void *at, size_t length, size_t new_length, int flags)
{
	char *all = nothing_with_room_for(new_length), *in;

	if (all == MAP_FAILED)
		return MAP_FAILED;
	in = mremap(at, length, new_length, flags | MREMAP_FIXED, all + NOTHING);
	if (in == MAP_FAILED) {
		munmap(all, new_length + 2 * NOTHING);
		return in;
	}
	munmap((char *)at - NOTHING, length + 2 * NOTHING);
	return in;
}

int guarded_munmap(void *at, size_t length)
{
	return munmap((char *)at - NOTHING, length + 2 * NOTHING);
}
