/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keepers: which processes map freed blocks that an allocation lacked.
 *
 * The limbo keeps a freed block as long as another process maps it.  The driver alone keeps the memory of large ones, too,
 * and gives that of small ones and of pools out again.  So an allocation can fail that would succeed without culimbo.  Which
 * of both it is cannot be told here, so the log names who maps what at level info.
 */
#ifndef CL_KEEPERS_H
#define CL_KEEPERS_H

#include <stddef.h>
#include "shim/reclaim/pressure.h"

/*
 * An allocation of @bytes (0: not known) of device @uuid (NULL: any device) has failed, and is not tried again.
 * @others: what it has seen of the other exporters.  Logs the three processes that map most freed blocks of that device,
 * this process's and the others'; at most once in ten seconds, since a program may try in a loop.  A block that several
 * processes map counts for one of them.
 *
 * Any thread; the caller holds no lock.  Looks at the 256 oldest blocks of this process and at 4,096 records of others at
 * most, so that it takes milliseconds.  Makes no CUDA call, and never fails.  errno may change.
 */
void cl_keepers_tell(const struct cl_pressure *others, const uint8_t uuid[16], size_t bytes);

#endif
