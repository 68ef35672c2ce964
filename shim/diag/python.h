/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Python frames of the calling thread: CPython 3.8 to 3.14, without the interpreter's help.
 *
 * Any thread may call these functions: with or without the GIL, also a thread that never ran Python, in a
 * signal handler, in a forked child, and while the interpreter ends.  They call no function of Python's but
 * one that reads a thread's own variable.  They take no reference, allocate nothing and write nothing.
 * python.c says why that is safe.
 */
#ifndef CL_PYTHON_H
#define CL_PYTHON_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "shim/shm/layout.h"

/* True once cl_python_look() has found an interpreter.  It stays true. */
extern atomic_int cl_python_state;
enum { CL_PYTHON_NONE, CL_PYTHON_BEING_FOUND, CL_PYTHON_FOUND };
static inline bool cl_python_is_there(void)
{
	/* acquire: a thread that sees it set sees what was found */
	return atomic_load_explicit(&cl_python_state, memory_order_acquire) == CL_PYTHON_FOUND;
}

/*
 * Looks for an interpreter among the loaded files, if any was loaded since the last look.  May wait
 * for the loader's locks.  The file that has the interpreter is never unloaded from then on.
 */
void cl_python_look(void);

/* Where one frame stands: its code object, and the instruction as its version tells it. */
struct cl_python_place {
	uint64_t code, at;
};
struct cl_python_places {
	uint32_t n;    /* frames; 0: this thread runs no Python now, or `unread` */
	bool unread;   /* it may run Python, but its frames can't be read */
	uint64_t hash; /* of the places, and of what tells code objects at one address from each other */
	struct cl_python_place place[CL_PYTHON_FRAMES];
};
/* Reads where the innermost @max frames of this thread stand, at most CL_PYTHON_FRAMES. */
void cl_python_places(struct cl_python_places *places, unsigned int max);

/*
 * What people call a frame.  The texts are UTF-8, but for the bytes of a file's name that are not.  They are
 * cut: a function's at its end, a file's at its start.
 */
struct cl_python_name {
	char function[CL_PYTHON_TEXT + 1], file[CL_PYTHON_TEXT + 1];
	unsigned int line; /* 0: not known, also if it stands far behind the start of a long table: see python.c */
};
/* Reads the name of a place that this thread has just read.  Returns false if it can't be read. */
bool cl_python_name(const struct cl_python_place *place, struct cl_python_name *name);

/*
 * How long all reads of names may take in this process, ns.  When that time is used up, stacks say that their
 * Python frames were not read.  report_data.c, which writes the names, has this variable; tests set it.
 */
extern uint64_t cl_python_limit;

#endif
