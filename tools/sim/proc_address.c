/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuGetProcAddress: from a bare name, a version and flags to an address.
 *
 * What must hold: the addresses are those that dlsym gives for the versioned
 * names, whatever is preloaded; with CULIMBO_SIM_PROC_ADDRESS=thunk they are
 * not, and work the same (stubs.S has both).  calls.h has every exported call: one
 * that is missing there does not compile, one that is only there does not link.
 */
#include <string.h>

#include "sim.h"

/* The result's type came with CUDA 12. */
#if CUDA_VERSION >= 12000
typedef CUdriverProcAddressQueryResult query_result;
#else
typedef int query_result;
#endif

/* Only addresses are wanted: no prototypes, and no clash with cuda.h's. */
#define X(base, symbol, version, flags)                                                            \
	extern const char address_of_##symbol[] __asm__(#symbol)                                   \
		__attribute__((visibility("protected")));                                          \
	extern const char thunk_of_##symbol[] __asm__("culimbo_sim_thunk_" #symbol)                \
		__attribute__((visibility("hidden")));
SIM_CALLS(X)
#undef X

static const struct {
	const char *base;
	const void *address, *thunk;
	int version;
	int flags; /* 2: a per-thread default stream form */
} calls[] = {
#define X(base, symbol, version, flags)                                                            \
	{ #base, address_of_##symbol, thunk_of_##symbol, version, flags },
	SIM_CALLS(X)
#undef X
};

enum { FOUND, NOT_FOUND, VERSION_NOT_SUFFICIENT };

static int find(const char *name, int version, int flags, const void **address)
{
	int best = -1, status = NOT_FOUND;

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		if (strcmp(calls[i].base, name))
			continue;
		if (status == NOT_FOUND)
			status = VERSION_NOT_SUFFICIENT;
		if (calls[i].version > version || calls[i].flags > flags)
			continue;
		status = FOUND;
		/* A per-thread form, where there is one, before a newer legacy one. */
		if (best < 0 || calls[i].flags > calls[best].flags ||
		    (calls[i].flags == calls[best].flags && calls[i].version > calls[best].version))
			best = (int)i;
	}
	*address = NULL;
	if (best >= 0)
		*address = sim_options()->thunks ? calls[best].thunk : calls[best].address;
	return status;
}

SIM_CALL(cuGetProcAddress_v2, (const char *name, void **pfn, int version, cuuint64_t flags,
			       query_result *status))
{
	const void *address;
	int found;

	if (!name || !pfn || flags > 2)
		return CUDA_ERROR_INVALID_VALUE;
	found = find(name, version, flags == 2 ? 2 : 0, &address);
	memcpy(pfn, &address, sizeof(address));
	if (status)
		*status = (query_result)found;
	return found == FOUND ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

SIM_CALL(cuGetProcAddress, (const char *name, void **pfn, int version, cuuint64_t flags))
{
	return cuGetProcAddress_v2(name, pfn, version, flags, NULL);
}

/* The private tables that cudart asks for: there are none. */
SIM_CALL(cuGetExportTable, (const void **table, const CUuuid *id))
{
	if (!table || !id)
		return CUDA_ERROR_INVALID_VALUE;
	*table = NULL;
	return CUDA_ERROR_NOT_FOUND;
}
