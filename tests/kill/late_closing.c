/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A planted fault: shm/record.c, but a close writes its record to `closing` after it has cleared the bit.
 * A process that is killed in between leaves a block that no process holds and that the exporter never learns of.
 */
#define cl_record_unhold cl_record_unhold_as_it_is
#include "shim/shm/record.c"
#undef cl_record_unhold
void cl_record_unhold(struct cl_region *region, unsigned int slot, uint32_t record);

void cl_record_unhold(struct cl_region *region, unsigned int slot, uint32_t record)
{
	atomic_fetch_and(cl_region_word(region, slot / 64, record), ~bit_of(slot));
	atomic_store(&region->slot[slot].closing, record + 1);
	if (cl_life_state(cl_record_life(region, record)) >= CL_LIMBO &&
	    !cl_record_held(region, record))
		cl_record_set_ready(region, record);
	atomic_store(&region->slot[slot].closing, 0);
}
