/* SPDX-License-Identifier: Apache-2.0 */
/* Copies a region in memory into a file: see region.h. */
#include <string.h>

#include "shim/shm/region.h"

/* Copies the first @n entries of a part, of @size bytes each, to @file, whose @count counts them. */
static void move_part(struct cl_region *file, const struct cl_region *memory, uint64_t at, uint64_t size,
		      _Atomic uint32_t *count, uint32_t n)
{
	uint64_t bytes = n * size;

	if (!n || cl_region_get(file, at, (bytes + CL_PAGE - 1) / CL_PAGE * CL_PAGE))
		return;
	memcpy(cl_region_at(file, at), cl_region_at(memory, at), bytes);
	/* release: a reader that sees the count reads whole entries */
	atomic_store_explicit(count, n, memory_order_release);
}

void cl_region_move_from_memory(struct cl_region *file, struct cl_region *memory)
{
	struct cl_header *to = file->header, *from = memory->header;

	/*
	 * copies modules first, then stacks, then findings, since each names the one before it; the counts of
	 * findings name none of these
	 */
	for (unsigned int kind = 0; kind < CL_FINDING_KINDS; kind++)
		to->finding_counts[kind] = from->finding_counts[kind];
	move_part(file, memory, CL_AT_MODULES, sizeof(struct cl_module), &to->modules, from->modules);
	move_part(file, memory, CL_AT_STACKS, 8, &to->stack_words, from->stack_words);
	move_part(file, memory, CL_AT_FINDINGS, sizeof(struct cl_finding), &to->findings, from->findings);
	for (uint32_t i = 0; i < from->devices; i++) {
		memcpy(to->device[i].uuid, from->device[i].uuid, sizeof to->device[i].uuid);
		to->device[i].ordinal = from->device[i].ordinal;
	}
	/* release: a reader that sees the count sees the UUIDs */
	atomic_store_explicit(&to->devices, from->devices, memory_order_release);
	cl_region_unmap_report_data(memory);
}
