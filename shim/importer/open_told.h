/* SPDX-License-Identifier: Apache-2.0 */
/* What the reports and the log say of an open, for open.c.  The caller holds no lock. */
#ifndef CL_OPEN_TOLD_H
#define CL_OPEN_TOLD_H

#include "shim/importer/open.h"

/*
 * Reports that a block was opened after its exporter had freed it.  @about says which block, and @stack
 * where it was opened.
 */
__attribute__((cold)) void cl_open_tell_late(const struct cl_resolved *resolved, struct cl_about *about,
					     uint32_t stack);
/* Warns, once, that an open is not protected, because the exporter's file is not where we look. */
__attribute__((cold)) void cl_open_say_unprotected(enum cl_sight sight);

#endif
