/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The full fences of the protocol between an exporter and its importers.  Both sides write, make
 * a full fence, and then read: at least one of them sees what the other wrote.  Each use
 * says which other use it pairs with.
 */
#ifndef CL_BARRIER_H
#define CL_BARRIER_H

#include <stdatomic.h>

#ifdef CL_PLANT_MISSING_FENCE /* a fault for the tests to find */
#define cl_full_fence() atomic_signal_fence(memory_order_seq_cst)
#else
#define cl_full_fence() atomic_thread_fence(memory_order_seq_cst)
#endif
/*
 * A full fence right after an atomic instruction of memory_order_seq_cst that writes.  On x86-64
 * that instruction is one already, so only the compiler is told.  Linux has the same as
 * smp_mb__after_atomic().
 */
#if defined(__x86_64__)
#define cl_full_fence_after_atomic() atomic_signal_fence(memory_order_seq_cst)
#else
#define cl_full_fence_after_atomic() cl_full_fence()
#endif

#endif
