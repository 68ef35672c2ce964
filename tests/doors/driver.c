/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 that only prints which of its functions was called, as
 * "driver SYMBOL" on stderr.  It is made from the list of driver calls, so each call has
 * its own function.  driver_more.c defines the functions that do more; its definitions
 * replace these weak ones.
 *
 * DOORS_FAIL=SYMBOL:TIMES:CODE  the first TIMES calls of SYMBOL return CODE.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/doors/driver.h"

CUresult driver_says(const char *symbol)
{
	static int failed;
	const char *fail = getenv("DOORS_FAIL");
	char which[64];
	int times, code;

	dprintf(2, "driver %s\n", symbol);
	if (fail && sscanf(fail, "%63[^:]:%d:%d", which, &times, &code) == 3 &&
	    !strcmp(which, symbol) && failed < times) {
		failed++;
		return (CUresult)code;
	}
	return CUDA_SUCCESS;
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
