/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `culimbo check` says of the processes that CMD has started: those that were killed, that still run, that
 * use CUDA without culimbo.
 */
#ifndef CU_CHECK_DESCENDANTS_H
#define CU_CHECK_DESCENDANTS_H

#include "tools/commands/check_findings.h"

/* Counts them, and says a line of each that deserves one. */
void cu_check_say_descendants(struct cu_check_findings *findings);
/* For --gen-suppressions, in the place of all that check says at its end: comments. */
void cu_check_say_unsuppressed(struct cu_check_findings *findings);

#endif
