/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CU_BATCH_H
#define CU_BATCH_H

#include "tools/common/table.h"

/* Prints @times tables (< 0: endlessly), @delay ns apart.  Returns the exit status. */
int cu_top_batch(const struct cu_command *command, const struct cu_format *format, long long times,
		 uint64_t delay);

#endif
