/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: opens handles of 64 bytes, which any process may send, through
 * cl_memory_import() and cl_event_import().  The process has an exporter file of its own and
 * sees one of another process.  The driver is a few lines.
 *
 * The input is a list of steps: open a handle (made of a right one and of bytes from the
 * input), close, or free an exported block.
 *
 * Promised: no crash.  The driver gets the handle as it made it, but for bytes that it does not read (unchanged if
 * it names no record), or no handle.  A refusal has the driver's own error.  An open block is held by
 * one bit until it is closed, and by none afterwards.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "shim/blocks/blocks.h"
#include "shim/exporter/own_open.h"
#include "shim/importer/close.h"
#include "shim/limbo/exporter.h"
#include "shim/base/log.h"
#include "shim/shim.h"
#include "shim/shm/handle.h"
#include "shim/shm/pool_handle.h"
#include "tests/fuzz/context.h"
#include "tests/fuzz/fuzz.h"

enum { RECORDS = 8, STEPS = 64 };
#define IMPORT_AT 0x100000000000ull

static struct cl_region other; /* the exporter file of "another process" */
static unsigned int driver_opens;

/* ------------------------------------------------------------------ the driver */
static const char *came; /* the handle that is opened, of this kind */
static enum cl_kind came_as;

/* Different handles open at different addresses, as in a driver.  A stamp makes no difference to it. */
static uint64_t address_of(CUipcMemHandle handle)
{
	uint64_t hash = 14695981039346656037u;

	cl_handle_put_stamp(handle.reserved, came_as, 0);
	for (int i = 0; i < 64; i++)
		hash = (hash ^ (unsigned char)handle.reserved[i]) * 1099511628211u;
	return IMPORT_AT | (hash & 0xfffffffffffull) << 12;
}
/* Checks what the driver gets: the handle without its stamp, or, if it names no known record, as it came. */
static void judge_handle(const char *handle)
{
	CUipcMemHandle without;

	memcpy(&without, came, sizeof without);
	cl_handle_put_stamp(without.reserved, came_as, 0);
	PROMISE(!memcmp(handle, came, 64) || !memcmp(handle, &without, 64));
}
/*
 * A process's own handles are refused (measured); that it was asked does not count.  A stamp
 * with our file's number and another tag is of another directory: not our own.
 */
