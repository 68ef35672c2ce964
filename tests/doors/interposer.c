/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another project's LD_PRELOAD library that watches allocations.  It prints each one and
 * calls the next function, which it finds by RTLD_NEXT or, with DOORS_BY_HANDLE, in libcuda.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

typedef int alloc_fn(unsigned long long *dptr, size_t bytes);

int cuMemAlloc_v2(unsigned long long *dptr, size_t bytes);
int cuMemAlloc_v2(unsigned long long *dptr, size_t bytes)
{
	static int depth;
	void *handle = RTLD_NEXT;
	alloc_fn *next;
	int result;

#ifdef DOORS_BY_HANDLE
	handle = dlopen("libcuda.so.1", RTLD_LAZY);
#endif
	next = (alloc_fn *)dlsym(handle, "cuMemAlloc_v2");
	if (depth++ || !next) {
		dprintf(2, "other: %s\n", next ? "called itself" : dlerror());
		abort();
	}
	dprintf(2, "other cuMemAlloc_v2\n");
	result = next(dptr, bytes);
	depth--;
	return result;
}
