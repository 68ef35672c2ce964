/* SPDX-License-Identifier: Apache-2.0 */
/* libsmartcols, which lays out tables for a terminal.  It is loaded at its first use: see load.h. */
#ifndef CU_SMARTCOLS_H
#define CU_SMARTCOLS_H

#include <libsmartcols.h>

#define CU_SMARTCOLS(_) \
	_(scols_line_set_data) _(scols_new_table) _(scols_print_table) _(scols_table_enable_noheadings) \
	_(scols_table_enable_raw) _(scols_table_new_column) _(scols_table_new_line) _(scols_unref_table)

struct cu_smartcols {
#define CU_POINTER(name) __typeof__(name) *name;
	CU_SMARTCOLS(CU_POINTER)
#undef CU_POINTER
};

/* Returns NULL if it is missing, with the reason in *why. */
const struct cu_smartcols *cu_smartcols(const char **why);

#endif
