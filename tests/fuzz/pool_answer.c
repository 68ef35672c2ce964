/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: opens handles of pools' blocks, 64 bytes that any process may send, of an exporter whose records and
 * whose answers are made up, through cl_memory_import().  The exporter (exporter.h) says what the input tells it
 * to.  The driver is a few lines.
 *
 * The input is a list of steps: open a handle (made of a right one and of bytes from the input), with right answers
 * or up to three that are made of right ones and of bytes from the input, after which the exporter hangs up; close;
 * change a byte of a record's export data, kind or size in the exporter's file; or have a call of the driver fail.
 *
 * Promised: no crash and no hang.  The driver imports a pool from one descriptor, and a pointer only from a pool that
 * it has.  An open ends with one of a few errors.  After the last close no pool is imported, no pointer is
 * mapped, no block is held, no descriptor is left, and a right open works.
 */
#include "shim/base/log.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/exporter.h"
#include "shim/shim.h"
#include "shim/shm/pool_data.h"
#include "shim/shm/pool_handle.h"
#include "tests/fuzz/context.h"
#include "tests/fuzz/exporter.h"
#include "tests/fuzz/fuzz.h"

enum { STEPS = 32, MOST = 64, PER_POOL = 4, SIZE = 1024 };
#define IMPORT_AT UINT64_C(0x100000000000)

/* ------------------------------------------------------------------- the driver */
static bool pool_is[MOST];
static struct {
	CUdeviceptr at;
	CUmemoryPool pool;
} pointer[MOST];
static unsigned int pools_n, pointers_n;

