/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uthash, configured for the preload.  When memory runs out, uthash does not exit but leaves the
 * table pointer of the element NULL.  Keys are at most 8 bytes long.
 */
#ifndef CL_HASH_H
#define CL_HASH_H

#include <stdint.h>
#include <string.h>

/* Addresses differ in their middle bits; a multiplication brings them to the top. */
static inline uint64_t cl_hash_word(uint64_t word)
{
	return word * 0x9e3779b97f4a7c15u;
}

static inline unsigned int cl_hash(const void *key, size_t length)
{
	uint64_t word = 0;

	memcpy(&word, key, length < sizeof word ? length : sizeof word);
	return (unsigned int)(cl_hash_word(word) >> 32);
}

#define HASH_NONFATAL_OOM 1
#define HASH_FUNCTION(key, length, hash) ((hash) = cl_hash((key), (length)))
#include <uthash.h>

#endif
