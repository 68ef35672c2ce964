/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests promise 4 for a thread that is cancelled (pthread_cancel) in a function of the
 * shim.  It must leave none of our locks behind, so that other threads go on.  Each run
 * cancels at another place: in the driver's Nth call, for all N, and once before.
 *
 * The shim runs over a driver of a few lines, since threads can't be cancelled in the
 * simulated one.  With CULIMBO_COLLECTOR=inline the cancelled thread also releases blocks.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/base/options.h"
#include "shim/driver/gate.h"
#include "shim/self/self.h"
#include "shim/shim.h"

#define BLOCK(n) (0x7f0000000000ull + (n) * 4096ull)
#define EVENT ((CUevent)0xe0)
#define CONTEXT ((CUcontext)0xc0)
enum { CHILD_SECONDS = 5 };

/* ------------------------------------------------------------------- the driver */
static __thread int calls_to_go = -1; /* -1: nothing */

static CUresult called(void)
{
	if (calls_to_go >= 0 && calls_to_go-- == 0)
		pthread_cancel(pthread_self());
	return CUDA_SUCCESS;
}
static CUresult get_handle(CUipcMemHandle *handle, CUdeviceptr p)
{
	memset(handle, 0, sizeof *handle);
	memcpy(handle, &p, sizeof p);
	return called();
}
static CUresult get_event_handle(CUipcEventHandle *handle, CUevent event)
{
	memset(handle, 0, sizeof *handle);
	return called();
}
static CUresult get_range(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	*base = p;
	*size = 4096;
	return called();
}
static CUresult get_attribute(void *to, CUpointer_attribute what, CUdeviceptr p)
{
	if (what == CU_POINTER_ATTRIBUTE_CONTEXT)
		*(CUcontext *)to = CONTEXT;
	else
		*(int *)to = 0;
	return called();
}
static CUresult allocate(CUdeviceptr *p, size_t size)
{
	*p = 1;
	return called();
}
static CUresult release(CUdeviceptr p)
{
	return called();
}
static CUresult get_current(CUcontext *ctx)
{
	*ctx = CONTEXT;
	return called();
}
static CUresult destroy_context(CUcontext ctx)
{
	CUresult result = called();

	pthread_testcancel(); /* the driver makes system calls */
	return result;
}
static CUresult get_device(CUdevice *device)
{
	*device = 0;
	return called();
}
static CUresult make_event(CUevent *event, unsigned int flags)
{
	*event = (CUevent)0xe2;
	return called();
}
static CUresult destroy(CUevent event)
{
	return called();
}
static CUresult open_memory(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags)
{
	*p = BLOCK(1000);
	return called();
}
static CUresult close_memory(CUdeviceptr p)
{
	return called();
}
static CUresult open_event(CUevent *event, CUipcEventHandle handle)
{
	*event = (CUevent)0xe1;
	return called();
}

/* The functions for virtual memory are cancelled in the driver's call, too. */
static CUresult create_memory(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
			      unsigned long long flags)
{
	CUresult result = called();

	pthread_testcancel();
	*handle = 101;
	return result;
}
static CUresult release_memory(CUmemGenericAllocationHandle handle)
{
	CUresult result = called();

	pthread_testcancel();
	return result;
}
static CUresult unmap_memory(CUdeviceptr p, size_t size)
{
	CUresult result = called();

	pthread_testcancel();
	return result;
}

static CUresult free_address(CUdeviceptr p, size_t size)
{
	return called();
}

static void set_driver(void)
{
	cl_driver.cuMemAddressFree = free_address;
	cl_driver.cuMemCreate = create_memory;
	cl_driver.cuMemRelease = release_memory;
	cl_driver.cuMemUnmap = unmap_memory;
	cl_driver.cuIpcGetMemHandle = get_handle;
	cl_driver.cuIpcGetEventHandle = get_event_handle;
	cl_driver.cuEventCreate = make_event;
	cl_driver.cuMemGetAddressRange_v2 = get_range;
	cl_driver.cuPointerGetAttribute = get_attribute;
	cl_driver.cuMemAlloc_v2 = allocate;
	cl_driver.cuMemFree_v2 = release;
	cl_driver.cuCtxGetCurrent = get_current;
	cl_driver.cuCtxGetDevice = get_device;
	cl_driver.cuEventDestroy_v2 = destroy;
	cl_driver.cuIpcOpenMemHandle_v2 = open_memory;
	cl_driver.cuIpcCloseMemHandle = close_memory;
	cl_driver.cuIpcOpenEventHandle = open_event;
}

/* ------------------------------------------------------- what is cancelled in what */
static CUipcMemHandle theirs; /* of another process */

