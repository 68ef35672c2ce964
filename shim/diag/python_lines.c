/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes the line tables of Python code objects: see python_lines.h. */
#include "shim/diag/python_lines.h"

static unsigned int as_line(int64_t line)
{
	return line > 0 && line <= INT32_MAX ? (unsigned int)line : 0;
}

static unsigned int line_of_lnotab(struct cl_python_bytes *bytes, int first, int offset)
{
	int64_t line = first, at = 0;
	int address, step;

	while ((address = bytes->next(bytes)) >= 0 && (step = bytes->next(bytes)) >= 0) {
		at += address;
		if (at > offset)
			break;
		line += (int8_t)step;
	}
	return as_line(line);
}

static unsigned int line_of_ranges(struct cl_python_bytes *bytes, int first, int offset)
{
	int64_t line = first, end = 0;
	int length, step;

	while ((length = bytes->next(bytes)) >= 0 && (step = bytes->next(bytes)) >= 0) {
		bool has_line = step != 0x80;

		if (has_line)
			line += (int8_t)step;
		end += length;
		if (offset < end)
			return has_line ? as_line(line) : 0;
	}
	return 0;
}

/* Reads a number of 6 bits a byte, the lowest first, whose lowest bit is its sign. */
static int64_t signed_number(struct cl_python_bytes *bytes)
{
	uint64_t number = 0;
	int byte = 0x40;

	for (unsigned int shift = 0; byte >= 0 && byte & 0x40 && shift < 36; shift += 6) {
		byte = bytes->next(bytes);
		if (byte >= 0)
			number |= (uint64_t)(byte & 0x3f) << shift;
	}
	return number & 1 ? -(int64_t)(number >> 1) : (int64_t)(number >> 1);
}

static unsigned int line_of_locations(struct cl_python_bytes *bytes, int first, int offset)
{
	enum { ONE_LINE = 10, NO_COLUMN = 13, LONG = 14, NO_LINE = 15 };
	int64_t line = first, end = 0;
	int byte = bytes->next(bytes);

	while (byte >= 0) {
		int form = byte >> 3 & 15;

		end += 2 * ((byte & 7) + 1); /* an instruction is two bytes */
		if (form == LONG || form == NO_COLUMN)
			line += signed_number(bytes);
		else if (form >= ONE_LINE && form < NO_COLUMN)
			line += form - ONE_LINE;
		if (offset < end)
			return form == NO_LINE ? 0 : as_line(line);
		/* columns follow */
		do
			byte = bytes->next(bytes);
		while (byte >= 0 && !(byte & 0x80));
	}
	return 0;
}

unsigned int cl_python_line(enum cl_python_table table, struct cl_python_bytes *bytes, int first, int offset)
{
	switch (table) {
	case CL_PYTHON_LNOTAB:
		return line_of_lnotab(bytes, first, offset);
	case CL_PYTHON_RANGES:
		return line_of_ranges(bytes, first, offset);
	case CL_PYTHON_LOCATIONS:
		return line_of_locations(bytes, first, offset);
	}
	return 0;
}
