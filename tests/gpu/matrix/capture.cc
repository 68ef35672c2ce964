/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture while a free is deferred.  In each capture mode a block that a
 * consumer maps is freed during the capture, by cuMemFree and by cuMemFreeAsync,
 * and so is a block that was never shared.  The client prints the result of each
 * call and whether the capture is still valid.  These must be the same with and
 * without culimbo.
 */
#include "driver.h"

static void freed_in_capture(const struct link *link, const char *mode_name,
			     CUstreamCaptureMode mode, bool shared, bool async)
{
	Block block;
	struct message m = {};
	CUstream stream;
	CUgraph graph = NULL;
	CUstreamCaptureStatus status;
	CUdeviceptr more = 0;
	CUresult free_result, alloc_result, end_result;

	if (shared)
		m = open_there(link, block.address, BYTES, OURS);
	CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CU(cuStreamBeginCapture(stream, mode));
	free_result = async ? cuMemFreeAsync(block.address, 0) : cuMemFree(block.address);
	CU(cuStreamIsCapturing(stream, &status));
	alloc_result = cuMemAlloc(&more, BYTES);
	end_result = cuStreamEndCapture(stream, &graph);
	printf("client=capture mode=%s %s %s: free %s, status %d, alloc %s, end %s\n", mode_name,
	       shared ? "shared" : "unshared", async ? "cuMemFreeAsync" : "cuMemFree",
	       cu_name(free_result), (int)status, cu_name(alloc_result), cu_name(end_result));
	if (end_result == CUDA_SUCCESS && graph)
		CU(cuGraphDestroy(graph));
	CU(cuStreamDestroy(stream));
	if (alloc_result == CUDA_SUCCESS)
		CU(cuMemFree(more));
	if (free_result != CUDA_SUCCESS)
		CU(cuMemFree(block.address));
	CU(cuCtxSynchronize());
	block.reuse();
	if (shared) {
		printf("client=capture mode=%s result=%s\n", mode_name, word(own_there(link, m)));
		close_there(link, m);
	}
	block.free_others();
}

/* A free that was deferred before the capture completes during it. */
static void closed_in_capture(const struct link *link)
{
	Block block;
	struct message m = open_there(link, block.address, BYTES, OURS);
	CUstreamCaptureStatus status;
	CUgraph graph = NULL;
	CUstream stream;
	CUresult end;

	CU(cuMemFree(block.address));
	CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	close_there(link, m);
	/* long enough for culimbo's collector to run: it must not invalidate the capture */
	pause_ms(300);
	CU(cuStreamIsCapturing(stream, &status));
	end = cuStreamEndCapture(stream, &graph);
	printf("client=capture closed there meanwhile: status %d, end %s\n", (int)status,
	       cu_name(end));
	if (end == CUDA_SUCCESS && graph)
		CU(cuGraphDestroy(graph));
	CU(cuStreamDestroy(stream));
	block.free_others();
}

int main(int argc, char **)
{
	static const struct {
		const char *name;
		CUstreamCaptureMode mode;
	} modes[] = {{"global", CU_STREAM_CAPTURE_MODE_GLOBAL},
		     {"thread-local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
		     {"relaxed", CU_STREAM_CAPTURE_MODE_RELAXED}};
	struct link link;

	program_start();
	driver_start(0);
	if (argc > 1)
		return plain_consumer();
	tell_version();
	link = link_start("capture");
	fact("consumer=%d", (int)link.pid);
	for (const auto &mode : modes)
		for (int how = 0; how < 4; how++)
			freed_in_capture(&link, mode.name, mode.mode, how & 1, how & 2);
	closed_in_capture(&link);
	link_end(&link);
	printf("client=capture done\n");
	return 0;
}
