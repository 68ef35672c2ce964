/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells by one bit that no memory at an address was exported.  So a free of memory that was
 * never exported costs a few loads.  All writers hold cl_exports_lock.
 */
#ifndef CL_ADDRESS_FILTER_H
#define CL_ADDRESS_FILTER_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/base/table.h"

/*
 * Returns false if memory at @address was certainly never exported; true: look it up under the
 * lock.  Lock-free, from any thread: an export sets its bit before its handle can reach another
 * thread.
 */
bool cl_block_may_be(uint64_t address);

/* Adds @address of exported memory, which is in @table already, as all such blocks are. */
void cl_address_filter_add(const struct cl_table *table, uint64_t address);
void cl_address_filter_forget(void); /* in a forked child */

#endif
