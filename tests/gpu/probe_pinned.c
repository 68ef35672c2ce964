/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions about pinned host memory: can a deferred free wait by the end of a pinned byte, instead of by that of a
 * byte of the device?  doc/measurements.md says what the byte of the device costs.  cuCtxSynchronize() is asked the
 * same: where no stream captures, it could wait instead of a byte's end.
 */
#include "probe.h"
#include "kernels.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { PAIRS = 2000, THREADS = 4, WORK_MS = 60, PAGE = 4096 };

/* Calls that cuda_door.h lacks. */
#define PINNED_CALLS(X)                                            \
	X(cuMemHostRegister_v2, (void *, size_t, unsigned int))    \
	X(cuMemHostUnregister, (void *))
static struct {
#define X(name, params) CUresult(CUDAAPI *name) params;
	PINNED_CALLS(X)
#undef X
} p;

/* ------------------------------------------- the ways to have a byte that the driver ends */
union byte {
	CUdeviceptr device;
	void *host;
};
static CUresult make_device(union byte *byte) { return cu.cuMemAlloc_v2(&byte->device, 1); }
static CUresult end_device(union byte *byte) { return cu.cuMemFree_v2(byte->device); }
static CUresult make_pinned(union byte *byte) { return cu.cuMemHostAlloc(&byte->host, 1, 0); }
static CUresult make_portable(union byte *byte) { return cu.cuMemHostAlloc(&byte->host, 1, CU_MEMHOSTALLOC_PORTABLE); }
static CUresult make_mapped(union byte *byte) { return cu.cuMemHostAlloc(&byte->host, 1, CU_MEMHOSTALLOC_DEVICEMAP); }
static CUresult make_combined(union byte *byte) { return cu.cuMemHostAlloc(&byte->host, 1, CU_MEMHOSTALLOC_WRITECOMBINED); }
static CUresult make_rest(union byte *byte)
{
	return cu.cuMemHostAlloc(&byte->host, (2 << 20) - 4096, CU_MEMHOSTALLOC_WRITECOMBINED);
}
static CUresult end_pinned(union byte *byte) { return cu.cuMemFreeHost(byte->host); }
static CUresult make_registered(union byte *byte)
{
	byte->host = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return byte->host == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : p.cuMemHostRegister_v2(byte->host, PAGE, 0);
}
static CUresult end_registered(union byte *byte)
{
	CUresult result = p.cuMemHostUnregister(byte->host);

	munmap(byte->host, PAGE);
	return result;
}
static CUresult make_nothing(union byte *byte)
{
	byte->host = NULL;
	return CUDA_SUCCESS;
}
static CUresult end_by_synchronize(union byte *byte)
{
	(void)byte;
	return cu.cuCtxSynchronize();
}
static const struct way {
	const char *name;
	CUresult (*make)(union byte *byte), (*end)(union byte *byte);
} ways[] = {
	{ "a byte of the device", make_device, end_device },
	{ "a pinned byte", make_pinned, end_pinned },
	{ "a pinned byte, portable", make_portable, end_pinned },
	{ "a pinned byte, mapped", make_mapped, end_pinned },
	{ "a pinned byte, write-combined", make_combined, end_pinned },
	{ "2 MiB - 4 KiB of write-combined memory", make_rest, end_pinned },
	{ "a registered page", make_registered, end_registered },
	{ "no byte, but cuCtxSynchronize()", make_nothing, end_by_synchronize },
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

static CUfunction spin;
static bool keeps; /* the question has another byte of each way there, as the library has */

static void keep_one_of_each(void)
{
	union byte byte;

	keeps = true;
	for (const struct way *way = ways; way < ways + WAYS; way++)
		must(way->make(&byte), way->name);
}
static const char *there(void)
{
	return keeps ? ", another of its kind is there" : "";
}

static void begin_pinned(void)
{
	CUmodule module;
	void *library;

	begin();
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
#define X(name, params)                                                        \
	{                                                                      \
		void *found = library ? dlsym(library, #name) : NULL;          \
		must(found ? 0 : -1, #name);                                   \
		memcpy(&p.name, &found, sizeof(found));                        \
	}
	PINNED_CALLS(X)
#undef X
	MUST(cu.cuModuleLoadData(&module, timed_kernels));
	MUST(cu.cuModuleGetFunction(&spin, module, "culimbo_spin"));
}

/* ---------------------------------------------------------------------------- what it costs */
static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* @us: PAIRS times of making, and as many of ending. */
static void time_pairs(const struct way *way, double (*us)[PAIRS])
{
	for (unsigned int i = 0; i < PAIRS; i++) {
		union byte byte;
		double from = now_ms(), made;

		must(way->make(&byte), way->name);
		made = now_ms();
		must(way->end(&byte), way->name);
		us[0][i] = (made - from) * 1e3;
		us[1][i] = (now_ms() - made) * 1e3;
	}
	for (unsigned int k = 0; k < 2; k++)
		qsort(us[k], PAIRS, sizeof(us[k][0]), by_size);
}

static void pinned_cost(void)
{
	static double us[2][PAIRS];

	begin_pinned();
	for (unsigned int i = 0; i < 2; i++) {
		if (i)
			keep_one_of_each();
		for (const struct way *way = ways; way < ways + WAYS; way++) {
			time_pairs(way, us);
			measured("%s%s: made in %.2f us (worst %.0f), ended in %.2f us (worst %.0f)", way->name,
				 there(), us[0][PAIRS / 2], us[0][PAIRS - 1],
				 us[1][PAIRS / 2], us[1][PAIRS - 1]);
		}
	}
}

static void *pairs_of_a_thread(void *arg)
{
	double (*us)[PAIRS] = calloc(2, sizeof(*us));

	must(us ? cu.cuCtxSetCurrent(primary) : CUDA_ERROR_OUT_OF_MEMORY, "a thread");
	time_pairs(arg, us);
	free(us);
	return NULL;
}
static void threads_at_once(void)
{
	pthread_t thread[THREADS];

	for (const struct way *way = ways; way < ways + WAYS; way++) {
		double from = now_ms();

		for (unsigned int i = 0; i < THREADS; i++)
			must(pthread_create(&thread[i], NULL, pairs_of_a_thread, (void *)(uintptr_t)way), "a thread");
		for (unsigned int i = 0; i < THREADS; i++)
			pthread_join(thread[i], NULL);
		measured("%s%s, %d threads at once: %.2f us a pair", way->name, there(), THREADS, (now_ms() - from) * 1e3 / PAIRS);
	}
}
static void pinned_threads(void)
{
	begin_pinned();
	threads_at_once();
}
static void kept_threads(void)
{
	begin_pinned();
	keep_one_of_each();
	threads_at_once();
}

/* ------------------------------------------------------------------------ what the end waits for */
static void CUDA_CB sleep_while(void *unused)
{
	double until = now_ms() + WORK_MS;

	(void)unused;
	while (now_ms() < until)
		;
}

static void work_in(CUstream in, bool host)
{
	uint64_t ns = WORK_MS * 1000000ull;
	void *parameters[] = { &ns };

	if (host)
		MUST(cu.cuLaunchHostFunc(in, sleep_while, NULL));
	else
		MUST(cu.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, in, parameters, NULL));
}

static void waits_for(const char *where, CUstream in, CUcontext of, bool host)
{
	for (const struct way *way = ways; way < ways + WAYS; way++)
		for (unsigned int late = 0; late < 2; late++) { /* late: the byte is made while the work runs */
			double from, made, ended;
			union byte byte;
			int left;

			if (!late)
				MUST(way->make(&byte));
			MUST(cu.cuCtxSetCurrent(of));
			work_in(in, host);
			MUST(cu.cuCtxSetCurrent(primary));
			from = now_ms();
			if (late)
				MUST(way->make(&byte));
			made = now_ms();
			MUST(way->end(&byte));
			ended = now_ms();
			MUST(cu.cuCtxSetCurrent(of));
			left = DO(cu.cuStreamQuery(in));
			MUST(cu.cuCtxSynchronize());
			MUST(cu.cuCtxSetCurrent(primary));
			measured("a %s of %d ms in %s; %s%s, made %s: made in %.2f ms, ended in %.2f ms, then the stream gives %d",
				 host ? "host function" : "kernel", WORK_MS, where, way->name, there(), late ? "meanwhile" : "before",
				 made - from, ended - made, left);
		}
}

static void pinned_waits(void)
{
	CUstream blocking, elsewhere;
	CUcontext other;

	begin_pinned();
	MUST(cu.cuStreamCreate(&blocking, 0));
	for (unsigned int host = 0; host < 2; host++) {
		waits_for("the legacy stream", CU_STREAM_LEGACY, primary, host);
		waits_for("the thread's default stream", CU_STREAM_PER_THREAD, primary, host);
		waits_for("a blocking stream", blocking, primary, host);
		waits_for("a non-blocking stream", stream, primary, host);
	}
	MUST(cu.cuCtxCreate_v2(&other, 0, 0));
	MUST(cu.cuStreamCreate(&elsewhere, CU_STREAM_NON_BLOCKING));
	MUST(cu.cuCtxSetCurrent(primary));
	waits_for("a stream of another context", elsewhere, other, true);
}
static void kept_waits(void)
{
	CUstream blocking;

	begin_pinned();
	MUST(cu.cuStreamCreate(&blocking, 0));
	keep_one_of_each();
	for (unsigned int host = 0; host < 2; host++) {
		waits_for("the legacy stream", CU_STREAM_LEGACY, primary, host);
		waits_for("a blocking stream", blocking, primary, host);
		waits_for("a non-blocking stream", stream, primary, host);
	}
}

/* ----------------------------------------------------------------------------------- captures */
static const char *const modes[] = { "global", "thread-local", "relaxed" };

enum who { ITSELF, ANOTHER, ANOTHER_RELAXED, WHO };
static const char *const who_names[] = { "the capturing thread", "another thread", "another thread, in relaxed mode" };

static struct {
	const struct way *way;
	enum who who;
	int made, ended;
} call;

static void *make_and_end(void *unused)
{
	CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	union byte byte;

	(void)unused;
	if (call.who != ITSELF)
		MUST(cu.cuCtxSetCurrent(primary));
	if (call.who == ANOTHER_RELAXED)
		MUST(cu.cuThreadExchangeStreamCaptureMode(&relaxed));
	call.ended = -1;
	call.made = DO(call.way->make(&byte));
	if (!call.made)
		call.ended = DO(call.way->end(&byte));
	return NULL;
}

static void in_a_capture(CUstream capturing, const char *kind_of_stream, unsigned int mode)
{
	CUgraph graph = NULL;
	pthread_t thread;
	int over;

	MUST(cu.cuStreamBeginCapture_v2(capturing, (CUstreamCaptureMode)mode));
	if (call.who == ITSELF) {
		make_and_end(NULL);
	} else {
		must(pthread_create(&thread, NULL, make_and_end, NULL), "a thread");
		pthread_join(thread, NULL);
	}
	over = DO(cu.cuStreamEndCapture(capturing, &graph));
	if (graph)
		cu.cuGraphDestroy(graph);
	measured("while %s stream captures in %s mode, %s: %s%s is made %d, ended %d (end of capture %d)", kind_of_stream,
		 modes[mode], who_names[call.who], call.way->name, there(), call.made, call.ended, over);
}

/* The byte that is made before the capture: only its end comes meanwhile. */
static void ended_in_a_capture(CUstream capturing, const char *kind_of_stream, unsigned int mode)
{
	CUgraph graph = NULL;
	union byte byte;
	int ended, over;

	MUST(call.way->make(&byte));
	MUST(cu.cuStreamBeginCapture_v2(capturing, (CUstreamCaptureMode)mode));
	ended = DO(call.way->end(&byte));
	over = DO(cu.cuStreamEndCapture(capturing, &graph));
	if (graph)
		cu.cuGraphDestroy(graph);
	measured("while %s stream captures in %s mode: %s, made before%s, is ended %d (end of capture %d)", kind_of_stream,
		 modes[mode], call.way->name, there(), ended, over);
}

static void captures(void)
{
	CUstream blocking;

	MUST(cu.cuStreamCreate(&blocking, 0));
	for (call.way = ways; call.way < ways + WAYS; call.way++)
		for (unsigned int mode = 0; mode < 3; mode++) {
			for (unsigned int who = 0; who < WHO; who++) {
				call.who = (enum who)who;
				in_a_capture(stream, "a non-blocking", mode);
				in_a_capture(blocking, "a blocking", mode);
			}
			ended_in_a_capture(stream, "a non-blocking", mode);
			ended_in_a_capture(blocking, "a blocking", mode);
		}
}

static void pinned_captures(void)
{
	begin_pinned();
	captures();
}
static void kept_captures(void)
{
	begin_pinned();
	keep_one_of_each();
	captures();
}

/* ------------------------------------------------------------------------------ a full device */
static void pinned_full(void)
{
	size_t free_bytes = 0, total;
	unsigned int blocks = 0;
	CUdeviceptr block;

	begin_pinned();
	if (keeps)
		keep_one_of_each();
	for (size_t size = (size_t)1 << 30; size; size /= 2)
		while (cu.cuMemAlloc_v2(&block, size) == CUDA_SUCCESS)
			blocks++;
	MUST(cu.cuMemGetInfo_v2(&free_bytes, &total));
	for (const struct way *way = ways; way < ways + WAYS; way++) {
		double from = now_ms(), made;
		union byte byte;
		int ended = -1, result;

		result = DO(way->make(&byte));
		made = now_ms();
		if (!result)
			ended = DO(way->end(&byte));
		measured("%u blocks fill the device (%zu bytes free): %s%s is made %d in %.2f ms, ended %d in %.2f ms", blocks, free_bytes,
			 way->name, there(), result, made - from, ended, now_ms() - made);
	}
}
static void kept_full(void)
{
	keeps = true;
	pinned_full();
}

/* ------------------------------------------------------------- where it lies, and who can see it */
/*
 * A program may free its own pinned memory twice, or ask about what it has freed: where does a byte lie that is kept
 * meanwhile?  @filler: bytes that are allocated before the kept byte and freed after it.  @beside: the program has
 * others beside those, so that the driver keeps their place.
 */
static void kept_place(const struct way *way, size_t filler, bool beside, unsigned int flags)
{
	union byte kept;
	void *own, *other = NULL, *another = NULL, *fill = NULL;
	unsigned int kind = 0;
	int known, again;

	if (beside)
		MUST(cu.cuMemHostAlloc(&other, 8192, flags));
	MUST(cu.cuMemHostAlloc(&own, 64, flags));
	if (beside)
		MUST(cu.cuMemHostAlloc(&another, 64, flags));
	MUST(cu.cuMemFreeHost(own));
	if (filler)
		MUST(cu.cuMemHostAlloc(&fill, filler, way->make == make_combined ? CU_MEMHOSTALLOC_WRITECOMBINED : 0));
	must(way->make(&kept), way->name);
	if (filler)
		MUST(cu.cuMemFreeHost(fill));
	known = DO(cu.cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)own));
	again = DO(cu.cuMemFreeHost(own));
	measured("after %sthe program's 64 %s bytes at %p were freed, %s lies at %p (a filler of %zu bytes lay at %p): a query of the "
		 "program's gives %d, a second free %d", beside ? "one of " : "", flags ? "write-combined" : "pinned", own, way->name, kept.host, filler, fill, known, again);
	if (again)
		way->end(&kept);
	if (beside)
		MUST(cu.cuMemFreeHost(other)), MUST(cu.cuMemFreeHost(another));
}
static void pinned_place(void)
{
	static const size_t fillers[] = { 0, 4096, (2 << 20) - 4096, 2 << 20 };

	begin_pinned();
	for (const struct way *way = ways + 1; way < ways + WAYS - 2; way++)
		for (unsigned int i = 0; i < sizeof(fillers) / sizeof(fillers[0]); i++)
			for (unsigned int k = 0; k < 4; k++)
				kept_place(way, fillers[i], k % 2, k / 2 ? CU_MEMHOSTALLOC_WRITECOMBINED : 0);
}

