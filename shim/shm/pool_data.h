/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The export data of a block of a pool (CUmemPoolPtrExportData, 64 bytes).
 *
 * The driver writes and reads bytes 0 to 47 and leaves the others as the program's buffer had them
 * (measured).  Bytes 56 to 63 get a stamp, the same as in a handle (layout.h).  Where we have put
 * none there is garbage, so bytes 48 to 55 are a check:
 *
 *   bits 0 to 21    the process number of the exporter; Linux has no larger ones
 *   bits 22 to 25   CL_POOL_VERSION, which says what the stamp means
 *   bits 26 to 63   a hash of the fingerprint of bytes 0 to 47 (fingerprint.h), of bits 0 to 25 and of
 *                   the stamp
 *
 * The check is the same in all versions, so that each can tell a stamp of another from garbage
 * (tests/unit/test_pools.c has one as an example).  It then passes the data through, and says so once.
 * The builds before the first release with pools had no version: their stamps are garbage.
 *
 * In a record, and wherever a handle is asked for, the data take the form of a handle: 8 zeros, bytes
 * 0 to 47, and the stamp or zeros.  All 48 bytes are compared then, for those of a handle that are
 * not compared are its first and last 8.  The key of a block must be all of them: in one chunk of a
 * pool they differ only in the offset (measured).
 */
#ifndef CL_POOL_DATA_H
#define CL_POOL_DATA_H

#include <string.h>
#include "shim/base/fingerprint.h"
#include "shim/shm/layout.h"

#define CL_POOL_DRIVERS 48u /* bytes that are the driver's */
#define CL_POOL_PID_BITS 22
#define CL_POOL_VERSION 1u /* changes with the meaning of bytes 56 to 63; 4 bits, not 0 */
#define CL_POOL_HEAD_BITS 26 /* number and version */

/* Returns the fingerprint of bytes 0 to 47, by which a block is known (cl_block_has_handle()): its handle has the same. */
static inline uint64_t cl_pool_fingerprint(const uint8_t data[64])
{
	return cl_fingerprint(data, 0);
}

/* @fingerprint: the fingerprint of the data; @head: bits 0 to 25. */
static inline uint64_t cl_pool_check(uint64_t fingerprint, uint32_t head, uint64_t stamp)
{
	/* odd factors lose nothing of what they multiply */
	cl_product product = cl_multiplied((fingerprint ^ stamp) + head * 0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u);
	uint64_t hash = (uint64_t)product ^ (uint64_t)(product >> 64);

	return hash << CL_POOL_HEAD_BITS | head;
}

/* Writes @stamp, of an exporter with the number @pid, into @data, with @fingerprint. */
static inline void cl_pool_put_stamp(uint8_t data[64], uint64_t fingerprint, uint64_t stamp, uint32_t pid)
{
	uint32_t head = (pid & ((1u << CL_POOL_PID_BITS) - 1)) | CL_POOL_VERSION << CL_POOL_PID_BITS;
	uint64_t check = cl_pool_check(fingerprint, head, stamp);

	memcpy(data + 48, &check, sizeof check);
	memcpy(data + 56, &stamp, sizeof stamp);
}

/* Returns the version of the stamp of @data, with @fingerprint, and sets *pid; 0: there is none. */
static inline unsigned int cl_pool_stamp_version(const uint8_t data[64], uint64_t fingerprint, uint32_t *pid)
{
	uint64_t check = cl_word_at(data, 6);
	uint32_t head = check & ((1u << CL_POOL_HEAD_BITS) - 1);

	*pid = head & ((1u << CL_POOL_PID_BITS) - 1);
	return check == cl_pool_check(fingerprint, head, cl_word_at(data, 7)) ? head >> CL_POOL_PID_BITS : 0;
}

/* Writes bytes 0 to 47 of @data to @handle in the form of a handle, without a stamp. */
static inline void cl_pool_to_handle(uint8_t handle[64], const uint8_t data[64])
{
	memset(handle, 0, 64);
	memcpy(handle + 8, data, CL_POOL_DRIVERS);
}

/* A copy of export data.  From .zeros on it is, without a stamp, in the form of a handle. */
struct cl_pool_form {
	uint8_t zeros[8], data[64];
};

static inline void cl_pool_copy(struct cl_pool_form *form, const uint8_t data[64])
{
	memset(form->zeros, 0, sizeof form->zeros);
	memcpy(form->data, data, sizeof form->data);
}

/* Returns the size of the block of @data, as this driver has it there (measured). */
static inline uint64_t cl_pool_size(const uint8_t data[64])
{
	uint64_t size;

	memcpy(&size, data + 32, sizeof size);
	return size;
}

#endif
