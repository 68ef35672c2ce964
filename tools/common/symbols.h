/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an address meant: function, file and line of a frame of any process, also
 * of one that has ended, by libdw from the module's file and its separate debug
 * information; and of code made at run time by the map that its maker left
 * (/tmp/perf-PID.map, as `python -X perf` writes it).
 *
 * A module's file counts only when its build id is the one that the process
 * had: a program that was rebuilt since gives no wrong names.  Built without
 * libdw, only the maps are known.
 */
#ifndef CU_SYMBOLS_H
#define CU_SYMBOLS_H

#include <stdio.h>

#include "shim/report/report.h"

struct cu_symbols;
/* NULL: no memory. */
struct cu_symbols *cu_symbols_new(void);
void cu_symbols_free(struct cu_symbols *symbols);
/* A cl_report_resolve_fn; @data is the struct cu_symbols. */
bool cu_symbols_resolve(void *data, const struct cl_view *view, const struct cl_view_frame *frame,
			struct cl_report_symbol *symbol);

/*
 * The same for a report whose text is named by cu_symbols_add() later: it names only what cannot be
 * named then, code without a module.
 */
bool cu_symbols_resolve_early(void *data, const struct cl_view *view, const struct cl_view_frame *frame,
			      struct cl_report_symbol *symbol);

/*
 * Names in a report that was written without them, as a process does at its end:
 * copies @line (with its newline) to @to, with what is known of its frames added,
 * in text and in JSON Lines.  Other lines are copied as they are.
 */
void cu_symbols_add(struct cu_symbols *symbols, FILE *to, const char *line);

/*
 * Calls @each with the frames of @line, an object of such a report, that lie in a
 * module, and with what is known of them, until it returns false.  Before them it
 * calls it with the Python frames, for which @frame has no path.
 */
void cu_symbols_each(struct cu_symbols *symbols, const char *line,
		     bool (*each)(void *data, const struct cl_view_frame *frame,
				  const struct cl_report_symbol *symbol), void *data);

#endif
