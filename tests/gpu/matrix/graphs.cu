/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA graphs with memory nodes, in a program that also shares and frees blocks.
 *
 * A graph captured from cudaMallocAsync, a kernel and cudaFreeAsync is launched
 * again and again.  A block that the consumer maps is freed before the capture,
 * during it (relaxed mode), and between launches.  The memory of a graph cannot be
 * exported; the client prints by which error.
 */
#include "../common.h"

enum { BYTES = 1024, LAUNCHES = 50, OURS = 17, THEIRS = 238, TRIES = 64 };

static int consumer()
{
	struct link link = link_consumer();
	struct message m;

	while (link_receive(&link, &m, ANSWER_MS)) {
		switch (m.op) {
		case 'O':
			CUDA(cudaIpcOpenMemHandle(&m.address, m.handle, cudaIpcMemLazyEnablePeerAccess));
			m.other = count_other(m.address, m.bytes, m.value);
			m.op = 'o';
			break;
		case 'V':
			m.other = count_other(m.address, m.bytes, m.value);
			m.op = 'v';
			break;
		case 'C':
			CUDA(cudaIpcCloseMemHandle(m.address));
			m.op = 'c';
			break;
		case 'Q':
			return 0;
		default:
			die("what is '%c'?", m.op);
		}
		link_send(&link, &m);
	}
	die("the producer ended unexpectedly");
}

static struct message shared_block(struct link *link, void **block)
{
	struct message m = {};

	CUDA(cudaMalloc(block, BYTES));
	fill(*block, BYTES, OURS);
	CUDA(cudaIpcGetMemHandle(&m.handle, *block));
	m.op = 'O';
	m.bytes = BYTES;
	m.value = OURS;
	link_ask(link, &m, 'o');
	if (m.other)
		die("%llu bytes are wrong right after the open", (unsigned long long)m.other);
	return m;
}

static void look_and_close(struct link *link, struct message m, void *block, const char *when)
{
	void *again[TRIES];
	int n = 0;

	do {
		CUDA(cudaMalloc(&again[n], BYTES));
		fill(again[n], BYTES, THEIRS);
	} while (again[n++] != block && n < TRIES);
	m.op = 'V';
	m.bytes = BYTES;
	m.value = OURS;
	link_ask(link, &m, 'v');
	printf("client=graphs freed %s result=%s\n", when, m.other ? "foreign" : "own");
	m.op = 'C';
	link_ask(link, &m, 'c');
	while (n)
		CUDA(cudaFree(again[--n]));
}

int main(int argc, char **)
{
	unsigned char *sum, host[BYTES];
	void *before, *during, *between;
	cudaIpcMemHandle_t handle;
	cudaGraphExec_t exec;
	cudaStream_t stream;
	cudaGraph_t graph;
	struct link link;
	void *of_graph;
	int version;

	program_start();
	if (argc > 1)
		return consumer();
	CUDA(cudaRuntimeGetVersion(&version));
	fact("version=CUDA runtime %d.%d", version / 1000, version % 1000 / 10);
	fact("producer=%d", (int)getpid());
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaMalloc((void **)&sum, BYTES));
	link = link_start("graphs");
	fact("consumer=%d", (int)link.pid);

	struct message first = shared_block(&link, &before);
	struct message second = shared_block(&link, &during);
	struct message third = shared_block(&link, &between);
	CUDA(cudaFree(before));
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
	CUDA(cudaMallocAsync(&of_graph, BYTES, stream));
	fill_kernel<<<4, 256, 0, stream>>>((unsigned char *)of_graph, BYTES, OURS);
	cudaError_t freed = cudaFree(during);
	CUDA(cudaMemcpyAsync(sum, of_graph, BYTES, cudaMemcpyDeviceToDevice, stream));
	CUDA(cudaFreeAsync(of_graph, stream));
	cudaError_t ended = cudaStreamEndCapture(stream, &graph);
	printf("client=graphs in capture: free %s, end %s\n", cudaGetErrorName(freed),
	       cudaGetErrorName(ended));
	if (ended != cudaSuccess)
		die("no graph");
	if (freed != cudaSuccess)
		CUDA(cudaFree(during));
	CUDA(cudaGraphInstantiate(&exec, graph, 0));
	for (int i = 0; i < LAUNCHES; i++) {
		CUDA(cudaGraphLaunch(exec, stream));
		if (i == LAUNCHES / 2)
			CUDA(cudaFree(between));
	}
	CUDA(cudaStreamSynchronize(stream));
	CUDA(cudaMemcpy(host, sum, BYTES, cudaMemcpyDeviceToHost));
	int wrong = 0;
	for (unsigned char byte : host)
		wrong += byte != OURS;
	printf("client=graphs %d launches: %d bytes wrong\n", LAUNCHES, wrong);
	cudaError_t exported = cudaIpcGetMemHandle(&handle, of_graph);
	printf("client=graphs export of a graph's memory: %s\n", cudaGetErrorName(exported));
	(void)cudaGetLastError();
	look_and_close(&link, first, before, "before");
	look_and_close(&link, second, during, "in the capture");
	look_and_close(&link, third, between, "between launches");
	CUDA(cudaGraphExecDestroy(exec));
	CUDA(cudaGraphDestroy(graph));
	CUDA(cudaDeviceGraphMemTrim(0));
	CUDA(cudaFree(sum));
	link_end(&link);
	printf("client=graphs done\n");
	return 0;
}
