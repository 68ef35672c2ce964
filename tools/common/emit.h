/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the members of one thing, as lines for people or as one JSON object.
 * Control bytes in texts are replaced.
 */
#ifndef CU_EMIT_H
#define CU_EMIT_H

#include <stdbool.h>
#include <stdint.h>

struct cu_emit {
	bool json, bytes; /* bytes: sizes for people are plain numbers as well */
	int depth;
	bool more; /* a member was written at this depth */
};

/*
 * Begins an object or list.  @key is NULL for the outermost, and in a list.  For people it is a
 * heading.
 */
void cu_emit_open(struct cu_emit *to, const char *key, char bracket);
void cu_emit_close(struct cu_emit *to, char bracket);
/* NULL or "" becomes null in JSON, and no line for people. */
void cu_emit_text(struct cu_emit *to, const char *key, const char *text);
void cu_emit_number(struct cu_emit *to, const char *key, uint64_t number);
void cu_emit_bytes(struct cu_emit *to, const char *key, uint64_t bytes);
void cu_emit_ago(struct cu_emit *to, const char *key, uint64_t ns); /* "3s ago"; seconds */
void cu_emit_hex(struct cu_emit *to, const char *key, uint64_t number);
void cu_emit_bool(struct cu_emit *to, const char *key, bool is);

#endif
