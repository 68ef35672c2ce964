/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of share_cycle.c: see share_cycle.h. */
#include <dlfcn.h>
#include <string.h>

#include "preload/culimbo.h"
#include "tests/bench/share_cycle.h"

struct driver cu;

void driver_start(void)
{
	static const struct {
		const char *name;
		void *at;
	} calls[] = {
		{ "cuInit", &cu.init },
		{ "cuDeviceGet", &cu.device },
		{ "cuDevicePrimaryCtxRetain", &cu.retain },
		{ "cuCtxSetCurrent", &cu.set_current },
		{ "cuCtxSynchronize", &cu.synchronize },
		{ "cuMemAlloc_v2", &cu.alloc },
		{ "cuMemFree_v2", &cu.free },
		{ "cuMemGetInfo_v2", &cu.info },
		{ "cuMemsetD8_v2", &cu.fill },
		{ "cuMemcpyDtoH_v2", &cu.read },
		{ "cuIpcGetMemHandle", &cu.handle },
		{ "cuIpcOpenMemHandle_v2", &cu.open },
		{ "cuIpcCloseMemHandle", &cu.close },
	};
	void *libcuda = dlopen("libcuda.so.1", RTLD_NOW);
	CUcontext ctx;
	CUdevice device;

	if (!libcuda)
		DIE("%s", dlerror());
	for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
		void *address = dlsym(libcuda, calls[i].name);

		if (!address)
			DIE("the driver has no %s", calls[i].name);
		memcpy(calls[i].at, &address, sizeof address);
	}
	CHECKED(cu.init(0));
	CHECKED(cu.device(&device, 0));
	CHECKED(cu.retain(&ctx, device));
	CHECKED(cu.set_current(ctx));
}

uint64_t free_memory(void)
{
	size_t available, all;

	CHECKED(cu.info(&available, &all));
	return available;
}

uint64_t calls_short(void)
{
	culimbo_stats_fn *ask = (culimbo_stats_fn *)dlsym(RTLD_DEFAULT, "culimbo_stats");
	struct culimbo_stats stats = { 0 };

	return ask && !ask(&stats, sizeof stats) ? stats.short_of_memory : 0;
}
