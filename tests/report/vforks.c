/* SPDX-License-Identifier: Apache-2.0 */
/* Calls CUDA, shares nothing, has a vfork() child that leaves at once, and leaves by _exit(). */
#include "bug.h"

int main(void)
{
	CUdeviceptr block;
	pid_t child;

	use_gpu();
	CHECK(cuMemAlloc(&block, 1024));
	child = vfork();
	if (!child)
		_exit(0);
	waitpid(child, NULL, 0);
	_exit(0);
}
