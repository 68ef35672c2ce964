/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses at which nothing was exported, told by one bit: what a free of memory that was
 * never exported costs.  Written under cl_exports_lock.
 */
#ifndef CL_ADDRESS_FILTER_H
#define CL_ADDRESS_FILTER_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/base/table.h"

/*
 * Whether memory at @address may be a block here.  False is certain, for who has
 * a reason to believe that address is his: an export that happened before is
 * seen.  Any thread, without the lock: a few loads.
 */
bool cl_block_may_be(uint64_t address);

/* Memory at @address is exported, and is in @table, where all such blocks are. */
void cl_address_filter_add(const struct cl_table *table, uint64_t address);
void cl_address_filter_forget(void); /* in a forked child */

#endif
