/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 that only says which of its functions was called, as
 * "driver SYMBOL" on stderr.  Made from the one list of driver calls, so that
 * each can be told from each.  What needs more than that is in driver_more.c,
 * whose definitions come before these (weak) ones.
 *
 * DOORS_FAIL=SYMBOL:TIMES:CODE  the first TIMES calls of SYMBOL return CODE;
 * DOORS_FAIL=SYMBOL:TIMES:CODE:2  TIMES calls of SYMBOL do, the first, the third, and so on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/doors/driver.h"

CUresult driver_says(const char *symbol)
{
	static int calls;
	const char *fail = getenv("DOORS_FAIL");
	char which[64];
	int times, code, step = 1;

	dprintf(2, "driver %s\n", symbol);
	if (!fail || sscanf(fail, "%63[^:]:%d:%d:%d", which, &times, &code, &step) < 3 ||
	    strcmp(which, symbol) != 0)
		return CUDA_SUCCESS;
	return calls++ % step == 0 && calls <= times * step ? (CUresult)code : CUDA_SUCCESS;
}

#define X(symbol, base, since, flags, type, params, args)               \
	__attribute__((weak)) CUresult CUDAAPI symbol params            \
	{                                                               \
		return driver_says(#symbol);                            \
	}                                                               \
	CUresult CUDAAPI thunk_##symbol params                          \
	{                                                               \
		return symbol args;                                     \
	}
CL_HOOKED_CALLS(X)
CL_USED_CALLS(X)
