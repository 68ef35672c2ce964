/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls CUDA from code that it makes at run time, as an interpreter with a
 * just-in-time compiler does, names that code in /tmp/perf-PID.map as Python does
 * by -X perf, and is killed.
 */
#include <signal.h>
#include <sys/mman.h>

#include "bug.h"

static CUdeviceptr block;
static CUipcMemHandle handle;

__attribute__((noinline)) static void export_block(void)
{
	CHECK(cuIpcGetMemHandle(&handle, block));
	__asm__ volatile("" ::: "memory");
}

int main(void)
{
#if defined(__x86_64__)
	/* push %rbp; mov %rsp,%rbp; call *%rdi; pop %rbp; ret */
	static const unsigned char code[] = { 0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3 };
#elif defined(__aarch64__)
	/* stp x29,x30,[sp,#-16]!; mov x29,sp; blr x0; ldp x29,x30,[sp],#16; ret */
	static const unsigned int code[] = { 0xa9bf7bfd, 0x910003fd, 0xd63f0000, 0xa8c17bfd, 0xd65f03c0 };
#endif
	void *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void (*call)(void (*)(void));
	char path[64];
	FILE *map;

	if (made == MAP_FAILED)
		return 2;
	memcpy(made, code, sizeof(code));
	if (mprotect(made, 4096, PROT_READ | PROT_EXEC))
		return 2;
	__builtin___clear_cache((char *)made, (char *)made + sizeof(code));
	memcpy(&call, &made, sizeof(call));
	snprintf(path, sizeof(path), "/tmp/perf-%d.map", (int)getpid());
	map = fopen(path, "w");
	if (!map)
		return 2;
	fprintf(map, "%lx %zx py::handle_request:/srv/app.py\n", (unsigned long)made, sizeof(code));
	fclose(map);

	use_gpu();
	CHECK(cuMemAlloc(&block, 4096));
	call(export_block);
	CHECK(cuMemFree(block)); /* it waits out its grace */
	printf("%d\n", (int)getpid());
	fflush(stdout);
	kill(getpid(), SIGKILL);
	return 1;
}
