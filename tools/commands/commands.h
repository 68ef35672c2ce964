/* SPDX-License-Identifier: Apache-2.0 */
/* All subcommands.  Each is defined in its own file; culimbo.c has their order. */
#ifndef CU_COMMANDS_H
#define CU_COMMANDS_H

#include "tools/common/cli.h"

extern const struct cu_command cu_blocks;
extern const struct cu_command cu_check;
extern const struct cu_command cu_collect;
extern const struct cu_command cu_completion; /* hidden */
extern const struct cu_command cu_config;
extern const struct cu_command cu_doctor;
extern const struct cu_command cu_gc;
extern const struct cu_command cu_man; /* hidden */
extern const struct cu_command cu_metrics;
extern const struct cu_command cu_ps;
extern const struct cu_command cu_report;
extern const struct cu_command cu_run;
extern const struct cu_command cu_show;
extern const struct cu_command cu_trace;
extern const struct cu_command cu_top;
extern const struct cu_command cu_version;

#endif
