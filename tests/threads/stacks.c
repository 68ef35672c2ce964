/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the call stacks that culimbo takes in a program.  They hold only the program's
 * frames.  A stack may end with an invalid address, as coroutine libraries make it (minicoro:
 * 0xdeaddeaddeaddead).  libgcc's unwinder alone would read code there and crash the program.
 *
 * The program knows culimbo only as a reader of the files in CULIMBO_DIR.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cuda.h>

#include "shim/shm/view.h"

#define NO_ADDRESS 0xdeaddeaddeaddeadul

static int number, failures;

static void ok(bool holds, const char *what)
{
	printf("%sok %d - %s\n", holds ? "" : "not ", ++number, what);
	failures += !holds;
}

static bool export_one(void)
{
	CUipcMemHandle handle;
	CUdeviceptr p;

	return !cuMemAlloc(&p, 1024) && !cuIpcGetMemHandle(&handle, p);
}

/* Its own return address is none while it exports.  (Built with frame pointers.) */
__attribute__((noinline)) static bool at_the_end_of_a_stack(void)
{
	volatile unsigned long *slot = (unsigned long *)__builtin_frame_address(0) + 1;
	unsigned long address = *slot;
	bool exported;

	*slot = NO_ADDRESS;
	exported = export_one();
	*slot = address;
	return exported;
}

static bool own_file(struct cl_view *view)
{
	struct cl_identity self;
	DIR *dir = opendir(getenv("CULIMBO_DIR"));

	cl_identity_self(&self);
	/* reading one's own file, which an ordinary program would not, costs its lock: the last thing here */
	return dir && !cl_view_open_process(view, dirfd(dir), &self, NULL);
}

static void look(const struct cl_view *view, uint32_t record, bool ends)
{
	struct cl_view_block block;
	struct cl_view_frame frame = { 0 };
	bool there = cl_view_block(view, record, &block), ours = false, program = false;
	unsigned int depth = there ? cl_view_stack_depth(view, block.export_stack) : 0;

	for (unsigned int i = 0; i < depth; i++) {
		cl_view_stack_frame(view, block.export_stack, i, &frame);
		ours |= strstr(frame.path, "libculimbo") != NULL;
		program |= strstr(frame.path, "/stacks") != NULL;
	}
	ok(depth && program && !ours, "the stack leads through the program, and not through culimbo");
	if (ends)
		ok(frame.address == NO_ADDRESS && !frame.path[0], "and ends with the address that is none");
}

int main(void)
{
	struct cl_view view;
	CUcontext ctx;

	if (cuInit(0) || cuDevicePrimaryCtxRetain(&ctx, 0) || cuCtxSetCurrent(ctx))
		return 2;
	ok(export_one(), "an export");
	ok(at_the_end_of_a_stack(), "one whose caller has no return address: the program goes on");
	ok(own_file(&view), "its file can be read");
	if (!failures) {
		look(&view, 0, false);
		look(&view, 1, true);
	}
	printf("1..%d\n", number);
	fflush(stdout);
	return failures != 0;
}
