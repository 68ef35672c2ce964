/* SPDX-License-Identifier: Apache-2.0 */
/* The limbo when memory is short: see press.h. */
#include "shim/limbo/exporter.h"
#include "shim/driver/devices.h"
#include "shim/limbo/inside.h"
#include "shim/limbo/press.h"
#include "shim/self/self.h"

static void add_moved(struct cl_limbo_moved *moved, const struct cl_limbo_device *of)
{
	moved->entered += of->entered;
	moved->returned += of->returned;
	moved->could_go += of->entered - of->returned - of->waits;
}

struct cl_limbo_moved cl_limbo_moved(struct cl_exporter *ex, int device)
{
	struct cl_limbo_moved moved = { .device = CL_ANY_DEVICE };

	cl_lock(&cl_exports_lock);
	moved.device = cl_device_limbo_locked(&ex->blocks.devices, ex->blocks.region, device);
	for (unsigned int i = 0; i <= CL_LIMBO_HOST; i++)
		if (i == CL_ANY_DEVICE || i == moved.device || moved.device == CL_ANY_DEVICE)
			add_moved(&moved, &ex->limbo.of[i]);
	cl_unlock(&cl_exports_lock);
	return moved;
}

uint64_t cl_limbo_returned_locked(struct cl_exporter *ex)
{
	return ex->limbo.returned;
}

/* Ends all graces of blocks that are or may be memory of @device. */
static void end_graces_of(struct cl_exporter *ex, unsigned int device, uint64_t now)
{
	struct cl_block *block, *next;

	for (unsigned int i = 0; i < ex->grace.wheels_n; i++)
		for (unsigned int b = 0; b < CL_BUCKETS && ex->grace.wheel[i].n; b++)
			CL_LIST_EACH_REMOVING (block, next, &ex->grace.wheel[i].bucket[b], struct cl_block, node)
				if (cl_limbo_may_be_of(ex, block, device))
					cl_limbo_settle(ex, block, now, true);
}

void cl_limbo_press(struct cl_exporter *ex, unsigned int device, uint64_t until)
{
	uint64_t now = cl_now();

	if (until < now + CL_PRESSED_LEAST)
		until = now + CL_PRESSED_LEAST;
	if (until > now + CL_PRESSED_MOST)
		until = now + CL_PRESSED_MOST;
	cl_lock(&cl_exports_lock);
	if (ex->limbo.pressed_until[device] < until)
		ex->limbo.pressed_until[device] = until;
	if (ex->limbo.pressed_last < until)
		ex->limbo.pressed_last = until;
	end_graces_of(ex, device, now);
	cl_unlock(&cl_exports_lock);
}

void cl_limbo_press_over(struct cl_exporter *ex, unsigned int device)
{
	cl_lock(&cl_exports_lock);
	ex->limbo.pressed_until[device] = 0;
	cl_unlock(&cl_exports_lock);
}
