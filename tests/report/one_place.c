/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bugs that share a place.
 *
 *   two             a consumer opens two blocks at one place.  It never closes the first.  The second was
 *                   freed before.
 *   held N [DEPTH]  N consumers, every second at another place, have a block open when its exporter
 *                   frees it and ends; they close it after that.  The stacks are DEPTH frames deeper.
 *   places [1]      one consumer has two blocks open, each opened at a place of its own, or with 1 both
 *                   at one, when their exporter frees them at one place and ends
 *   dies            the consumer is killed while it has a block open that was freed; the exporter lives on
 *                   until it gets a line
 *   made            code that was made at run time, and has no name, frees a block that is open.
 */
#include <signal.h>
#include <sys/mman.h>

#include "bug.h"

enum { BYTES = 4 << 20, MOST = 32 };

/* Stays in the stack below what it calls: what stands behind it is no tail call. */
#define A_FRAME __attribute__((noinline)) static
#define STAY __asm__ volatile("" ::: "memory")

static CUdeviceptr block;
static CUipcMemHandle handle;
static int depth;
static volatile int blocks = 2; /* volatile: each turn of a loop is at the same place */

A_FRAME void go_down(int left, void (*then)(void))
{
	if (left)
		go_down(left - 1, then);
	else
		then();
	STAY;
}