/* ------------------------------------------------------------------------- contexts that end */
static long status_kib(const char *name)
{
	FILE *file = fopen("/proc/self/status", "r");
	char line[128];
	long kib = -1;

	must(file ? 0 : -1, "/proc/self/status");
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)))
			kib = strtol(line + strlen(name) + 1, NULL, 10);
	fclose(file);
	return kib;
}
static void pinned_contexts(void)
{
	begin_pinned();
	for (const struct way *way = ways + 1; way < ways + WAYS - 2; way++) {
		long locked = 0, resident = 0, size = 0;
		union byte byte = { 0 };
		unsigned int kind;
		int known = 0;

		for (unsigned int i = 0; i < 11; i++) {
			CUcontext context;

			if (i == 1)
				locked = status_kib("VmLck"), resident = status_kib("VmRSS"), size = status_kib("VmSize");
			MUST(cu.cuCtxCreate_v2(&context, 0, 0));
			must(way->make(&byte), way->name);
			MUST(cu.cuCtxDestroy_v2(context));
			MUST(cu.cuCtxSetCurrent(primary));
			known = DO(cu.cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, byte.device));
		}
		measured("ten contexts end, each with %s: the process has %ld KiB more locked, %ld resident, %ld in all; a query gives %d",
			 way->name, status_kib("VmLck") - locked, status_kib("VmRSS") - resident, status_kib("VmSize") - size, known);
	}
}

