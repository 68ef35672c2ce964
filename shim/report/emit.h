/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One writer for the report's two formats: text for people, and JSON Lines.
 *
 * Each fact is said by one call, which carries its JSON key and the words that
 * stand around it in the text; so the formats cannot drift apart.  What comes
 * from other processes (names, paths, command lines) is escaped in both: it
 * cannot end a line, a JSON string, or speak to a terminal.
 *
 * No malloc, no stdio stream, no lock: it also writes in a process that is
 * ending.  The caller gives the struct, and one thread uses it at a time.
 */
#ifndef CL_EMIT_H
#define CL_EMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of the JSON objects; goes up when a field changes its meaning or goes away. */
#define CL_EMIT_VERSION 1u

struct cl_emit {
	int fd;
	bool json;
	bool comma;   /* something stands before the next JSON member */
	int error;    /* errno of the first write that failed; 0: none did */
	/* ns: who reads nothing for so long gets no more (ETIMEDOUT); 0: all the time it takes */
	uint64_t patience;
	size_t n;
	char text[8192];
};

/* To @fd, which the caller closes after cl_emit_flush(). */
void cl_emit_begin(struct cl_emit *emit, int fd, bool json);
void cl_emit_flush(struct cl_emit *emit);

/* ------------------------------------------------------------ JSON's structure */
/* One object a line: opens {"culimbo":1,"type":@type; the text has nothing of it. */
void cl_emit_line(struct cl_emit *emit, const char *type);
void cl_emit_line_end(struct cl_emit *emit);
/* A member that is an array or an object; @key NULL: within an array. */
void cl_emit_array(struct cl_emit *emit, const char *key);
void cl_emit_array_end(struct cl_emit *emit);
void cl_emit_object(struct cl_emit *emit, const char *key);
void cl_emit_object_end(struct cl_emit *emit);

/* ---------------------------------------------------------------- the text's words */
/* Text only; the arguments are ours, never another process's. */
void cl_emit_words(struct cl_emit *emit, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* ----------------------------------------------------------------------- facts */
/*
 * Each: JSON member @key (NULL: not in JSON), and in the text @before, the
 * value, @after (@before NULL: not in the text).
 */
void cl_emit_number(struct cl_emit *emit, const char *key, uint64_t value, const char *before,
		    const char *after);
/* Bytes: a number in JSON, "1.5 KiB" in the text. */
void cl_emit_bytes(struct cl_emit *emit, const char *key, uint64_t value, const char *before,
		   const char *after);
/* Nanoseconds: a number in JSON, "3.2 s" in the text. */
void cl_emit_age(struct cl_emit *emit, const char *key, uint64_t ns, const char *before,
		 const char *after);
/* "0x7f..." in both (a JSON number may lose digits). */
void cl_emit_address(struct cl_emit *emit, const char *key, uint64_t value, const char *before,
		     const char *after);
/* Escaped in both. */
void cl_emit_string(struct cl_emit *emit, const char *key, const char *value, const char *before,
		    const char *after);
void cl_emit_flag(struct cl_emit *emit, const char *key, bool value);

/* For people, into @to: "1.5 MiB"; "3.2 s".  Return @to. */
const char *cl_emit_format_bytes(char to[32], uint64_t bytes);
const char *cl_emit_format_age(char to[32], uint64_t ns);

#endif