A_FRAME void open_block(void)
{
	CHECK(cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

A_FRAME void open_here(void)
{
	go_down(depth, open_block);
	STAY;
}

A_FRAME void open_there(void)
{
	__asm__ volatile("nop"); /* the compiler makes one of two functions that are the same */
	go_down(depth, open_block);
	STAY;
}

A_FRAME void export_block(void)
{
	CHECK(cuIpcGetMemHandle(&handle, block));
}

A_FRAME void free_block(void)
{
	CHECK(cuMemFree(block));
}

A_FRAME void make_block(void)
{
	CHECK(cuMemAlloc(&block, BYTES));
	go_down(depth, export_block);
	STAY;
}

/* Makes a function that calls its second argument with its first. */
static void *make_code(void)
{
#if defined(__x86_64__)
	/* push %rbp; mov %rsp,%rbp; call *%rsi; pop %rbp; ret */
	static const unsigned char code[] = { 0x55, 0x48, 0x89, 0xe5, 0xff, 0xd6, 0x5d, 0xc3 };
#elif defined(__aarch64__)
	/* stp x29,x30,[sp,#-16]!; mov x29,sp; blr x1; ldp x29,x30,[sp],#16; ret */
	static const unsigned int code[] = { 0xa9bf7bfd, 0x910003fd, 0xd63f0020, 0xa8c17bfd, 0xd65f03c0 };
#endif
	void *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (made == MAP_FAILED)
		exit(2);
	memcpy(made, code, sizeof(code));
	if (mprotect(made, 4096, PROT_READ | PROT_EXEC))
		exit(2);
	__builtin___clear_cache((char *)made, (char *)made + sizeof(code));
	return made;
}

A_FRAME void free_by_made_code(void)
{
	CUresult (*call)(CUdeviceptr, CUresult (*)(CUdeviceptr));
	void *made = make_code();

	memcpy(&call, &made, sizeof(call));
	CHECK(call(block, cuMemFree));
}

/* Forks the consumer.  Who waits for a process that has ended must find the pipe closed. */
static pid_t begin(int down[2], int up[2])
{
	pid_t consumer = fork();

	close(consumer ? down[0] : down[1]);
	close(consumer ? up[1] : up[0]);
	return consumer;
}

A_FRAME int two(int down[2], int up[2])
{
	pid_t consumer = begin(down, up);
	char word;

	use_gpu();
	for (int i = 0; i < blocks; i++) {
		if (consumer == 0) {
			receive(down[0], &handle, sizeof(handle));
			open_here();
			pass(up[1], "o", 1);
			continue;
		}
		make_block();
		if (i == 1)
			free_block();
		pass(down[1], &handle, sizeof(handle));
		receive(up[0], &word, 1);
	}
	if (consumer == 0)
		CHECK(cuIpcCloseMemHandle(block));
	else
		waitpid(consumer, NULL, 0);
	return 0;
}

A_FRAME int made(int down[2], int up[2])
{
	pid_t consumer = begin(down, up);
	char word;

	use_gpu();
	if (consumer == 0) {
		receive(down[0], &handle, sizeof(handle));
		open_here();
		pass(up[1], "o", 1);
		receive(down[0], &word, 1);
		CHECK(cuIpcCloseMemHandle(block));
		return 0;
	}
	make_block();
	pass(down[1], &handle, sizeof(handle));
	receive(up[0], &word, 1);
	free_by_made_code();
	pass(down[1], "f", 1);
	waitpid(consumer, NULL, 0);
	return 0;
}

A_FRAME int dies(int down[2], int up[2])
{
	pid_t consumer = begin(down, up);
	char word[16];

	use_gpu();
	if (consumer == 0) {
		receive(down[0], &handle, sizeof(handle));
		open_here();
		pass(up[1], "o", 1);
		pause();
		return 1;
	}
	make_block();
	pass(down[1], &handle, sizeof(handle));
	receive(up[0], word, 1);
	free_block();
	kill(consumer, SIGKILL);
	waitpid(consumer, NULL, 0);
	printf("ready\n");
	fflush(stdout);
	return fgets(word, sizeof(word), stdin) ? 0 : 4;
}

A_FRAME int held(int n, int down[2], int up[2])
{
	int gone[2];
	char word;

	if (n > MOST || pipe(gone))
		return 2;
	if (fork() == 0) {
		close(gone[0]);
		use_gpu();
		make_block();
		for (int i = 0; i < n; i++)
			pass(down[1], &handle, sizeof(handle));
		for (int i = 0; i < n; i++)
			receive(up[0], &word, 1);
		go_down(depth, free_block);
		return 0;
	}
	close(gone[1]);
	for (int i = 0; i < n; i++)
		if (fork() == 0) {
			use_gpu();
			receive(down[0], &handle, sizeof(handle));
			if (i % 2)
				open_there();
			else
				open_here();
			pass(up[1], "o", 1);
			(void)!read(gone[0], &word, 1); /* until the exporter has ended */
			CHECK(cuIpcCloseMemHandle(block));
			return 0;
		}
	while (wait(NULL) > 0)
		;
	return 0;
}

A_FRAME int places(int one, int down[2], int up[2])
{
	CUdeviceptr opened[2];
	pid_t exporter = fork();
	char word;

	use_gpu();
	for (int i = 0; i < blocks; i++) {
		if (exporter == 0) {
			make_block();
			opened[i] = block;
			pass(down[1], &handle, sizeof(handle));
			continue;
		}
		receive(down[0], &handle, sizeof(handle));
		if (i && !one)
			open_there();
		else
			open_here();
		opened[i] = block;
	}
	if (exporter == 0)
		receive(up[0], &word, 1);
	else
		pass(up[1], "o", 1);
	for (int i = 0; i < blocks; i++) {
		block = opened[i];
		if (exporter == 0) {
			free_block();
			continue;
		}
		waitpid(exporter, NULL, 0);
		CHECK(cuIpcCloseMemHandle(block));
	}
	return 0;
}

int main(int argc, char **argv)
{
	int down[2], up[2];

	if (argc < 2 || pipe(down) || pipe(up))
		return 2;
	if (!strcmp(argv[1], "two"))
		return two(down, up);
	if (!strcmp(argv[1], "made"))
		return made(down, up);
	if (!strcmp(argv[1], "places"))
		return places(argc > 2, down, up);
	if (!strcmp(argv[1], "dies"))
		return dies(down, up);
	depth = argc > 3 ? atoi(argv[3]) : 0;
	return held(argc > 2 ? atoi(argv[2]) : 2, down, up);
}
