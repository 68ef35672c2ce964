/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: opens virtual handles, 64 bytes that any process may send, of an exporter whose answers are made
 * up, through cl_memory_import().  The exporter (exporter.h) says what the input tells it to.  The driver is a few lines.
 *
 * The input is a list of steps: open a handle (made of a right one and of bytes from the input), with right
 * answers or up to three that are made of right ones and of bytes from the input, after which the exporter hangs
 * up; close; or have a call of the driver fail.
 *
 * Promised: no crash and no hang.  The driver maps only into addresses that it has reserved for us, and nothing
 * twice.  An open ends with one of a few errors.  After the last close nothing is reserved, mapped, imported or
 * held, no descriptor is left, and a right open works.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <unistd.h>

#include "shim/base/log.h"
#include "shim/importer/mirror.h"
#include "shim/self/self.h"
#include "shim/shim.h"
#include "shim/shm/record.h"
#include "shim/shm/virtual_handle.h"
#include "tests/fuzz/context.h"
#include "tests/fuzz/exporter.h"
#include "tests/fuzz/fuzz.h"

enum { STEPS = 32, MOST = 4096 };
#define PAGE (UINT64_C(2) << 20)
#define PAGES 16u /* of a reservation */
#define AT UINT64_C(0x100000000000)

static const uint8_t page_of[RECORDS] = { 0, 1, 2, 8, 3, 4, 6, 15 }; /* four of each reservation */

/* ------------------------------------------------------------------- the driver */
static struct range {
	uint64_t begin, end;
} reserved[MOST], mapped[MOST];
static unsigned int reserved_n, mapped_n, memories;


static bool overlaps(const struct range *ranges, unsigned int n, uint64_t begin, uint64_t end)
{
	for (unsigned int i = 0; i < n; i++)
		if (ranges[i].begin < end && begin < ranges[i].end)
			return true;
	return false;
}

static bool is_within(uint64_t begin, uint64_t size)
{
	for (unsigned int i = 0; i < reserved_n; i++)
		if (begin >= reserved[i].begin && size <= reserved[i].end - begin && begin < reserved[i].end)
			return true;
	return false;
}

