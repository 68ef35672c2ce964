/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gets its calls as cudart does: dlopen, one dlsym of cuGetProcAddress_v2, through that
 * cuGetProcAddress at 11030 and 12000 with no status, all others through the pointer for
 * 12000.  Prints TAP.  For each form of each call in the list the pointer must be the one
 * that dlsym returns for that form's symbol.  It must lie in libculimbo (DOORS_HOOKED=1) or
 * in the driver.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "shim/driver/calls.h"

static int tests, failures;

static void check(int good, const char *what, const char *more)
{
	printf("%sok %d - %s%s\n", good ? "" : "not ", ++tests, what, more);
	failures += !good;
}

static int is_in(const void *address, const char *library)
{
	Dl_info info;

	return address && dladdr(address, &info) && strstr(info.dli_fname, library);
}

typedef CUresult get_v1(const char *, void **, int, cuuint64_t);
typedef CUresult get_v2(const char *, void **, int, cuuint64_t, cl_query_result *);

static get_v2 *get;

static void *got(const char *base, int version, cuuint64_t flags)
{
	void *address = NULL;

	return get(base, &address, version, flags, NULL) == CUDA_SUCCESS ? address : NULL;
}

int main(void)
{
	const char *ours = getenv("DOORS_HOOKED") ? "libculimbo" : "libcuda.so.1";
	const char *proc_address = getenv("CULIMBO_SIM_PROC_ADDRESS");
	int thunks = proc_address && !strcmp(proc_address, "thunk");
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	get_v2 *first = lib ? (get_v2 *)dlsym(lib, "cuGetProcAddress_v2") : NULL;
	void *through = NULL, *none = (void *)1;
	cl_query_result status;

	if (!first) {
		printf("Bail out! no libcuda.so.1 with cuGetProcAddress_v2\n");
		return 1;
	}
	check(is_in(first, ours), "dlsym(cuGetProcAddress_v2) lies in ", ours);

	check(first("cuGetProcAddress", &through, 11030, 0, NULL) == CUDA_SUCCESS &&
	      is_in(through, ours), "asked for itself at 11030, lies in ", ours);
	if (!thunks || getenv("DOORS_HOOKED"))
		check(through == dlsym(lib, "cuGetProcAddress"),
		      "asked for itself at 11030 it is the form without a status", "");
	if (((get_v1 *)through)("cuMemAlloc", &none, 12000, 0) != CUDA_SUCCESS ||
	    !is_in(none, ours))
		none = NULL;
	check(none != NULL, "which answers with what lies in ", ours);

	check(first("cuGetProcAddress", &through, 12000, 0, NULL) == CUDA_SUCCESS &&
	      is_in(through, ours), "asked for itself at 12000, lies in ", ours);
	get = (get_v2 *)through;

#define X(symbol, base, since, flags, type, params, args)                                     \
	if (got(base, since, flags)) { /* a driver need not have the superseded ones */       \
		check(is_in(got(base, since, flags), ours), #symbol " lies in ", ours);      \
		if (!thunks || getenv("DOORS_HOOKED"))                                        \
			check(got(base, since, flags) == dlsym(lib, #symbol),                 \
			      #symbol " is what dlsym finds", "");                            \
	}
	CL_HOOKED_CALLS(X)
#undef X
	/* forms with 32-bit pointers, and calls without a hook, are the driver's own */
	check(!is_in(got("cuMemFree", 2000, 0), "libculimbo"), "cuMemFree of 2.0 is not ours", "");
	check(!is_in(got("cuMemAlloc", 2000, 0), "libculimbo"), "cuMemAlloc of 2.0 is not ours", "");
	check(is_in(got("cuDriverGetVersion", 12000, 0), "libcuda.so.1"), "cuDriverGetVersion is the driver's", "");
	check(got("cuIpcOpenMemHandle", 4010, 0) != got("cuIpcOpenMemHandle", 11000, 0),
	      "cuIpcOpenMemHandle of 4.1 and 11.0 are told apart", "");
	check(got("cuMemFreeAsync", 11020, 0) != got("cuMemFreeAsync", 11020, 2) ||
	      dlsym(lib, "cuMemFreeAsync") == dlsym(lib, "cuMemFreeAsync_ptsz"),
	      "cuMemFreeAsync of either default stream are told apart", "");
	if (dlsym(lib, "cuIpcOpenMemHandle_v3")) { /* tests/doors/driver.c has one */
		check(is_in(got("cuIpcOpenMemHandle", 14000, 0), "libcuda.so.1"),
		      "a form newer than the list is the driver's", "");
	}
	/* an unknown name: error, pointer and status are the driver's */
	status = (cl_query_result)0;
	check(get("cuNoSuchCall", &none, 12000, 0, &status) == CUDA_ERROR_NOT_FOUND && !none &&
	      (int)status == 1, "an unknown name is not found, with its status", "");
	/* dlerror() must not show an error of our look-ups */
	dlsym(lib, "cuMemFree_v2");
	check(dlerror() == NULL, "dlerror() is silent after a success", "");
	printf("1..%d\n", tests);
	return failures != 0;
}
