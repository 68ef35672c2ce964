/* SPDX-License-Identifier: Apache-2.0 */
/* What a handle names: whose block or event, and whether it may be opened. */
#ifndef CL_LOOKUP_H
#define CL_LOOKUP_H

#include "shim/importer/holds.h"
#include "shim/self/self.h"

/* A handle, and what was made out of it. */
struct cl_resolved {
	uint8_t *handle;    /* the driver is to have it: as its driver made it, if it is known */
	struct cl_hold *hold;  /* taken of it, if it is known, and not our own; NULL: unmanaged */
	struct cl_stamp stamp;
	uint32_t pid;	    /* of its exporter, as the driver's handle has it */
	int err;	    /* why it may not be opened, or 0 */
	bool known;	    /* the stamp names something of an exporter that we can look at */
	bool own;	    /* ... of this process itself */
	bool exporter_gone;	    /* the stamp's file would be here, and is not */
	enum cl_sight sight; /* where that file would be, if it is not known */
	bool again;	    /* it is open here already: where from, is noted */
};

/*
 * What @handle, 64 bytes which become those for the driver, names, and the hold of it that an
 * open is to have.
 */
void cl_look_up(struct cl_resolved *resolved, void *handle, enum cl_kind kind);

#endif
