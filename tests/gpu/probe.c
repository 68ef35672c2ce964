/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks this machine's driver what doc/measurements.md says of drivers, and what is not known yet.
 *
 *	probe [WORD...]	the questions whose names contain one of the words; all by default
 *
 * Run it by hand on a GPU, without culimbo.  It takes about three minutes and asserts nothing.  Each
 * question is a process of its own, because some may crash or hang.  A line then names the call in
 * progress.  Every other line is "# measured: " and the answer.
 *
 * Rules: A question is killed after QUESTION_MS.  No process is left.
 */
#include "probe.h"

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

char *at;
CUcontext primary;
CUstream stream;

void measured(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("# measured: ");
	vprintf(format, args);
	putchar('\n');
	va_end(args);
	fflush(stdout);
}

void must(int result, const char *what)
{
	if (!result)
		return;
	printf("# could not be asked: %s gives %d\n", what, result);
	exit(3);
}

double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

void begin(void)
{
	const char *why = cuda_door_open();

	if (why) {
		printf("# could not be asked: %s\n", why);
		exit(3);
	}
	MUST(cu.cuInit(0));
	MUST(cu.cuDevicePrimaryCtxRetain(&primary, 0));
	MUST(cu.cuCtxSetCurrent(primary));
	MUST(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

/* ------------------------------------------------ a free in a stream's order */
static CUdeviceptr neighbour, block;

static void free_in_order(size_t bytes)
{
	begin();
	MUST(cu.cuMemAlloc_v2(&neighbour, SMALL)); /* keeps the chunk of a small block allocated */
	MUST(cu.cuMemAlloc_v2(&block, bytes));
	MUST(cu.cuMemFreeAsync(block, stream));
}

static int export_it(void)
{
	CUipcMemHandle handle;

	return DO(cu.cuIpcGetMemHandle(&handle, block));
}

static void known_after_free(size_t bytes)
{
	CUdeviceptr base = 0;
	unsigned long long id = 0;
	unsigned int type = 0;
	size_t size = 0;
	int r[4];

	free_in_order(bytes);
	r[0] = DO(cu.cuMemGetAddressRange_v2(&base, &size, block));
	r[1] = DO(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block));
	r[2] = DO(cu.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, block));
	r[3] = export_it();
	measured("%zu bytes, after cuMemFreeAsync: address range %d (%zu bytes), memory type %d, buffer id %d, export %d",
		 bytes, r[0], size, r[1], r[2], r[3]);
	MUST(cu.cuStreamSynchronize(stream));
	r[0] = DO(cu.cuMemGetAddressRange_v2(&base, &size, block));
	r[1] = DO(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block));
	r[2] = DO(cu.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, block));
	r[3] = export_it();
	measured("%zu bytes, its stream waited for: address range %d, memory type %d, buffer id %d, export %d", bytes,
		 r[0], r[1], r[2], r[3]);
}
static void known_small(void)
{
	known_after_free(SMALL);
}
static void known_large(void)
{
	known_after_free(LARGE);
}

