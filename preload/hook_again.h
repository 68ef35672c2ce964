/* SPDX-License-Identifier: Apache-2.0 */
/* Repeats a driver call that failed for lack of device memory; the rules are in shim/reclaim/reclaim.h. */
#ifndef CL_HOOK_AGAIN_H
#define CL_HOOK_AGAIN_H

#include "shim/shim.h"

/*
 * Evaluates @call, and while that fails for lack of memory and some may have come free, @again.
 * The value is the last result.  @short_of, a struct cl_need, says how much memory the call needs.
 * A call that succeeds costs the program one comparison.
 */
#define CL_OR_AGAIN(short_of, call, again)                                            \
	({                                                                            \
		CUresult made = (call);                                               \
                                                                                      \
		if (__builtin_expect(made == CUDA_ERROR_OUT_OF_MEMORY, 0)) {          \
			struct cl_retry retry;                                        \
                                                                                      \
			cl_retry_begin(&retry, CL_RETRY_MEMORY, (short_of));          \
			while (made == CUDA_ERROR_OUT_OF_MEMORY &&                    \
			       cl_retry_again(&retry))                                \
				made = (again);                                       \
			cl_retry_end(&retry);                                         \
		}                                                                     \
		made;                                                                 \
	})
#define CL_WITH_MEMORY(short_of, call) CL_OR_AGAIN(short_of, call, call)

/* An unknown amount of memory of @device_, an ordinal or CL_OF_CURRENT. */
#define CL_SOME_OF(device_) ((struct cl_need){ .device = (device_) })

#endif
