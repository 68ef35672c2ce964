/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuGetProcAddress: finds the address for a bare name, a version and flags.
 *
 * What must hold: whatever is preloaded, the addresses are those that dlsym gives for
 * the versioned names.  With CULIMBO_SIM_PROC_ADDRESS=thunk they differ, and work the
 * same (stubs.S has both).
 */
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "call_table.h"
#include "sim.h"

/* The result's type came with CUDA 12. */
#if CUDA_VERSION >= 12000
typedef CUdriverProcAddressQueryResult query_result;
#else
typedef int query_result;
#endif

enum { FOUND, NOT_FOUND, VERSION_NOT_SUFFICIENT };

static int find(const char *name, int version, int flags, const void **address)
{
	const struct sim_listed_call *best = NULL;
	int status = NOT_FOUND;

	for (const struct sim_listed_call *c = sim_calls_begin; c < sim_calls_end; c++) {
		if (strcmp(c->base, name))
			continue;
		if (status == NOT_FOUND)
			status = VERSION_NOT_SUFFICIENT;
		if (c->version > version || c->flags > flags)
			continue;
		status = FOUND;
		/* Prefer a per-thread form, if there is one, to a newer legacy form. */
		if (!best || c->flags > best->flags ||
		    (c->flags == best->flags && c->version > best->version))
			best = c;
	}
	*address = NULL;
	if (best)
		*address = sim_options()->thunks ? best->thunk : best->address;
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

/*
 * This driver has no private tables, which cudart needs; cudart's own error is unclear, so this
 * call explains it.
 */
SIM_CALL(cuGetExportTable, (const void **table, const CUuuid *id))
{
	static const char line[] = "culimbo's simulated driver: this program uses the CUDA runtime (cudart), which "
				   "needs tables that NVIDIA's driver alone has: it needs a GPU. Programs that call "
				   "the driver themselves run (README.md, \"What it can't do\")\n";
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (!table || !id)
		return CUDA_ERROR_INVALID_VALUE;
	*table = NULL;
	if (!atomic_flag_test_and_set(&said)) {
		ssize_t wrote = write(STDERR_FILENO, line, sizeof(line) - 1);

		(void)wrote; /* stderr may be closed */
	}
	return CUDA_ERROR_NOT_FOUND;
}