static bool is_pool(CUmemoryPool pool)
{
	uintptr_t i = (uintptr_t)pool - 1;

	return i < MOST && pool_is[i];
}
static CUresult import_pool(CUmemoryPool *pool, void *fd, CUmemAllocationHandleType type, unsigned long long flags)
{
	PROMISE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !flags &&
		fcntl((int)(intptr_t)fd, F_GETFD) == FD_CLOEXEC);
	if (refuses())
		return CUDA_ERROR_INVALID_VALUE;
	for (uintptr_t i = 0; i < MOST; i++)
		if (!pool_is[i]) {
			pool_is[i] = true;
			pools_n++;
			*pool = (CUmemoryPool)(i + 1);
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_OUT_OF_MEMORY;
}
static CUresult destroy_pool(CUmemoryPool pool)
{
	PROMISE(is_pool(pool));
	for (unsigned int i = 0; i < pointers_n; i++)
		if (pointer[i].pool == pool)
			return CUDA_ERROR_INVALID_VALUE;
	pool_is[(uintptr_t)pool - 1] = false;
	pools_n--;
	return CUDA_SUCCESS;
}
static CUresult set_access(CUmemoryPool pool, const CUmemAccessDesc *access, size_t n)
{
	PROMISE(is_pool(pool) && n == 1 && access->location.id == 0);
	return refuses() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
static CUresult import_pointer(CUdeviceptr *p, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
	CUdeviceptr at = IMPORT_AT | (cl_pool_fingerprint((const uint8_t *)data->reserved) & 0xfffffff) << 9;

	PROMISE(is_pool(pool));
	for (int i = CL_POOL_DRIVERS; i < 64; i++)
		PROMISE(!data->reserved[i]);
	for (unsigned int i = 0; i < pointers_n; i++)
		if (pointer[i].at == at)
			return CUDA_ERROR_ALREADY_MAPPED;
	if (refuses() || pointers_n == MOST)
		return CUDA_ERROR_INVALID_VALUE;
	pointer[pointers_n].at = at;
	pointer[pointers_n++].pool = pool;
	*p = at;
	return CUDA_SUCCESS;
}
static CUresult free_memory(CUdeviceptr p)
{
	for (unsigned int i = 0; i < pointers_n; i++)
		if (pointer[i].at == p) {
			pointer[i] = pointer[--pointers_n];
			return CUDA_SUCCESS;
		}
	return p == 0x1000 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
static CUresult record_event(CUevent event, CUstream stream)
{
	(void)event, (void)stream;
	return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------ the exporter */
static void drivers_data(uint32_t record, uint8_t data[64])
{
	uint64_t size = SIZE;

	memset(data, 0, 64);
	memset(data, (int)record + 1, 24);
	memcpy(data + 32, &size, sizeof size);
}

static void publish(struct cl_region *r, uint32_t record)
{
	uint8_t data[64], handle[64];
	struct cl_export what = { .kind = CL_POOL, .base = 4096ull * record, .size = SIZE, .handle = handle, .now = 1 };

	drivers_data(record, data);
	cl_pool_to_handle(handle, data);
	cl_record_publish(r, record, &what);
}

/* One descriptor: of the whole pool. */
static void say_right(struct said *said, uint32_t record, uint32_t first, uint64_t from)
{
	(void)from;
	memset(said, 0, sizeof *said);
	cl_serve_head_set(&said->answer.head, sizeof said->answer);
	said->size = sizeof said->answer;
	said->answer.piece[0] = (struct cl_piece){ .size = SIZE, .record = record };
	said->answer.first = first;
	said->answer.count = 1;
	said->answer.total = first + 1;
	said->fds = 1;
}

/* ------------------------------------------------------------------- the opens */
static CUipcMemHandle right_handle(uint32_t record)
{
	struct cl_pool_handle handle = { .pid = other_pid, .mark = CL_POOL_HANDLE_MARK, .pool = 1 + record / PER_POOL };
	CUipcMemHandle bytes;
	uint8_t data[64];

	drivers_data(record, data);
	handle.fingerprint = cl_pool_fingerprint(data);
	handle.stamp = cl_region_stamp(&other, record, 0);
	memcpy(&bytes, &handle, sizeof bytes);
	return bytes;
}

static void open_right(void)
{
	CUdeviceptr p;

	script->right = true;
	PROMISE(cl_memory_import(&p, right_handle(1), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, open_memory) == CUDA_SUCCESS);
	PROMISE(holds_in_other() == 1 && pools_n == 1 && pointers_n == 1);
	PROMISE(cl_memory_close(p) == CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, false);
	PROMISE(!holds_in_other() && !pools_n && !pointers_n);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	begin();
	cl_options.collector.number = CL_COLLECTOR_INLINE; /* so that an input means the same in each run */
	cl_driver.cuMemPoolImportFromShareableHandle = import_pool;
	cl_driver.cuMemPoolDestroy = destroy_pool;
	cl_driver.cuMemPoolSetAccess = set_access;
	cl_driver.cuMemPoolImportPointer = import_pointer;
	cl_driver.cuMemFree_v2 = free_memory;
	cl_driver.cuMemFreeAsync = free_async;
	cl_driver.cuPointerGetAttribute = attribute;
	cl_driver.cuEventRecord = record_event;
	cl_driver.cuEventQuery = any_event;
	meet_other();
	open_right();
	return 0;
}

/* It names another pool. */
static void change_handle(CUipcMemHandle *handle, struct input *in)
{
	uint64_t word = eat(in, 1);

	memcpy(handle->reserved + offsetof(struct cl_pool_handle, pool), &word, sizeof word);
}

/* A damaged or hostile exporter's file: its record has other export data, another kind, or another size. */
static void damage(struct input *in)
{
	struct cl_record *record = &other.record[eat(in, 1) % RECORDS];
	uint64_t where = eat(in, 1);

	if (where < 64)
		((uint8_t *)record->handle)[where] = (uint8_t)eat(in, 1);
	else if (where < 128)
		record->kind = (uint8_t)eat(in, 1);
	else
		record->size = eat(in, 8);
}

static bool is_an_error_of_ours(CUresult result)
{
	return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_OPERATING_SYSTEM ||
	       result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_NOT_SUPPORTED ||
	       result == CUDA_ERROR_ALREADY_MAPPED;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct cl_record right[RECORDS];
	struct input in = { data, size };
	CUdeviceptr opened[STEPS];
	unsigned int opened_n = 0;

	if (!other.header)
		LLVMFuzzerInitialize(NULL, NULL);
	for (int i = 0; i < RECORDS; i++)
		memcpy(&right[i], &other.record[i], sizeof right[i]);
	refuse_in = 0;
	for (int i = 0; i < STEPS && in.left; i++) {
		unsigned int what = (unsigned int)eat(&in, 1) % 8;
		CUipcMemHandle handle;
		CUdeviceptr p = 0;
		CUresult result;
		uint64_t how;

		if (what == 0 && opened_n) {
			cl_memory_close(opened[--opened_n]);
			continue;
		}
		if (what == 1) {
			refuse_in = (unsigned int)eat(&in, 1) % 16;
			continue;
		}
		if (what == 3) {
			damage(&in);
			continue;
		}
		how = eat(&in, 1);
		handle = handle_from(&in, how);
		script_from(&in, (uint32_t)how % RECORDS);
		result = cl_memory_import(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, open_memory);
		PROMISE(result == CUDA_SUCCESS || is_an_error_of_ours(result));
		if (result == CUDA_SUCCESS) {
			PROMISE(p >= IMPORT_AT);
			opened[opened_n++] = p;
		}
	}
	refuse_in = 0;
	while (opened_n)
		PROMISE(cl_memory_close(opened[--opened_n]) == CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, false);
	for (int i = 0; i < RECORDS; i++) {
		memcpy(other.record[i].handle, right[i].handle, sizeof right[i].handle);
		other.record[i].kind = right[i].kind;
		other.record[i].size = right[i].size;
	}
	PROMISE(!pools_n && !pointers_n && !holds_in_other());
	open_right();
	PROMISE(!has_left_some());
	return 0;
}
