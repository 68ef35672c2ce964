/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that make and end contexts, and who waits for them: the primary contexts of devices, the
 * calls of a process that does not share yet, and the one condition that all wait for.
 *
 * Functions that end in _locked want cl_exports_lock held; the others take it.
 */
#ifndef CL_GATE_H
#define CL_GATE_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/base/list.h"
#include "shim/driver/driver.h"

/*
 * Around a question to the driver for which the primary context of @device is retained
 * and released: no hooked call gives back the program's last reference to it meanwhile,
 * or its end would be ours, and unnoticed.  begin() waits until none does (a second at
 * most), no lock of ours may be held.
 */
enum { CL_ASKED_DEVICES = 64 };
void cl_gate_borrow_begin(CUdevice device);
void cl_gate_borrow_end(CUdevice device);
bool cl_gate_is_borrowed_locked(CUdevice device);
/* @by: 1, a call of the program may be ending the primary context of @device from now on, or -1, not any more. */
void cl_gate_primary_ends_locked(CUdevice device, int by);

/*
 * Waits until something of this has changed, or cl_gate_changed_locked() was called: a block
 * was let go of, too.  until(): CLOCK_MONOTONIC, ns; false: it is that late.
 */
void cl_gate_wait_locked(void);
bool cl_gate_wait_until_locked(uint64_t until);
void cl_gate_changed_locked(void);

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
struct cl_context_creation {
	struct cl_context_call call;
	CUdevice device;
	int cancel_state;
	bool begun;
};
struct cl_context_creation cl_context_creation_begin(CUdevice device);
void cl_context_creation_end(const struct cl_context_creation *creation);

/* ------------------------------------------------------------------------ the rest */
/* By who begins to share, before it notes anything: see struct cl_context_call. */
void cl_gate_watch(void);
/* Waits until @end (CLOCK_MONOTONIC, ns) at most for unwatched calls of @device; -1: for those that name none. */
void cl_gate_await_unwatched(CUdevice device, uint64_t end);
void cl_gate_forget(void); /* in a forked child */

#endif
