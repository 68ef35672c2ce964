/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A preloaded library whose constructor shares a block and whose destructor frees it.
 * libculimbo is preloaded before it, so libculimbo's constructor runs later and its
 * destructor earlier.  Prints "c" and "d" if all went well.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/e2e/cuda_door.h"

static CUdeviceptr address;

static void say(const char *letter, int well)
{
	const char *fd = getenv("EARLY_LATE_FD");

	if (!fd)
		return;
	if (write(atoi(fd), well ? letter : "!", 1) != 1)
		_exit(1);
}

__attribute__((constructor)) static void share(void)
{
	CUipcMemHandle handle;
	CUcontext ctx;

	say("c", !cuda_door_open() && !cu.cuInit(0) && !cu.cuDevicePrimaryCtxRetain(&ctx, 0) &&
			 !cu.cuCtxSetCurrent(ctx) && !cu.cuMemAlloc_v2(&address, 1024) &&
			 !cu.cuIpcGetMemHandle(&handle, address));
}

__attribute__((destructor)) static void give_back(void)
{
	CUipcMemHandle handle;
	CUdeviceptr more;

	say("d", cu.cuMemFree_v2 && !cu.cuMemFree_v2(address) && !cu.cuMemAlloc_v2(&more, 1024) &&
			 !cu.cuIpcGetMemHandle(&handle, more) && !cu.cuMemFree_v2(more));
}
