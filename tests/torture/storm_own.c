/* SPDX-License-Identifier: Apache-2.0 */
/* The players of the storm (storm_player.c): blocks that a process shares with itself. */
#include "tests/torture/storm.h"

#define STORM_FILE STORM_OWN

/* Exports, opens and frees a block of this process; under culimbo the import has the block's own address. */
void share_own(void)
{
	CUdeviceptr address, opened;
	CUipcMemHandle handle;
	CUresult result;

	if (!SURE(cu.cuMemAlloc_v2(&address, BYTES)))
		return;
	if (SURE(cu.cuIpcGetMemHandle(&handle, address))) {
		result = CALL(cu.cuIpcOpenMemHandle_v2(&opened, handle,
						       CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		if (!result && opened != address)
			complain("its own block at another address", 0);
		if (!result)
			SURE(cu.cuIpcCloseMemHandle(opened));
		else if (!table->control) /* the bare driver refuses it */
			complain("cuIpcOpenMemHandle of its own handle", result);
	}
	SURE(cu.cuMemFree_v2(address));
	COUNT(own);
}

/* The same with virtual memory, which is at its own address and can be unmapped while it is open. */
void share_own_virtual(CUdevice device)
{
	bool early = dice(2);
	CUdeviceptr address, itself;
	CUipcMemHandle handle;

	if (!SURE(virtual_alloc(&address, device)))
		return;
	if (SURE(cu.cuIpcGetMemHandle(&handle, address)) &&
	    SURE(cu.cuIpcOpenMemHandle_v2(&itself, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))) {
		if (itself != address)
			complain("its own virtual memory at another address", 0);
		/* the unmap ends it, too */
		if (!early)
			SURE(cu.cuIpcCloseMemHandle(itself));
	}
	SURE(virtual_free(address));
	COUNT(own);
}

/* The same with stream-ordered memory, which is at its own address and can be freed while it is open. */
void share_own_async(CUdevice device)
{
	struct import itself = { .kind = OF_ASYNC };
	bool early = dice(2);
	CUipcMemHandle handle;
	CUdeviceptr address;

	if (!SURE(async_alloc(&address, device)))
		return;
	itself.token = (uint64_t)here << 56 | (address & 0xffffffffff);
	fill(address, itself.token);
	if (SURE(cu.cuIpcGetMemHandle(&handle, address)) &&
	    SURE(cu.cuIpcOpenMemHandle_v2(&itself.address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)) &&
	    itself.address != address)
		complain("its own stream-ordered memory at another address", 0);
	if (dice(8) == 0)
		SURE(async_end_pool());
	if (early)
		SURE(cu.cuMemFreeAsync(address, NULL));
	if (itself.address)
		import_close(&itself);
	if (!early)
		SURE(async_is_counted() ? cu.cuMemFreeAsync(address, NULL) : cu.cuMemFree_v2(address));
	COUNT(own);
}

/* The same with a pool block, which the driver maps at another address. */
void share_own_pool(void)
{
	struct import import = { .kind = OF_POOL };
	CUresult result = CUDA_SUCCESS;
	CUipcMemHandle handle;
	CUdeviceptr address;
	bool early = dice(2); /* the block is freed before its import */

	if (!SURE(pool_alloc(&address)))
		return;
	import.token = (uint64_t)here << 56 | (address & 0xffffffffff);
	fill(address, import.token);
	if (SURE(pool_export(&handle, address)) &&
	    (!CALL(pool_import(&import.address, &handle, here, atomic_load(&me->life) & 0xffff, &result)) || result)) {
		complain("cuMemPoolImportPointer of its own block", result);
		import.address = 0;
	}
	if (early)
		SURE(cu.cuMemFree_v2(address));
	if (import.address)
		import_close(&import);
	if (!early)
		SURE(cu.cuMemFree_v2(address));
	COUNT(own);
}