static void export(void)
{
	CUipcMemHandle handle;

	cl_memory_export(&handle, BLOCK(1));
}
static void export_event(void)
{
	CUipcEventHandle handle;

	cl_event_export(&handle, EVENT);
}
static void free_exported(void)
{
	cl_memory_free(BLOCK(0));
}
static void destroy_event(void)
{
	cl_event_destroy(EVENT, destroy);
}
static void import(void)
{
	CUdeviceptr p = 0;

	cl_memory_import(&p, theirs, 0, open_memory);
}
static void import_and_close(void)
{
	CUdeviceptr p = 0;

	cl_memory_import(&p, theirs, 0, open_memory);
	cl_memory_close(p);
}
static void import_event(void)
{
	CUipcEventHandle handle = { { 0 } };
	CUevent event;

	cl_event_import(&event, handle);
}
static void fails(enum cl_retry_want want)
{
	struct cl_retry retry;

	cl_retry_begin(&retry, want, (struct cl_need){ .bytes = 4096 });
	cl_retry_again(&retry);
	cl_retry_end(&retry);
}
static void no_memory(void)
{
	fails(CL_RETRY_MEMORY);
}
static void no_event(void)
{
	fails(CL_RETRY_EVENT);
}
static void end_context(void)
{
	struct cl_context_end end = cl_context_end_begin(NULL, 0);

	destroy_context(NULL);
	cl_context_end_done(&end, true);
}
static void use_virtual_memory(void)
{
	const CUmemAllocationProp property = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					       .location.type = CU_MEM_LOCATION_TYPE_DEVICE };
	CUmemGenericAllocationHandle memory;

	cl_virtual_reserved(BLOCK(2000), 4096);
	cl_virtual_create(&memory, 4096, &property, 0);
	cl_virtual_mapped(BLOCK(2000), 4096, 0, memory);
	cl_virtual_unmap_now(BLOCK(2000), 4096);
	cl_virtual_release(memory);
	cl_virtual_address_free(BLOCK(2000), 4096);
}
/* With a block of it, and within the end of another one. */
static void end_contexts(void)
{
	struct cl_context_end first, second;

	export();
	first = cl_context_end_begin(NULL, 0);
	second = cl_context_end_begin(CONTEXT, 0);
	destroy_context(CONTEXT);
	cl_context_end_done(&second, true);
	destroy_context(NULL);
	cl_context_end_done(&first, true);
}

