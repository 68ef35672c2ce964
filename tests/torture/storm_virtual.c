/* SPDX-License-Identifier: Apache-2.0 */
/* The storm's virtual memory, which exporters with CULIMBO_SHARE=all share by legacy handles. */
#include "tests/torture/storm.h"

#include <stdlib.h>
#include <string.h>

#define PAGE ((size_t)2 << 20)

bool virtual_is_shared(void)
{
	const char *share = getenv("CULIMBO_SHARE");

	return !table->control && share && !strcmp(share, "all");
}

CUresult virtual_alloc(CUdeviceptr *address, CUdevice device)
{
	CUmemAllocationProp property = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					 .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device } };
	CUmemAccessDesc access = { .location = property.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle memory;
	CUresult result = cu.cuMemAddressReserve(address, PAGE, 0, 0, 0);

	if (!result)
		result = cu.cuMemCreate(&memory, PAGE, &property, 0);
	if (!result)
		result = cu.cuMemMap(*address, PAGE, 0, memory, 0);
	if (!result)
		result = cu.cuMemRelease(memory);
	return result ? result : cu.cuMemSetAccess(*address, PAGE, &access, 1);
}

CUresult virtual_close(CUdeviceptr address)
{
	return cu.cuIpcCloseMemHandle(address);
}

CUresult virtual_free(CUdeviceptr address)
{
	CUresult result = cu.cuMemUnmap(address, PAGE);

	return result ? result : cu.cuMemAddressFree(address, PAGE);
}
