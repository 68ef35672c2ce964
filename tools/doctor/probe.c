/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks the driver for `culimbo doctor`, in a separate process: a driver that crashes or
 * hangs stops only that process.  It prints each fact as a line "name=value" on stdout
 * as soon as it is known, and names each step before it makes it.
 */
#include "config.h"

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/driver/calls.h"
#include "tools/doctor/probe.h"

static void *driver;

static bool is_ours(const void *address)
{
	const char *slash;
	Dl_info in;

	if (!address || !dladdr(address, &in) || !in.dli_fname)
		return false;
	slash = strrchr(in.dli_fname, '/');
	return !strncmp(slash ? slash + 1 : in.dli_fname, "libculimbo.so", 13);
}

static void step(const char *name)
{
	printf("step=%s\n", name);
}

/* Counts the hooked calls that lead to the library, for each of the two ways of looking them up. */
static void count_hooks(void)
{
	static const struct {
		const char *symbol, *base;
		int since;
		cuuint64_t flags;
	} call[] = {
#define X(symbol, base, since, flags, type, parameters, arguments) { #symbol, base, since, flags },
		CL_HOOKED_CALLS(X)
#undef X
	};
	CUresult (*get)(const char *, void **, int, cuuint64_t) =
		(CUresult (*)(const char *, void **, int, cuuint64_t))dlsym(driver, "cuGetProcAddress");
	unsigned int present = 0, ours = 0, got = 0, got_ours = 0;

	step("asking for addresses");
	for (size_t i = 0; i < sizeof(call) / sizeof(call[0]); i++) {
		void *address = dlsym(driver, call[i].symbol);

		if (!strcmp(call[i].symbol, "cuInit")) /* every driver has it, also one that shares nothing */
			continue;
		present += address != NULL;
		ours += is_ours(address);
		address = NULL;
		if (get && !get(call[i].base, &address, call[i].since, call[i].flags) && address) {
			got++;
			got_ours += is_ours(address);
		}
	}
	printf("hooks=%u %u %u %u\n", ours, present, got_ours, got);
}

static unsigned int bytes_not_zero(const void *from, size_t n)
{
	unsigned int not_zero = 0;

	for (size_t i = 0; i < n; i++)
		not_zero += ((const unsigned char *)from)[i] != 0;
	return not_zero;
}

static void say_result(const char *call, int result)
{
	CUresult (*name_of)(CUresult, const char **) =
		(CUresult (*)(CUresult, const char **))dlsym(driver, "cuGetErrorName");
	const char *name = NULL;

	if (name_of)
		name_of((CUresult)result, &name);
	printf("error=%s: %s (%d)\n", call, name ? name : "?", result);
}

/* Sets *call to the driver's function.  Returns false if the driver has none. */
static bool find(const char *name, void *call)
{
	void *address = dlsym(driver, name);

	memcpy(call, &address, sizeof(address));
	if (!address)
		printf("error=%s: the driver has no such call\n", name);
	return address != NULL;
}

/* Exports one block and one event, looks at their handles, and frees them. */
static void share(void)
{
	CUresult (*retain)(CUcontext *, CUdevice), (*set)(CUcontext), (*alloc)(CUdeviceptr *, size_t),
		(*give_back)(CUdeviceptr), (*export)(CUipcMemHandle *, CUdeviceptr),
		(*event_new)(CUevent *, unsigned int), (*event_export)(CUipcEventHandle *, CUevent),
		(*event_end)(CUevent);
	CUipcEventHandle event_handle;
	CUipcMemHandle handle;
	CUcontext context;
	CUdeviceptr block;
	CUevent event;
	CUresult result;

#define CALL(function, name, ...)                          \
	do {                                               \
		step(name);                                \
		if (!find(name, &(function)))              \
			return;                            \
		result = (function)(__VA_ARGS__);          \
		if (result) {                              \
			say_result(name, (int)result);     \
			return;                            \
		}                                          \
	} while (0)
	CALL(retain, "cuDevicePrimaryCtxRetain", &context, 0);
	CALL(set, "cuCtxSetCurrent", context);
	CALL(alloc, "cuMemAlloc_v2", &block, 1024);
	memset(&handle, 0, sizeof(handle));
	CALL(export, "cuIpcGetMemHandle", &handle, block);
	/* as cl_handle_has_room() asks (shm/handle.h) */
	printf("memory_used=%u\n", bytes_not_zero((char *)&handle + 12, 4) + bytes_not_zero((char *)&handle + 6, 1));
	CALL(give_back, "cuMemFree_v2", block);
	CALL(event_new, "cuEventCreate", &event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
	memset(&event_handle, 0, sizeof(event_handle));
	CALL(event_export, "cuIpcGetEventHandle", &event_handle, event);
	printf("event_used=%u\n", bytes_not_zero((char *)&event_handle + 56, 8));
	CALL(event_end, "cuEventDestroy_v2", event);
#undef CALL
	printf("shared=1\n");
}

int cu_probe(void)
{
	CUresult (*version_of)(int *), (*init)(unsigned int), (*count)(int *);
	struct link_map *map;
	int version = 0, devices = 0;
	CUresult result;

	setvbuf(stdout, NULL, _IOLBF, 0);
	step("loading libcuda.so.1");
	driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!driver) {
		printf("missing=%s\n", dlerror());
		return 0;
	}
	if (!dlinfo(driver, RTLD_DI_LINKMAP, &map))
		printf("driver=%s\n", map->l_name);
	count_hooks();
	step("cuDriverGetVersion");
	if (find("cuDriverGetVersion", &version_of) && !version_of(&version))
		printf("version=%d\n", version);
	step("cuInit");
	if (!find("cuInit", &init))
		return 0;
	result = init(0);
	if (result) {
		say_result("cuInit", (int)result);
		return 0;
	}
	step("cuDeviceGetCount");
	if (find("cuDeviceGetCount", &count) && !count(&devices))
		printf("devices=%d\n", devices);
	if (devices > 0)
		share();
	step("ending");
	return 0;
}
