/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate to contexts: who is in the driver with which context, and which contexts are ending.
 *
 * What must hold: nothing of ours is in the driver with a context while the program's call
 * may end it.  So a thread of ours passes the gate before it goes there, and a thread of the
 * program that ends a context closes the gate, and waits until all who are inside have left.
 * A context is named by its handle, or, where that is NULL, as the primary one of a device.
 *
 * Functions that end in _locked want cl_exports_lock held; the others take it.
 */
#ifndef CL_GATE_H
#define CL_GATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "shim/base/list.h"
#include "shim/driver/driver.h"

/* Of one thread, for as long as it is inside or ends a context. */
struct cl_gate_use {
	struct cl_node node;
	CUcontext ctx; /* NULL: the primary one of @device */
	CUdevice device;
	pthread_t thread;
};

/* Whether @use is of that context. */
static inline bool cl_gate_is_of(const struct cl_gate_use *use, CUcontext ctx, CUdevice device, bool primary)
{
	return use->ctx ? use->ctx == ctx : primary && use->device == device;
}

/* Whether @ctx (@primary: of @device) is just ending, or has the address of one that is. */
bool cl_gate_ends_locked(CUcontext ctx, CUdevice device, bool primary);

/* This thread is about to be in the driver with @ctx, which does not end; and is so no more. */
void cl_gate_enter_locked(struct cl_gate_use *use, CUcontext ctx, CUdevice device);
void cl_gate_leave_locked(struct cl_gate_use *use);
/* Whether any thread is inside. */
bool cl_gate_is_used_locked(void);

/*
 * Around the program's call that may end @ctx (NULL: the primary context of @device), in one
 * thread.  close() returns when no other thread is inside with it.  open_locked() comes after
 * the call; the caller frees what it returns, without the lock.
 */
void cl_gate_close(CUcontext ctx, CUdevice device);
struct cl_gate_use *cl_gate_open_locked(CUcontext ctx, CUdevice device);

/*
 * Around a question to the driver for which the primary context of @device is retained
 * and released: no hooked call gives back the program's last reference to it meanwhile,
 * or its end would be ours, and unnoticed.  begin() waits until none does (a second at
 * most), no lock of ours may be held.
 */
enum { CL_ASKED_DEVICES = 64 };
void cl_gate_borrow_begin(CUdevice device);
void cl_gate_borrow_end(CUdevice device);

/*
 * Waits until something of this has changed, or cl_gate_changed_locked() was called: a block
 * was let go of, too.  until(): CLOCK_MONOTONIC, ns; false: it is that late.
 */
void cl_gate_wait_locked(void);
bool cl_gate_wait_until_locked(uint64_t until);
void cl_gate_changed_locked(void);

/*
 * How often a handle has come to mean another context than before: counted up before and after
 * a context ends, and with each green one that comes or goes, since the driver may give its
 * address to another.  Any thread.
 */
extern _Atomic uint32_t cl_contexts_epoch;
void cl_contexts_changed(void);

/* ------------------------------------------------------- for the hooks in preload/ */
/*
 * Around a call that takes the primary context of @device or gives it back, or (-1) counts
 * another down, or one of a device that is not known.  Unwatched: this process shares nothing
 * yet, and none of the functions below is to be called.  Should it begin to share meanwhile,
 * who ends the same context waits for cl_context_call_end() (a second at most): or it would
 * not be known which of the two was the last that had it.
 */
struct cl_context_call {
	CUdevice device;
	int cancel_state;
	bool unwatched;
};
struct cl_context_call cl_context_call_begin(CUdevice device);
void cl_context_call_end(const struct cl_context_call *call); /* when unwatched, by the same thread */

/*
 * Around a call that may make @device's primary context, watched or not.  It
 * waits (for a second at most) while another thread's call may be ending that, until that has
 * been asked about; and who ends it waits meanwhile.
 */
struct cl_context_making {
	struct cl_context_call call;
	CUdevice device;
	int cancel_state;
	bool begun;
};
struct cl_context_making cl_context_make_begin(CUdevice device);
void cl_context_make_end(const struct cl_context_making *making);

/* ------------------------------------------------------------------------ the rest */
/* By who begins to share, before it notes anything: see struct cl_context_call. */
void cl_gate_watch(void);
/* Waits until @end (CLOCK_MONOTONIC, ns) at most for unwatched calls of @device; -1: for those that name none. */
void cl_gate_await_unwatched(CUdevice device, uint64_t end);
void cl_gate_forget(void); /* in a forked child */

#endif
