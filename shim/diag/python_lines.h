/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The line of an instruction, from the table that a Python code object has: one decoder for each
 * of the three formats that CPython has used.
 *
 * Pure functions.  A damaged table gives a wrong line or none, and nothing is read beyond its end.
 */
#ifndef CL_PYTHON_LINES_H
#define CL_PYTHON_LINES_H

#include <stdbool.h>
#include <stdint.h>

enum cl_python_table {
	CL_PYTHON_LNOTAB,    /* to 3.9: pairs of bytes, of the address and of the line */
	CL_PYTHON_RANGES,    /* 3.10: pairs of bytes, a range of addresses and its line */
	CL_PYTHON_LOCATIONS, /* from 3.11 on: entries of several bytes, the first with its highest bit set */
};

/* A table that is read byte by byte.  next() returns -1 at its end, and where it can't be read. */
struct cl_python_bytes {
	int (*next)(struct cl_python_bytes *bytes);
};

/*
 * Returns the line of the instruction at byte @offset of a code object whose first line is @first,
 * or 0 if it has none.
 */
unsigned int cl_python_line(enum cl_python_table table, struct cl_python_bytes *bytes, int first, int offset);

#endif
