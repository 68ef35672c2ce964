/* SPDX-License-Identifier: Apache-2.0 */
/* These functions find out which block or event a handle names, and whether it may be opened. */
#ifndef CL_LOOKUP_H
#define CL_LOOKUP_H

#include "shim/importer/holds.h"
#include "shim/self/self.h"

/* A resolved handle: what the 64 bytes that a program wants opened name. */
struct cl_resolved {
	uint8_t *handle;    /* for the driver: as it made it if `known`, else as the program gave it */
	struct cl_hold *hold;  /* taken for this open; NULL: own, refused, pinned or unmanaged */
	struct cl_stamp stamp;
	uint32_t pid;	    /* of its exporter, as the driver's handle has it */
	int err;	    /* why it may not be opened, -errno, or 0 */
	bool known;	    /* the stamp is of an exporter whose file we have, or of our own */
	bool own;	    /* it is of our own */
	bool exporter_gone;	    /* the directory that the stamp names is here, and the file is not */
	enum cl_sight sight; /* if there is no such file here: where it would be */
	bool again;	    /* it is open here already, so the call stack is known */
};

/*
 * Resolves @handle, 64 bytes, from which it takes the stamp if that is known, and takes the hold
 * for the open.  Any thread, without a lock.
 */
void cl_look_up(struct cl_resolved *resolved, void *handle, enum cl_kind kind);
/*
 * The same for a block of a pool, whose export data are in @form, which stays as long as *resolved.
 * @form->data become what the driver made.  Returns false if they have no stamp: then nothing is known
 * of them, and they stay as they are.  So do those with a stamp of another version, of which the process is
 * known, and that the driver made the rest.
 *
 * *key is the key of their turn.  If a hold is taken, @turn is: one lock does for both.  Else @turn->key is 0.
 */
struct cl_pool_form;
struct cl_turn;
bool cl_look_up_pool(struct cl_resolved *resolved, struct cl_pool_form *form, struct cl_turn *turn, uint64_t *key);

#endif
