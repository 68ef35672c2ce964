/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A planted fault: report_data.c, but a part's new size is in the header before the file has the memory for
 * it.  A process that is killed in between leaves a count of entries that do not exist.
 */
#include "shim/blocks/blocks.h"

static int get_late(struct cl_region *region, uint64_t at, uint64_t length)
{
	struct cl_header *h = region->header;
	uint64_t end = at + length;

	if (at >= CL_AT_FINDINGS)
		atomic_store(&h->findings, (uint32_t)((end - CL_AT_FINDINGS) / sizeof(struct cl_finding)));
	else if (at >= CL_AT_IMPORTS)
		atomic_store(&h->imports, (uint32_t)((end - CL_AT_IMPORTS) / sizeof(struct cl_import_entry)));
	else if (at >= CL_AT_STACKS)
		atomic_store(&h->stack_words, (uint32_t)((end - CL_AT_STACKS) / 8));
	else
		atomic_store(&h->modules, (uint32_t)((end - CL_AT_MODULES) / sizeof(struct cl_module)));
	return cl_region_get(region, at, length);
}

#define cl_region_get get_late
#include "shim/diag/report_data.c"
