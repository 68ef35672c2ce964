/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patches calls that it gets by dlsym, by cuGetProcAddress and by being linked.  Checks that
 * each call reaches the patch and then its former target.
 *
 *   patched near|far           without culimbo
 *   patched near|far culimbo   under culimbo: a shared block that is freed is kept
 *
 * Prints TAP.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "shim/driver/calls.h"
#include "tests/patch/patcher.h"

static unsigned int number, failures;

static void ok(bool right, const char *what)
{
	printf("%sok %u - %s\n", right ? "" : "not ", ++number, what);
	failures += !right;
}

#define MUST(call)                                                               \
	do {                                                                     \
		CUresult must_result = (call);                                   \
                                                                                 \
		if (must_result != CUDA_SUCCESS) {                               \
			printf("Bail out! %s: %d\n", #call, (int)must_result);   \
			exit(1);                                                 \
		}                                                                \
	} while (0)

static void *driver;
static bool culimbo;
static enum patch_how how;

static void *function(const char *name)
{
	void *found = dlsym(driver, name);

	if (!found) {
		printf("Bail out! no %s\n", name);
		exit(1);
	}
	return found;
}

/* ----------------------------------------------------------------- what patches */
static struct {
	struct patch patch;
	unsigned int calls;
} allocate, pitch, release, release_async, export, import, linked_release;

/* Calls the original function, as one of this type. */
#define ORIGINAL(which, type) ((type)(uintptr_t)(which).patch.original)

static CUresult my_alloc(CUdeviceptr *block, size_t bytes)
{
	allocate.calls++;
	return ORIGINAL(allocate, CUresult(*)(CUdeviceptr *, size_t))(block, bytes);
}

static CUresult my_pitch(CUdeviceptr *block, size_t *row, size_t width, size_t height,
			 unsigned int element)
{
	pitch.calls++;
	return ORIGINAL(pitch, CUresult(*)(CUdeviceptr *, size_t *, size_t, size_t, unsigned int))(
		block, row, width, height, element);
}

static CUresult my_free(CUdeviceptr block)
{
	release.calls++;
	return ORIGINAL(release, CUresult(*)(CUdeviceptr))(block);
}

static CUresult my_linked_free(CUdeviceptr block)
{
	linked_release.calls++;
	return ORIGINAL(linked_release, CUresult(*)(CUdeviceptr))(block);
}

static CUresult my_free_async(CUdeviceptr block, CUstream stream)
{
	release_async.calls++;
	return ORIGINAL(release_async, CUresult(*)(CUdeviceptr, CUstream))(block, stream);
}

static CUresult my_export(CUipcMemHandle *handle, CUdeviceptr block)
{
	export.calls++;
	return ORIGINAL(export, CUresult(*)(CUipcMemHandle *, CUdeviceptr))(handle, block);
}

static CUresult my_import(CUdeviceptr *block, CUipcMemHandle handle, unsigned int flags)
{
	import.calls++;
	return ORIGINAL(import, CUresult(*)(CUdeviceptr *, CUipcMemHandle, unsigned int))(
		block, handle, flags);
}

static void calls_none(void)
{
	allocate.calls = pitch.calls = release.calls = release_async.calls = 0;
	export.calls = import.calls = linked_release.calls = 0;
}

/* ------------------------------------------------------------- what there is to get */
static void find_all(void)
{
	CUresult (*get)(const char *, void **, int, cuuint64_t);
	bool same = true, possible = true;

	*(void **)&get = function("cuGetProcAddress");
#define X(symbol, base, since, flags, type, params, args)                                    \
	{                                                                                    \
		void *by_name = dlsym(driver, #symbol), *asked = NULL;                       \
                                                                                             \
		if (by_name) {                                                               \
			MUST(get(base, &asked, since, flags));                               \
			if (asked != by_name)                                                \
				printf("# %s: two addresses\n", #symbol), same = false;      \
			if (!patch_possible(by_name) || !patch_possible(asked))              \
				printf("# %s: can't be patched\n", #symbol), possible = false; \
		}                                                                            \
	}
	CL_HOOKED_CALLS(X)
#undef X
	ok(same, "dlsym and cuGetProcAddress give the same address of each call");
	ok(possible, "which can be patched");
}

/* -------------------------------------------------------------------- what calls */
/* Returns whether the address of a shared and freed block still names a block. */
static bool kept(CUdeviceptr block)
{
	CUdeviceptr base;
	size_t bytes;

	return cuMemGetAddressRange_v2(&base, &bytes, block) == CUDA_SUCCESS;
}

static void shared_and_freed(const char *way, CUresult (*alloc)(CUdeviceptr *, size_t),
			     CUresult (*get)(CUipcMemHandle *, CUdeviceptr),
			     CUresult (*free_it)(CUdeviceptr), unsigned int by_link)
{
	CUipcMemHandle handle;
	CUdeviceptr block;
	char text[128];

	calls_none();
	MUST(alloc(&block, (size_t)4 << 20));
	MUST(get(&handle, block));
	MUST(free_it(block));
	snprintf(text, sizeof(text), "%s: each call comes to the patch once", way);
	ok(allocate.calls == 1 && export.calls == 1 && release.calls == 1 &&
		   linked_release.calls == by_link, text);
	snprintf(text, sizeof(text), "%s: and then to %s", way,
		 culimbo ? "the hook: the block is kept" : "the driver: the block is gone");
	ok(kept(block) == culimbo, text);
}

static void other_calls(void)
{
	CUresult (*alloc_pitch)(CUdeviceptr *, size_t *, size_t, size_t, unsigned int);
	CUresult (*free_async)(CUdeviceptr, CUstream);
	CUdeviceptr block;
	size_t row = 0;

	*(void **)&alloc_pitch = function("cuMemAllocPitch_v2");
	*(void **)&free_async = function("cuMemFreeAsync");
	calls_none();
	MUST(alloc_pitch(&block, &row, 1000, 3, 16));
	MUST(cuMemsetD8_v2(block + 2 * row, 3, 1000));
	MUST(free_async(block, NULL));
	MUST(cuStreamSynchronize(NULL));
	ok(pitch.calls == 1 && row >= 1000, "all five arguments arrive");
	ok(release_async.calls == 1 && !kept(block), "a free in a stream arrives");
}

/* Another process exports; it ends when its stdin, our @go, is closed. */
static CUipcMemHandle others_handle(pid_t *child, int *go)
{
	int there[2], back[2];
	CUipcMemHandle handle;
	CUcontext context;
	CUdeviceptr block;

	if (pipe(there) || pipe(back))
		exit(1);
	fflush(stdout);
	*child = fork();
	if (!*child) {
		close(there[1]);
		MUST(cuInit(0));
		MUST(cuDevicePrimaryCtxRetain(&context, 0));
		MUST(cuCtxSetCurrent(context));
		MUST(cuMemAlloc_v2(&block, 4096));
		MUST(cuMemsetD8_v2(block, 17, 4096));
		MUST(cuIpcGetMemHandle(&handle, block));
		_exit(write(back[1], &handle, sizeof(handle)) != sizeof(handle) ||
		      read(there[0], &handle, 1) != 0);
	}
	close(there[0]);
	close(back[1]);
	if (read(back[0], &handle, sizeof(handle)) != sizeof(handle))
		exit(1);
	*go = there[1];
	return handle;
}

static void imported(CUipcMemHandle handle)
{
	CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int);
	CUdeviceptr block;
	char byte = 0;

	*(void **)&open = function("cuIpcOpenMemHandle_v2");
	calls_none();
	MUST(open(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	MUST(cuMemcpyDtoH_v2(&byte, block + 4095, 1));
	MUST(cuIpcCloseMemHandle(block));
	ok(import.calls == 1 && byte == 17, "an argument on the stack arrives");
}

int main(int argc, char **argv)
{
	CUresult (*found_alloc)(CUdeviceptr *, size_t);
	CUresult (*found_export)(CUipcMemHandle *, CUdeviceptr);
	CUresult (*found_free)(CUdeviceptr);
	CUresult (*linked_free)(CUdeviceptr) = cuMemFree_v2;
	CUipcMemHandle handle;
	CUcontext context;
	pid_t child;
	bool all;
	int go, status = 1;

	how = argc > 1 && !strcmp(argv[1], "near") ? PATCH_NEAR : PATCH_FAR;
	culimbo = argc > 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	handle = others_handle(&child, &go);
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	MUST(cuInit(0));
	MUST(cuDevicePrimaryCtxRetain(&context, 0));
	MUST(cuCtxSetCurrent(context));
	find_all();

	*(void **)&found_alloc = function("cuMemAlloc_v2");
	*(void **)&found_export = function("cuIpcGetMemHandle");
	*(void **)&found_free = function("cuMemFree_v2");
#define PUT(which, name, hook) \
	patch_put(&(which).patch, function(name), (const void *)(uintptr_t)(hook), how)
	all = PUT(allocate, "cuMemAlloc_v2", my_alloc);
	all &= PUT(pitch, "cuMemAllocPitch_v2", my_pitch);
	all &= PUT(release, "cuMemFree_v2", my_free);
	all &= PUT(release_async, "cuMemFreeAsync", my_free_async);
	all &= PUT(export, "cuIpcGetMemHandle", my_export);
	all &= PUT(import, "cuIpcOpenMemHandle_v2", my_import);
	ok(all, "what dlsym gave is patched");
	shared_and_freed("dlsym", found_alloc, found_export, found_free, 0);
	shared_and_freed("linked", cuMemAlloc_v2, cuIpcGetMemHandle, linked_free, 0);
	other_calls();
	imported(handle);

	/* Without culimbo a linked call is the function that dlsym gave, which is patched already. */
	if (culimbo) {
		ok(patch_put(&linked_release.patch, (void *)(uintptr_t)linked_free,
			     (const void *)(uintptr_t)my_linked_free, how),
		   "what a linked program is bound to is patched");
		shared_and_freed("linked, patched", cuMemAlloc_v2, cuIpcGetMemHandle, linked_free, 1);
		all = patch_undo(&linked_release.patch);
	} else {
		ok((void *)(uintptr_t)linked_free == function("cuMemFree_v2"),
		   "a linked program is bound to the same");
	}
	all &= patch_undo(&release.patch) && patch_undo(&allocate.patch) &&
	       patch_undo(&export.patch);
	calls_none();
	{
		CUdeviceptr block;

		MUST(found_alloc(&block, 4096));
		MUST(linked_free(block));
		ok(all && !allocate.calls && !release.calls && !linked_release.calls && !kept(block),
		   "and all is as before when the patches are undone");
	}
	close(go);
	waitpid(child, &status, 0);
	ok(status == 0, "the exporter ends well");
	printf("1..%u\n", number);
	return failures != 0;
}
