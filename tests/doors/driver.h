/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by driver.c and driver_more.c: functions that only tests have. */
#ifndef DOORS_DRIVER_H
#define DOORS_DRIVER_H

#include "shim/driver/calls.h"

CUresult driver_says(const char *symbol);

#define X(symbol, base, since, flags, type, params, args) \
	CUresult CUDAAPI symbol params;                   \
	CUresult CUDAAPI thunk_##symbol params;
CL_HOOKED_CALLS(X)
CL_USED_CALLS(X)
#undef X

#endif
