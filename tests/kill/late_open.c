/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A planted fault: shm/record.c, but an open is counted after its bit is set.  A process that is killed
 * in between leaves a hold without an open.  The exporter takes its block for one that nobody has opened.
 */
#define cl_record_hold cl_record_hold_as_it_is
#include "shim/shm/record.c"
#undef cl_record_hold
int cl_record_hold(struct cl_region *region, unsigned int slot, uint32_t record,
		   uint32_t generation, const uint8_t *handle);

int cl_record_hold(struct cl_region *region, unsigned int slot, uint32_t record,
		   uint32_t generation, const uint8_t *handle)
{
	int err = check(region, record, generation);

	if (!err)
		err = cl_region_need_word(region, slot / 64, record);
	if (!err)
		err = handshake(region, record, generation, set_bit, cl_record_unhold, slot);
	if (err)
		return err;
	cl_record_opened(region, record);
	if (cl_record_is(region, record, handle))
		return 0;
	cl_record_unhold(region, slot, record);
	return -EBADMSG;
}