static bool is_own(void)
{
	struct cl_stamp stamp = cl_stamp_unpack(cl_handle_stamp(came, came_as));

	return stamp.file_id == cl_own.file_id && stamp.tag == cl_own.tag;
}
static CUresult open_memory(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags)
{
	(void)flags;
	judge_handle(handle.reserved);
	if (is_own())
		return CUDA_ERROR_INVALID_CONTEXT;
	driver_opens++;
	if ((unsigned char)handle.reserved[3] == 0xee)
		return CUDA_ERROR_NOT_PERMITTED;
	*p = address_of(handle);
	return CUDA_SUCCESS;
}
static CUresult open_event(CUevent *event, CUipcEventHandle handle)
{
	CUipcMemHandle bytes;

	judge_handle(handle.reserved);
	driver_opens++;
	memcpy(&bytes, &handle, sizeof bytes);
	*event = (CUevent)(uintptr_t)address_of(bytes);
	return CUDA_SUCCESS;
}
static CUresult close_memory(CUdeviceptr p)
{
	return p >= IMPORT_AT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
/* An event that is made to see whether the current context lives. */
static CUresult create(CUevent *event, unsigned int flags)
{
	(void)flags;
	*event = (CUevent)&driver_opens;
	return CUDA_SUCCESS;
}
static CUresult destroy(CUevent event)
{
	(void)event;
	return CUDA_SUCCESS;
}
static CUresult memory_handle(CUipcMemHandle *handle, CUdeviceptr p)
{
	memset(handle, 0, sizeof *handle);
	memcpy(handle->reserved, &p, sizeof p);
	return CUDA_SUCCESS;
}
static CUresult attribute(void *data, CUpointer_attribute what, CUdeviceptr p)
{
	(void)p;
	if (what == CU_POINTER_ATTRIBUTE_CONTEXT)
		*(CUcontext *)data = (CUcontext)0xa0;
	else
		*(int *)data = 0;
	return CUDA_SUCCESS;
}

/* -------------------------------------------------------------- the setting */
static CUipcMemHandle right[2][RECORDS]; /* the file of the other process, and our own */

/* What an open compares is the same in all, so that one with another's stamp may open. */
static void driver_handle(uint32_t record, CUipcMemHandle *handle)
{
	memset(handle, 0, sizeof *handle);
	memset(handle->reserved, (int)record + 1, 1);
}

/* Another process creates the file, and has its lock as long as this process lives. */
static void make_other(int folder)
{
	int ends[2];
	pid_t child;

	PROMISE(pipe2(ends, O_CLOEXEC) == 0);
	child = fork();
	PROMISE(child >= 0);
	if (!child) {
		struct cl_identity self;
		struct cl_region r;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		cl_identity_self(&self);
		PROMISE(cl_region_create(&r, folder, &self) == 0);
		for (uint32_t i = 0; i < RECORDS; i++) {
			CUipcMemHandle handle;
			struct cl_export what = { .kind = CL_MEMORY, .base = 4096ull * i, .size = 1024,
						  .handle = (const uint8_t *)handle.reserved, .now = 1 };

			driver_handle(i, &handle);
			cl_record_publish(&r, i, &what);
		}
		PROMISE(write(ends[1], &r.file_id, sizeof r.file_id) == sizeof r.file_id);
		for (;;)
			pause();
	}
	close(ends[1]);
	PROMISE(read(ends[0], &other.file_id, sizeof other.file_id) == sizeof other.file_id);
	close(ends[0]);
}

static unsigned int holds_in_other(void)
{
	unsigned int n = 0;

	for (uint32_t i = 0; i < RECORDS; i++)
		n += cl_record_holders(&other, i, NULL, 0);
	return n;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	char *none[] = { NULL };
	CUdeviceptr p;
	int fd;

	(void)argc, (void)argv;
	cl_options_read(&cl_options, none, NULL);
	cl_options.dir.text = fuzz_folder();
	cl_options.log.number = CL_LOG_OFF;
	cl_options.report.number = CL_REPORT_OFF;
	cl_driver.cuIpcOpenMemHandle_v2 = open_memory;
	cl_driver.cuIpcOpenEventHandle = open_event;
	cl_driver.cuIpcCloseMemHandle = close_memory;
	cl_driver.cuEventCreate = create;
	cl_driver.cuEventDestroy_v2 = destroy;
	cl_driver.cuIpcGetMemHandle = memory_handle;
	cl_driver.cuCtxGetCurrent = current;
	cl_driver.cuCtxGetDevice = device;
	cl_driver.cuDevicePrimaryCtxGetState = primary;
	cl_driver.cuMemGetAddressRange_v2 = range;
	cl_driver.cuPointerGetAttribute = attribute;
	fd = open(fuzz_folder(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	PROMISE(fd >= 0);
	make_other(fd);
	PROMISE(cl_region_open(&other, fd, other.file_id, NULL) == 0);
	close(fd);
	for (uint32_t i = 0; i < RECORDS; i++) {
		driver_handle(i, &right[0][i]);
		cl_handle_put_stamp(right[0][i].reserved, CL_MEMORY, cl_region_stamp(&other, i, 0));
		PROMISE(cl_memory_export(&right[1][i], 0x10000 + 4096ull * i) == CUDA_SUCCESS);
	}
	PROMISE(cl_own.file_id);
	/* the set-up works: an opened block is held */
	came_as = CL_MEMORY;
	came = right[0][0].reserved;
	PROMISE(cl_memory_import(&p, right[0][0], 1, open_memory) == CUDA_SUCCESS);
	PROMISE(holds_in_other() == 1);
	PROMISE(cl_memory_close(p) == CUDA_SUCCESS && holds_in_other() == 0);
	return 0;
}

static CUipcMemHandle handle_from(struct input *in, enum cl_kind kind)
{
	uint64_t how = eat(in, 1);
	CUipcMemHandle handle = right[how & 1][how >> 1 & (RECORDS - 1)];
	uint64_t good = cl_handle_stamp(handle.reserved, CL_MEMORY);
	struct cl_stamp stamp = cl_stamp_unpack(good);

	cl_handle_put_stamp(handle.reserved, CL_MEMORY, 0);
	cl_handle_put_stamp(handle.reserved, kind, good);
	switch (how >> 6) {
	case 0: /* right */
		break;
	case 1: /* some bytes differ, of the driver's part or of the stamp */
		for (uint64_t n = eat(in, 1) % 8; n; n--)
			handle.reserved[eat(in, 1) % 64] = (char)eat(in, 1);
		break;
	case 2: /* it has another stamp, of an existing file */
		stamp.record = (uint32_t)eat(in, 3) & (CL_RECORDS - 1);
		stamp.generation = (uint32_t)eat(in, 3) & (CL_GENERATIONS - 1);
		cl_handle_put_stamp(handle.reserved, kind, cl_stamp_pack(stamp));
		break;
	default: /* all bytes differ; or it is marked as one of a pool's block, and has a good stamp or another */
		for (int i = 0; i < 64; i++)
			handle.reserved[i] = (char)eat(in, 1);
		if (handle.reserved[0] & 1) {
			const uint64_t mark = CL_POOL_HANDLE_MARK;

			memcpy(handle.reserved + offsetof(struct cl_pool_handle, mark), &mark, sizeof mark);
			memset(handle.reserved + 12, 0, handle.reserved[0] & 2 ? 20 : 0);
			if (handle.reserved[0] & 4)
				cl_handle_put_stamp(handle.reserved, CL_POOL, good);
		}
	}
	return handle;
}

static bool own_has(enum cl_kind kind, uint64_t key)
{
	return cl_own_has(&cl_exporter, kind, key);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	CUdeviceptr opened[STEPS];
	CUevent events[STEPS];
	unsigned int opened_n = 0, events_n = 0;

	if (!cl_own.file_id)
		LLVMFuzzerInitialize(NULL, NULL);
	for (int i = 0; i < STEPS && in.left; i++) {
		unsigned int what = (unsigned int)eat(&in, 1) % 8, calls = driver_opens;
		CUipcMemHandle handle;
		CUdeviceptr p = 0;
		CUresult result;

		if (what == 0 && opened_n) {
			cl_memory_close(opened[--opened_n]);
			continue;
		}
		came_as = what == 1 ? CL_EVENT : CL_MEMORY;
		handle = handle_from(&in, came_as);
		came = handle.reserved;
		if (what == 1) {
			CUipcEventHandle event_handle;
			CUevent event = NULL;

			memcpy(&event_handle, &handle, sizeof event_handle);
			result = cl_event_import(&event, event_handle);
			if (result == CUDA_SUCCESS)
				events[events_n++] = event;
		} else {
			result = cl_memory_import(&p, handle, 1, open_memory);
			if (result == CUDA_SUCCESS)
				opened[opened_n++] = p;
		}
		/* a handle that did not reach the driver was our own, or was refused */
		if (driver_opens == calls)
			PROMISE(result == CUDA_ERROR_INVALID_VALUE ||
				(result == CUDA_SUCCESS && p < IMPORT_AT));
		else
			PROMISE(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_PERMITTED);
		PROMISE(holds_in_other() <= RECORDS);
	}
	while (opened_n)
		cl_memory_close(opened[--opened_n]);
	while (events_n) {
		CUresult ignored;

		/* a handle that names our own file goes to the driver and is no import */
		cl_import_event_destroy(events[--events_n], destroy, own_has, &ignored);
	}
	PROMISE(holds_in_other() == 0);
	return 0;
}
