/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens handles of other exporters: finds out which block or event a handle names and whether it may be
 * opened, and what is done before and after the driver's call.  The front door (shim.c, pools.c) calls
 * these functions without a lock.
 */
#ifndef CL_OPEN_H
#define CL_OPEN_H

#include "shim/importer/mappings.h"
#include "shim/self/self.h"

/* ------------------------------------------------------------- which block it is */
/* A resolved handle: what the 64 bytes that a program wants opened name. */
struct cl_resolved {
	uint8_t *handle;    /* for the driver: without the stamp if `known`, else as the program gave it */
	struct cl_hold *hold;  /* taken for this open; NULL: own, refused, pinned or unmanaged */
	struct cl_stamp stamp;
	uint32_t pid;	    /* of its exporter, as the driver's handle has it */
	int err;	    /* why it may not be opened, -errno, or 0 */
	enum cl_kind kind;  /* says where the stamp is in ->handle */
	bool known;	    /* the stamp is of our own file, or of an exporter whose file we have */
	bool own;	    /* the stamp is of our own file */
	bool exporter_gone;	    /* the directory that the stamp names is here, and the file is not */
	enum cl_sight sight; /* if there is no such file here: where it would be */
	bool again;	    /* it is open here already, so the call stack is known */
};

/*
 * Resolves @handle, 64 bytes of @kind, from which it takes the stamp if that is known (shm/handle.h), and takes the hold
 * for the open.  Any thread, without a lock.
 */
void cl_look_up(struct cl_resolved *resolved, void *handle, enum cl_kind kind);
/*
 * The same for a block of a pool, whose export data are in @form, which stays as long as *resolved.
 * @form->data become what the driver made.  Returns false if the data have no stamp: then they stay as they
 * are, and nothing is known of them.  Data with a stamp of another version stay as they are, too, and only
 * the exporter's process is known of them: then it returns true.
 *
 * *key is the key of the data's turn.  If a hold is taken, so is @turn, under the same lock.  Else @turn->key is 0.
 */
struct cl_pool_form;
struct cl_turn;
bool cl_look_up_pool(struct cl_resolved *resolved, struct cl_pool_form *form, struct cl_turn *turn, uint64_t *key);

/*
 * Returns true if the driver refuses each open of memory with these arguments, whatever the handle is, by
 * CUDA_ERROR_INVALID_VALUE.  It looks at them first, even without a context, and at one bit of the flags alone (measured).
 */
static inline bool cl_open_has_wrong_arguments(const CUdeviceptr *dptr, unsigned int flags)
{
	return !dptr || !(flags & CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

/* ------------------------------------------------ before and after the driver's call */
/* cl_open_begin() without a hold: the open is refused, unmanaged, or of a pinned block. */
CUresult cl_open_unheld(struct cl_opening *o, const struct cl_resolved *resolved, enum cl_kind kind);
/*
 * The first half of an open.  Returns CUDA_SUCCESS if the caller is to ask the driver, and then
 * to call cl_open_end() or cl_open_give_up(); else the error for the program.
 */
static inline CUresult cl_open_begin(struct cl_opening *o, const struct cl_resolved *resolved, enum cl_kind kind)
{
	*o = (struct cl_opening){ .hold = resolved->hold };
	return o->hold ? CUDA_SUCCESS : cl_open_unheld(o, resolved, kind);
}

/*
 * Returns true if the exporter of @resolved is another process with the process number of this one:
 * each has it in a PID namespace of its own.  The driver then takes the exporter for this process
 * and refuses to open (measured, CUDA 13.0).
 */
static inline bool cl_open_is_of_namesake(const struct cl_resolved *resolved)
{
	return __builtin_expect(resolved->pid == (uint32_t)cl_self.pid, 0) && resolved->known && !resolved->own;
}
/*
 * Returns @handle, memory of a namesake, with another process number: the same one for each handle
 * of that exporter, and one that no process of Linux has.  The driver opens it (measured).
 */
CUipcMemHandle cl_open_rename(const struct cl_resolved *resolved, CUipcMemHandle handle);
/* Logs, once, why the driver has refused an event of a namesake: events can't be opened so. */
void cl_open_say_namesake(const struct cl_resolved *resolved);

/*
 * The second half: the driver has opened @key.  Returns false if the caller must close it again,
 * call cl_open_give_up(), and refuse the handle.
 */
bool cl_open_end(struct cl_opening *o, const struct cl_resolved *resolved, enum cl_kind kind, uint64_t key);
/*
 * The same for a block of a pool, with @o->device set unless it is open here already.  Calls @also with
 * cl_imports_lock held when the import is added to the mappings, as @mapping; that is NULL if there was no
 * memory for it.  Does not call @also for a stale import that is let through (CULIMBO_MODE=observe).
 */
typedef void cl_open_added_fn(struct cl_mapping *mapping, void *data);
bool cl_open_pool_end(struct cl_opening *o, const struct cl_resolved *resolved, uint64_t key,
		      cl_open_added_fn *also, void *data);
/* Gives the hold back after an open that failed or is refused. */
void cl_open_give_up(const struct cl_opening *o);
/*
 * Reports a stale handle: under CULIMBO_MODE=observe as one that the driver has opened as @key, or has refused
 * with @result; else as one that we refuse.
 */
__attribute__((cold)) void cl_open_tell_stale(const struct cl_resolved *resolved, enum cl_kind kind, uint64_t key,
					     CUresult result);
/* Reports a stale handle that we refuse, and returns the driver's error for a wrong pointer. */
CUresult cl_open_refuse(const struct cl_resolved *resolved, enum cl_kind kind);

#endif
