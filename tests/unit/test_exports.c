/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports of which importers cannot know, or which cannot be noted: with a driver that leaves no
 * room for a stamp what was shared is kept, and that is said once.
 */
#include "tests/unit/limbo.h"

static const uint64_t drivers_own = 0x1234567890abcdef;
static CUresult handle_without_room(CUipcMemHandle *handle, CUdeviceptr p)
{
	CUresult result = fake_get_handle(handle, p);

	memcpy(handle->reserved + 56, &drivers_own, sizeof drivers_own);
	return result;
}
static CUresult event_without_room(CUipcEventHandle *handle, CUevent event)
{
	CUresult result = fake_event_handle(handle, event);

	memcpy(handle->reserved + 56, &drivers_own, sizeof drivers_own);
	return result;
}

IN_A_CHILD(without_room_for_a_stamp_what_was_shared_is_kept)
{
	CUipcEventHandle event_handle;
	CUipcMemHandle handle;
	CUdeviceptr p, stamped;
	CUevent event;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_driver.cuIpcGetMemHandle = handle_without_room;
	cl_driver.cuIpcGetEventHandle = event_without_room;
	p = fake_alloc(2 * MIB, CONTEXT_A);
	for (int i = 0; i < 2; i++) {
		handle = export_block(p);
		CHECK(!memcmp(handle.reserved + 56, &drivers_own, sizeof drivers_own));
	}
	event = exported_event(&event_handle);
	CHECK(!memcmp(event_handle.reserved + 56, &drivers_own, sizeof drivers_own));
	CHECK_EQUAL(logged("]: warning: "), 1);
	CHECK_EQUAL(logged("is kept until it ends, freed or not"), 1);
	/* nobody has them, and there is no grace: with a stamp they would go at once */
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	NO_MEMORY();
	CHECK_EQUAL(fails_again(), false);
	cl_limbo_collect(true);
	CHECK_EQUAL(frees_of(p), 0);
	CHECK_EQUAL(fake.destroyed_n, 0);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 2);
	CHECK_EQUAL(cl_memory_free(p), CUDA_ERROR_INVALID_VALUE);
	/* a record that comes free is not pinned for its next block */
	cl_driver.cuIpcGetMemHandle = fake_get_handle;
	stamped = exported_block();
	CHECK_EQUAL(cl_memory_free(stamped), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(stamped), 1);
	CHECK_EQUAL(logged("]: warning: "), 1);
}

/* The oldest goes, where somebody has set a limit. */
IN_A_CHILD(what_is_kept_without_a_stamp_has_the_limit_of_what_is_held)
{
	CUdeviceptr first, second;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_options.held_bytes.number = 3 * MIB;
	cl_driver.cuIpcGetMemHandle = handle_without_room;
	first = fake_alloc(2 * MIB, CONTEXT_A);
	second = fake_alloc(2 * MIB, CONTEXT_A);
	export_block(first);
	export_block(second);
	CHECK_EQUAL(cl_memory_free(first), CUDA_SUCCESS);
	cl_limbo_collect(true);
	CHECK_EQUAL(frees_of(first), 0);
	CHECK_EQUAL(cl_memory_free(second), CUDA_SUCCESS);
	cl_limbo_collect(true);
	CHECK_EQUAL(frees_of(first), 1);
	CHECK_EQUAL(frees_of(second), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_room_for_a_stamp_what_was_shared_is_kept),
		cmocka_unit_test(what_is_kept_without_a_stamp_has_the_limit_of_what_is_held),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
