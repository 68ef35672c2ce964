/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both halves of hand_over use: the driver, and an end of the program when something fails.
 * hand_over.c times until another process can use memory; hand_over_alone.c what a process pays that shares nothing.
 */
#ifndef CL_BENCH_HAND_OVER_H
#define CL_BENCH_HAND_OVER_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/e2e/cuda_door.h"

#define PIECE ((size_t)2 << 20)
#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

#define MUST(condition)                                                                  \
	do {                                                                             \
		if (!(condition)) {                                                      \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
			_exit(1);                                                        \
		}                                                                        \
	} while (0)
#define CUDA(call)                                                                       \
	do {                                                                             \
		CUresult result_ = (call);                                               \
		if (result_) {                                                           \
			fprintf(stderr, "%s:%d: %s gives %d\n", __FILE__, __LINE__, #call, (int)result_); \
			_exit(1);                                                        \
		}                                                                        \
	} while (0)

/* libcuda.so.1, from dlopen(). */
extern void *hand_over_library;

uint64_t hand_over_now_ns(void);

/* Lets device 0 read and write @bytes at @at. */
void hand_over_let_in(CUdeviceptr at, size_t bytes);

/* What comes from the heap afterwards lies elsewhere in each process.  It stays allocated. */
void hand_over_shift_heap(void);

/* Print what allocations and frees take, in @count batches: of all kinds of memory, and of the default pool alone. */
void hand_over_alone(unsigned int count);
void hand_over_default(unsigned int count);

#endif
