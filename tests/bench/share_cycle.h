/* SPDX-License-Identifier: Apache-2.0 */
/* The driver as the roles of share_cycle.c call it: functions that dlsym found in libcuda.so.1. */
#ifndef CL_BENCH_SHARE_CYCLE_H
#define CL_BENCH_SHARE_CYCLE_H

#include <cuda.h>
#include <stdint.h>
#include <unistd.h>

#include "tests/bench/harness.h"

extern struct driver {
	CUresult (*init)(unsigned int);
	CUresult (*device)(CUdevice *, int);
	CUresult (*retain)(CUcontext *, CUdevice);
	CUresult (*set_current)(CUcontext);
	CUresult (*synchronize)(void);
	CUresult (*alloc)(CUdeviceptr *, size_t);
	CUresult (*free)(CUdeviceptr);
	CUresult (*info)(size_t *, size_t *);
	CUresult (*fill)(CUdeviceptr, unsigned char, size_t);
	CUresult (*read)(void *, CUdeviceptr, size_t);
	CUresult (*handle)(CUipcMemHandle *, CUdeviceptr);
	CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int);
	CUresult (*close)(CUdeviceptr);
} cu;

#define CHECKED(call)                                                             \
	do {                                                                      \
		CUresult result_ = (call);                                        \
		if (result_ != CUDA_SUCCESS)                                      \
			DIE("%s: CUDA error %d", #call, (int)result_);            \
	} while (0)

/* Finds the functions, and makes the first device's primary context current. */
void driver_start(void);

/* Returns the bytes of the device that are free. */
uint64_t free_memory(void);

/* Returns for how many calls the driver had no memory at first; 0 without culimbo. */
uint64_t calls_short(void);

#endif