static const struct function {
	const char *name;
	void (*call)(void);
} functions[] = {
	{ "an export", export },
	{ "an event's export", export_event },
	{ "a free", free_exported },
	{ "an event's end", destroy_event },
	{ "an import", import },
	{ "an import and its close", import_and_close },
	{ "an event's import", import_event },
	{ "an allocation that fails", no_memory },
	{ "an event that cannot be made", no_event },
	{ "a context's end", end_context },
	{ "the ends of two contexts", end_contexts },
	{ "virtual memory", use_virtual_memory },
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

struct cancelled {
	void (*call)(void);
	int after; /* calls of the driver; -1: before any */
};

static void *cancelled(void *data)
{
	const struct cancelled *c = data;

	calls_to_go = c->after;
	if (c->after < 0)
		pthread_cancel(pthread_self());
	c->call();
	pthread_testcancel();
	return NULL;
}

/* Returns true if an end of a context has begun and was not done: other threads wait for it. */
static bool any_is_ending(void)
{
	struct cl_context *context;

	cl_lock(&cl_exports_lock);
	CL_LIST_EACH (context, &cl_contexts, struct cl_context, node)
		if (context->state != CL_CONTEXT_LIVE)
			break;
	cl_unlock(&cl_exports_lock);
	return context;
}

/* In a child.  @shared: it has shared before.  0: all well; 1: it was not cancelled. */
static int try(const struct function *function, int after, bool shared)
{
	struct cancelled c = { function->call, after };
	CUipcMemHandle handle;
	pthread_t thread;
	void *result;

	alarm(CHILD_SECONDS);
	if (shared) {
		cl_memory_export(&handle, BLOCK(0));
		cl_memory_export(&handle, BLOCK(2));
		cl_memory_free(BLOCK(2));
	}
	if (pthread_create(&thread, NULL, cancelled, &c) || pthread_join(thread, &result))
		return 2;
	if (any_is_ending())
		return 3;
	/* another thread makes all calls again */
	for (int i = 0; i < FUNCTIONS; i++)
		functions[i].call();
	cl_process_end(0);
	return result == PTHREAD_CANCELED ? 0 : 1;
}

/* The process whose handle is imported; it waits until it is killed. */
static pid_t start_exporter(void)
{
	pid_t child;
	int up[2];

	if (pipe(up))
		exit(2);
	child = fork();
	if (child == 0) {
		CUipcMemHandle handle;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		cl_memory_export(&handle, BLOCK(5));
		if (write(up[1], &handle, sizeof handle) != sizeof handle)
			_exit(2);
		for (;;)
			pause();
	}
	if (child < 0 || read(up[0], &theirs, sizeof theirs) != sizeof theirs)
		exit(2);
	return child;
}

/* ------------------------------------------------------- at any instruction */
/* Here a call is cancelled wherever it just is: its thread lets itself be. */
struct anywhere {
	const char *name;
	void (*begin)(void);
	void (*call)(void);
	void (*of_another)(void); /* what another thread calls after each */
	bool (*is_well)(void);	  /* in the end */
};

/* An export of what was exported before has its own way, without a collector's work in it. */
static void export_again(void)
{
	CUipcMemHandle handle;

	cl_memory_export(&handle, BLOCK(0));
}

struct begun {
	void (*call)(void);
	_Atomic bool begun;
};
static void *call_for_ever(void *data)
{
	struct begun *begun = data;

	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	for (;;) {
		atomic_store(&begun->begun, true);
		begun->call();
	}
	return NULL;
}

enum { ANYWHERE = 400 };
static int cancel_anywhere(const struct anywhere *of)
{
	alarm(4 * CHILD_SECONDS);
	cl_options.collector.number = CL_COLLECTOR_THREAD;
	export_again();
	of->begin();
	for (unsigned int i = 0; i < ANYWHERE; i++) {
		struct begun begun = { .call = of->call };
		pthread_t thread;

		if (pthread_create(&thread, NULL, call_for_ever, &begun))
			return 2;
		while (!atomic_load(&begun.begun))
			sched_yield();
		for (volatile unsigned int j = 0; j < i * 37 % 1009; j++)
			;
		if (pthread_cancel(thread) || pthread_join(thread, NULL))
			return 2;
		of->of_another();
	}
	return !of->is_well();
}

static bool cancelled_anywhere(const struct anywhere *of)
{
	pid_t child = fork();
	int how = -1;

	if (child == 0)
		_exit(cancel_anywhere(of));
	waitpid(child, &how, 0);
	if (how)
		printf("# status %#x%s\n", how,
		       WIFSIGNALED(how) && WTERMSIG(how) == SIGALRM ? ": the others wait for ever" : "");
	return !how;
}

static bool is_well(void)
{
	return true;
}

/* A retain beside another reference does not disable cancellation.  The main thread is in one meanwhile. */
static int beside;
static void retain_and_stay(void)
{
	struct cl_context_creation creation = cl_context_creation_begin(0);

	cl_context_creation_end(&creation, true);
	beside = cl_retain_beside_begin(0);
}
static void retain_beside(void)
{
	int call = cl_retain_beside_begin(0);

	if (call != CL_NOT_BESIDE)
		cl_beside_end(0, call, false);
}
static void nothing(void)
{
}
static void *release_last(void *done)
{
	cl_primary_release_begin(0);
	atomic_store((_Atomic bool *)done, true);
	return NULL;
}
/* The last release waits for the main thread's call, and for no other. */
static bool one_call_is_left(void)
{
	_Atomic bool done = false;
	pthread_t thread;
	bool waits;

	if (beside == CL_NOT_BESIDE || pthread_create(&thread, NULL, release_last, (void *)&done))
		return false;
	for (int i = 0; i < 200 && !atomic_load(&done); i++)
		usleep(1000);
	waits = !atomic_load(&done);
	cl_beside_end(0, beside, false);
	return !pthread_join(thread, NULL) && waits;
}

static const struct anywhere anywhere[] = {
	{ "an export of a known block", export_again, export_again, export_again, is_well },
	{ "a retain beside others", retain_and_stay, retain_beside, nothing, one_call_is_left },
};

int main(void)
{
	int number = 0, failures = 0, tries = 0;
	pid_t exporter;

	cl_options_read(&cl_options, environ, NULL);
	set_driver();
	exporter = start_exporter();
	for (int i = 0; i < FUNCTIONS; i++) {
		bool well = true;
		int times = 0;

		for (int shared = 0; well && shared < 2; shared++)
			for (int after = -1; well && after < 40; after++) {
				pid_t child = fork();
				int how = 0;

				if (child == 0)
					_exit(try(&functions[i], after, shared));
				waitpid(child, &how, 0);
				tries++;
				if (WIFEXITED(how) && WEXITSTATUS(how) == 1)
					break; /* so many calls it does not make */
				times++;
				if (WIFEXITED(how) && WEXITSTATUS(how) == 0)
					continue;
				well = false;
				printf("# %s, cancelled %s%d calls of the driver%s: ", functions[i].name,
				       after < 0 ? "before " : "after ", after < 0 ? 0 : after,
				       shared ? "" : ", the first that shares");
				if (WIFSIGNALED(how) && WTERMSIG(how) == SIGALRM)
					printf("the others wait for ever\n");
				else if (WIFEXITED(how) && WEXITSTATUS(how) == 3)
					printf("the end of a context is never done\n");
				else
					printf("status %#x\n", how);
			}
		failures += !well || !times;
		printf("%sok %d - a thread is cancelled in %s, in %d places: the others go on\n",
		       well && times ? "" : "not ", ++number, functions[i].name, times);
		fflush(stdout);
	}
	kill(exporter, SIGKILL);
	waitpid(exporter, NULL, 0);
	for (size_t i = 0; i < sizeof anywhere / sizeof *anywhere; i++) {
		bool well = cancelled_anywhere(&anywhere[i]);

		failures += !well;
		printf("%sok %d - a thread is cancelled %d times anywhere in %s: the others go on\n", well ? "" : "not ",
		       ++number, ANYWHERE, anywhere[i].name);
	}
	printf("# %d times a thread was cancelled\n1..%d\n", tries, number);
	return failures != 0;
}
