/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds function, file and line of a frame of any process, even one that has ended.
 * libdw reads them from the module's file and its separate debug information.  For
 * code generated at run time they are in the map that its generator left
 * (/tmp/perf-PID.map, as `python -X perf` writes it).
 *
 * A module's file is used only if its build id is the one that the process had, so
 * a program that was rebuilt since gives no wrong names.  A build without libdw
 * knows only the maps.
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
 * The same for a report to whose text cu_symbols_add() adds names later.  It names only what cannot
 * be named then: code without a module.
 */
bool cu_symbols_resolve_early(void *data, const struct cl_view *view, const struct cl_view_frame *frame,
			      struct cl_report_symbol *symbol);

/*
 * Adds names to a report that was written without them, as by a process at its end.
 * Copies @line (with its newline) to @to and adds what is known of its frames, in
 * text and in JSON Lines.  Other lines are copied unchanged.
 */
void cu_symbols_add(struct cu_symbols *symbols, FILE *to, const char *line);

/*
 * Calls @each with the frames of @line, an object of such a report, until it returns
 * false: first with the Python frames, for which @frame has no address, then with the others
 * and what is known of them.  Code without a module has no path.
 */
void cu_symbols_each(struct cu_symbols *symbols, const char *line,
		     bool (*each)(void *data, const struct cl_view_frame *frame,
				  const struct cl_report_symbol *symbol), void *data);

#endif
