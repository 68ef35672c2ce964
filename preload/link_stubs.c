/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exported cu* symbols, for programs that are linked with libcuda.
 *
 * What must hold: only the binding of a linked program finds these symbols, never a
 * look-up by dlsym(): a look-up must find what it finds without us.  So each symbol
 * has the hidden version CULIMBO_DOOR.  glibc binds a reference without a
 * version (libcuda has none) to the first version that a library defines, hidden
 * or not, but dlsym() takes no hidden one.
 *
 * Such a symbol, a door, is a stub (stubs_link.S) that can be patched and jumps to where its
 * variable here points.  The first call finds out where the door leads:
 *  - As a rule, to the hook's stub.  If culimbo must do nothing (environment.h), to the driver's function.
 *  - If another interposer defines the symbol before the driver does, to that interposer's
 *    function.  It finds the driver by dlsym(), and so reaches the hook.
 *  - If there is no driver, nowhere.  Without us ld.so would not have loaded the program, or
 *    would end it at this call, but we end no program.  The call returns
 *    CUDA_ERROR_NOT_INITIALIZED, as the driver does before cuInit(): without a
 *    driver no cuInit() can have succeeded.
 *  - If the driver is too old for the call, nowhere.  The call returns CUDA_ERROR_NOT_FOUND, the
 *    driver's answer to an unknown name.
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
	/* the address that the program would be bound to without us */
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
 * ThreadSanitizer does not see the stub's load, which orders the filling of the seam before a call
 * through the door.  So under ThreadSanitizer the variable never changes, and each call runs this C code.
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
		void *its_door = door_leads_to(&cl_hooks[CL_HOOK_##symbol]);                \
		type_of_##symbol function;                                                  \
                                                                                            \
		if (!its_door)                                                              \
			return cl_hooks_ready() ? CUDA_ERROR_NOT_FOUND :                    \
						  CUDA_ERROR_NOT_INITIALIZED;               \
		memcpy(&function, &its_door, sizeof(function));                             \
		/* release: a call through the door sees the seam and the table */         \
		if (REMEMBERS)                                                              \
			atomic_store_explicit(&cl_door_to_##symbol, function,               \
					      memory_order_release);                        \
		return function args;                                                       \
	}
CL_HOOKED_CALLS(X)
#undef X
