/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another dlsym interposer.  It prints the names cu* that it is asked for, unless DOORS_QUIET
 * is set, and answers cuEventCreate itself.  It must be compiled with optimisation, so that
 * it jumps to the next dlsym, as a good interposer does.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *dlsym_fn(void *handle, const char *name);

static int own_event_create(void)
{
	dprintf(2, "second cuEventCreate\n");
	return 0;
}

void *dlsym(void *restrict handle, const char *restrict name)
{
	static dlsym_fn *next;

	if (!next) {
		next = (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", FIRST_GLIBC);
#ifdef DOORS_CHAIN
		/* as libculimbo does: the next dlsym, else libc's */
		next = (dlsym_fn *)next(RTLD_NEXT, "dlsym");
#endif
	}
	if (!getenv("DOORS_QUIET") && (!strncmp(name, "cuMem", 5) || !strcmp(name, "cuEventCreate")))
		dprintf(2, "second dlsym %s\n", name);
	if (!strcmp(name, "cuEventCreate"))
		return (void *)own_event_create;
	return next(handle, name);
}
