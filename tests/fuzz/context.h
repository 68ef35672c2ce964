/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver's answers about contexts and ranges, for targets that share: one context, on one device,
 * not the primary one; each address begins a block of 1 KiB.
 */
#ifndef CL_FUZZ_CONTEXT_H
#define CL_FUZZ_CONTEXT_H

#include <cuda.h>

static inline CUresult current(CUcontext *ctx)
{
	*ctx = (CUcontext)0xa0;
	return CUDA_SUCCESS;
}
static inline CUresult device(CUdevice *d)
{
	*d = 0;
	return CUDA_SUCCESS;
}
static inline CUresult primary(CUdevice d, unsigned int *flags, int *active)
{
	(void)d;
	*flags = 0;
	*active = 0;
	return CUDA_SUCCESS;
}
static inline CUresult range(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	*base = p;
	*size = 1024;
	return CUDA_SUCCESS;
}

#endif
