/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A producer shares a model with a worker.  The bug: the worker is killed while it
 * has the model open.  Here it kills itself, as the kernel does when memory runs out.
 */
#include <signal.h>

#include "bug.h"

enum { BYTES = 4 << 20 };

__attribute__((noinline)) static void load_model(int from, int to)
{
	CUipcMemHandle handle;
	CUdeviceptr model;

	receive(from, &handle, sizeof(handle));
	CHECK(cuIpcOpenMemHandle(&model, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	pass(to, "o", 1);
}

__attribute__((noinline)) static void share_model(int from, int to)
{
	CUipcMemHandle handle;
	CUdeviceptr model;
	char word;

	CHECK(cuMemAlloc(&model, BYTES));
	CHECK(cuIpcGetMemHandle(&handle, model));
	pass(to, &handle, sizeof(handle));
	receive(from, &word, 1);
	CHECK(cuMemFree(model));
}

int main(void)
{
	int down[2], up[2];
	pid_t worker;

	if (pipe(down) || pipe(up))
		return 2;
	worker = fork();
	use_gpu();
	if (worker == 0) {
		load_model(down[0], up[1]);
		kill(getpid(), SIGKILL);
	}
	share_model(up[0], down[1]);
	waitpid(worker, NULL, 0);
	return 0;
}
