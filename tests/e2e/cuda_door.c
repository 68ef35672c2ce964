/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three ways ("doors") to the driver; see cuda_door.h.
 *
 * Rule: Each door makes exactly the look-ups that programs of its kind make.  What
 * culimbo misses here, it also misses in those programs.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_door.h"

struct cuda_door cu;

static char why[256];

static const char *refuse(const char *what, const char *detail)
{
	snprintf(why, sizeof(why), "%s%s%s", what, detail ? ": " : "", detail ? detail : "");
	return why;
}

#ifdef DOOR_LINKED
#if CUDA_VERSION >= 12040
#pragma weak cuDeviceGetDevResource
#pragma weak cuDevResourceGenerateDesc
#pragma weak cuGreenCtxCreate
#pragma weak cuCtxFromGreenCtx
#pragma weak cuGreenCtxDestroy
#pragma weak cuGraphInstantiateWithFlags
#pragma weak cuGraphLaunch
#pragma weak cuLibraryLoadData
#pragma weak cuLibraryGetModule
#pragma weak cuLibraryGetKernel
#pragma weak cuLibraryUnload
#pragma weak cuKernelGetFunction
#endif
static const char *door_linked(void)
{
#define X(symbol, base, version) cu.symbol = symbol;
	DOOR_CALLS(X)
	DOOR_PTSZ_CALLS(X)
	DOOR_LATER_CALLS(X)
#undef X
	return NULL;
}
#else
static const char *door_linked(void)
{
	return refuse("TEST_DOOR=linked", "this program is not linked against libcuda");
}
#endif

static const char *door_dlsym(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return refuse("dlopen", dlerror());
#define X(symbol, base, version)                                                                   \
	*(void **)&cu.symbol = dlsym(library, #symbol);                                            \
	if (!cu.symbol)                                                                            \
		return refuse("dlsym", #symbol);
	DOOR_CALLS(X)
	DOOR_PTSZ_CALLS(X)
#undef X
#define X(symbol, base, version) *(void **)&cu.symbol = dlsym(library, #symbol);
	DOOR_LATER_CALLS(X)
#undef X
	return NULL;
}

/* CUDA 12 renamed the type of the status; an int pointer is compatible */
typedef CUresult (*get_v11)(const char *, void **, int, cuuint64_t);
typedef CUresult (*get_v12)(const char *, void **, int, cuuint64_t, int *);

static const char *door_getproc(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	get_v12 first, get;
	get_v11 old;

	if (!library)
		return refuse("dlopen", dlerror());
	*(void **)&first = dlsym(library, "cuGetProcAddress_v2");
	if (!first)
		return refuse("dlsym", "cuGetProcAddress_v2");
	if (first("cuGetProcAddress", (void **)&old, 11030, 0, NULL) || !old)
		return refuse("cuGetProcAddress", "itself, at 11030");
	if (first("cuGetProcAddress", (void **)&get, 12000, 0, NULL) || !get)
		return refuse("cuGetProcAddress", "itself, at 12000");
#define X(symbol, base, version)                                                                   \
	if (get(#base, (void **)&cu.symbol, version, 0, NULL) || !cu.symbol)                       \
		return refuse("cuGetProcAddress", #base);
	DOOR_CALLS(X)
#undef X
#define X(symbol, base, version)                                                                   \
	if (get(#base, (void **)&cu.symbol, version,                                               \
		CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL) ||                            \
	    !cu.symbol)                                                                            \
		return refuse("cuGetProcAddress", #symbol);
	DOOR_PTSZ_CALLS(X)
#undef X
#define X(symbol, base, version)                                                                   \
	if (get(#base, (void **)&cu.symbol, version, 0, NULL))                                     \
		cu.symbol = NULL;
	DOOR_LATER_CALLS(X)
#undef X
	/* the interface of CUDA 11.3 gives the same addresses */
	void *again = NULL;

	if (old("cuMemFree", &again, 3020, 0) || again != *(void **)&cu.cuMemFree_v2)
		return refuse("cuGetProcAddress of 11030", "another cuMemFree than that of 12000");
	return NULL;
}

const char *cuda_door_open(void)
{
	const char *door = getenv("TEST_DOOR");

	if (!door || !*door || !strcmp(door, "dlsym"))
		return door_dlsym();
	if (!strcmp(door, "linked"))
		return door_linked();
	if (!strcmp(door, "getproc"))
		return door_getproc();
	return refuse("unknown TEST_DOOR", door);
}
