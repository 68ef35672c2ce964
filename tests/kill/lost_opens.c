/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A planted fault: shm/record.c, but a count of opens has no end.  The 65,536th open makes it 0, as if
 * nobody had opened the block.
 */
#define cl_record_opened cl_record_opened_as_it_is
#include "shim/shm/record.c"
#undef cl_record_opened
void cl_record_opened(struct cl_region *region, uint32_t record);

void cl_record_opened(struct cl_region *region, uint32_t record)
{
	atomic_fetch_add(&region->record[record].opens, 1);
}
