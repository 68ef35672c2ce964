/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory that this process has shared and opened again itself: see virtual_own.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shim/blocks/blocks.h"
#include "shim/exporter/ranges.h"
#include "shim/exporter/virtual_own.h"
#include "shim/limbo/exporter.h"
#include "shim/self/self.h"
#include "shim/shm/virtual_handle.h"

/* An address that this process has exported and opened again itself.  Under cl_exports_lock. */
struct own_open {
	struct cl_link link; /* its key: the address */
	uint64_t opens;
	uint64_t by; /* address of the mapping that the last handle named: all opens here end when it is unmapped */
};
static struct cl_table own_opens = CL_TABLE_BEGIN(own_opens);

void cl_virtual_own_end_locked(uint64_t address, uint64_t size)
{
	struct cl_link *link, *next;

	if (!own_opens.n)
		return;
	CL_TABLE_EACH (&own_opens, link, next) {
		struct own_open *open = (struct own_open *)(void *)link;

		if (open->by - address >= size)
			continue;
		cl_table_remove(&own_opens, link);
		free(open);
	}
}

/* Counts one more open of @address.  Returns false if there is no memory. */
static bool own_open_locked(uint64_t address, uint64_t by)
{
	struct own_open *open = cl_table_find(&own_opens, address);

	if (!open) {
		open = calloc(1, sizeof *open);
		if (!open)
			return false;
		open->link.key = address;
		cl_table_add(&own_opens, &open->link);
	}
	open->opens++;
	open->by = by;
	return true;
}

int cl_virtual_own_open(struct cl_exporter *ex, struct cl_stamp stamp, const void *handle, CUdeviceptr *dptr)
{
	struct cl_virtual_handle its;
	const struct cl_reserved *reserved;
	const struct cl_block *block;
	int err = -ESTALE;

	memcpy(&its, handle, sizeof its);
	cl_lock(&cl_exports_lock);
	block = cl_block_of_record(&ex->blocks, stamp.record);
	reserved = block && block->kind == CL_VIRTUAL && block->state == CL_BLOCK_LIVE ?
			   cl_reserved_at_locked(block->link.key) :
			   NULL;
	if (reserved && its.offset < reserved->size && cl_block_has_handle(block, handle) &&
	    cl_life_generation(cl_record_life(ex->blocks.region, stamp.record)) == stamp.generation)
		err = own_open_locked(reserved->base + its.offset, block->link.key) ? 0 : -ENOMEM;
	if (!err) {
		cl_record_opened(ex->blocks.region, stamp.record);
		*dptr = reserved->base + its.offset;
	}
	cl_unlock(&cl_exports_lock);
	return err;
}

bool cl_virtual_own_is_open(CUdeviceptr dptr)
{
	bool open;

	cl_lock(&cl_exports_lock);
	open = cl_table_find(&own_opens, dptr);
	cl_unlock(&cl_exports_lock);
	return open;
}

bool cl_virtual_own_close(CUdeviceptr dptr)
{
	struct own_open *open;
	bool found;

	cl_lock(&cl_exports_lock);
	open = cl_table_find(&own_opens, dptr);
	found = open;
	if (open && !--open->opens) {
		cl_table_remove(&own_opens, &open->link);
		free(open);
	}
	cl_unlock(&cl_exports_lock);
	return found;
}

void cl_virtual_own_forget(void)
{
	own_opens = (struct cl_table)CL_TABLE_BEGIN(own_opens);
}
