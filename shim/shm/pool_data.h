/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The export data of a block of a pool (CUmemPoolPtrExportData, 64 bytes).
 *
 * The driver writes and reads bytes 0 to 47 and leaves the others as the program's buffer had them
 * (measured).  Bytes 56 to 63 get a stamp, the same as in a handle (layout.h).  Where we have put
 * none there is garbage, so bytes 48 to 55 are a check:
 *
 *   bits 0 to 21    the process number of the exporter, of which Linux has no larger one
 *   bits 22 to 63   a hash of the fingerprint of bytes 0 to 47 (fingerprint.h), of that number and of
 *                   the stamp
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

/* Returns the fingerprint of bytes 0 to 47: of a block, for its handle has the same (blocks.h). */
static inline uint64_t cl_pool_print(const uint8_t data[64])
{
	return cl_fingerprint(data, 0);
}

/* @print: the fingerprint of the data. */
static inline uint64_t cl_pool_check(uint64_t print, uint32_t pid, uint64_t stamp)
{
	/* odd factors lose nothing of what they multiply */
	cl_product product = cl_multiplied((print ^ stamp) + pid * 0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u);
	uint64_t hash = (uint64_t)product ^ (uint64_t)(product >> 64);

	return hash << CL_POOL_PID_BITS | (pid & ((1u << CL_POOL_PID_BITS) - 1));
}

/* Writes @stamp, of an exporter with the number @pid, into @data, whose fingerprint is @print. */
static inline void cl_pool_put_stamp(uint8_t data[64], uint64_t print, uint64_t stamp, uint32_t pid)
{
	uint64_t check = cl_pool_check(print, pid, stamp);

	memcpy(data + 48, &check, sizeof check);
	memcpy(data + 56, &stamp, sizeof stamp);
}

/* Returns true if @data, whose fingerprint is @print, has a stamp, and sets *pid. */
static inline bool cl_pool_has_stamp(const uint8_t data[64], uint64_t print, uint32_t *pid)
{
	uint64_t check = cl_word_at(data, 6);

	*pid = check & ((1u << CL_POOL_PID_BITS) - 1);
	return check == cl_pool_check(print, *pid, cl_word_at(data, 7));
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
