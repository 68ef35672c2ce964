/* SPDX-License-Identifier: Apache-2.0 */
/* What a program reads in a hole of an import, on a driver that knows nothing there and says so (shim/virtual.h). */
#include "tests/unit/mirrors.h"

#include "shim/virtual.h"

static CUresult CUDAAPI one(void *data, CUpointer_attribute which, CUdeviceptr p)
{
	const unsigned int type = CU_MEMORYTYPE_DEVICE;

	if (!vm.page[(p - VM_BASE) / PAGE].bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (which == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
		memcpy(data, &type, sizeof type);
	else if (which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
		memcpy(data, &p, sizeof p);
	else
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI several(unsigned int n, CUpointer_attribute *which, void **data, CUdeviceptr p)
{
	if (!vm.page[(p - VM_BASE) / PAGE].bytes)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < n; i++)
		one(data[i], which[i], p);
	return CUDA_SUCCESS;
}

IN_A_CHILD(all_attributes_at_once_are_told_in_a_hole)
{
	CUpointer_attribute which[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
					CU_POINTER_ATTRIBUTE_RANGE_START_ADDR };
	CUdeviceptr all, device, start;
	unsigned int type;
	void *data[] = { &type, &device, &start };

	start_mirrors();
	cl_driver.cuPointerGetAttribute = one;
	cl_driver.cuPointerGetAttributes = several;
	all = opened(1, "..A", 0);
	for (unsigned int i = 0; i < 3; i++) {
		type = 9;
		device = start = 0;
		CHECK_EQUAL(cl_virtual_attributes(3, which, data, all + i * PAGE + 7, several(3, which, data, all + i * PAGE + 7)),
			    CUDA_SUCCESS);
		CHECK_EQUAL(type, CU_MEMORYTYPE_DEVICE);
		CHECK_EQUAL(device, all + i * PAGE + 7);
		CHECK_EQUAL(start, all);
	}
	/* an error that says nothing of the address, and an address that is in no import */
	CHECK_EQUAL(cl_virtual_attributes(3, which, data, all, CUDA_ERROR_DEINITIALIZED), CUDA_ERROR_DEINITIALIZED);
	CHECK_EQUAL(cl_virtual_attributes(3, which, data, all - PAGE, CUDA_ERROR_INVALID_VALUE), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cl_virtual_attributes(3, NULL, data, all, CUDA_ERROR_INVALID_VALUE), CUDA_ERROR_INVALID_VALUE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_attributes_at_once_are_told_in_a_hole),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
