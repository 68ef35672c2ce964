/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The export data of pools' blocks: what the driver is asked for, the stamp and its version, and data that
 * have none of ours.
 */
#include "tests/unit/pools.h"

IN_A_CHILD(without_room_for_the_stamp_a_block_is_pinned)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr p;

	start_pools();
	pool.uses_all = true;
	p = shared(&data);
	CHECK_EQUAL(data.reserved[63], 0x11); /* the program gets the driver's bytes */
	CHECK_EQUAL(logged("uses all 64 bytes of a pool pointer's export data"), 1);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 0);
	CHECK_EQUAL(state_in_pool(p), CL_BLOCK_HELD);
}

static unsigned int times_asked;
static CUresult refuse_export(CUmemPoolPtrExportData *data, CUdeviceptr p)
{
	times_asked++;
	return CUDA_ERROR_NOT_PERMITTED;
}
/* As of a block that was freed past the hooks, whose address another has. */
static CUresult export_another(CUmemPoolPtrExportData *data, CUdeviceptr p)
{
	CUresult result = pool_export(data, p);

	times_asked++;
	data->reserved[40] ^= 1;
	return result;
}

IN_A_CHILD(an_export_asks_the_driver_once)
{
	CUmemPoolPtrExportData data, again, before;
	CUdeviceptr p;

	start_pools();
	/* no thread collects, or each export goes the long way */
	cl_options.collector.number = CL_COLLECTOR_THREAD;
	p = shared(&data);
	memset(&again, 0xee, sizeof again);
	before = again;
	cl_driver.cuMemPoolExportPointer = refuse_export;
	CHECK_EQUAL(cl_pool_pointer_export(&again, p), CUDA_ERROR_NOT_PERMITTED);
	CHECK_EQUAL(times_asked, 1);
	CHECK(!memcmp(&again, &before, sizeof again));
	cl_driver.cuMemPoolExportPointer = export_another;
	CHECK_EQUAL(cl_pool_pointer_export(&again, p), CUDA_SUCCESS);
	CHECK_EQUAL(times_asked, 2);
	CHECK(memcmp(again.reserved + 56, data.reserved + 56, 8)); /* it is another block */
	CHECK_EQUAL(cl_pool_pointer_export(&data, p), CUDA_SUCCESS);
	CHECK_EQUAL(times_asked, 3);
	CHECK(!memcmp(again.reserved, data.reserved, 64));
}

/* Bytes 0 to 47 of an older block may be the same. */
IN_A_CHILD(without_a_record_no_older_stamp_stays_in_the_programs_buffer)
{
	const uint8_t zeros[16] = { 0 };
	CUmemPoolPtrExportData data, of_old;

	start_pools();
	shared(&of_old);
	CHECK(memcmp(of_old.reserved + CL_POOL_DRIVERS, zeros, sizeof zeros));
	/* no record is left */
	cl_exporter.blocks.records.fresh = cl_exporter.blocks.records.chunks * CL_CHUNK;
	atomic_store(&cl_own.header->record_chunks, CL_CHUNKS);
	data = of_old;
	CHECK_EQUAL(cl_pool_pointer_export(&data, fake_alloc(4096, NULL)), CUDA_SUCCESS);
	CHECK_EQUAL(logged("no room for one more export"), 1);
	CHECK(!memcmp(data.reserved + CL_POOL_DRIVERS, zeros, sizeof zeros));
}

IN_A_CHILD(data_without_our_stamp_pass_through)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr p, import;

	start_pools();
	p = shared(&data);
	for (unsigned int byte = 0; byte < 64; byte++) {
		uint32_t pid;

		data.reserved[byte] ^= 0x40;
		CHECK(!cl_pool_stamp_version(data.reserved, cl_pool_fingerprint(data.reserved), &pid));
		data.reserved[byte] ^= 0x40;
	}
	data.reserved[50] ^= 1;
	import = imported(&data);
	CHECK(!memcmp(pool.came, &data, sizeof data));
	/* so nothing holds the block */
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(cl_memory_free(import), CUDA_SUCCESS);
	CHECK_EQUAL(pool.unmaps, 1);
}

