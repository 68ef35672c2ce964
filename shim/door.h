/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard with which a function begins that preload/ calls.  It has five forms:
 * - CL_DOOR: no cancellation, a reset after a fork, the start of sharing, and the collector's work.
 * - CL_DOOR_FAST: the part of it that the fast half of an export needs.
 * - CL_DOOR_FAST_OF_ALL and CL_DOOR_FAST_UNCANCELLED: the same whether the process shares or not, for the calls about
 *   virtual memory.
 * - CL_GUARD (self/self.h): CL_DOOR without sharing and without the collector's work, for the ends of
 *   contexts, green contexts, and the program's callbacks.
 *
 * All functions that begin otherwise are these (tests/house/ checks that):
 * - Some first read an atomic word, or ask the driver, and pass a guard only if there is more to do:
 *   cl_memory_free(), cl_memory_free_async(), cl_memory_allocates(), cl_unshared_event_destroy(), cl_async_alloc()
 *   and cl_async_alloc_from().
 * - Some use nothing but atomics: cl_context_last(), cl_gate_drop_references(), cl_gate_drop_references_and_wait(),
 *   cl_descriptor_created(), cl_async_after() and cl_trace_begin().
 * - Some begin or end a pair of gate.h, around the driver's call: cl_context_call_begin() and cl_context_call_end(),
 *   cl_context_creation_begin() and cl_context_creation_end(), cl_primary_release_begin(); or are the pair of
 *   context_end.h, cl_context_end_begin() and cl_context_end_done(), whose work has CL_GUARD.  From the first to the
 *   second the thread is not cancelled (cl_cancel_disable()).  Calls beside others are an exception, because the end
 *   of their thread ends them: cl_retain_beside_begin(), cl_release_beside_begin() and cl_beside_end().
 * - cl_primary_ended_past_us() only does what cl_context_end_done() does, which has CL_GUARD, and calls a function on
 *   atomics.
 * - cl_trace_allocated() and cl_trace_freed() add a record to the trace by atomics.  The first record of a process
 *   makes the trace's file, within CL_UNCANCELLED.
 * - cl_outlive_watch_forks() registers functions that run before each fork and in the child, within CL_UNCANCELLED.
 * - cl_process_end() has CL_UNCANCELLED: a child that has its parent's memory must change nothing when it ends.
 * - cl_options_read(), cl_driver_find(), cl_log() and cl_trace_now() take no lock, and are there before all the rest.
 */
#ifndef CL_DOOR_H
#define CL_DOOR_H

#include "shim/life.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/exporter.h"
#include "shim/reclaim/callbacks.h"
#include "shim/self/self.h"

/* Does the call make the process one that shares (TO_SHARE), or not (OF_SHARERS)? */
enum cl_door { CL_DOOR_TO_SHARE, CL_DOOR_OF_SHARERS };

/*
 * Stands at the top of a function that a hook calls.  No lock may be held.  Declares bool @shares.
 * It is false with CL_DOOR_TO_SHARE under CULIMBO_DISABLE or where the driver does not work, and with
 * CL_DOOR_OF_SHARERS in a child that was forked without fork handlers and has nothing of what its
 * parent shared.  Then the function only calls the driver.
 *
 * Such a child first forgets its parent's state.  Until the function returns, the thread can't be
 * cancelled, and then errno is what it was before (CL_UNCANCELLED).  If no thread does the
 * collector's work, that is done when the function returns.  Done earlier, it could
 * take the block of this very call from the limbo and hide a misuse.
 */
#define CL_DOOR(shares, which)                                                    \
	__attribute__((cleanup(cl_door_leave), unused))                           \
	struct cl_cancel_state cl_door = cl_cancel_state_disable();               \
	__attribute__((unused)) bool shares = cl_door_enter(which)

static inline bool cl_door_enter(enum cl_door which)
{
	return which == CL_DOOR_TO_SHARE ? cl_self_start() : cl_guard_enter();
}

static inline void cl_door_leave(const struct cl_cancel_state *state)
{
	/* a free-memory callback runs within another door of this thread, which does the work later */
	if (__builtin_expect(cl_collector_is_inline(&cl_exporter.collector), 0) && !cl_callbacks_inside())
		cl_collector_called(&cl_exporter);
	cl_cancel_state_restore(state);
}

/*
 * Stands at the top of the fast half of an export.  Until the function returns, its thread is not
 * cancelled between the driver's answer and our record of it.  Declares bool @passes.  If that is false,
 * the function goes the long way, behind CL_DOOR: only that begins to share, traces, forgets the state
 * of a parent process, and does the collector's work.
 */
#define CL_DOOR_FAST(passes)                                                      \
	CL_CANCELLED_LATER;                                                       \
	bool passes = cl_door_is_fast()

/*
 * As CL_DOOR_FAST, but it does not look whether the process shares or traces.  For functions that pass no cancellation
 * point while they have a lock, and that change errno only where memory runs out.  The driver's call may be a
 * cancellation point: if the thread ends there, what stays in our tables must do no harm.  At worst some memory of ours is
 * lost, and the program's cannot be shared any more.
 */
#define CL_DOOR_FAST_OF_ALL(passes)                                               \
	CL_CANCELLED_LATER;                                                       \
	bool passes = cl_door_is_fast_of_all()

/*
 * As CL_DOOR_FAST_OF_ALL, but the thread cannot be cancelled until the function returns, not even in the driver's call.
 * The function leaves errno as it was.
 */
#define CL_DOOR_FAST_UNCANCELLED(passes)                                          \
	CL_UNCANCELLED;                                                           \
	bool passes = cl_door_is_fast_of_all()

static inline bool cl_door_is_fast_of_all(void)
{
	return !cl_self_is_copy() && !cl_collector_is_inline(&cl_exporter.collector);
}

static inline bool cl_door_is_fast(void)
{
	return cl_watched() == CL_SHARES && cl_door_is_fast_of_all();
}

#endif
