/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the parts of the actor (actor.c).  Each do_OPERATION() performs OPERATION of wire.h and
 * writes the results into the reply.
 */
#ifndef CL_TEST_ACTOR_H
#define CL_TEST_ACTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_door.h"
#include "wire.h"

#define STEP ((size_t)1 << 20) /* number of bytes that are compared at once */

/* Makes one driver call and measures its time. */
#define TIMED(call)                                                                                \
	do {                                                                                       \
		uint64_t start = now_ns();                                                         \
		reply.result = (call);                                                             \
		reply.ns = now_ns() - start;                                                       \
	} while (0)

#define SURE(call) sure((call), #call)

#define X(operation) void do_##operation(const struct wire_request *q);
WIRE_OPERATIONS(X)
#undef X

/* actor.c */
extern struct wire_reply reply;
extern CUcontext primary;
extern char **arguments;
extern const char kernels[];
__attribute__((format(printf, 1, 2))) void complain(const char *format, ...);
uint64_t now_ns(void);
bool sure(CUresult result, const char *call);
void to_handle(void *driver_handle, const unsigned char *bytes);
uint64_t compare(CUdeviceptr address, uint64_t bytes, unsigned char value,
		 unsigned char *buffer, uint64_t *foreign);

/* actor_process.c */
void finish(enum ending how, int status);

/* actor_objects.c */
extern CUstream kernel_stream;

#endif
