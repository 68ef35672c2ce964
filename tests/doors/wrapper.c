/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A dlsym interposer that wraps cuMemFree and cuMemFreeAsync, for linked programs too.  It finds
 * the driver by libc's dlsym, past every other interposer, as limiters of GPU memory do.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef void *dlsym_fn(void *handle, const char *name);

static dlsym_fn *libc(void)
{
	return (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", FIRST_GLIBC);
}

static void *driver(const char *name)
{
	return libc()(dlopen("libcuda.so.1", RTLD_LAZY), name);
}

int cuMemFree_v2(unsigned long long dptr);
int cuMemFree_v2(unsigned long long dptr)
{
	int (*next)(unsigned long long) = (int (*)(unsigned long long))driver("cuMemFree_v2");

	return next(dptr);
}

int cuMemFreeAsync(unsigned long long dptr, void *stream);
int cuMemFreeAsync(unsigned long long dptr, void *stream)
{
	int (*next)(unsigned long long, void *) =
		(int (*)(unsigned long long, void *))driver("cuMemFreeAsync");

	return next(dptr, stream);
}

void *dlsym(void *restrict handle, const char *restrict name)
{
	if (!strcmp(name, "cuMemFree_v2"))
		return (void *)cuMemFree_v2;
	if (!strcmp(name, "cuMemFreeAsync"))
		return (void *)cuMemFreeAsync;
#ifdef DOORS_CHAIN
	return ((dlsym_fn *)libc()(RTLD_NEXT, "dlsym"))(handle, name);
#else
	return libc()(handle, name);
#endif
}
