/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words of what `culimbo trace` writes, whichever form it has.
 *
 * Must always hold: names and command lines are other people's words, so they
 * are escaped for whatever they are written into.
 */
#ifndef CU_WORDS_H
#define CU_WORDS_H

#include <stdio.h>

#include "tools/trace/trace.h"

/* A JSON string that may also stand in an HTML script: no '<', '>', '&'. */
void cu_put_json_text(FILE *out, const char *text);
/* For a terminal: no control bytes. */
void cu_put_plain_text(FILE *out, const char *text);
/* 1.5 MiB; 3.2 ms: into @text, which is returned. */
const char *cu_bytes_text(uint64_t bytes, char text[32]);
const char *cu_time_text(int64_t ns, char text[32]);
/* From @begin to @end, whatever a forged trace has there. */
int64_t cu_span_of(int64_t begin, int64_t end);
const char *cu_state_name(enum cu_trace_state state);
const char *cu_kind_name(uint8_t kind);
/* What a mark says, as a name and details of plain letters. */
const char *cu_mark_name(const struct cu_trace_mark *m);
void cu_put_mark(FILE *out, const struct cu_trace_mark *m);

#endif
