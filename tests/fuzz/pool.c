/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: imports export data of pools' blocks, 64 bytes that any process may send, through
 * cl_pool_pointer_import().  The process sees the exporter file of another.  The driver is a few
 * lines.
 *
 * The input is a list of steps: import (data made of right ones and of bytes from the input), free,
 * or free in a stream's order.
 *
 * Promised: no crash.  The driver gets its own 48 bytes unchanged, or nothing.  A refusal has one of
 * two errors.  An imported block is held by one bit until it is freed as often, and by none
 * afterwards.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "shim/base/log.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/exporter.h"
#include "shim/shim.h"
#include "shim/shm/pool_data.h"
#include "tests/fuzz/context.h"
#include "tests/fuzz/fuzz.h"

enum { RECORDS = 8, STEPS = 64 };
#define IMPORT_AT 0x100000000000ull

static struct cl_region other; /* the exporter file of "another process" */
static uint32_t other_pid;
static unsigned int driver_imports;
static const uint8_t *came;

/* ------------------------------------------------------------------ the driver */
/* Different data give different addresses. */
static CUresult import_pointer(CUdeviceptr *p, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
	(void)pool;
	PROMISE(!memcmp(data->reserved, came, CL_POOL_DRIVERS));
	driver_imports++;
	*p = IMPORT_AT | (cl_pool_fingerprint((const uint8_t *)data->reserved) & 0xfffffffull) << 9;
	return CUDA_SUCCESS;
}
static CUresult free_memory(CUdeviceptr p)
{
	return p >= IMPORT_AT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult free_async(CUdeviceptr p, CUstream stream)
{
	(void)stream;
	return free_memory(p);
}
static CUresult attribute(void *data, CUpointer_attribute what, CUdeviceptr p)
{
	(void)what, (void)p;
	*(int *)data = 0;
	return CUDA_SUCCESS;
}
static CUresult make_event(CUevent *event, unsigned int flags)
{
	(void)flags;
	*event = (CUevent)0xe0;
	return CUDA_SUCCESS;
}
static CUresult record_event(CUevent event, CUstream stream)
{
	(void)event, (void)stream;
	return CUDA_SUCCESS;
}
static CUresult any_event(CUevent event)
{
	(void)event;
	return CUDA_SUCCESS;
}

/* -------------------------------------------------------------- the setting */
static void drivers_data(uint32_t record, uint8_t data[64])
{
	uint64_t size = 1024;

	memset(data, 0, 64);
	memset(data, (int)record + 1, 24);
	memcpy(data + 32, &size, sizeof size);
}

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
			uint8_t data[64], handle[64];
			struct cl_export what = { .kind = CL_POOL, .base = 4096ull * i, .size = 1024,
						  .handle = handle, .now = 1 };

			drivers_data(i, data);
			cl_pool_to_handle(handle, data);
			cl_record_publish(&r, i, &what);
		}
		PROMISE(write(ends[1], &r.file_id, sizeof r.file_id) == sizeof r.file_id);
		for (;;)
			pause();
	}
	other_pid = (uint32_t)child;
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

static void right_data(uint32_t record, uint8_t data[64])
{
	drivers_data(record, data);
	cl_pool_put_stamp(data, cl_pool_fingerprint(data), cl_region_stamp(&other, record, 0), other_pid);
}

