/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An importer that has mapped some of what a handle names: its exporter makes descriptors of the rest alone.  And one
 * whose driver refuses what comes.  The driver of the importer is a fake one.
 */
#include "tests/unit/serve.h"

#include "shim/importer/mappings.h"
#include "shim/importer/virtual.h"
#include "shim/life.h"
#include "shim/shm/record.h"
#include "shim/shm/virtual_handle.h"

static CUresult release(CUmemGenericAllocationHandle handle)
{
	return CUDA_SUCCESS;
}
enum { MANY = 200 };
static struct {
	uint64_t mapped; /* pieces */
	unsigned int imported;
} maps;
static CUresult reserve_some(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr near, unsigned long long flags)
{
	*at = UINT64_C(0x700000000000);
	return CUDA_SUCCESS;
}
static CUresult free_some(CUdeviceptr at, size_t bytes)
{
	return CUDA_SUCCESS;
}
static CUresult map_one(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CHECK_EQUAL(bytes, PIECE);
	maps.mapped++;
	return CUDA_SUCCESS;
}
static CUresult unmap_one(CUdeviceptr at, size_t bytes)
{
	maps.mapped--;
	return CUDA_SUCCESS;
}
static CUresult set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t n)
{
	return CUDA_SUCCESS;
}
static CUresult import_one(CUmemGenericAllocationHandle *handle, void *fd, CUmemAllocationHandleType type)
{
	*handle = ++maps.imported;
	return CUDA_SUCCESS;
}

static struct exporter *start_mapping(void)
{
	struct exporter *its = start_serving(0);

	cl_driver.cuMemAddressReserve = reserve_some;
	cl_driver.cuMemAddressFree = free_some;
	cl_driver.cuMemMap = map_one;
	cl_driver.cuMemUnmap = unmap_one;
	cl_driver.cuMemSetAccess = set_access;
	cl_driver.cuMemRelease = release;
	cl_driver.cuMemImportFromShareableHandle = import_one;
	its->pieces = MANY;
	CHECK(cl_self_start());
	return its;
}
/* Opens the handle of piece @i, or of the reservation if that is MANY. */
static CUresult open_piece(struct exporter *its, uint32_t i)
{
	uint32_t first = i == MANY ? 0 : i;
	struct cl_virtual_handle handle = { .size = MANY * PIECE, .offset = (uint64_t)first * PIECE, .reservation = 1 };
	struct cl_resolved resolved = { .handle = (uint8_t *)&handle };
	struct cl_peer *peer;
	uint8_t bytes[64];
	CUdeviceptr address;
	int err;

	cl_lock(&cl_imports_lock);
	peer = cl_peer_get(its->file_id, &err);
	CHECK(peer);
	resolved.stamp.file_id = its->file_id;
	resolved.stamp.record = first;
	cl_record_handle(&peer->region, first, bytes);
	CHECK_EQUAL(cl_hold_get_locked(peer, &resolved.stamp, bytes, &resolved.hold), 0);
	cl_unlock(&cl_imports_lock);
	return cl_virtual_map(&resolved, 0, &address);
}

IN_A_CHILD(what_is_mapped_already_gets_no_descriptor_again)
{
	struct exporter *its = start_mapping();

	for (uint32_t i = 100; i < MANY; i++)
		CHECK_EQUAL(open_piece(its, i), CUDA_SUCCESS);
	CHECK_EQUAL(its->made, MANY - 100);
	for (uint32_t i = 100; i-- > 0;)
		CHECK_EQUAL(open_piece(its, i), CUDA_SUCCESS);
	CHECK_EQUAL(open_piece(its, MANY), CUDA_SUCCESS);
	CHECK_EQUAL(its->made, MANY);
	CHECK_EQUAL(maps.imported, MANY);
	CHECK_EQUAL(maps.mapped, MANY);
}

/* One of the pieces has been unmapped there, between others that are the same. */
static void end_fortieth(struct exporter *mine)
{
	CHECK(!cl_record_orphan(&own, 40));
}
static void look_at_runs(struct exporter *mine, const struct cl_request *request)
{
	if (mine->kept)
		return;
	mine->kept = (int)request->runs;
	mine->result = request->run[0].begin == 30 * PIECE && request->run[0].end == 40 * PIECE &&
		       request->run[1].begin == 41 * PIECE && request->run[1].end == MANY * PIECE;
	mine->pieces = 40; /* from now on nothing is mapped from there on */
}
IN_A_CHILD(what_is_not_mapped_there_any_more_is_asked_for)
{
	struct exporter *its = start_mapping();

	CHECK_EQUAL(open_piece(its, 30), CUDA_SUCCESS);
	have(its, end_fortieth);
	its->amid = look_at_runs;
	CHECK_EQUAL(open_piece(its, 20), CUDA_SUCCESS);
	CHECK_EQUAL(its->kept, 2);
	CHECK_EQUAL(its->result, true);
	CHECK_EQUAL(maps.mapped, MANY - 30 + 10);
}