static CUresult reserve(CUdeviceptr *p, size_t size, size_t alignment, CUdeviceptr wanted, unsigned long long flags)
{
	uint64_t begin = AT;

	PROMISE(!flags && !wanted);
	if (refuses() || !size || size % PAGE || size > AT || reserved_n == MOST)
		return CUDA_ERROR_INVALID_VALUE;
	while (overlaps(reserved, reserved_n, begin, begin + size))
		begin += PAGE;
	(void)alignment;
	reserved[reserved_n++] = (struct range){ begin, begin + size };
	*p = begin;
	return CUDA_SUCCESS;
}
static CUresult address_free(CUdeviceptr p, size_t size)
{
	PROMISE(!overlaps(mapped, mapped_n, p, p + size));
	for (unsigned int i = 0; i < reserved_n; i++)
		if (reserved[i].begin == p && reserved[i].end == p + size) {
			reserved[i] = reserved[--reserved_n];
			return CUDA_SUCCESS;
		}
	PROMISE(!"it is reserved");
	return CUDA_ERROR_INVALID_VALUE;
}
static CUresult import_memory(CUmemGenericAllocationHandle *handle, void *fd, CUmemAllocationHandleType type)
{
	PROMISE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && fcntl((int)(intptr_t)fd, F_GETFD) == FD_CLOEXEC);
	if (refuses())
		return CUDA_ERROR_INVALID_VALUE;
	memories++;
	*handle = 0x77;
	return CUDA_SUCCESS;
}
static CUresult release(CUmemGenericAllocationHandle handle)
{
	PROMISE(handle == 0x77 && memories);
	memories--;
	return CUDA_SUCCESS;
}
static CUresult map(CUdeviceptr p, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
		    unsigned long long flags)
{
	PROMISE(handle == 0x77 && memories && !flags && !offset);
	PROMISE(is_within(p, size) && !overlaps(mapped, mapped_n, p, p + size));
	if (refuses() || !size || (p | size) % PAGE || mapped_n == MOST)
		return CUDA_ERROR_INVALID_VALUE;
	mapped[mapped_n++] = (struct range){ p, p + size };
	return CUDA_SUCCESS;
}
static CUresult unmap(CUdeviceptr p, size_t size)
{
	bool any = false;

	PROMISE(is_within(p, size));
	for (unsigned int i = mapped_n; i--;)
		if (mapped[i].begin >= p && mapped[i].end <= p + size) {
			mapped[i] = mapped[--mapped_n];
			any = true;
		}
	PROMISE(any && !overlaps(mapped, mapped_n, p, p + size));
	return CUDA_SUCCESS;
}
static CUresult set_access(CUdeviceptr p, size_t size, const CUmemAccessDesc *access, size_t n)
{
	PROMISE(n && access[0].location.type == CU_MEM_LOCATION_TYPE_DEVICE && is_within(p, size));
	return refuses() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
static CUresult free_memory(CUdeviceptr p)
{
	(void)p;
	return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------ the exporter */
static struct cl_virtual_handle handle_of(uint32_t record)
{
	return (struct cl_virtual_handle){ .offset = page_of[record] * PAGE, .reservation = 1 + record / 4,
					   .mark = CL_VIRTUAL_MARK, .size = PAGES * PAGE };
}

/* What a right exporter says of what @record is in, from @from on. */
static void say_right(struct said *said, uint32_t record, uint32_t first, uint64_t from)
{
	memset(said, 0, sizeof *said);
	cl_serve_head_set(&said->answer.head, sizeof said->answer);
	said->size = sizeof said->answer;
	for (uint32_t i = record / 4 * 4; i < record / 4 * 4 + 4; i++)
		if (page_of[i] >= page_of[record] && page_of[i] * PAGE >= from)
			said->answer.piece[said->answer.count++] =
				(struct cl_piece){ .offset = page_of[i] * PAGE, .size = PAGE, .record = i };
	said->answer.first = first;
	said->answer.total = first + said->answer.count;
	said->fds = said->answer.count;
}

static void publish(struct cl_region *r, uint32_t record)
{
	struct cl_virtual_handle handle = handle_of(record);
	struct cl_export what = { .kind = CL_VIRTUAL, .base = 0x600000000000 + record * PAGE, .size = PAGE,
				  .handle = (const uint8_t *)&handle, .now = 1 };

	cl_record_publish(r, record, &what);
}

/* ------------------------------------------------------------------- the opens */
static CUipcMemHandle right_handle(uint32_t record)
{
	struct cl_virtual_handle handle = handle_of(record);
	CUipcMemHandle bytes;

	handle.stamp = cl_region_stamp(&other, record, 0);
	memcpy(&bytes, &handle, sizeof bytes);
	return bytes;
}

static void open_right(void)
{
	CUdeviceptr p;

	script->right = true;
	PROMISE(cl_memory_import(&p, right_handle(1), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, open_memory) == CUDA_SUCCESS);
	PROMISE(holds_in_other() && mapped_n);
	PROMISE(cl_memory_close(p) == CUDA_SUCCESS);
	PROMISE(!holds_in_other() && !mapped_n && !reserved_n && !memories);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	begin();
	cl_driver.cuMemAddressReserve = reserve;
	cl_driver.cuMemAddressFree = address_free;
	cl_driver.cuMemImportFromShareableHandle = import_memory;
	cl_driver.cuMemRelease = release;
	cl_driver.cuMemMap = map;
	cl_driver.cuMemUnmap = unmap;
	cl_driver.cuMemSetAccess = set_access;
	cl_driver.cuMemFree_v2 = free_memory;
	meet_other();
	open_right();
	return 0;
}

/* Its pointer lies elsewhere. */
static void change_handle(CUipcMemHandle *handle, struct input *in)
{
	uint64_t word = eat(in, 8);

	memcpy(handle->reserved, &word, sizeof word);
}

static bool is_an_error_of_ours(CUresult result)
{
	return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_OPERATING_SYSTEM ||
	       result == CUDA_ERROR_OUT_OF_MEMORY;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	CUdeviceptr opened[STEPS];
	unsigned int opened_n = 0;

	if (!other.header)
		LLVMFuzzerInitialize(NULL, NULL);
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
		how = eat(&in, 1);
		handle = handle_from(&in, how);
		script_from(&in, (uint32_t)how % RECORDS);
		result = cl_memory_import(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, open_memory);
		PROMISE(result == CUDA_SUCCESS || is_an_error_of_ours(result));
		if (result == CUDA_SUCCESS) {
			uint64_t its_size;
			CUdeviceptr base;

			PROMISE(is_within(p, 1) && cl_mirror_find(p, &base, &its_size, NULL) && base == p && its_size);
			opened[opened_n++] = p;
		}
		PROMISE(!memories);
	}
	refuse_in = 0;
	while (opened_n)
		PROMISE(cl_memory_close(opened[--opened_n]) == CUDA_SUCCESS);
	PROMISE(!mapped_n && !reserved_n && !memories && !holds_in_other());
	open_right();
	PROMISE(!has_left_some());
	return 0;
}
