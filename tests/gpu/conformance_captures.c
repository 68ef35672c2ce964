/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts about frees while a stream of the thread captures: what the driver refuses, in which order
 * it checks, and whether the capture becomes invalid.  This file has the worker's side and the
 * assertions.
 */
#include "conformance_worker.h"

#include <cuda.h>

enum memory { LIVE, FREED, FREED_ASYNC, UNKNOWN, MEMORIES };
static const char *const memories[] = { "live", "freed by cuMemFree", "freed by cuMemFreeAsync", "unknown" };
enum way_of_free { FREE_SYNC, ASYNC_LEGACY, ASYNC_OTHER, ASYNC_CAPTURING, WAYS };
static const char *const ways[] = { "cuMemFree", "cuMemFreeAsync in the NULL stream", "cuMemFreeAsync in another stream",
				    "cuMemFreeAsync in the capturing stream" };
static const char *const modes[] = { "global", "thread-local", "relaxed" };

/* ---- the worker ---- */

static CUresult memory_of(enum memory memory, size_t bytes, CUstream other, CUdeviceptr *pointer)
{
	*pointer = 0x10000;
	if (memory == UNKNOWN)
		return CUDA_SUCCESS;
	TRY(driver.p_cuMemAlloc_v2(pointer, bytes));
	if (memory == FREED)
		return driver.p_cuMemFree_v2(*pointer);
	if (memory == FREED_ASYNC) {
		TRY(driver.p_cuMemFreeAsync(*pointer, other));
		return driver.p_cuStreamSynchronize(other);
	}
	return CUDA_SUCCESS;
}

static CUresult one_free(const struct question *q, CUstream capturing, CUstream other, uint64_t *v)
{
	enum way_of_free way = (enum way_of_free)q->a[0];
	CUstreamCaptureMode mode = (CUstreamCaptureMode)(q->a[1] % 3);
	bool spoilt = q->a[1] >= 3;
	CUgraph graph = NULL;
	CUdeviceptr pointer, none;

	TRY(memory_of((enum memory)q->a[2], q->a[3] & 1 ? 4 * MIB : 1024, other, &pointer));
	TRY(driver.p_cuStreamBeginCapture_v2(capturing, mode));
	if (spoilt) {
		if (mode == CU_STREAM_CAPTURE_MODE_RELAXED)
			(void)driver.p_cuCtxSynchronize();
		else
			(void)driver.p_cuMemAlloc_v2(&none, 1024);
	}
	v[0] = way == FREE_SYNC ? driver.p_cuMemFree_v2(pointer) :
			     driver.p_cuMemFreeAsync(pointer, way == ASYNC_LEGACY ? NULL :
							       way == ASYNC_OTHER  ? other :
										     capturing);
	v[1] = driver.p_cuStreamEndCapture(capturing, &graph);
	if (v[0] && q->a[2] == LIVE)
		TRY(driver.p_cuMemFree_v2(pointer));
	return driver.p_cuCtxSynchronize();
}

CUresult free_in_capture(const struct question *q, uint64_t *v)
{
	static CUstream blocking, other;

	if (!blocking) {
		TRY(driver.p_cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
		TRY(driver.p_cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	}
	return one_free(q, q->a[3] & 2 ? blocking : mine.stream, other, v);
}

/* ---- the assertions ---- */

/* Checks the results of @way for known and unknown memory, by the capturing stream and its capture. */
static void expect(enum way_of_free way, unsigned int mode, bool spoilt, bool blocking, bool known, uint64_t *result,
		   uint64_t *end)
{
	*end = spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
	if (way == ASYNC_CAPTURING) {
		*result = spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_INVALID_VALUE;
	} else if (way == ASYNC_LEGACY && blocking) {
		*result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
		*end = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	} else if (mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
		*result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		*end = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	} else {
		*result = known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	}
}

void frees_in_captures(struct worker *a, struct worker *unused)
{
	(void)unused;
	for (unsigned int way = 0; way < WAYS; way++)
		for (unsigned int mode = 0; mode < 6; mode++) {
			unsigned int wrong = 0;

			for (unsigned int memory = 0; memory < MEMORIES; memory++)
				for (unsigned int kind = 0; kind < 4; kind++) {
					struct answer r = ask(a, FREE_IN_CAPTURE, way, mode, memory, kind);
					uint64_t result, end;

					if (r.result == CUDA_ERROR_NOT_SUPPORTED) {
						ok(true, "capture-frees # SKIP this driver does not capture");
						return;
					}
					expect((enum way_of_free)way, mode % 3, mode >= 3, kind & 2, memory == LIVE, &result,
					       &end);
					if (!r.result && r.v[0] == result && r.v[1] == end)
						continue;
					wrong++;
					note("%s, %s, a %s stream: %llu (end of capture %llu), not %llu (%llu); result %d",
					     memories[memory], kind & 1 ? "large" : "small",
					     kind & 2 ? "blocking" : "non-blocking", (unsigned long long)r.v[0],
					     (unsigned long long)r.v[1], (unsigned long long)result,
					     (unsigned long long)end, r.result);
				}
			ok(!wrong, "capture-frees: while a stream of the thread captures in %s mode%s, %s looks at the "
				   "stream first, then at the modes, then at the memory", modes[mode % 3],
			   mode >= 3 ? ", spoilt" : "", ways[way]);
		}
}
