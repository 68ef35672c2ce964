/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An exporter: what it has exported, and what it has freed that the driver has not.  A process has
 * one, cl_exporter.  Unit tests have more.
 */
#ifndef CL_EXPORTER_H
#define CL_EXPORTER_H

#include "shim/blocks/blocks.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/fence.h"
#include "shim/limbo/grace.h"
#include "shim/limbo/pool_imports.h"
#include "shim/limbo/reap.h"
#include "shim/limbo/state.h"
#include "shim/limbo/still_mapped.h"

/* What most calls read and write lies together, in some three pages: all but `reap`, and the end of `blocks`. */
struct cl_exporter {
	const _Atomic uint32_t *file_id; /* of its exporter file, 0 as long as that is not made */
	struct cl_limbo_state limbo;
	struct cl_grace grace;
	struct cl_fences fences;
	struct cl_collector collector;
	struct cl_still_mapped still_mapped;
	struct cl_pool_imports pool_imports;
	struct cl_blocks blocks;
	struct cl_reap reap;
};
/* Its memory of some MiB, all zeros at first, of which it touches only what it uses. */
struct cl_exporter_room {
	struct cl_filter_bits bits, imported;
	struct cl_wheel wheel[CL_WHEELS];
};
extern struct cl_exporter cl_exporter;

/*
 * Begins @ex as one that has exported nothing.  @region is its exporter file, whose number
 * @file_id says once it is made; @room is its alone.  What @ex had is forgotten, and its memory is
 * not freed: in a forked child another thread of the parent may have been changing it.
 */
void cl_exporter_begin(struct cl_exporter *ex, struct cl_region *region,
		       const _Atomic uint32_t *file_id, struct cl_exporter_room *room);
/* The same of this process's exporter: in a forked child. */
void cl_exporter_forget(void);

#endif
