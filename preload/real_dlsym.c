/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the dlsym() functions that are not ours: see real_dlsym.h. */
#include <dlfcn.h>
#include <stdatomic.h>
#include "preload/real_dlsym.h"

/* The first version of glibc on each architecture: every later glibc still defines symbols with it. */
#if defined(__x86_64__)
#define FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FIRST_GLIBC "GLIBC_2.17"
#endif

_Atomic(cl_dlsym_fn *) cl_next_dlsym_found;
static _Atomic(cl_dlsym_fn *) real_dlsym_found;

/* A sanitizer's own library calls dlsym() before instrumented code can run. */
#if defined(__has_attribute)
#if __has_attribute(disable_sanitizer_instrumentation)
#define UNINSTRUMENTED __attribute__((disable_sanitizer_instrumentation))
#endif
#endif
#ifndef UNINSTRUMENTED
#define UNINSTRUMENTED __attribute__((no_sanitize_address, no_sanitize_thread))
#endif

/* Several threads may run this and the next function at once: all store the same address. */
UNINSTRUMENTED cl_dlsym_fn *cl_real_dlsym(void)
{
	/* relaxed, here and below: the pointer leads to code, which was there before all threads */
	cl_dlsym_fn *real = atomic_load_explicit(&real_dlsym_found, memory_order_relaxed);

	if (real)
		return real;
	/* only libc's dlsym has a version: other interposers' have none */
	real = (cl_dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", FIRST_GLIBC);
	atomic_store_explicit(&real_dlsym_found, real, memory_order_relaxed);
	return real;
}

UNINSTRUMENTED cl_dlsym_fn *cl_next_dlsym(void)
{
	cl_dlsym_fn *next = atomic_load_explicit(&cl_next_dlsym_found, memory_order_relaxed);

	if (next)
		return next;
	next = (cl_dlsym_fn *)cl_real_dlsym()(RTLD_NEXT, "dlsym");
	if (!next)
		next = cl_real_dlsym();
	atomic_store_explicit(&cl_next_dlsym_found, next, memory_order_relaxed);
	return next;
}