/* It is unmapped while the exporter answers. */
static void end_amid(struct exporter *mine, const struct cl_request *request)
{
	if (mine->kept++)
		return;
	CHECK(request->runs == 1 && request->run[0].end == MANY * PIECE);
	cl_record_orphan(&own, MANY - 1);
	mine->pieces = MANY - 1;
}
IN_A_CHILD(what_ends_while_the_exporter_answers_is_not_opened)
{
	struct exporter *its = start_mapping();

	CHECK_EQUAL(open_piece(its, MANY - 2), CUDA_SUCCESS);
	its->amid = end_amid;
	CHECK_EQUAL(open_piece(its, MANY - 3), CUDA_SUCCESS);
	CHECK(its->kept > 1); /* it has asked again */
}

/* More ranges than a request has room for. */
static int take_odd(void *arg, const struct cl_piece *piece, int fd)
{
	struct taken *taken = arg;

	CHECK_EQUAL(piece->offset, (2ull * taken->n++ + 1) * PIECE);
	return 0;
}
IN_A_CHILD(of_many_ranges_none_gets_a_descriptor)
{
	static struct cl_serve_run run[MANY / 2];
	struct exporter *its = start_serving(0);
	struct taken taken = { .of = its };
	struct cl_region region;
	struct cl_asking asking = { .region = &region, .wait.until = cl_now() + SOON * MS, .take = take_odd, .arg = &taken,
				    .run = run, .runs = MANY / 2 };

	for (uint64_t i = 0; i < MANY / 2; i++)
		run[i] = (struct cl_serve_run){ 2 * i * PIECE, (2 * i + 1) * PIECE };
	its->pieces = MANY;
	cl_identity_self(&cl_self.identity);
	CHECK_EQUAL(cl_region_open(&region, folder_fd, its->file_id, NULL), 0);
	CHECK_EQUAL(cl_ask(&asking), MANY / 2);
	CHECK_EQUAL(taken.n, MANY / 2);
	CHECK_EQUAL(its->made, MANY / 2);
	/* all of it is there */
	for (uint64_t i = 0; i < MANY / 2; i++)
		run[i].end += PIECE;
	taken.n = 0;
	CHECK_EQUAL(cl_ask(&asking), 0);
	CHECK_EQUAL(its->made, MANY / 2);
}

/* ------------------------------------------------------------- a driver that refuses */
static CUresult import_gives, map_gives;
static CUresult import_or_not(CUmemGenericAllocationHandle *handle, void *fd, CUmemAllocationHandleType type)
{
	*handle = 1;
	return import_gives;
}
static CUresult map_or_not(CUdeviceptr p, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
			   unsigned long long flags)
{
	return map_gives;
}
static CUresult open_it(struct exporter *its)
{
	struct cl_virtual_handle handle = { .size = PIECE };
	struct cl_peer peer = { .slot = -1 };
	struct cl_hold hold = { .peer = &peer };
	struct cl_resolved resolved = { .handle = (uint8_t *)&handle, .hold = &hold };
	CUdeviceptr address;
	CUresult result;

	CHECK_EQUAL(cl_region_open(&peer.region, folder_fd, its->file_id, NULL), 0);
	resolved.stamp.file_id = its->file_id;
	result = cl_virtual_map(&resolved, 0, &address);
	cl_region_close(&peer.region);
	return result;
}
/* An exporter of one piece, and a driver that imports and maps it or not. */
static struct exporter *start_refusing(void)
{
	struct exporter *its = start_serving(0);

	cl_driver.cuMemAddressReserve = reserve_some;
	cl_driver.cuMemAddressFree = free_some;
	cl_driver.cuMemUnmap = free_some;
	cl_driver.cuMemMap = map_or_not;
	cl_driver.cuMemRelease = release;
	cl_driver.cuMemImportFromShareableHandle = import_or_not;
	its->pieces = 1;
	cl_identity_self(&cl_self.identity);
	return its;
}

/* The exporter has done nothing wrong: to the program it is the driver's error, and no stale handle. */
IN_A_CHILD(what_the_driver_refuses_is_not_stale)
{
	struct exporter *its = start_refusing();
	void (*never)(void) = abort;

	memcpy(&cl_driver.cuMemSetAccess, &never, sizeof never);
	import_gives = CUDA_ERROR_INVALID_VALUE;
	CHECK_EQUAL(open_it(its), CUDA_ERROR_INVALID_VALUE);
	import_gives = CUDA_ERROR_INVALID_HANDLE; /* which means stale to our caller */
	CHECK_EQUAL(open_it(its), CUDA_ERROR_INVALID_VALUE);
	import_gives = CUDA_SUCCESS;
	map_gives = CUDA_ERROR_INVALID_VALUE;
	CHECK_EQUAL(open_it(its), CUDA_ERROR_INVALID_VALUE);
	map_gives = CUDA_ERROR_NOT_SUPPORTED;
	CHECK_EQUAL(open_it(its), CUDA_ERROR_NOT_SUPPORTED);
}