/* ------------------------------------------------------------------- where it cannot be had */
static void pinned_limit(int which, const char *name, rlim_t limit)
{
	struct rlimit before, now;

	must(getrlimit(which, &before), "getrlimit");
	now = before;
	now.rlim_cur = limit;
	must(setrlimit(which, &now), "setrlimit");
	for (const struct way *way = ways; way < ways + WAYS; way++) {
		union byte byte;
		int ended = -1, result = DO(way->make(&byte));

		if (!result)
			ended = DO(way->end(&byte));
		measured("with %s at %lu: %s%s is made %d, ended %d", name, (unsigned long)limit, way->name, there(), result, ended);
	}
	must(setrlimit(which, &before), "setrlimit");
}
static void CUDA_CB make_in_a_function(void *way)
{
	call.way = way;
	call.made = call.way->make(&(union byte){ 0 });
}
static void pinned_refused(void)
{
	begin_pinned();
	for (unsigned int i = 0; i < 2; i++) {
		if (i)
			keep_one_of_each();
		pinned_limit(RLIMIT_MEMLOCK, "RLIMIT_MEMLOCK", 0);
		pinned_limit(RLIMIT_AS, "RLIMIT_AS", (rlim_t)status_kib("VmSize") * 1024);
	}
	for (const struct way *way = ways; way < ways + WAYS; way++) {
		MUST(cu.cuLaunchHostFunc(stream, make_in_a_function, (void *)(uintptr_t)way));
		MUST(cu.cuStreamSynchronize(stream));
		measured("in a host function %s is made %d", way->name, call.made);
	}
}

