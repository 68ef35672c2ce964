/* SPDX-License-Identifier: Apache-2.0 */
/* Says which frames of a stack the text shows: those of the program. */
#ifndef CL_SHOWN_H
#define CL_SHOWN_H

#include "shim/report/report.h"

/*
 * Finds the frames of @stack from the program's first to its main() or to its thread's start.
 * What lies in front of them (CUDA, libffi, the C library) and behind them (the C library, the
 * program's _start) is left out, unless nothing else is there.  Shown are frames *first to *end - 1.
 */
void cl_report_shown(const struct cl_report *report, const struct cl_view *view, uint32_t stack,
		     unsigned int *first, unsigned int *end);

/* Returns true if @path is of the C library or the loader. */
bool cl_report_is_c_library(const char *path);

#endif
