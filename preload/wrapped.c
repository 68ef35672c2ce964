/* SPDX-License-Identifier: Apache-2.0 */
/* Finds another library's wrappers of driver calls: see wrapped.h. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>
#include "preload/hook_table.h"
#include "preload/real_dlsym.h"
#include "preload/wrapped.h"
#include "shim/base/log.h"

/* The calls that must reach our hooks.  Allocations need not: a failed one is then just not repeated. */
static const unsigned char needed[] = {
	CL_HOOK_cuMemFree_v2,
	CL_HOOK_cuMemFreeAsync,
	CL_HOOK_cuMemFreeAsync_ptsz,
	CL_HOOK_cuIpcGetMemHandle,
	CL_HOOK_cuIpcOpenMemHandle_v2,
	CL_HOOK_cuIpcCloseMemHandle,
	CL_HOOK_cuEventDestroy_v2,
	CL_HOOK_cuIpcGetEventHandle,
	CL_HOOK_cuIpcOpenEventHandle,
	CL_HOOK_cuCtxDestroy_v2,
	CL_HOOK_cuDevicePrimaryCtxRelease_v2,
	CL_HOOK_cuDevicePrimaryCtxReset_v2,
};

static const char *file_of(const void *address)
{
	Dl_info info;

	return address && dladdr(address, &info) && info.dli_fname ? info.dli_fname : "?";
}

static bool is_in_this_library(const void *address)
{
	Dl_info info, own;

	return dladdr(address, &info) && dladdr(needed, &own) && info.dli_fbase == own.dli_fbase;
}

/* Returns the file of the function that a program gets if it looks up @row by @first; NULL: that is our hook. */
static const char *who_answers(const struct cl_hook *row, cl_dlsym_fn *first)
{
	const void *real = cl_hook_real(row), *got;
	void *first_is;

	if (!real)
		return NULL;
	got = first(cl_driver.libcuda, row->symbol);
	if (got == cl_hook_for(real))
		return NULL;
	if (got && is_in_this_library(got)) { /* a door (link_stubs.c), which may lead to another library */
		got = cl_real_dlsym()(RTLD_NEXT, row->symbol);
		return got && got != real ? file_of(got) : NULL;
	}
	/* if it found the driver's function, a dlsym before ours answered without calling ours */
	memcpy(&first_is, &first, sizeof(first_is));
	return file_of(got == real ? first_is : got);
}

void cl_wrapped_say(void)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	const struct cl_hook *one = NULL;
	const char *whose = NULL;
	unsigned int n = 0;
	void *found;
	cl_dlsym_fn *first;

	if (!cl_hook_table_is_filled() || atomic_flag_test_and_set(&said))
		return;
	found = cl_real_dlsym()(RTLD_DEFAULT, "dlsym");
	if (!found)
		return;
	memcpy(&first, &found, sizeof(first));
	for (size_t i = 0; i < sizeof(needed); i++) {
		const char *file = who_answers(&cl_hooks[needed[i]], first);

		n += file != NULL;
		if (!whose && file) {
			whose = file;
			one = &cl_hooks[needed[i]];
		}
	}
	dlerror(); /* the program must not see our failed look-ups */
	if (n)
		cl_log(CL_LOG_WARN,
		       "%s wraps %s and %u more driver calls: unless its wrappers find the driver by dlsym(), "
		       "culimbo does not see these calls, and a block that they free may be reused while "
		       "other processes map it; if so, don't preload both",
		       whose, one->symbol, n - 1);
}
