/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the Python frames of a stack into the report. */
#ifndef CL_REPORT_SAY_PYTHON_H
#define CL_REPORT_SAY_PYTHON_H

#include "shim/report/report.h"

/* Returns true if module @path is the interpreter, or a library by which it calls C functions. */
bool cl_report_is_interpreter(const char *path);

/*
 * Prints the Python frames of @stack.  In the text they are numbered from @number on; in JSON they
 * are the member @key with "_python" behind it.  @view may be NULL.
 */
void cl_report_say_python(struct cl_report *report, const struct cl_view *view, uint32_t stack,
			  const char *key, unsigned int number);

/* Returns true if Python file @file is the program's own: not of the standard library, nor of an installed package. */
bool cl_report_is_own_python(const char *file);

#endif
