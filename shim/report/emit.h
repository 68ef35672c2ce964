/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One writer for the report's two formats: text for people, and JSON Lines.
 *
 * Each fact is written by one call.  The caller gives the JSON key, and the words that stand around the
 * value in the text, so the two formats cannot differ.  Texts from other processes (names, paths, command
 * lines) are escaped in both formats.  So they cannot end a line or a JSON string, and do not reach a
 * terminal as control sequences.
 *
 * No malloc, no stdio stream, no lock: it also writes in a process that is ending.  The caller owns
 * the struct, and one thread uses it at a time.
 */
#ifndef CL_EMIT_H
#define CL_EMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of the JSON objects; it is raised when a field goes away or changes its meaning. */
#define CL_EMIT_VERSION 1u

struct cl_emit {
	int fd;
	bool json;
	bool comma;   /* something stands before the next JSON member */
	bool dry;     /* lines are counted, and not written */
	unsigned int lines;
	bool colour;  /* set by the caller: the text is for a terminal */
	bool fold;    /* set by the caller: long lines of the text are folded (fold.h) */
	int error;    /* errno of the first write that failed; 0: none did */
	/* ns: if the reader of a pipe reads nothing for so long, nothing more is written (ETIMEDOUT); 0: no limit */
	uint64_t patience;
	size_t n, line_n; /* bytes in .text and in .line */
	char text[8192];
	char line[2048]; /* the start of a line that may have to be folded */
};

/* Writes to @fd, which the caller closes after cl_emit_flush(). */
void cl_emit_begin(struct cl_emit *emit, int fd, bool json);
void cl_emit_flush(struct cl_emit *emit);

/* ------------------------------------------------------------ JSON's structure */
/* Begins {"culimbo":1,"type":@type.  One object is one line of JSON; the text has nothing of this. */
void cl_emit_line(struct cl_emit *emit, const char *type);
void cl_emit_line_end(struct cl_emit *emit);
/* Begin and end a member that is an array or an object.  @key is NULL within an array. */
void cl_emit_array(struct cl_emit *emit, const char *key);
void cl_emit_array_end(struct cl_emit *emit);
void cl_emit_object(struct cl_emit *emit, const char *key);
void cl_emit_object_end(struct cl_emit *emit);

/* ---------------------------------------------------------------- the text's words */
/* Writes to the text only.  The arguments must not come from another process: they are not escaped. */
void cl_emit_words(struct cl_emit *emit, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* The colours of the text, if emit->colour.  They hold up to CL_EMIT_PLAIN. */
enum cl_emit_colour { CL_EMIT_PLAIN, CL_EMIT_FAULT, CL_EMIT_HINT };
void cl_emit_paint(struct cl_emit *emit, enum cl_emit_colour colour);
/* The escape sequences of these colours, for code that writes text itself. */
extern const char *const cl_emit_colours[];
/* Returns true if CULIMBO_COLOR wants colours in what goes to descriptor @fd. */
bool cl_emit_wants_colour(int fd);

/* ----------------------------------------------------------------------- facts */
/*
 * Each of these functions writes one fact.  In JSON that is the member @key, or nothing if @key is NULL.  In the text
 * it is @before, the value and @after, or nothing if @before is NULL.
 */
void cl_emit_number(struct cl_emit *emit, const char *key, uint64_t value, const char *before,
		    const char *after);
/* Bytes: a number in JSON, "1.5 KiB" in the text. */
void cl_emit_bytes(struct cl_emit *emit, const char *key, uint64_t value, const char *before,
		   const char *after);
/* Nanoseconds: a number in JSON, "3.2 s" in the text. */
void cl_emit_age(struct cl_emit *emit, const char *key, uint64_t ns, const char *before,
		 const char *after);
/* "0x7f..." in both formats, since a JSON number may lose digits. */
void cl_emit_address(struct cl_emit *emit, const char *key, uint64_t value, const char *before,
		     const char *after);
/* @value is escaped in both formats. */
void cl_emit_string(struct cl_emit *emit, const char *key, const char *value, const char *before,
		    const char *after);
void cl_emit_flag(struct cl_emit *emit, const char *key, bool value);

/* Write "1.5 MiB" or "3.2 s" to @to, and return @to. */
const char *cl_emit_format_bytes(char to[32], uint64_t bytes);
const char *cl_emit_format_age(char to[32], uint64_t ns);

#endif
