/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where our large mappings go: away from those of the program and of the driver.
 *
 * The driver gives device memory addresses that it has mapped in the process,
 * next to what was mapped last.  A file of ours that lies in between moves the
 * driver's next mappings into a part of the address space that has no device
 * memory yet, where each cuMemAlloc() of 2 MiB and more makes page tables of
 * the device and each cuMemFree() takes them away: 64 MiB took 72 us instead
 * of 43, and 73 instead of 57 (measured, doc/measurements.md).
 */
#ifndef CL_MAP_PLACE_H
#define CL_MAP_PLACE_H

#include <stdatomic.h>
#include <stdint.h>

/*
 * An address to give to mmap() as a hint, another each time, with 512 MiB after
 * it.  Above the heap and below what the kernel places by itself, on x86-64 and
 * on aarch64 with 48 bits; where something is there, or the address space is
 * smaller, the kernel takes another.  Any thread.
 */
static inline void *cl_map_place(void)
{
	static _Atomic uint32_t n;
	uint32_t at = atomic_fetch_add_explicit(&n, 1, memory_order_relaxed) % 4096;

	return (void *)(uintptr_t)(0x6a0000000000u + ((uint64_t)at << 29));
}

#endif