/* The driver has this error where a device can't reach the memory. */
IN_A_CHILD(a_device_that_the_driver_refuses_is_said)
{
	struct exporter *its = start_refusing();
	int ends[2], stderr_was;
	char said[1000];
	CUresult result;
	ssize_t n;

	map_gives = CUDA_ERROR_INVALID_DEVICE;
	cl_options.log.number = CL_LOG_WARN;
	cl_driver.cuMemSetAccess = set_access;
	stderr_was = dup(STDERR_FILENO);
	CHECK(!pipe(ends) && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
	result = open_it(its);
	CHECK(dup2(stderr_was, STDERR_FILENO) == STDERR_FILENO);
	close(ends[1]);
	CHECK_EQUAL(result, CUDA_ERROR_INVALID_DEVICE);
	n = read(ends[0], said, sizeof said - 1);
	CHECK(n > 0);
	said[n] = 0;
	CHECK(strstr(said, "the driver refuses to import it or to map it for this device (CUDA error 101)"));
}

/* What the driver answers for the first piece, which the handle names, and for those beside it. */
static CUresult named_gives, beside_gives;
static CUresult import_named_or_beside(CUmemGenericAllocationHandle *handle, void *fd, CUmemAllocationHandleType type)
{
	CUresult result = maps.imported ? beside_gives : named_gives;

	*handle = result == CUDA_SUCCESS ? ++maps.imported : 0;
	return result;
}
/* An exporter of MANY pieces.  @result: what a first open of all of them gives, while the driver answers so. */
static struct exporter *start_answered(CUresult named, CUresult beside, CUresult result)
{
	struct exporter *its = start_mapping();

	cl_driver.cuMemImportFromShareableHandle = import_named_or_beside;
	named_gives = named;
	beside_gives = beside;
	CHECK_EQUAL(open_piece(its, MANY), result);
	CHECK_EQUAL(maps.mapped, result == CUDA_SUCCESS);
	return its;
}
static unsigned int held_of(const struct exporter *its)
{
	struct cl_region region;
	unsigned int held = 0;

	CHECK_EQUAL(cl_region_open(&region, folder_fd, its->file_id, NULL), 0);
	for (uint32_t i = 0; i < MANY; i++)
		held += cl_record_held(&region, i);
	cl_region_close(&region);
	return held;
}

/* What this process cannot reach is left out where it only lies beside what the handle names, and no hold of it stays. */
IN_A_CHILD(what_cannot_be_reached_is_left_out_if_it_only_lies_beside)
{
	struct exporter *its = start_answered(CUDA_SUCCESS, CUDA_ERROR_INVALID_DEVICE, CUDA_SUCCESS);

	CHECK_EQUAL(held_of(its), 1);
	/* another open asks for it again, and gets it if it can be reached by then */
	CHECK_EQUAL(open_piece(its, MANY), CUDA_SUCCESS);
	CHECK_EQUAL(maps.mapped, 1);
	beside_gives = CUDA_SUCCESS;
	CHECK_EQUAL(open_piece(its, MANY), CUDA_SUCCESS);
	CHECK_EQUAL(maps.mapped, MANY);
	CHECK_EQUAL(held_of(its), MANY);
}
IN_A_CHILD(of_another_error_beside_the_open_fails)
{
	start_answered(CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
}
IN_A_CHILD(where_what_the_handle_names_cannot_be_reached_the_open_fails)
{
	start_answered(CUDA_ERROR_INVALID_DEVICE, CUDA_SUCCESS, CUDA_ERROR_INVALID_DEVICE);
}

/* Another thread gives device 3 access to the memory of device 0, while that opens: it gets access to the import, too. */
static unsigned int given_to_3;
static CUresult import_and_give(CUmemGenericAllocationHandle *handle, void *fd, CUmemAllocationHandleType type)
{
	cl_virtual_peer(0, 3);
	return import_one(handle, fd, type);
}
static CUresult note_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t n)
{
	for (size_t i = 0; i < n; i++)
		given_to_3 += access[i].location.id == 3;
	return CUDA_SUCCESS;
}
IN_A_CHILD(a_device_that_becomes_a_peer_during_an_open_has_access)
{
	struct exporter *its = start_mapping();

	its->pieces = 1;
	cl_driver.cuMemImportFromShareableHandle = import_and_give;
	cl_driver.cuMemSetAccess = note_access;
	CHECK_EQUAL(open_piece(its, 0), CUDA_SUCCESS);
	CHECK_EQUAL(maps.mapped, 1);
	CHECK_EQUAL(given_to_3, 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, clear_stage)
	const struct CMUnitTest tests[] = {
		TEST(what_is_mapped_already_gets_no_descriptor_again),
		TEST(what_is_not_mapped_there_any_more_is_asked_for),
		TEST(what_ends_while_the_exporter_answers_is_not_opened),
		TEST(of_many_ranges_none_gets_a_descriptor),
		TEST(what_the_driver_refuses_is_not_stale),
		TEST(a_device_that_the_driver_refuses_is_said),
		TEST(what_cannot_be_reached_is_left_out_if_it_only_lies_beside),
		TEST(of_another_error_beside_the_open_fails),
		TEST(where_what_the_handle_names_cannot_be_reached_the_open_fails),
		TEST(a_device_that_becomes_a_peer_during_an_open_has_access),
	};

	return cmocka_run_group_tests(tests, make_stage, remove_folder);
}
