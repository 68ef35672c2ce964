/* SPDX-License-Identifier: Apache-2.0 */
/* The forms that `culimbo trace` can write; each is in its own file. */
#ifndef CU_WRITERS_H
#define CU_WRITERS_H

#include <stdio.h>

#include "tools/trace/trace.h"

/* perfetto.c: JSON for ui.perfetto.dev and chrome://tracing. */
void cu_trace_write_json(FILE *out, const struct cu_trace *t);
/* page.c: a page for any browser, page.html with its data. */
void cu_trace_write_html(FILE *out, const struct cu_trace *t);
/* summary.c: text.  Returns 0 or -ENOMEM. */
int cu_trace_write_text(FILE *out, const struct cu_trace *t);

#endif
