/* SPDX-License-Identifier: Apache-2.0 */
/* `culimbo ps --gpus`: one line for each GPU. */
#ifndef CU_PS_GPUS_H
#define CU_PS_GPUS_H

#include "tools/common/table.h"
#include "tools/common/users.h"

/* Prints the table.  Returns the exit status, after an error message if it is not CU_OK. */
int cu_ps_gpus(const struct cu_command *command, const struct cu_format *format, const struct cu_users *users,
	       const char *dir);

#endif
