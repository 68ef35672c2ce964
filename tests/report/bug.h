/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs with a planted bug have in common; they know nothing of culimbo. */
#ifndef BUG_H
#define BUG_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cuda.h>

#define CHECK(call) check((call), #call)

static inline void check(CUresult result, const char *call)
{
	if (result != CUDA_SUCCESS) {
		fprintf(stderr, "%s failed: %d\n", call, result);
		exit(2);
	}
}

static inline void use_gpu(void)
{
	CUcontext context;

	CHECK(cuInit(0));
	CHECK(cuDevicePrimaryCtxRetain(&context, 0));
	CHECK(cuCtxSetCurrent(context));
}

/* Passes @size bytes from one process to the other; whoever finds the other gone ends. */
static inline void receive(int fd, void *data, size_t size)
{
	for (size_t at = 0; at < size;) {
		ssize_t n = read(fd, (char *)data + at, size - at);

		if (n <= 0)
			exit(3);
		at += (size_t)n;
	}
}

static inline void pass(int fd, const void *data, size_t size)
{
	if (write(fd, data, size) != (ssize_t)size)
		exit(3);
}

#endif
