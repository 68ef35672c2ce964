/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the CUDA clients of tests/gpu: checked calls, a deadline, a consumer
 * process of the same program with a pipe to it, and two kernels.  Where the
 * compiler is not nvcc, copies replace the kernels.  With COMMON_DRIVER_API
 * defined this header leaves out the CUDA runtime: see driver.h.
 *
 * Rules: Every CUDA call is checked.  Every wait is bounded: reads from the pipe
 * have deadlines, and alarm() ends a process that hangs in the driver.  The
 * consumer is started by exec, because CUDA does not work after fork.  Only the
 * producer writes to stdout, so that the output of two runs can be compared.
 */
#ifndef GPU_COMMON_H
#define GPU_COMMON_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef COMMON_DRIVER_API
#include <cuda.h>
typedef CUipcMemHandle common_handle;
#else
#include <cuda_runtime.h>
typedef cudaIpcMemHandle_t common_handle;
#endif

#ifndef PROGRAM_SECONDS
#define PROGRAM_SECONDS 60   /* the time limit of each program */
#endif
#ifndef ANSWER_MS
#define ANSWER_MS	20000 /* long, because the consumer creates a context before its first answer */
#endif

static const char *role = "producer";

[[noreturn]] __attribute__((format(printf, 1, 2))) static inline void die(const char *format, ...)
{
	va_list args;

	fprintf(stderr, "%s %d: ", role, (int)getpid());
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

#ifndef COMMON_DRIVER_API
static inline void cuda_check(cudaError_t error, const char *call, const char *file, int line)
{
	if (error != cudaSuccess)
		die("%s:%d: %s: %s (%d)", file, line, call, cudaGetErrorName(error), (int)error);
}
#define CUDA(call) cuda_check((call), #call, __FILE__, __LINE__)
#endif

static inline double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

static inline void pause_ms(double ms)
{
	struct timespec t = {(time_t)(ms / 1e3), (long)((ms - 1e3 * (time_t)(ms / 1e3)) * 1e6)};

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

/*
 * Appends "key=value" to the file named by GPU_TEST_FACTS, if that is set.
 * run.sh reads there which pids and addresses the report must name.
 */
__attribute__((format(printf, 1, 2))) static inline void fact(const char *format, ...)
{
	const char *path = getenv("GPU_TEST_FACTS");
	va_list args;
	FILE *f;

	if (!path)
		return;
	f = fopen(path, "a");
	if (!f)
		die("%s: %s", path, strerror(errno));
	va_start(args, format);
	vfprintf(f, format, args);
	va_end(args);
	fputc('\n', f);
	if (fclose(f))
		die("%s: %s", path, strerror(errno));
}

/* -------------------------------------------------------------------- link */
/* The message that producer and consumer exchange over two pipes.  Both run the same file. */
struct message {
	char op;
	unsigned char value;
	uint64_t bytes, other;
	void *address;
	common_handle handle;
};

struct link {
	int in, out;
	pid_t pid; /* of the consumer; 0 in the consumer itself */
};

/* Starts this program again as the consumer; the link is its stdin and stdout. */
static inline struct link link_start(const char *mode)
{
	char self[] = "/proc/self/exe", consumer[] = "consumer", which[32];
	char *const argv[] = {self, consumer, which, NULL};
	posix_spawn_file_actions_t actions;
	struct link link;
	int down[2], up[2], rc;

	snprintf(which, sizeof(which), "%s", mode);
	if (pipe2(down, O_CLOEXEC) || pipe2(up, O_CLOEXEC))
		die("pipe2: %s", strerror(errno));
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, down[0], 0);
	posix_spawn_file_actions_adddup2(&actions, up[1], 1);
	rc = posix_spawn(&link.pid, self, &actions, NULL, argv, environ);
	if (rc)
		die("posix_spawn: %s", strerror(rc));
	posix_spawn_file_actions_destroy(&actions);
	close(down[0]);
	close(up[1]);
	link.in = up[0];
	link.out = down[1];
	return link;
}

static inline void link_send(const struct link *link, const struct message *m)
{
	const char *at = (const char *)m;
	size_t left = sizeof(*m);

	while (left) {
		ssize_t n = write(link->out, at, left);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			die("cannot write to the peer: %s", strerror(errno));
		at += n;
		left -= n;
	}
}

/* Returns false when the peer has ended. */
static inline bool link_receive(const struct link *link, struct message *m, double limit_ms)
{
	double end = now_ms() + limit_ms;
	char *at = (char *)m;
	size_t left = sizeof(*m);

	while (left) {
		struct pollfd fd = {link->in, POLLIN, 0};
		double rest = end - now_ms();
		ssize_t n;

		if (rest <= 0)
			die("no answer from the peer within %.0f ms", limit_ms);
		n = poll(&fd, 1, (int)rest + 1);
		if (n == 0 || (n < 0 && errno == EINTR))
			continue;
		if (n < 0)
			die("poll: %s", strerror(errno));
		n = read(link->in, at, left);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			die("cannot read from the peer: %s", strerror(errno));
		if (n == 0 && left == sizeof(*m))
			return false;
		if (n == 0)
			die("the peer sent an incomplete message");
		at += n;
		left -= n;
	}
	return true;
}

/* Sends @m and receives the answer into it.  The answer must be @answer. */
static inline void link_ask(const struct link *link, struct message *m, char answer)
{
	char op = m->op;

	link_send(link, m);
	if (!link_receive(link, m, ANSWER_MS))
		die("the peer ended without an answer to '%c'", op);
	if (m->op != answer)
		die("the peer answered '%c' with '%c'", op, m->op);
}

/* Called by the consumer: takes stdin and stdout for the link; other output to stdout goes to stderr. */
static inline struct link link_consumer(void)
{
	struct link link = {0, -1, 0};

	role = "consumer";
	link.out = fcntl(1, F_DUPFD_CLOEXEC, 10);
	if (link.out < 0 || dup2(2, 1) < 0)
		die("dup: %s", strerror(errno));
	return link;
}

/* Tells the consumer to end and checks that its exit status is 0. */
static inline void link_end(struct link *link)
{
	struct message m = {};
	int status;

	m.op = 'Q';
	link_send(link, &m);
	close(link->out);
	if (link_receive(link, &m, ANSWER_MS))
		die("the consumer sent '%c' instead of ending", m.op);
	close(link->in);
	while (waitpid(link->pid, &status, 0) < 0)
		if (errno != EINTR)
			die("waitpid: %s", strerror(errno));
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		die("the consumer ended with wait status 0x%x", status);
}

static inline void program_start(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	alarm(PROGRAM_SECONDS);
}

/* ----------------------------------------------------------------- kernels */
#ifdef COMMON_DRIVER_API
/* driver.h implements the same with copies */
#elif defined(__CUDACC__)
static __global__ void fill_kernel(unsigned char *p, uint64_t n, unsigned char value)
{
	uint64_t step = (uint64_t)gridDim.x * blockDim.x;

	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
		p[i] = value;
}

static __global__ void count_kernel(const unsigned char *p, uint64_t n, unsigned char value,
				    unsigned long long *other)
{
	uint64_t step = (uint64_t)gridDim.x * blockDim.x;
	unsigned long long mine = 0;

	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
		mine += p[i] != value;
	if (mine)
		atomicAdd(other, mine);
}

static inline unsigned int blocks_for(uint64_t bytes)
{
	uint64_t n = (bytes + 255) / 256;

	return n > 1024 ? 1024 : (unsigned int)n;
}

static inline void fill(void *p, uint64_t bytes, unsigned char value)
{
	fill_kernel<<<blocks_for(bytes), 256>>>((unsigned char *)p, bytes, value);
	CUDA(cudaGetLastError());
	CUDA(cudaDeviceSynchronize());
}

/* Returns how many of the @bytes at @p differ from @value. */
static inline uint64_t count_other(const void *p, uint64_t bytes, unsigned char value)
{
	static unsigned long long *other;
	unsigned long long result;

	if (!other)
		CUDA(cudaMalloc((void **)&other, sizeof(*other)));
	CUDA(cudaMemset(other, 0, sizeof(*other)));
	count_kernel<<<blocks_for(bytes), 256>>>((const unsigned char *)p, bytes, value, other);
	CUDA(cudaGetLastError());
	CUDA(cudaMemcpy(&result, other, sizeof(result), cudaMemcpyDeviceToHost));
	return result;
}

#else
static inline void fill(void *p, uint64_t bytes, unsigned char value)
{
	CUDA(cudaMemset(p, value, bytes));
	CUDA(cudaDeviceSynchronize());
}

static inline uint64_t count_other(const void *p, uint64_t bytes, unsigned char value)
{
	unsigned char *copy = (unsigned char *)malloc(bytes);
	uint64_t other = 0;

	if (!copy)
		die("cannot allocate %llu bytes", (unsigned long long)bytes);
	CUDA(cudaMemcpy(copy, p, bytes, cudaMemcpyDeviceToHost));
	for (uint64_t i = 0; i < bytes; i++)
		other += copy[i] != value;
	free(copy);
	return other;
}
#endif

#endif