static CUresult import(CUdeviceptr *p, const uint8_t bytes[64])
{
	CUmemPoolPtrExportData data;

	memcpy(data.reserved, bytes, 64);
	came = bytes;
	return cl_pool_pointer_import(p, NULL, &data, NULL);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	char *none[] = { NULL };
	uint8_t data[64];
	CUdeviceptr p;
	int fd;

	(void)argc, (void)argv;
	cl_options_read(&cl_options, none, NULL);
	cl_options.dir.text = fuzz_folder();
	cl_options.log.number = CL_LOG_OFF;
	cl_options.report.number = CL_REPORT_OFF;
	cl_options.collector.number = CL_COLLECTOR_INLINE; /* so that an input means the same in each run */
	cl_driver.cuMemPoolImportPointer = import_pointer;
	cl_driver.cuMemFree_v2 = free_memory;
	cl_driver.cuMemFreeAsync = free_async;
	cl_driver.cuCtxGetCurrent = current;
	cl_driver.cuCtxGetDevice = device;
	cl_driver.cuDevicePrimaryCtxGetState = primary;
	cl_driver.cuMemGetAddressRange_v2 = range;
	cl_driver.cuPointerGetAttribute = attribute;
	cl_driver.cuEventCreate = make_event;
	cl_driver.cuEventRecord = record_event;
	cl_driver.cuEventQuery = any_event;
	cl_driver.cuEventDestroy_v2 = any_event;
	fd = open(fuzz_folder(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	PROMISE(fd >= 0);
	make_other(fd);
	PROMISE(cl_region_open(&other, fd, other.file_id, NULL) == 0);
	close(fd);
	/* the set-up works: an imported block is held */
	right_data(0, data);
	PROMISE(import(&p, data) == CUDA_SUCCESS);
	PROMISE(holds_in_other() == 1);
	PROMISE(cl_memory_free_async(p, NULL, false) == CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, false);
	PROMISE(holds_in_other() == 0);
	return 0;
}

static void data_from(struct input *in, uint8_t data[64])
{
	uint64_t how = eat(in, 1), tail;
	struct cl_stamp stamp;

	right_data((uint32_t)(how & (RECORDS - 1)), data);
	switch (how >> 5) {
	case 0: /* right */
		break;
	case 1: /* some bytes differ */
		for (uint64_t n = eat(in, 1) % 8; n; n--)
			data[eat(in, 1) % 64] = (uint8_t)eat(in, 1);
		break;
	case 2: /* the driver's bytes differ, and the stamp fits them */
	case 3: /* it has another valid stamp, of an existing file */
		memcpy(&tail, data + 56, sizeof tail);
		stamp = cl_stamp_unpack(tail);
		if (how >> 5 == 2) {
			data[eat(in, 1) % CL_POOL_DRIVERS] = (uint8_t)eat(in, 1);
		} else {
			stamp.record = (uint32_t)eat(in, 3) & (CL_RECORDS - 1);
			stamp.generation = (uint32_t)eat(in, 3) & (CL_GENERATIONS - 1);
		}
		cl_pool_put_stamp(data, cl_pool_fingerprint(data), cl_stamp_pack(stamp), (uint32_t)eat(in, 3));
		break;
	default: /* all bytes differ; half of the stamps are valid */
		for (int i = 0; i < 64; i++)
			data[i] = (uint8_t)eat(in, 1);
		memcpy(&tail, data + 56, sizeof tail);
		if (how >> 5 & 1)
			cl_pool_put_stamp(data, cl_pool_fingerprint(data), tail, (uint32_t)eat(in, 3));
	}
}

static void free_by(unsigned int what, CUdeviceptr p)
{
	CUresult result = what ? cl_memory_free_async(p, NULL, false) : cl_memory_free(p);

	PROMISE(result == CUDA_SUCCESS);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	struct input in = { bytes, size };
	CUdeviceptr imported[STEPS];
	unsigned int n = 0;

	if (!other.file_id)
		LLVMFuzzerInitialize(NULL, NULL);
	for (int i = 0; i < STEPS && in.left; i++) {
		unsigned int what = (unsigned int)eat(&in, 1) % 8, calls = driver_imports;
		uint8_t data[64];
		CUdeviceptr p = 0;
		CUresult result;

		if (what < 2 && n) {
			free_by(what, imported[--n]);
			continue;
		}
		data_from(&in, data);
		result = import(&p, data);
		if (result == CUDA_SUCCESS)
			imported[n++] = p;
		if (driver_imports == calls)
			PROMISE(result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED);
		else
			PROMISE(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE);
		PROMISE(holds_in_other() <= RECORDS);
	}
	while (n)
		free_by(n % 2, imported[n - 1]), n--;
	cl_limbo_collect(&cl_exporter, false);
	PROMISE(holds_in_other() == 0);
	return 0;
}
