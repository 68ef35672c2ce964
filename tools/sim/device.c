/* SPDX-License-Identifier: Apache-2.0 */
/* The devices that CUDA_VISIBLE_DEVICES shows to this process. */
#include <stdio.h>
#include <string.h>

#include "sim.h"

CUresult sim_check_device(CUdevice device)
{
	CUresult result = sim_ready();

	if (result)
		return result;
	return device >= 0 && (unsigned int)device < pool_devices() ? CUDA_SUCCESS
								      : CUDA_ERROR_INVALID_DEVICE;
}

SIM_CALL(cuDeviceGetCount, (int *count))
{
	CUresult result = sim_ready();

	if (result)
		return result;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = (int)pool_devices();
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceGet, (CUdevice *device, int ordinal))
{
	CUresult result = sim_check_device(ordinal);

	if (result)
		return result;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceGetName, (char *name, int length, CUdevice device))
{
	CUresult result = sim_check_device(device);

	if (result)
		return result;
	if (!name || length < 1)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)length, "culimbo simulated device");
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceGetUuid, (CUuuid *uuid, CUdevice device))
{
	CUresult result = sim_check_device(device);

	if (result)
		return result;
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	memset(uuid, 0, sizeof(*uuid));
	memcpy(uuid->bytes, "culimbo-sim", 11);
	uuid->bytes[15] = (char)pool_physical((unsigned int)device);
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceGetUuid_v2, (CUuuid *uuid, CUdevice device))
{
	return cuDeviceGetUuid(uuid, device);
}

SIM_CALL(cuDeviceGetLuid, (char *luid, unsigned int *mask, CUdevice device))
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_CALL(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice device))
{
	CUresult result = sim_check_device(device);

	if (result)
		return result;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = pool_memory();
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceTotalMem, (unsigned int *bytes, CUdevice device))
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_CALL(cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device))
{
	CUresult result = sim_check_device(device);

	if (result)
		return result;
	if (!value || (int)attribute < 1)
		return CUDA_ERROR_INVALID_VALUE;
	switch ((int)attribute) {
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
		*value = 1024;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
		*value = 64;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
		*value = 2147483647;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
		*value = 65535;
		break;
	case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
		*value = 32;
		break;
	case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
		*value = 1000000;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
		*value = 49152;
		break;
	case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
	case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT:
		*value = 512;
		break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = 9;
		break;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		*value = (int)pool_physical((unsigned int)device) + 1;
		break;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
	case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
	case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
	case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
	case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
	case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
	case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
	case 102: /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED (VIRTUAL_ADDRESS_... before 11.3) */
	case 103: /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
	case 124: /* DMA_BUF_SUPPORTED */
	case 125: /* IPC_EVENT_SUPPORTED */
	case 128: /* HANDLE_TYPE_FABRIC_SUPPORTED */
		*value = 1;
		break;
	case 119: /* MEMPOOL_SUPPORTED_HANDLE_TYPES */
		*value = SIM_HANDLE_TYPES;
		break;
	default:
		*value = 0;
	}
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceComputeCapability, (int *major, int *minor, CUdevice device))
{
	CUresult result = sim_check_device(device);

	if (result)
		return result;
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	*major = 9;
	*minor = 0;
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer))
{
	CUresult result = sim_check_device(device);

	if (!result)
		result = sim_check_device(peer);
	if (result)
		return result;
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	*can = device != peer;
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceGetPCIBusId, (char *name, int length, CUdevice device))
{
	CUresult result = sim_check_device(device);

	if (result)
		return result;
	if (!name || length < 13)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)length, "0000:%02x:00.0", pool_physical((unsigned int)device) + 1);
	return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceGetByPCIBusId, (CUdevice *device, const char *name))
{
	CUresult result = sim_ready();
	unsigned int domain, bus;

	if (result)
		return result;
	if (!device || !name || sscanf(name, "%x:%x:", &domain, &bus) != 2)
		return CUDA_ERROR_INVALID_VALUE;
	if (domain || bus < 1 || pool_visible(bus - 1) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = pool_visible(bus - 1);
	return CUDA_SUCCESS;
}
