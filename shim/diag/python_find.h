/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interpreter that this process has loaded, and how its version lays out what python.c reads.
 * For python.c only; python.h has cl_python_look(), which fills this in, and says when it is there.
 */
#ifndef CL_PYTHON_FIND_H
#define CL_PYTHON_FIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "shim/diag/python_lines.h"

/* Where members lie: offsets in bytes. */
struct cl_python_layout {
	uint16_t state_frame;	/* in a thread's state: its innermost frame */
	bool through_cframe;	/* state_frame leads to another structure, which has the frame at cframe_frame */
	uint8_t cframe_frame;
	uint8_t frame_size;	/* how many bytes of a frame are read: all of these members lie in them */
	uint8_t frame_previous, frame_code, frame_at;
	uint8_t frame_owner;	/* 0: it has none */
	uint8_t owner_most;	/* frames of a greater owner are the interpreter's own */
	uint8_t at_unit;	/* 0: frame_at has an address; else it has an int, in units of so many bytes */
	uint16_t code_flags, code_first, code_file, code_name, code_lines, code_start;
	uint8_t ascii, compact; /* sizes of a text's head: in ASCII, and not */
	enum cl_python_table table;
};
/* The same in all versions; CODE_MOST and GUARD_MOST are sizes. */
enum {
	TYPE = 8,
	TEXT_LENGTH = 16,
	TEXT_STATE = 32,
	TEXT_KIND = 2, /* the first of three bits of its state that give its kind; one for compact and one for ASCII follow */
	BYTES_SIZE = 16,
	BYTES_TEXT = 32,
	CODE_MOST = 160,
	GUARD_MOST = 104, /* of a code object, from code_flags on */
};

/* Set once, before cl_python_is_there() is true. */
struct cl_python_interpreter {
	void *(*this_state)(void);
	void *(*running_state)(void); /* the one that has the GIL; from 3.12 on, if it is this thread's */
	int (*check)(void);	      /* NULL: this_state() is right for subinterpreters, too */
	bool is_program;	      /* the program is python */
	bool unreadable;	      /* a version or build whose structures we do not know: only this_state() is set */
	uint64_t code_type, text_type, bytes_type;
	struct cl_python_layout layout;
};
extern struct cl_python_interpreter cl_python;

/* Reads @n bytes.  Returns false, with errno as it was, if they can't be read. */
bool cl_python_read(uint64_t address, void *to, size_t n);

#endif