/* ------------------------------------------------------------- a kernel that fails meanwhile */
/* The kernel that fails runs after one of WORK_MS, while the byte's end waits.  The context is of no use afterwards. */
static void fault_meanwhile(const struct way *way)
{
	uint64_t ns = WORK_MS * 1000000ull, nowhere = 16, words = 1, none = 0;
	uint32_t value = 0;
	void *parameters[] = { &ns }, *faulty[] = { &nowhere, &words, &value, &none };
	CUfunction fill;
	CUmodule module;
	union byte byte;
	int ended, later;

	begin_pinned();
	MUST(cu.cuModuleLoadData(&module, timed_kernels));
	MUST(cu.cuModuleGetFunction(&fill, module, "culimbo_fill"));
	keep_one_of_each();
	must(way->make(&byte), way->name);
	MUST(cu.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
	MUST(cu.cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, stream, faulty, NULL));
	ended = DO(way->end(&byte));
	later = DO(way->make(&byte));
	measured("while a kernel fails: %s is ended %d, another one then made %d", way->name, ended, later);
}
static void device_fault(void) { fault_meanwhile(&ways[0]); }
static void pinned_fault(void) { fault_meanwhile(&ways[1]); }
static void combined_fault(void) { fault_meanwhile(&ways[4]); }
static void rest_fault(void) { fault_meanwhile(&ways[5]); }

const struct more_question pinned_questions[] = {
	{ "pinned-cost", pinned_cost, 20000 },
	{ "pinned-threads", pinned_threads, 90000 },
	{ "pinned-kept-threads", kept_threads, 90000 },
	{ "pinned-waits", pinned_waits, 40000 },
	{ "pinned-captures", pinned_captures, 20000 },
	{ "pinned-full", pinned_full, 20000 },
	{ "pinned-kept-waits", kept_waits, 40000 },
	{ "pinned-kept-captures", kept_captures, 20000 },
	{ "pinned-kept-full", kept_full, 20000 },
	{ "pinned-place", pinned_place, 20000 },
	{ "pinned-contexts", pinned_contexts, 40000 },
	{ "pinned-refused", pinned_refused, 20000 },
	{ "pinned-fault-device", device_fault, 0 },
	{ "pinned-fault-plain", pinned_fault, 0 },
	{ "pinned-fault-combined", combined_fault, 0 },
	{ "pinned-fault-rest", rest_fault, 0 },
	{ NULL, NULL, 0 },
};