/* Each version must know the stamps of all others: change CL_POOL_VERSION, and not how the check is made. */
IN_A_CHILD(the_check_of_a_stamp_stays_as_it_is)
{
	static const uint8_t check[8] = { 0x67, 0x12, 0x40, 0xc0, 0x13, 0xe4, 0x00, 0x14 };
	uint64_t stamp = 0x0123456789abcdefu;
	uint8_t data[64];
	uint32_t pid;

	for (uint8_t i = 0; i < 48; i++)
		data[i] = i;
	memcpy(data + 48, check, sizeof check);
	memcpy(data + 56, &stamp, sizeof stamp);
	CHECK_EQUAL(cl_pool_stamp_version(data, cl_pool_fingerprint(data), &pid), 1);
	CHECK_EQUAL(pid, 4711);
}

/* What a process with another version of the stamp has exported, in a build whose stamps mean something else. */
static void stamp_as_another(CUmemPoolPtrExportData *data, uint32_t version)
{
	uint64_t print = cl_pool_fingerprint(data->reserved), stamp = cl_word_at(data->reserved, 7);
	uint64_t check = cl_pool_check(print, version << CL_POOL_PID_BITS | 4711, stamp);

	memcpy(data->reserved + 48, &check, sizeof check);
}

IN_A_CHILD(data_of_another_version_pass_through_and_that_is_said)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr p, import;

	start_pools();
	p = shared(&data);
	stamp_as_another(&data, CL_POOL_VERSION + 1);
	import = imported(&data);
	CHECK(!memcmp(pool.came, &data, sizeof data));
	CHECK_EQUAL(imported(&data), import);
	CHECK_EQUAL(logged("process 4711 has another culimbo"), 1);
	/* nothing holds the block */
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
	/* but the imports are counted, as those of a process without culimbo */
	CHECK_EQUAL(cl_memory_free(import), CUDA_SUCCESS);
	CHECK_EQUAL(pool.unmaps, 0);
	CHECK_EQUAL(cl_memory_free(import), CUDA_SUCCESS);
	CHECK_EQUAL(pool.unmaps, 1);
	/* the driver wrote the size, so it counts */
	cl_options.pool_import_max.number = 4095;
	CHECK_EQUAL(cl_pool_pointer_import(&import, POOL, &data, NULL), CUDA_ERROR_NOT_SUPPORTED);
	CHECK_EQUAL(pool.imports, 2);
}

IN_A_CHILD(a_block_that_is_too_large_is_not_imported)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr p, import;

	start_pools();
	cl_options.pool_import_max.number = 4095;
	p = shared(&data);
	CHECK_EQUAL(cl_pool_pointer_import(&import, POOL, &data, NULL), CUDA_ERROR_NOT_SUPPORTED);
	CHECK_EQUAL(pool.imports, 0);
	CHECK_EQUAL(logged("CULIMBO_POOL_IMPORT_MAX"), 1);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1); /* nothing holds it */
	cl_options.pool_import_max.number = 0;
	p = shared(&data);
	imported(&data);
	CHECK_EQUAL(pool.imports, 1);
}

/* Its exporter's file is elsewhere, but the stamp tells that bytes 32 to 39 are the driver's. */
IN_A_CHILD(one_that_is_stamped_and_too_large_is_not_imported_without_its_file)
{
	struct cl_stamp stamp = { .file_id = 0x1234, .generation = 1 };
	CUmemPoolPtrExportData data;
	CUdeviceptr import;

	start_pools();
	cl_options.pool_import_max.number = 4095;
	shared(&data);
	while (cl_self_sight(stamp) != CL_ELSEWHERE)
		stamp.tag++;
	cl_pool_put_stamp(data.reserved, cl_pool_fingerprint(data.reserved), cl_stamp_pack(stamp), 4711);
	CHECK_EQUAL(cl_pool_pointer_import(&import, POOL, &data, NULL), CUDA_ERROR_NOT_SUPPORTED);
	CHECK_EQUAL(pool.imports, 0);
	data.reserved[48] ^= 1; /* this is no stamp */
	imported(&data);
	CHECK_EQUAL(pool.imports, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_room_for_the_stamp_a_block_is_pinned),
		cmocka_unit_test(an_export_asks_the_driver_once),
		cmocka_unit_test(without_a_record_no_older_stamp_stays_in_the_programs_buffer),
		cmocka_unit_test(data_without_our_stamp_pass_through),
		cmocka_unit_test(the_check_of_a_stamp_stays_as_it_is),
		cmocka_unit_test(data_of_another_version_pass_through_and_that_is_said),
		cmocka_unit_test(a_block_that_is_too_large_is_not_imported),
		cmocka_unit_test(one_that_is_stamped_and_too_large_is_not_imported_without_its_file),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
