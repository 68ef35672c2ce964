/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fingerprint of a driver's handle, or of the export data of a pool's block.  The driver makes
 * these bytes, so nobody chooses two that have one fingerprint, and a fast hash is good enough: NH, the
 * hash of UMAC, which takes one multiplication for two words.
 */
#ifndef CL_FINGERPRINT_H
#define CL_FINGERPRINT_H

#include <stdint.h>
#include <string.h>

__extension__ typedef unsigned __int128 cl_product;

static inline cl_product cl_multiplied(uint64_t x, uint64_t y)
{
	return (cl_product)x * y;
}

static inline uint64_t cl_word_at(const uint8_t *bytes, unsigned int i)
{
	uint64_t word;

	/* One word at a time: the compiler would copy all of the bytes through the stack. */
	memcpy(&word, bytes + 8 * i, sizeof word);
	return word;
}

/* Returns the fingerprint of 48 @bytes and of @tail. */
static inline uint64_t cl_fingerprint(const uint8_t *bytes, uint64_t tail)
{
	/* Digits of pi. */
	cl_product sum = cl_multiplied(0x243f6a8885a308d3u, cl_word_at(bytes, 0) + 0x13198a2e03707344u) +
			 cl_multiplied(cl_word_at(bytes, 1) + 0xa4093822299f31d0u,
				       cl_word_at(bytes, 2) + 0x082efa98ec4e6c89u) +
			 cl_multiplied(cl_word_at(bytes, 3) + 0x452821e638d01377u,
				       cl_word_at(bytes, 4) + 0xbe5466cf34e90c6cu) +
			 cl_multiplied(cl_word_at(bytes, 5) + 0xc0ac29b7c97c50ddu, tail + 0x3f84d5b5b5470917u);

	return (uint64_t)sum ^ (uint64_t)(sum >> 64);
}

#endif
