/* SPDX-License-Identifier: Apache-2.0 */
/* A driver call that failed for lack of device memory is made again: the contract is in shim/reclaim/reclaim.h. */
#ifndef CL_HOOK_AGAIN_H
#define CL_HOOK_AGAIN_H

#include "shim/shim.h"

/*
 * The result of @call, which needs what @short_of, a struct cl_short, says.  Where it fails for lack
 * of memory, and as long as some may have come free, that of @again.  Of a call that goes well the
 * program pays one comparison.
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

/* How much is not known: of @device, an ordinal or CL_OF_CURRENT. */
#define CL_SOME_OF(device_) ((struct cl_short){ .device = (device_) })

#endif
