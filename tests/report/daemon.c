/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An old-style daemon: closes 0, 1 and 2, so that its own files get these numbers, and has a
 * bug that a report tells of.
 *
 *   daemon late|early    closes them after, or before, it shares memory
 */
#include <fcntl.h>
#include "bug.h"

static void open_own_files(int flags)
{
	static const char *const names[] = { "own0", "own1", "own2" };

	for (int fd = 0; fd <= 2; fd++)
		close(fd);
	for (int fd = 0; fd <= 2; fd++)
		if (open(names[fd], O_WRONLY | O_CREAT | O_APPEND | flags, 0600) != fd)
			_exit(4);
	pass(2, "record\n", 7);
}

int main(int argc, char **argv)
{
	int early = argc > 1 && !strcmp(argv[1], "early");
	CUipcMemHandle handle;
	CUdeviceptr block;

	if (early)
		open_own_files(O_CLOEXEC);
	use_gpu();
	CHECK(cuMemAlloc(&block, 1024));
	CHECK(cuIpcGetMemHandle(&handle, block));
	if (!early)
		open_own_files(0);
	CHECK(cuMemFree(block));
	cuMemFree(block); /* the bug */
	pass(2, "record\n", 7);
	return 0;
}
