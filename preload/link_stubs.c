/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exported cu* symbols, for programs that are linked with libcuda.
 *
 * What must hold: only the binding of a linked program finds them, never a
 * look-up by dlsym(), whoever makes it: a look-up must find what it finds
 * without us.  So each has the version CULIMBO_DOOR, not as its default.  glibc
 * binds a reference without a version (libcuda has none) to the first version a
 * library defines, hidden or not, but dlsym() takes only what is not hidden.
 *
 * Such a symbol, a door, is a stub (stubs_link.S) that can be patched and jumps to where its variable
 * here points.  Where it leads is found at the first call:
 *  - to the hook's stub, as a rule;
 *  - to the next library's symbol, where that is not the driver's: another
 *    interposer's.  It finds the driver by dlsym(), and so comes to the hook;
 *  - nowhere while there is no driver.  Without us the program would not have
 *    been loaded then, or would be ended by ld.so at this call, but we end no
 *    program.  It gets CUDA_ERROR_NOT_INITIALIZED: what the driver answers
 *    before cuInit(), and without a driver no cuInit() can have succeeded.  A
 *    driver too old for the call: CUDA_ERROR_NOT_FOUND, its answer to an
 *    unknown name.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>
#include "preload/environment.h"
#include "preload/hook_table.h"
#include "preload/hooks_ready.h"
#include "preload/real_dlsym.h"

static void *door_leads_to(const struct cl_hook *row)
{
	/* what the program would be bound to if we were not there */
	void *bare = cl_real_dlsym()(RTLD_NEXT, row->symbol);
	bool ready = cl_hooks_ready();
	void *real = ready ? cl_hook_real(row) : NULL;

	if (bare && bare != real)
		return bare;
	if (!real || cl_environment_disables())
		return real;
	return cl_hook_for(real);
}

/*
 * ThreadSanitizer sees no load in assembly, and so not what orders the seam before a call
 * that comes through a door.  Under it each call is a first one, in C.
 */
#if defined(__SANITIZE_THREAD__)
#define REMEMBERS 0
#elif defined(__has_feature)
#define REMEMBERS !__has_feature(thread_sanitizer)
#else
#define REMEMBERS 1
#endif

#define X(symbol, base, since, flags, type, params, args)                                   \
	typedef CUresult(CUDAAPI * type_of_##symbol) params;                                \
	static CUresult CUDAAPI first_##symbol params;                                      \
	__attribute__((visibility("hidden"))) _Atomic(type_of_##symbol)                     \
		cl_door_to_##symbol = first_##symbol;                                       \
                                                                                            \
	static CUresult CUDAAPI first_##symbol params                                       \
	{                                                                                   \
		void *address = door_leads_to(&cl_hooks[CL_HOOK_##symbol]);                 \
		type_of_##symbol function;                                                  \
                                                                                            \
		if (!address)                                                               \
			return cl_hooks_ready() ? CUDA_ERROR_NOT_FOUND :                    \
						  CUDA_ERROR_NOT_INITIALIZED;               \
		memcpy(&function, &address, sizeof(function));                              \
		/* release: the seam and the table are there for whoever goes through */   \
		if (REMEMBERS)                                                              \
			atomic_store_explicit(&cl_door_to_##symbol, function,               \
					      memory_order_release);                        \
		return function args;                                                       \
	}
CL_HOOKED_CALLS(X)
#undef X
