/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plugin that is linked to the driver and shares a block: unreached.bats opens
 * it in the ways that LD_PRELOAD doesn't reach.  With -DPLUGIN_HOST, the program
 * that opens it: host plain|deepbind|dlmopen PLUGIN [HANDLE_FILE].
 *
 * It prints what a program can see: results, and what it reads of its own block.
 */
#include <stdio.h>
#include <string.h>
#ifdef PLUGIN_HOST
#include <dlfcn.h>

int main(int argc, char **argv)
{
	int (*share)(const char *);
	void *plugin;

	if (argc < 3)
		return 2;
	if (!strcmp(argv[1], "dlmopen"))
		plugin = dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW);
	else
		plugin = dlopen(argv[2], RTLD_NOW | (strcmp(argv[1], "plain") ? RTLD_DEEPBIND : 0));
	if (!plugin) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	*(void **)&share = dlsym(plugin, "share");
	return share ? share(argv[3]) : 1;
}
#else
#include <cuda.h>

#define CHECK(call)                                                                                \
	do {                                                                                       \
		CUresult result = (call);                                                          \
		if (result != CUDA_SUCCESS) {                                                      \
			printf(#call ": %d\n", (int)result);                                       \
			fflush(stdout);                                                            \
			return 1;                                                                  \
		}                                                                                  \
	} while (0)

/* Exports a block (or, when @path has a handle already, opens that), and frees it. */
int share(const char *path)
{
	unsigned char bytes[1024];
	CUipcMemHandle handle;
	CUdeviceptr block;
	CUcontext context;
	int own = 0;
	FILE *f;

	CHECK(cuInit(0));
	CHECK(cuDevicePrimaryCtxRetain(&context, 0));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuMemAlloc(&block, sizeof(bytes)));
	CHECK(cuMemsetD8(block, 17, sizeof(bytes)));
	CHECK(cuIpcGetMemHandle(&handle, block));
	CHECK(cuMemcpyDtoH(bytes, block, sizeof(bytes)));
	for (size_t i = 0; i < sizeof(bytes); i++)
		own += bytes[i] == 17;
	CHECK(cuMemFree(block));
	printf("%d bytes of its own, a second free gives %d\n", own, (int)cuMemFree(block));
	fflush(stdout);
	if (path) {
		f = fopen(path, "wb");
		if (!f || fwrite(&handle, sizeof(handle), 1, f) != 1 || fclose(f))
			return 1;
	}
	return 7;
}
#endif