/* Which other calls end the time in which the block can be exported? */
static void until(const char *what, int result)
{
	measured("after cuMemFreeAsync and %s (%d), export gives %d", what, result, export_it());
}
static void until_stream_query(void)
{
	free_in_order(LARGE);
	while (cu.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
		;
	until("cuStreamQuery of its stream", 0);
}
static void until_other_stream(void)
{
	free_in_order(LARGE);
	until("cuStreamSynchronize of another stream", DO(cu.cuStreamSynchronize(NULL)));
}
static void until_context(void)
{
	free_in_order(LARGE);
	until("cuCtxSynchronize", DO(cu.cuCtxSynchronize()));
}
static void until_event(void)
{
	CUevent event;

	free_in_order(LARGE);
	MUST(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	MUST(cu.cuEventRecord(event, stream));
	until("cuEventSynchronize of an event behind it", DO(cu.cuEventSynchronize(event)));
}
static void until_alloc(void)
{
	CUdeviceptr other;
	int result;

	free_in_order(LARGE);
	result = DO(cu.cuMemAlloc_v2(&other, LARGE));
	measured("after cuMemFreeAsync cuMemAlloc of as much gives %s address", other == block ? "its" : "another");
	until("that", result);
}
static void until_free(void)
{
	free_in_order(LARGE);
	until("cuMemFree of another block", DO(cu.cuMemFree_v2(neighbour)));
}

/* The block is freed a second time before that. */
static void twice(const char *what, int result)
{
	CUdeviceptr other = 0, another = 0;
	int r[3];

	r[0] = DO(cu.cuCtxSynchronize());
	r[1] = DO(cu.cuMemAlloc_v2(&other, LARGE));
	r[2] = DO(cu.cuMemAlloc_v2(&another, LARGE));
	measured("after cuMemFreeAsync, %s gives %d; then cuCtxSynchronize %d, two allocations %d, %d%s", what, result, r[0],
		 r[1], r[2], other == another ? ", AT ONE ADDRESS" : "");
}
static void twice_free(void)
{
	free_in_order(LARGE);
	twice("cuMemFree of it", DO(cu.cuMemFree_v2(block)));
}
static void twice_async(void)
{
	free_in_order(LARGE);
	twice("cuMemFreeAsync of it in the same stream", DO(cu.cuMemFreeAsync(block, stream)));
}
static void twice_elsewhere(void)
{
	free_in_order(LARGE);
	twice("cuMemFreeAsync of it in another stream", DO(cu.cuMemFreeAsync(block, NULL)));
}

/* ------------------------------------ what waits while a host function runs */
static atomic_bool runs;

static void CUDA_CB sleep_long(void *unused)
{
	(void)unused;
	atomic_store(&runs, true);
	for (;;)
		pause();
}

/* Memory of another process, which was started before this one initialised CUDA. */
static CUipcMemHandle memory_handle;
static CUipcEventHandle event_handle;

static void begin_beside_another(void)
{
	int ready[2];

	if (pipe(ready))
		exit(3);
	if (!fork()) {
		CUevent event;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		begin();
		MUST(cu.cuMemAlloc_v2(&block, LARGE));
		MUST(cu.cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
		MUST(cu.cuIpcGetMemHandle(&memory_handle, block));
		MUST(cu.cuIpcGetEventHandle(&event_handle, event));
		if (write(ready[1], &memory_handle, sizeof(memory_handle)) < 0 ||
		    write(ready[1], &event_handle, sizeof(event_handle)) < 0)
			exit(3);
		for (;;)
			pause();
	}
	close(ready[1]);
	if (read(ready[0], &memory_handle, sizeof(memory_handle)) != sizeof(memory_handle) ||
	    read(ready[0], &event_handle, sizeof(event_handle)) != sizeof(event_handle))
		exit(3);
	begin();
}

static CUstream other_stream;
static CUevent shared_event;
static CUcontext context;

static int call_alloc(void) { CUdeviceptr p; return DO(cu.cuMemAlloc_v2(&p, LARGE)); }
static int call_alloc_async(void) { CUdeviceptr p; return DO(cu.cuMemAllocAsync(&p, LARGE, other_stream)); }
static int call_free_async(void) { return DO(cu.cuMemFreeAsync(block, other_stream)); }
static int call_export(void) { return export_it(); }
static int call_open(void)
{
	CUdeviceptr p;

	return DO(cu.cuIpcOpenMemHandle_v2(&p, memory_handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}
static int call_event_open(void) { CUevent e; return DO(cu.cuIpcOpenEventHandle(&e, event_handle)); }
static int call_event_export(void) { CUipcEventHandle h; return DO(cu.cuIpcGetEventHandle(&h, shared_event)); }
static int call_event_create(void) { CUevent e; return DO(cu.cuEventCreate(&e, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING)); }
static int call_event_destroy(void) { return DO(cu.cuEventDestroy_v2(shared_event)); }
static int call_stream_create(void) { CUstream s; return DO(cu.cuStreamCreate(&s, CU_STREAM_DEFAULT)); }
static int call_stream_destroy(void) { return DO(cu.cuStreamDestroy_v2(other_stream)); }
static int call_ctx_create(void) { return DO(cu.cuCtxCreate_v2(&context, 0, 0)); }
static int call_retain(void) { return DO(cu.cuDevicePrimaryCtxRetain(&context, 0)); }
static int call_memory(void) { size_t a, b; return DO(cu.cuMemGetInfo_v2(&a, &b)); }
static int call_stream_query(void) { return DO(cu.cuStreamQuery(other_stream)); }
#if CUDA_VERSION >= 12040
static int make_green(CUgreenCtx *green)
{
	CUdevResource resource;
	CUdevResourceDesc description;

	if (!cu.cuGreenCtxCreate)
		return CUDA_ERROR_NOT_SUPPORTED;
	MUST(cu.cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
	MUST(cu.cuDevResourceGenerateDesc(&description, &resource, 1));
	return DO(cu.cuGreenCtxCreate(green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
}
static int call_green_create(void) { CUgreenCtx green; return make_green(&green); }
#endif

static const struct {
	const char *name;
	int (*make)(void);
} calls[] = {
	{ "cuMemAlloc", call_alloc },
	{ "cuMemAllocAsync in another stream", call_alloc_async },
	{ "cuMemFreeAsync of a cuMemAlloc block in another stream", call_free_async },
	{ "cuIpcGetMemHandle", call_export },
	{ "cuIpcOpenMemHandle", call_open },
	{ "cuIpcOpenEventHandle", call_event_open },
	{ "cuIpcGetEventHandle", call_event_export },
	{ "cuEventCreate", call_event_create },
	{ "cuEventDestroy", call_event_destroy },
	{ "cuStreamCreate", call_stream_create },
	{ "cuStreamDestroy of another stream", call_stream_destroy },
	{ "cuStreamQuery of another stream", call_stream_query },
	{ "cuCtxCreate", call_ctx_create },
	{ "cuDevicePrimaryCtxRetain", call_retain },
	{ "cuMemGetInfo", call_memory },
#if CUDA_VERSION >= 12040
	{ "cuGreenCtxCreate", call_green_create },
#endif
};
enum { CALLS = sizeof(calls) / sizeof(calls[0]) };
static unsigned int which_call;

static void host_function(bool legacy)
{
	double from;
	int result;

	begin_beside_another();
	MUST(cu.cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING));
	MUST(cu.cuMemAlloc_v2(&block, LARGE));
	MUST(cu.cuEventCreate(&shared_event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	MUST(cu.cuLaunchHostFunc(legacy ? NULL : stream, sleep_long, NULL));
	while (!atomic_load(&runs))
		;
	from = now_ms();
	result = calls[which_call].make();
	measured("while a host function runs in %s, %s returns %d after %.1f ms",
		 legacy ? "the legacy stream" : "a non-blocking stream", calls[which_call].name, result, now_ms() - from);
	_exit(0); /* the driver's own cleanup would wait for the function */
}
static void host_legacy(void)
{
	host_function(true);
}
static void host_non_blocking(void)
{
	host_function(false);
}

/* ----------------------------------------------------- what a capture forbids */
static const char *const modes[] = { "global", "thread-local", "relaxed" };

static CUstream query_which(unsigned int which)
{
	return which == 0 ? other_stream : which == 1 ? stream : NULL;
}

/* cuMemAlloc of 0 bytes stands in for "would an allocation be refused": see doc/measurements.md */
static void capture_query(void)
{
	static const char *const whose[] = { "another, idle, non-blocking stream", "the capturing stream", "the NULL stream" };
	CUgraph graph;

	begin();
	MUST(cu.cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING));
	measured("cuStreamQuery outside of a capture: %d", DO(cu.cuStreamQuery(other_stream)));
	for (unsigned int m = 0; m < 3; m++)
		for (unsigned int w = 0; w < 3; w++) {
			int result, over;

			MUST(cu.cuStreamBeginCapture_v2(stream, (CUstreamCaptureMode)m));
			result = DO(cu.cuStreamQuery(query_which(w)));
			over = DO(cu.cuStreamEndCapture(stream, &graph));
			measured("in a capture of %s mode, cuStreamQuery of %s: %d (end of capture %d)", modes[m], whose[w], result,
				 over);
		}
}

static void *query_in_thread(void *result)
{
	cu.cuCtxSetCurrent(primary);
	*(int *)result = (int)cu.cuStreamQuery(other_stream);
	return NULL;
}
static void capture_query_elsewhere(void)
{
	begin();
	MUST(cu.cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING));
	for (unsigned int m = 0; m < 3; m++) {
		pthread_t thread;
		CUgraph graph;
		int result = -1;

		MUST(cu.cuStreamBeginCapture_v2(stream, (CUstreamCaptureMode)m));
		if (pthread_create(&thread, NULL, query_in_thread, &result) || pthread_join(thread, NULL))
			exit(3);
		measured("while another thread captures in %s mode, cuStreamQuery: %d (end of capture %d)", modes[m], result,
			 DO(cu.cuStreamEndCapture(stream, &graph)));
	}
}

/* A cuMemAlloc block is freed in the capturing stream. */
static void capture_free(void)
{
	for (unsigned int own = 0; own < 2; own++) {
		CUgraph graph = NULL;
		size_t size = 0;
		int r[5];

		if (!own)
			begin();
		MUST(cu.cuMemAlloc_v2(&block, LARGE));
		MUST(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
		r[0] = DO(cu.cuMemFreeAsync(block, own ? stream : NULL));
		r[1] = export_it();
		r[2] = DO(cu.cuStreamEndCapture(stream, &graph));
		if (graph)
			cu.cuGraphDestroy(graph);
		r[3] = DO(cu.cuCtxSynchronize());
		r[4] = DO(cu.cuMemGetAddressRange_v2(&neighbour, &size, block));
		measured("in a capture of relaxed mode, cuMemFreeAsync of a cuMemAlloc block in %s stream: %d, export %d, end "
			 "of capture %d; with the graph destroyed and cuCtxSynchronize %d its address is known: %d",
			 own ? "the capturing" : "the NULL", r[0], r[1], r[2], r[3], r[4]);
	}
}

/* -------------------------------------------------------------------- contexts */
static void context_addresses(void)
{
	CUcontext last = NULL;
	unsigned int same = 0;

	begin();
	for (unsigned int i = 0; i < 8; i++) {
		MUST(cu.cuCtxCreate_v2(&context, 0, 0));
		MUST(cu.cuCtxDestroy_v2(context));
		same += context == last;
		last = context;
	}
	measured("of 8 contexts, each made after the end of the one before, %u have its handle", same);
}

#if CUDA_VERSION >= 12040
static void green_stream(void)
{
	CUresult (*stream_ctx)(CUstream, CUcontext *) = NULL;
	void *found, *library;
	CUcontext of_green = NULL, of_stream = NULL;
	CUgreenCtx green;
	CUstream made;
	int result;

	begin();
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	found = library ? dlsym(library, "cuStreamGetCtx") : NULL;
	memcpy(&stream_ctx, &found, sizeof(found));
	if (!stream_ctx || make_green(&green)) {
		printf("# could not be asked: no green contexts\n");
		return;
	}
	MUST(cu.cuCtxFromGreenCtx(&of_green, green));
	MUST(cu.cuCtxSetCurrent(of_green));
	MUST(cu.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
	result = DO(stream_ctx(made, &of_stream));
	measured("cuStreamGetCtx of a stream that was made in a green context: %d, %s", result,
		 of_stream == of_green ? "the handle of cuCtxFromGreenCtx" :
		 of_stream == primary  ? "the primary context's" :
					 "another");
}
#endif

/* Forks a child that runs its exit handlers, ten times, and writes a new block after each. */
static void forks(const char *where)
{
	unsigned int crashed = 0, failed = 0;
	int result = 0, first = 0;

	for (unsigned int i = 0; i < 10; i++) {
		int status = 0;
		CUdeviceptr p;
		pid_t pid;

		fflush(stdout);
		pid = fork();
		if (!pid)
			exit(4);
		if (pid < 0 || waitpid(pid, &status, 0) != pid)
			exit(3);
		crashed += WIFSIGNALED(status);
		result = DO(cu.cuMemAllocAsync(&p, SMALL, NULL));
		result = result ? result : DO(cu.cuMemsetD8_v2(p, 7, SMALL));
		result = result ? result : DO(cu.cuMemFreeAsync(p, NULL));
		failed += result != 0;
		first = first ? first : result;
	}
	measured("%s: of 10 forked children that end by exit(), %u crash; the parent's next calls fail %u times (%d)", where,
		 crashed, failed, first);
}
static void fork_exit(void)
{
	begin();
	forks("in the primary context");
#if CUDA_VERSION >= 12040
	CUgreenCtx green;

	if (!make_green(&green))
		forks("with a green context, too");
#endif
}

/* ------------------------------------------------------------------------- all */
static const struct {
	const char *name;
	void (*ask)(void);
	bool of_calls; /* asked once for each entry of calls[] */
} questions[] = {
	{ "freed-async-known-small", known_small, false },
	{ "freed-async-known-large", known_large, false },
	{ "freed-async-until-stream-query", until_stream_query, false },
	{ "freed-async-until-other-stream", until_other_stream, false },
	{ "freed-async-until-context", until_context, false },
	{ "freed-async-until-event", until_event, false },
	{ "freed-async-until-alloc", until_alloc, false },
	{ "freed-async-until-free", until_free, false },
	{ "freed-async-twice-free", twice_free, false },
	{ "freed-async-twice-async", twice_async, false },
	{ "freed-async-twice-elsewhere", twice_elsewhere, false },
	{ "capture-query", capture_query, false },
	{ "capture-query-elsewhere", capture_query_elsewhere, false },
	{ "capture-free", capture_free, false },
	{ "context-addresses", context_addresses, false },
#if CUDA_VERSION >= 12040
	{ "green-stream", green_stream, false },
#endif
	{ "fork-exit", fork_exit, false },
	{ "host-function-legacy", host_legacy, true },
	{ "host-function-non-blocking", host_non_blocking, true },
};

static void put(const char *name, void (*ask)(void), unsigned int limit_ms)
{
	struct pollfd end = { .events = POLLIN };
	int status = 0;
	pid_t pid;

	snprintf(at, 128, "its beginning");
	fflush(stdout);
	pid = fork();
	if (!pid) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		ask();
		fflush(stdout);
		_exit(0);
	}
	end.fd = pid < 0 ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
	if (end.fd < 0) {
		printf("# %s could not be asked\n", name);
		return;
	}
	if (poll(&end, 1, (int)limit_ms) != 1)
		printf("# measured: %s: does not return within %d ms: %s\n", name, (int)limit_ms, at);
	kill(-pid, SIGKILL);
	if (waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
		printf("# measured: %s: ends by signal %d (%s) in %s\n", name, WTERMSIG(status), strsignal(WTERMSIG(status)),
		       at);
	close(end.fd);
	fflush(stdout);
}

static bool wanted(const char *name, int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (strstr(name, argv[i]))
			return true;
	return argc < 2;
}

int main(int argc, char **argv)
{
	static const struct more_question *const more[] = { pool_questions, capture_questions, pinned_questions,
							   import_questions, last_questions, costs_questions };

	at = mmap(NULL, 128, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return 1;
	for (size_t q = 0; q < sizeof(questions) / sizeof(questions[0]); q++)
		if (wanted(questions[q].name, argc, argv))
			for (which_call = 0; which_call < (questions[q].of_calls ? CALLS : 1); which_call++)
				put(questions[q].name, questions[q].ask, QUESTION_MS);
	for (unsigned int i = 0; i < sizeof(more) / sizeof(more[0]); i++)
		for (const struct more_question *q = more[i]; q->name; q++)
			if (wanted(q->name, argc, argv))
				put(q->name, q->ask, q->limit_ms ? q->limit_ms : QUESTION_MS);
	return 0;
}
