/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C++ client.  run.sh builds it twice: with nvcc's default static cudart and
 * with the shared one.
 *
 *	share NAME		two rounds, by cudaFree and by cudaFreeAsync
 *	share NAME leak		one round; the producer exits while the consumer holds the block
 *
 * In a round the producer exports a 1 KiB block between live neighbours, and the
 * consumer opens it.  The producer frees it and allocates until it gets the
 * address again, up to a limit; it overwrites each new block.  The consumer checks
 * whether it still reads its own bytes.  The bare driver gives "foreign" bytes; that
 * is a result, not an error, so the exit status is 0 either way.
 *
 * It knows nothing of culimbo.
 */
#include "common.h"

enum { BYTES = 1024, NEIGHBOURS = 8, TRIES = 64, OURS = 17, THEIRS = 238, BESIDE = 90 };

static int consumer(bool leak)
{
	struct link link = link_consumer();
	struct message m;
	void *p = NULL;

	while (link_receive(&link, &m, ANSWER_MS)) {
		switch (m.op) {
		case 'O':
			CUDA(cudaIpcOpenMemHandle(&p, m.handle, cudaIpcMemLazyEnablePeerAccess));
			m.other = count_other(p, m.bytes, m.value);
			m.address = p;
			m.op = 'o';
			break;
		case 'V':
			m.other = count_other(p, m.bytes, m.value);
			m.op = 'v';
			break;
		case 'C':
			CUDA(cudaIpcCloseMemHandle(p));
			p = NULL;
			m.op = 'c';
			break;
		case 'Q':
			return 0;
		default:
			die("what is '%c'?", m.op);
		}
		link_send(&link, &m);
	}
	if (!leak)
		die("the producer ended unexpectedly");
	return 0;
}

/* Returns true when the consumer read only its own bytes. */
static bool round_of(struct link *link, const char *name, bool async, bool leak)
{
	const char *how = async ? "cudaFreeAsync" : "cudaFree";
	void *beside[2 * NEIGHBOURS], *again[TRIES], *block = NULL;
	struct message m = {};
	int tries = 0;
	bool same = false;

	for (int i = 0; i < 2 * NEIGHBOURS; i++) {
		if (i == NEIGHBOURS) {
			CUDA(cudaMalloc(&block, BYTES));
			fill(block, BYTES, OURS);
		}
		CUDA(cudaMalloc(&beside[i], BYTES));
		fill(beside[i], BYTES, BESIDE);
	}
	CUDA(cudaIpcGetMemHandle(&m.handle, block));
	m.op = 'O';
	m.bytes = BYTES;
	m.value = OURS;
	link_ask(link, &m, 'o');
	if (m.other)
		die("%llu bytes are wrong right after the open", (unsigned long long)m.other);
	fact("block=%p", block);
	fact("import=%p", m.address);

	if (async) {
		CUDA(cudaFreeAsync(block, 0));
		CUDA(cudaStreamSynchronize(0));
	} else {
		CUDA(cudaFree(block));
	}
	while (tries < TRIES && !same) {
		CUDA(cudaMalloc(&again[tries], BYTES));
		fill(again[tries], BYTES, THEIRS);
		same = again[tries++] == block;
	}
	fprintf(stderr, "%s %s: the address %s after %d allocations\n", name, how,
		same ? "came again" : "did not come again", tries);

	m.op = 'V';
	m.bytes = BYTES;
	m.value = OURS;
	link_ask(link, &m, 'v');
	printf("client=%s free=%s result=%s\n", name, how, m.other ? "foreign" : "own");
	for (int i = 0; i < 2 * NEIGHBOURS; i++)
		if (count_other(beside[i], BYTES, BESIDE))
			die("a neighbour's bytes have changed");
	if (leak)
		return !m.other;

	bool own = !m.other;
	m.op = 'C';
	link_ask(link, &m, 'c');
	while (tries)
		CUDA(cudaFree(again[--tries]));
	for (int i = 0; i < 2 * NEIGHBOURS; i++)
		CUDA(cudaFree(beside[i]));
	return own;
}

int main(int argc, char **argv)
{
	program_start();
	if (argc > 2 && !strcmp(argv[1], "consumer"))
		return consumer(!strcmp(argv[2], "leak"));
	if (argc < 2)
		die("usage: share NAME [leak]");

	bool leak = argc > 2 && !strcmp(argv[2], "leak");
	CUDA(cudaFree(0));
	struct link link = link_start(leak ? "leak" : "share");
	fact("producer=%d", (int)getpid());
	fact("consumer=%d", (int)link.pid);
	round_of(&link, argv[1], false, leak);
	if (leak)
		return 0;
	round_of(&link, argv[1], true, false);
	link_end(&link);
	printf("client=%s done\n", argv[1]);
	return 0;
}
