/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where our large mappings go: away from those of the program and of the driver.
 *
 * The driver gives device memory addresses that it has mapped in the process, next to its last
 * mapping.  If a file of ours lies there, the driver's next mappings move into a part of the
 * address space that has no device memory yet.  There each cuMemAlloc() of 2 MiB and more makes
 * page tables of the device, and each cuMemFree() takes them away: for 64 MiB they took 72 us
 * instead of 43, and 73 instead of 57 (measured, doc/measurements.md).
 */
#ifndef CL_MAP_PLACE_H
#define CL_MAP_PLACE_H

#include <stdint.h>
#include <sys/mman.h>

/*
 * Calls mmap() for one of 4,096 places with 512 MiB each: that of @number or, where it is taken,
 * one of the next.  They lie above the heap and below what the kernel places by itself, on x86-64
 * and on aarch64 with 48 bits.  If the address space is smaller, or several places are taken, the
 * kernel chooses another address.  A process that maps several files gives each another number.
 * Any thread.
 */
static inline void *cl_map_away(uint32_t number, size_t length, int protection, int flags, int fd)
{
	for (uint32_t tries = 0;; tries++) {
		void *place = (void *)(uintptr_t)(0x6a0000000000u + ((uint64_t)((number + tries) % 4096) << 29));
		void *at = mmap(place, length, protection, flags, fd, 0);

		if (at == place || at == MAP_FAILED || tries == 3)
			return at;
		munmap(at, length);
	}
}

#endif
