/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limbo: stale handles.  They are refused in this process and in others, also when the driver has made
 * the same handle again, or another at the same address.
 */
#include "tests/unit/limbo.h"

/* Bytes 0 to 7 depend on the context that was current, and bytes 56 to 63 may differ at each export. */
static bool counts(unsigned int byte)
{
	return byte >= 8 && byte < 56;
}

/* Any bit of the handle that counts may differ, and any two bytes may be swapped. */
IN_A_CHILD(another_handle_of_an_address_is_another_block)
{
	uint8_t handle[64];
	struct cl_block *known;
	struct cl_export what = { .kind = CL_MEMORY, .base = 4096, .handle = handle };
	uint32_t generation;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	for (unsigned int i = 0; i < 64; i++)
		handle[i] = (uint8_t)(i * i + 7 * i);
	cl_lock(&cl_exports_lock);
	known = cl_block_new(&cl_exporter.blocks, cl_block_prepare_locked(&cl_exporter.blocks, CL_MEMORY), &what, &cl_context_unknown, 0,
			     &generation);
	CHECK(known && cl_block_has_handle(known, handle));
	for (unsigned int bit = 0; bit < 512; bit++) {
		handle[bit / 8] ^= (uint8_t)(1u << bit % 8);
		CHECK(cl_block_has_handle(known, handle) == !counts(bit / 8));
		handle[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	/* words change places, and pairs of words */
	for (unsigned int size = 8; size <= 16; size += 8)
		for (unsigned int i = 0; i < 64; i += size)
			for (unsigned int j = 0; j < i; j += size) {
				uint8_t other[64];

				memcpy(other, handle, sizeof other);
				memcpy(other + i, handle + j, size);
				memcpy(other + j, handle + i, size);
				CHECK(cl_block_has_handle(known, other) == (size == 8 && !counts(i) && !counts(j)));
			}
	/* of 2 to the power of 64 only one: the fingerprint covers every bit */
	for (unsigned int bit = 0; bit < 64; bit++) {
		known->handle ^= 1ull << bit;
		CHECK(!cl_block_has_handle(known, handle));
		known->handle ^= 1ull << bit;
	}
	for (unsigned int i = 0; i < 64; i++)
		for (unsigned int j = 0; j < i; j++) {
			uint8_t byte = handle[i];

			handle[i] = handle[j];
			handle[j] = byte;
			CHECK(cl_block_has_handle(known, handle) ==
			      (handle[i] == byte || (!counts(i) && !counts(j))));
			handle[j] = handle[i];
			handle[i] = byte;
		}
	CHECK(cl_block_has_handle(known, handle));
	cl_unlock(&cl_exports_lock);
}

/* The handle that the driver gives while another context is current. */
static CUresult get_handle_beside(CUipcMemHandle *handle, CUdeviceptr p)
{
	CUresult result = fake_get_handle(handle, p);

	for (unsigned int i = 0; i < 6; i++) /* an address has 48 bits */
		handle->reserved[i] ^= 0x5a;
	return result;
}

/* A block has a handle in each of two contexts, and is the same block by either. */
IN_A_CHILD(the_handles_of_a_block_in_two_contexts_are_of_one_block)
{
	struct other other = start_other(0);
	CUipcMemHandle first, beside;
	CUdeviceptr p, own = 0;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	p = fake_alloc(1024, CONTEXT_A);
	first = export_block(p);
	cl_driver.cuIpcGetMemHandle = get_handle_beside;
	beside = export_block(p);
	CHECK(memcmp(&first, &beside, 4) && !memcmp(first.reserved + 4, beside.reserved + 4, 60));
	CHECK_EQUAL(open_own(&own, first), CUDA_SUCCESS);
	CHECK(own == p);
	CHECK_EQUAL(open_own(&own, beside), CUDA_SUCCESS);
	others_open(&other, first);
	others_open(&other, beside);
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 0);
}

/* Its old handle belongs to no block any more, in exporter and importer; its new one is good. */
IN_A_CHILD(what_had_another_handle_at_the_same_address_is_stale)
{
	struct other other = start_other(0);
	CUipcMemHandle stale, fresh, again;
	CUdeviceptr p, own = 0;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	p = fake_alloc(1024, CONTEXT_A);
	stale = export_block(p);
	cl_driver.cuIpcGetMemHandle = get_other_handle;
	fresh = export_block(p);
	CHECK(cl_handle_stamp(stale.reserved, CL_MEMORY) != cl_handle_stamp(fresh.reserved, CL_MEMORY));
	again = export_block(p);
	CHECK(!memcmp(&fresh, &again, sizeof fresh));
	CHECK_EQUAL(open_own(&own, stale), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'o', .handle = stale }).result,
		    CUDA_ERROR_INVALID_VALUE);
	/* nor with the other's stamp */
	again = stale;
	cl_handle_put_stamp(again.reserved, CL_MEMORY, cl_handle_stamp(fresh.reserved, CL_MEMORY));
	CHECK_EQUAL(open_own(&own, again), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'o', .handle = again }).result,
		    CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(atomic_load(&fake.open_calls), 0);
	CHECK_EQUAL(open_own(&own, fresh), CUDA_SUCCESS);
	CHECK(own == p);
	others_open(&other, fresh);
}

IN_A_CHILD(a_stale_handle_is_refused_by_others_too)
{
	struct other other = start_other(0);
	CUipcMemHandle stale, fresh;
	CUdeviceptr p;

	start_with(0, CL_COLLECTOR_THREAD);
	p = fake_alloc(1024, CONTEXT_A);
	stale = export_block(p);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'o', .handle = stale }).result,
		    CUDA_ERROR_INVALID_VALUE);
	fake_alloc_again(p, CONTEXT_A); /* the same address: in the driver the same handle */
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'o', .handle = stale }).result,
		    CUDA_ERROR_INVALID_VALUE);
	fresh = export_block(p);
	CHECK(only_stamps_differ(stale, fresh));
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'o', .handle = stale }).result,
		    CUDA_ERROR_INVALID_VALUE);
	others_open(&other, fresh);
	/* and while it holds the fresh one, the stale one is refused still */
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'o', .handle = stale }).result,
		    CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 0);
}

IN_A_CHILD(a_record_whose_generations_are_used_up_is_not_used_again)
{
	CUipcMemHandle handle;
	CUdeviceptr p, own;
	struct cl_stamp s;

	start_with(0, CL_COLLECTOR_THREAD);
	p = fake_alloc(1024, CONTEXT_A);
	export_block(p);
	atomic_store(&cl_own.record[0].life, cl_life(CL_GENERATIONS - 1, CL_EXPORTED));
	handle = export_block(p);
	CHECK_EQUAL(open_own(&own, handle), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 1);
	for (int i = 0; i < 3; i++) {
		p = fake_alloc(1024, CONTEXT_A);
		handle = export_block(p);
		s = stamp_of(&handle);
		CHECK_EQUAL(s.record, 1); /* this record is used again each time, the first one never */
		CHECK(cl_region_has_stamped(&cl_own, &s));
		CHECK_EQUAL(s.generation, i);
		CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(another_handle_of_an_address_is_another_block),
		cmocka_unit_test(the_handles_of_a_block_in_two_contexts_are_of_one_block),
		cmocka_unit_test(what_had_another_handle_at_the_same_address_is_stale),
		cmocka_unit_test(a_stale_handle_is_refused_by_others_too),
		cmocka_unit_test(a_record_whose_generations_are_used_up_is_not_used_again),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
