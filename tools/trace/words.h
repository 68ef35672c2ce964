/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts for all forms that `culimbo trace` writes.
 *
 * Names and command lines are untrusted, so they must be escaped for the form into
 * which they are written.
 */
#ifndef CU_WORDS_H
#define CU_WORDS_H

#include <stdio.h>

#include "tools/trace/trace.h"

/* Writes a JSON string that can be part of an HTML script: without '<', '>', '&'. */
void cu_put_json_text(FILE *out, const char *text);
/* Writes it for a terminal, without control bytes. */
void cu_put_plain_text(FILE *out, const char *text);
/* Write "1.5 MiB" or "3.2 ms" into @text and return it. */
const char *cu_bytes_text(uint64_t bytes, char text[32]);
const char *cu_time_text(int64_t ns, char text[32]);
/* Returns the time from @begin to @end, without overflow for any values of a forged trace. */
int64_t cu_span_of(int64_t begin, int64_t end);
const char *cu_state_name(enum cu_trace_state state);
const char *cu_kind_name(uint8_t kind);
/* Writes a mark's name and details, in plain letters. */
const char *cu_mark_name(const struct cu_trace_mark *m);
void cu_put_mark(FILE *out, const struct cu_trace_mark *m);

#endif
