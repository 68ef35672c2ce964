/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The full fences of the protocol between an exporter and its importers: of two sides that each
 * write and then look, one sees what the other wrote.  Where each stands is said what for.
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
 * The same, right after an atomic instruction of memory_order_seq_cst that writes: of the
 * processors, x86-64 has had its full fence by that, so only the compiler is told.  (Linux has it as
 * smp_mb__after_atomic().)
 */
#if defined(__x86_64__)
#define cl_full_fence_after_atomic() atomic_signal_fence(memory_order_seq_cst)
#else
#define cl_full_fence_after_atomic() cl_full_fence()
#endif

#endif
