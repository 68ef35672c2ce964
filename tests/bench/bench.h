/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of the bench (bench.c): the driver's calls, and the board by which
 * two processes tell each other what to do.
 */
#ifndef CL_BENCH_BENCH_H
#define CL_BENCH_BENCH_H

#include "tests/bench/harness.h"

#include <cuda.h>
#include <stdatomic.h>
#include <unistd.h>

#define SMALL 4096u
#define LARGE ((size_t)64 << 20)

struct calls {
	CUresult (*init)(unsigned int);
	CUresult (*device)(CUdevice *, int);
	CUresult (*retain)(CUcontext *, CUdevice);
	CUresult (*release)(CUdevice);
	CUresult (*set_current)(CUcontext);
	CUresult (*alloc)(CUdeviceptr *, size_t);
	CUresult (*free)(CUdeviceptr);
	CUresult (*alloc_async)(CUdeviceptr *, size_t, CUstream);
	CUresult (*free_async)(CUdeviceptr, CUstream);
	CUresult (*pool)(CUmemoryPool *, const CUmemPoolProps *);
	CUresult (*alloc_pool)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
	CUresult (*stream)(CUstream *, unsigned int);
	CUresult (*stream_sync)(CUstream);
	CUresult (*handle)(CUipcMemHandle *, CUdeviceptr);
	CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int);
	CUresult (*close)(CUdeviceptr);
	CUresult (*info)(size_t *, size_t *);
	CUresult (*proc_address)(const char *, void **, int, cuuint64_t);
};
extern struct calls cu, drivers; /* the calls that the program gets; the driver's own */

#define CHECKED(call)                                                             \
	do {                                                                      \
		CUresult result_ = (call);                                        \
		if (result_ != CUDA_SUCCESS)                                      \
			DIE("%s: CUDA error %d", #call, (int)result_);            \
	} while (0)

/*
 * Measures what culimbo adds to @op.  One process calls @op a few times by the pointers
 * that the program got and a few times by the driver's own; they take turns at being first.
 * Each pair prints a line "NAME-more ns VALUE", per operation.  Other load on the machine
 * slows both alike; without culimbo the value is what remains of that load.
 */
#define TURN 50u
struct turn {
	const char *name;
	void (*op)(uint64_t);
	uint64_t run;
};

/* The two processes talk by this; each counter is written by one of them. */
struct board {
	_Atomic uint32_t told, done;
	_Atomic uint32_t blocks;
	CUipcMemHandle handle[];
};
extern struct board *board;

/* bench_driver.c */
extern void *libcuda;
void driver_load(void);
void driver_start(void);
void measure_both_turns(struct turn op, struct turn back, unsigned int pairs);
void measure_turns(const char *name, void (*op)(uint64_t), unsigned int pairs);
extern int board_fd; /* a memory file: a program started later can map it */
void make_board(uint64_t handles);
void wait_for(_Atomic uint32_t *what, uint32_t value);
pid_t helper_start(void (*body)(void));

#endif
