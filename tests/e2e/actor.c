/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that uses CUDA.  It reads requests (wire.h) from its standard input,
 * makes the driver call of each, and replies with the result.
 *
 * It knows nothing of culimbo.  Rules: It creates no thread and makes no call
 * between requests, so while none comes it sleeps in read(2) with everything that
 * it holds.  It writes nothing to stdout.  It passes on each driver result
 * unchanged.  Only the actor can compare bytes, and it compares all of them.
 */
#include "actor.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct wire_reply reply;
CUcontext primary;

char **arguments;

/*
 * Two kernels that run for a given time; the second also writes.  The simulated
 * driver knows them by their names.
 */
const char kernels[] =
	".version 6.4\n.target sm_70\n.address_size 64\n"
	".visible .entry culimbo_spin(.param .u64 p_ns)\n{\n"
	"	.reg .u64 %rd<8>;\n	.reg .pred %p<2>;\n"
	"	ld.param.u64 %rd1, [p_ns];\n"
	"	mov.u64 %rd2, %globaltimer;\n"
	"AGAIN:\n"
	"	mov.u64 %rd3, %globaltimer;\n"
	"	sub.u64 %rd4, %rd3, %rd2;\n"
	"	setp.lt.u64 %p1, %rd4, %rd1;\n"
	"	@%p1 bra AGAIN;\n"
	"	ret;\n}\n"
	".visible .entry culimbo_fill(.param .u64 p_dst, .param .u64 p_words, .param .u32 p_value,"
	" .param .u64 p_ns)\n{\n"
	"	.reg .u64 %rd<12>;\n	.reg .u32 %r<2>;\n	.reg .pred %p<3>;\n"
	"	ld.param.u64 %rd1, [p_dst];\n"
	"	ld.param.u64 %rd2, [p_words];\n"
	"	ld.param.u32 %r1, [p_value];\n"
	"	ld.param.u64 %rd3, [p_ns];\n"
	"	mov.u64 %rd4, %globaltimer;\n"
	"ROUND:\n"
	"	mov.u64 %rd5, 0;\n"
	"	mov.u64 %rd6, %rd1;\n"
	"WORD:\n"
	"	st.volatile.global.u32 [%rd6], %r1;\n"
	"	add.u64 %rd6, %rd6, 4;\n"
	"	add.u64 %rd5, %rd5, 1;\n"
	"	setp.lt.u64 %p1, %rd5, %rd2;\n"
	"	@%p1 bra WORD;\n"
	"	mov.u64 %rd7, %globaltimer;\n"
	"	sub.u64 %rd8, %rd7, %rd4;\n"
	"	setp.lt.u64 %p2, %rd8, %rd3;\n"
	"	@%p2 bra ROUND;\n"
	"	ret;\n}\n";

__attribute__((format(printf, 1, 2))) void complain(const char *format, ...)
{
	va_list args;

	if (*reply.complaint)
		return; /* the first complaint explains most */
	va_start(args, format);
	vsnprintf(reply.complaint, sizeof(reply.complaint), format, args);
	va_end(args);
}

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* A driver call that belongs to the setup: its failure is a complaint. */
bool sure(CUresult result, const char *call)
{
	const char *name = NULL;

	if (!result)
		return true;
	if (!reply.result)
		reply.result = result;
	cu.cuGetErrorName(result, &name);
	complain("%s: %s (%d)", call, name ? name : "?", result);
	return false;
}

void to_handle(void *driver_handle, const unsigned char *bytes)
{
	memcpy(driver_handle, bytes, 64);
}

/* Returns how many of the @bytes at @address differ from @value; *@foreign gets the first such byte. */
uint64_t compare(CUdeviceptr address, uint64_t bytes, unsigned char value,
		 unsigned char *buffer, uint64_t *foreign)
{
	uint64_t differ = 0;

	for (uint64_t at = 0; at < bytes; at += STEP) {
		size_t n = bytes - at < STEP ? (size_t)(bytes - at) : STEP;

		if (!SURE(cu.cuMemcpyDtoH_v2(buffer, address + at, n)))
			return bytes;
		if (buffer[0] == value && !memcmp(buffer, buffer + 1, n - 1))
			continue;
		for (size_t i = 0; i < n; i++)
			if (buffer[i] != value && !differ++)
				*foreign = buffer[i];
	}
	return differ;
}

void do_end(const struct wire_request *q)
{
	(void)q; /* main() handles it */
}

static void (*const operations[])(const struct wire_request *q) = {
#define X(operation) [OP_##operation] = do_##operation,
	WIRE_OPERATIONS(X)
#undef X
};

int main(int argc, char **argv)
{
	struct wire_request request;
	const char *why;
	ssize_t n;

	(void)argc;
	arguments = argv;
	while ((n = read(STDIN_FILENO, &request, sizeof(request))) == sizeof(request)) {
		if (request.operation == OP_end) {
			finish((enum ending)request.a[0], (int)request.a[1]);
			return (int)request.a[1];
		}
		memset(&reply, 0, sizeof(reply));
		if (request.operation >= sizeof(operations) / sizeof(operations[0])) {
			complain("unknown request %u", request.operation);
		} else if (!cu.cuInit && (why = cuda_door_open())) {
			complain("%s", why);
			reply.result = -1;
		} else {
			operations[request.operation](&request);
		}
		if (write(STDIN_FILENO, &reply, sizeof(reply)) != sizeof(reply))
			return 3;
	}
	return n ? 3 : 0; /* the stage has ended */
}
