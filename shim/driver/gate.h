/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps a primary context from ending while a thread borrows or creates it.  Counts the program's
 * references to it: UCX retains and releases it around each copy, and only the last release can end it.
 * Counts two kinds of calls that it does not watch, and the end of a context waits for both: unwatched calls
 * (.unwatched), which began before the process shared, and calls beside others, which can neither create nor
 * end the context.  Has the condition variable for all waits for contexts and blocks.
 *
 * The caller of a function that ends in _locked holds cl_exports_lock.  The other functions take
 * it, except for those on unwatched calls, on calls beside others and on references, which use atomics.
 * Fork: cl_gate_forget().
 */
#ifndef CL_GATE_H
#define CL_GATE_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/base/list.h"
#include "shim/driver/driver.h"

/*
 * A borrow of the primary context of @device: a thread of ours calls begin(), retains the context,
 * releases it, and calls end().  A hooked call that gives back the program's last reference waits
 * for the borrow: else our release would be the last one, and no hook would see the end.  begin()
 * waits for such calls under way, a second at most.  No lock of ours may be held.
 * @device is below CL_BORROW_DEVICES.
 */
enum { CL_BORROW_DEVICES = 64 };
void cl_gate_borrow_begin(CUdevice device);
void cl_gate_borrow_end(CUdevice device);
bool cl_gate_is_borrowed_locked(CUdevice device);
/* A call that may end the primary context of @device begins (@by 1) or is over (@by -1). */
void cl_gate_primary_ends_locked(CUdevice device, int by);

/*
 * Waits until a borrow has ended or another thread calls cl_gate_changed_locked(), as it does
 * when a visit, the free of a block or the end of a context is over.  May also return without a
 * change.  wait_until() returns false if the time @until (cl_now(), ns) has come, else true.
 */
void cl_gate_wait_locked(void);
bool cl_gate_wait_until_locked(uint64_t until);
void cl_gate_changed_locked(void);

/* ------------------------------------------------------- for the hooks in preload/ */
/*
 * A hook calls begin() before a call that may create or end the primary context of @device.
 * A @device of -1 stands for a call that counts another context down, or one of an unknown
 * device.  If .unwatched is true, the process shares nothing yet: the hook calls the driver and then
 * cl_context_call_end(), and does not call cl_context_end_begin().  If the process begins to share
 * meanwhile, another call that ends the same context waits for cl_context_call_end(), a second at
 * most: else it would be unknown which of the two calls ended the context.
 */
struct cl_context_call {
	CUdevice device;
	int cancel_state; /* the thread's before the call */
	bool unwatched;
};
struct cl_context_call cl_context_call_begin(CUdevice device);
void cl_context_call_end(const struct cl_context_call *call); /* only if unwatched, in the same thread */

/*
 * A call beside others: a retain or a release of the primary context of @device while the program keeps
 * another reference to it.  It can neither create nor end the context, so it takes no lock and waits for
 * nobody.  UCX makes two around each of its copies.  begin() returns CL_NOT_BESIDE if the call is none of
 * these: then the hook goes the long way, cl_context_creation_begin() or cl_primary_release_begin().  Else it
 * returns the thread's cancellation type before the call, for end().  begin() of a release counts one
 * reference less; end() counts one more if @retained.  end() must follow in the same thread, unless that is
 * cancelled in the driver: then the end of the thread ends the call.
 *
 * What must hold: the driver counts at least as many references as we do, and one more for each
 * release under way.  So a reference is counted after its retain, and no longer from the beginning of its
 * release.  The release that takes the last counted reference goes the long way, and waits until all calls
 * beside others are over, which rely on it.  A program that releases past our hooks breaks the rule.  Hence,
 * in a process that shares, the hook asks the driver after a release beside others whether the context
 * lives.  If not, it calls cl_primary_ended_past_us() before it calls end(): until then the last release waits.
 */
int cl_retain_beside_begin(CUdevice device);
int cl_release_beside_begin(CUdevice device);
void cl_beside_end(CUdevice device, int cancel_type, bool retained);
enum { CL_NOT_BESIDE = -1 };

/*
 * cl_primary_release_begin() is cl_context_call_begin() for a release that is not beside others.  It counts
 * one reference less.  For a reset and for cuCtxDetach() nobody knows which references go, so
 * cl_gate_drop_references_and_wait() drops all that were counted.  A @device of -1 stands for all devices.
 */
struct cl_context_call cl_primary_release_begin(CUdevice device);
void cl_gate_drop_references(CUdevice device);
void cl_gate_drop_references_and_wait(CUdevice device);

/*
 * A hook calls begin() before and end() after a call that may create the primary context of
 * @device.  In a process that shares, begin() waits while another thread's call may be ending that
 * context, a second at most, and a call that ends it waits for end().  In any other process the
 * call is an unwatched one.
 * @retained: the call has given the program one more reference.
 */
struct cl_context_creation {
	struct cl_context_call call;
	CUdevice device;
	int cancel_state;
	bool begun;
};
struct cl_context_creation cl_context_creation_begin(CUdevice device);
void cl_context_creation_end(const struct cl_context_creation *creation, bool retained);

/* ------------------------------------------------------------------------ the rest */
/* Ends unwatched calls: life.c calls this when the process begins to share, before anything is exported. */
void cl_gate_watch(void);
/* Waits until no unwatched call of @device (-1: that names none) is left, or @end (cl_now(), ns). */
void cl_gate_await_unwatched(CUdevice device, uint64_t end);
void cl_gate_forget(void); /* in a forked child */

#endif
