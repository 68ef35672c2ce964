/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One writer for what is said of one thing: lines for people, or one JSON object
 * with the same members.  Texts are cleaned of what does not belong on a terminal.
 */
#ifndef CU_EMIT_H
#define CU_EMIT_H

#include <stdbool.h>
#include <stdint.h>

struct cu_emit {
	bool json, bytes; /* bytes: sizes for people too are plain numbers */
	int depth;
	bool more; /* something stands before, at this depth */
};

/* @key NULL: the outermost, or in a list.  People see @key (if any) as a heading. */
void cu_emit_open(struct cu_emit *to, const char *key, char bracket);
void cu_emit_close(struct cu_emit *to, char bracket);
/* NULL or "": null, and no line for people. */
void cu_emit_text(struct cu_emit *to, const char *key, const char *text);
void cu_emit_number(struct cu_emit *to, const char *key, uint64_t number);
void cu_emit_bytes(struct cu_emit *to, const char *key, uint64_t bytes);
void cu_emit_ago(struct cu_emit *to, const char *key, uint64_t ns); /* "3s ago"; seconds */
void cu_emit_hex(struct cu_emit *to, const char *key, uint64_t number);
void cu_emit_bool(struct cu_emit *to, const char *key, bool is);

#endif
