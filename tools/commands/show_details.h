/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints one block or one process for `culimbo show`, for people and as JSON.
 *
 * Both functions read a mapped file that may be cut meanwhile.  Call them by cu_guarded();
 * if the file was cut, what they had allocated is lost.
 */
#ifndef CU_SHOW_DETAILS_H
#define CU_SHOW_DETAILS_H

#include "tools/common/emit.h"
#include "tools/common/scan.h"
#include "tools/common/symbols.h"

struct cu_show {
	struct cu_emit *to;
	struct cl_view view;
	const struct cu_scan *scan;
	const struct cu_block *block; /* NULL: print the process */
	const struct cu_process *process;
	struct cu_symbols *symbols; /* NULL: no names, module and offset only */
	int dirfd;
};

/* @data is a struct cu_show. */
void cu_show_block(void *data);
void cu_show_process(void *data);

#endif
