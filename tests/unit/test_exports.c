/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports that importers cannot know, or that cannot be recorded.  When a driver leaves no room for a
 * stamp, small shared blocks are kept, the rest is not, and one message says so.  What GPUs on a fabric have in a handle leaves room.  When
 * there is no memory to record an export, it is refused before the driver is asked.
 */
#include "tests/unit/pools.h"

static const uint64_t drivers_own = 0x1234567890abcdef;
static unsigned int in_use = 12; /* the byte of a memory handle that the driver uses, though others do not */
static CUresult handle_without_room(CUipcMemHandle *handle, CUdeviceptr p)
{
	CUresult result = fake_get_handle(handle, p);

	handle->reserved[in_use] = 0x11;
	return result;
}
static CUresult event_without_room(CUipcEventHandle *handle, CUevent event)
{
	CUresult result = fake_event_handle(handle, event);

	memcpy(handle->reserved + 56, &drivers_own, sizeof drivers_own);
	return result;
}

IN_A_CHILD(without_room_for_a_stamp_small_blocks_are_kept_and_the_rest_is_not)
{
	CUipcEventHandle event_handle;
	CUipcMemHandle handle, drivers;
	CUdeviceptr p, big, stamped;
	CUevent event;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_driver.cuIpcGetMemHandle = handle_without_room;
	cl_driver.cuIpcGetEventHandle = event_without_room;
	p = fake_alloc(2 * MIB - 1, CONTEXT_A);
	big = fake_alloc(2 * MIB, CONTEXT_A);
	export_block(big);
	for (int i = 0; i < 2; i++) {
		handle = export_block(p);
		handle_without_room(&drivers, p);
		CHECK(!memcmp(&handle, &drivers, sizeof handle));
	}
	event = exported_event(&event_handle);
	CHECK(!memcmp(event_handle.reserved + 56, &drivers_own, sizeof drivers_own));
	CHECK_EQUAL(logged("]: warning: "), 1);
	CHECK_EQUAL(logged("smaller ones are kept until it ends"), 1);
	/* no process has them, and there is no grace period: with a stamp all would be released at once */
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(big), CUDA_SUCCESS);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	NO_MEMORY();
	CHECK_EQUAL(fails_again(), false);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 0);
	CHECK_EQUAL(frees_of(big), 1);
	CHECK_EQUAL(fake.destroyed_n, 1);
	CHECK_EQUAL(cl_own.header->limbo_blocks, 1);
	CHECK_EQUAL(cl_memory_free(p), CUDA_ERROR_INVALID_VALUE);
	/* a record that becomes free is not pinned for its next block */
	cl_driver.cuIpcGetMemHandle = fake_get_handle;
	stamped = exported_block();
	CHECK_EQUAL(cl_memory_free(stamped), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(stamped), 1);
	CHECK_EQUAL(logged("]: warning: "), 1);
}

/* A stamp takes bytes 4 to 7 and 12 to 15.  A driver has an address in 4 and 5, and nothing in the rest. */
IN_A_CHILD(each_byte_of_a_stamp_may_be_one_that_the_driver_uses)
{
	static const unsigned int bytes[] = { 6, 12, 13, 14, 15 };
	enum { BYTES = sizeof bytes / sizeof *bytes };
	CUipcMemHandle handle, drivers;
	CUdeviceptr p[BYTES];

	start_with(0, CL_COLLECTOR_INLINE);
	cl_driver.cuIpcGetMemHandle = handle_without_room;
	for (unsigned int i = 0; i < BYTES; i++) {
		in_use = bytes[i];
		p[i] = fake_alloc(1024, CONTEXT_A);
		for (int again = 0; again < 2; again++) {
			handle = export_block(p[i]);
			handle_without_room(&drivers, p[i]);
			CHECK(!memcmp(&handle, &drivers, sizeof handle));
		}
		CHECK_EQUAL(cl_memory_free(p[i]), CUDA_SUCCESS);
	}
	cl_limbo_collect(&cl_exporter, true);
	for (unsigned int i = 0; i < BYTES; i++)
		CHECK_EQUAL(frees_of(p[i]), 0);
	CHECK_EQUAL(logged("]: warning: "), 1);
	CHECK_EQUAL(logged("smaller ones are kept until it ends"), 1);
}

/* With a limit, the oldest block is released. */
IN_A_CHILD(what_is_kept_without_a_stamp_has_the_limit_of_what_is_held)
{
	CUdeviceptr first, second;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_options.held_bytes.number = MIB;
	cl_driver.cuIpcGetMemHandle = handle_without_room;
	first = fake_alloc(MIB, CONTEXT_A);
	second = fake_alloc(MIB, CONTEXT_A);
	export_block(first);
	export_block(second);
	CHECK_EQUAL(cl_memory_free(first), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(first), 0);
	CHECK_EQUAL(cl_memory_free(second), CUDA_SUCCESS);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(first), 1);
	CHECK_EQUAL(frees_of(second), 0);
}

/* ------------------------------------------------------------------ on a fabric */
/*
 * GPUs are joined by a fabric: the driver has bytes of its own at the end of the handle, which are no part of the
 * stamp.  @numbers: what they are made of, for each export of a block.  fake_open() checks that they reach the driver.
 */
static void shares_on_a_fabric(const uint32_t numbers[3])
{
	struct other other = start_other(0);
	CUdeviceptr p = fake_alloc(512 * MIB, CONTEXT_A), own;
	CUipcMemHandle handle[3];
	struct cl_stamp stamp;
	uint64_t open[3], tail;

	start_with(0, CL_COLLECTOR_INLINE);
	for (int i = 0; i < 3; i++) {
		fake.fabric = numbers[i];
		handle[i] = export_block(p);
		tail = fake_fabric_bytes(numbers[i]);
		CHECK(!memcmp(handle[i].reserved + 56, &tail, sizeof tail));
		stamp = stamp_of(&handle[i]);
		CHECK(cl_region_has_stamped(&cl_own, &stamp));
		CHECK_EQUAL(stamp.record, 0);
		CHECK_EQUAL(stamp.generation, 0);
	}
	CHECK_EQUAL(cl_own.record[0].exports, 3);
	CHECK_EQUAL(cl_own.header->live_blocks, 1);
	for (int i = 0; i < 3; i++) {
		open[i] = others_open(&other, handle[i]);
		CHECK_EQUAL(open_own(&own, handle[i]), CUDA_SUCCESS);
		CHECK(own == p);
		CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	}
	CHECK_EQUAL(cl_count_get(unmanaged_exports), 0);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	for (int i = 0; i < 3; i++) {
		cl_limbo_collect(&cl_exporter, true);
		CHECK_EQUAL(frees_of(p), 0);
		others_close(&other, open[i]);
	}
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK_EQUAL(ask(&other, (struct order){ .what = 'o', .handle = handle[0] }).result, CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(logged("culimbo["), 0);
}
IN_A_CHILD(on_a_fabric_a_block_is_protected_as_any_other)
{
	shares_on_a_fabric((const uint32_t[]){ 0x1234567, 0x1234567, 0x1234567 });
}
IN_A_CHILD(on_a_fabric_a_block_whose_handles_differ_at_their_end_is_one)
{
	shares_on_a_fabric((const uint32_t[]){ 0x1234567, 0x89abcdef, 0x1234567 });
}

/* ------------------------------------------------------------------ no memory */
enum { RECORDS_TABLE = CL_CHUNK * sizeof(struct cl_block *) };
static _Atomic int callocs_left = -1; /* number of calls before they fail; -1: they do not */
static _Atomic unsigned int tables;   /* number of tables from records to blocks that were created */

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size)
{
	if (!atomic_load(&callocs_left)) {
		errno = ENOMEM;
		return NULL;
	}
	if (atomic_load(&callocs_left) > 0)
		atomic_fetch_sub(&callocs_left, 1);
	tables += n * size == RECORDS_TABLE;
	return __real_calloc(n, size);
}

static unsigned int event_handles;
static CUresult counted_event_handle(CUipcEventHandle *handle, CUevent event)
{
	event_handles++;
	return fake_event_handle(handle, event);
}

static void is_refused(CUdeviceptr p, int callocs)
{
	CUipcMemHandle handle, none;
	uint32_t before = atomic_load(&fake.handle_calls);

	memset(&handle, 0x5a, sizeof handle);
	none = handle;
	errno = ENOTUNIQ; /* errno is the program's */
	atomic_store(&callocs_left, callocs);
	CHECK_EQUAL(cl_memory_export(&handle, p), CUDA_ERROR_OUT_OF_MEMORY);
	atomic_store(&callocs_left, -1);
	CHECK_EQUAL(errno, ENOTUNIQ);
	CHECK(!memcmp(&handle, &none, sizeof handle));
	CHECK_EQUAL(atomic_load(&fake.handle_calls), before);
	CHECK(!is_known(p));
}

static void memory_without_memory(uint64_t collector)
{
	struct other other = start_other(0);
	CUipcMemHandle handle, again;
	CUdeviceptr p, q;

	start_with(HOUR, collector);
	p = fake_alloc(1024, CONTEXT_A);
	q = fake_alloc(1024, CONTEXT_A);
	/* the block's own memory, and the table that maps its record to it */
	is_refused(p, 0);
	is_refused(p, 1);
	CHECK(!cl_own.file_id);
	CHECK_EQUAL(logged("no memory for the record of an export: the export is refused with CUDA_ERROR_OUT_OF_MEMORY"), 1);
	CHECK_EQUAL(logged("]: warning: "), 1);
	/* no process has it: it is freed */
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 1);
	/* later there is memory, and what is already exported needs none to be exported again */
	handle = export_block(q);
	atomic_store(&callocs_left, 0);
	again = export_block(q);
	atomic_store(&callocs_left, -1);
	CHECK(!memcmp(&handle, &again, sizeof handle));
	is_refused(fake_alloc(1024, CONTEXT_A), 0);
	others_open(&other, handle);
	CHECK_EQUAL(cl_memory_free(q), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(q), 0);
	/* the same for a block in the limbo */
	atomic_store(&callocs_left, 0);
	CHECK_EQUAL(cl_memory_export(&again, q), CUDA_ERROR_INVALID_VALUE);
	atomic_store(&callocs_left, -1);
}
static void with_a_thread(void)
{
	memory_without_memory(CL_COLLECTOR_THREAD);
}
static void without_a_thread(void)
{
	memory_without_memory(CL_COLLECTOR_INLINE);
}
static void without_memory_no_handle_of_memory_leaves(void **state)
{
	in_a_child(with_a_thread);
	in_a_child(without_a_thread);
}

IN_A_CHILD(without_memory_no_handle_of_an_event_leaves)
{
	CUipcEventHandle handle, none;
	CUevent event;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	cl_driver.cuIpcGetEventHandle = counted_event_handle;
	event = fake_event();
	memset(&handle, 0x5a, sizeof handle);
	none = handle;
	for (int callocs = 0; callocs < 2; callocs++) {
		atomic_store(&callocs_left, callocs);
		CHECK_EQUAL(cl_event_export(&handle, event), CUDA_ERROR_OUT_OF_MEMORY);
		atomic_store(&callocs_left, -1);
	}
	CHECK(!memcmp(&handle, &none, sizeof handle));
	CHECK_EQUAL(event_handles, 0);
	CHECK_EQUAL(logged("]: warning: "), 1);
	CHECK_EQUAL(cl_event_destroy(event, fake_event_destroy), CUDA_SUCCESS);
	CHECK_EQUAL(fake.destroyed_n, 1);
	event = exported_event(&none);
	atomic_store(&callocs_left, 0);
	CHECK_EQUAL(cl_event_export(&handle, event), CUDA_SUCCESS);
	atomic_store(&callocs_left, -1);
	CHECK(!memcmp(&handle, &none, sizeof handle));
}

/* The driver has freed a known block without culimbo's knowledge: the new block at its address needs memory. */
IN_A_CHILD(without_memory_no_handle_of_a_successor_leaves)
{
	static const CUipcMemHandle none;
	CUipcMemHandle handle, stale;
	CUdeviceptr p, own;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	p = fake_alloc(1024, CONTEXT_A);
	stale = export_block(p);
	cl_driver.cuIpcGetMemHandle = get_other_handle;
	memset(&handle, 0x5a, sizeof handle);
	atomic_store(&callocs_left, 0);
	CHECK_EQUAL(cl_memory_export(&handle, p), CUDA_ERROR_OUT_OF_MEMORY);
	atomic_store(&callocs_left, -1);
	CHECK(!memcmp(&handle, &none, sizeof handle));
	handle = export_block(p);
	CHECK_EQUAL(open_own(&own, stale), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(open_own(&own, handle), CUDA_SUCCESS);
}

/* Nothing of it is left: no block, no file, and no memory reserved for a record. */
static CUresult no_event_handle(CUipcEventHandle *handle, CUevent event)
{
	return CUDA_ERROR_INVALID_HANDLE;
}
IN_A_CHILD(what_the_driver_refuses_leaves_nothing_behind)
{
	CUipcEventHandle event_handle;
	CUipcMemHandle handle;
	CUdeviceptr p;
	CUevent event;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	cl_driver.cuIpcGetEventHandle = no_event_handle;
	p = fake_alloc(1024, CONTEXT_A);
	event = fake_event();
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	for (unsigned int i = 0; i < CL_CHUNK + 2; i++) {
		CHECK_EQUAL(cl_memory_export(&handle, p), CUDA_ERROR_INVALID_VALUE);
		CHECK_EQUAL(cl_event_export(&event_handle, event), CUDA_ERROR_INVALID_HANDLE);
	}
	CHECK(!is_known(p));
	/* its file has no block and only records the refusal */
	CHECK(cl_own.header->record_chunks <= 1);
	CHECK_EQUAL(cl_own.header->live_blocks, 0);
	CHECK_EQUAL(tables, 1);
	/* nothing is left of a pointer into a known block either */
	p = exported_block();
	for (unsigned int i = 0; i < CL_CHUNK + 2; i++)
		export_block(p + 512);
	CHECK_EQUAL(tables, 1);
	CHECK_EQUAL(cl_own.header->live_blocks, 1);
}

/* A driver gives a handle but not the block's range: the block is taken to begin there. */
static CUresult no_range(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}
IN_A_CHILD(a_block_of_unknown_size_is_tracked)
{
	struct other other = start_other(0);
	CUdeviceptr p;
	uint64_t open;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_driver.cuMemGetAddressRange_v2 = no_range;
	p = fake_alloc(1024, CONTEXT_A);
	open = others_open(&other, export_block(p));
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(p), CUDA_ERROR_INVALID_VALUE);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 0);
	others_close(&other, open);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
}

/* How much it takes of the budget, nobody can say: it takes nothing, and does not go for a block that exceeds it. */
IN_A_CHILD(a_block_of_unknown_size_takes_nothing_of_the_budget)
{
	CUresult (*range)(CUdeviceptr *, size_t *, CUdeviceptr);
	CUdeviceptr p, q[2];

	start_with(HOUR, CL_COLLECTOR_INLINE);
	range = cl_driver.cuMemGetAddressRange_v2;
	cl_options.grace_bytes.number = CL_GRACE_PAGE;
	cl_options.grace_bytes.from_environment = true;
	cl_driver.cuMemGetAddressRange_v2 = no_range;
	p = exported_block();
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(state_of(p), CL_BLOCK_GRACE);
	cl_driver.cuMemGetAddressRange_v2 = range;
	for (int i = 0; i < 2; i++) {
		q[i] = exported_block();
		CHECK_EQUAL(cl_memory_free(q[i]), CUDA_SUCCESS);
	}
	CHECK_EQUAL(frees_of(q[0]), 1);
	CHECK_EQUAL(state_of(q[1]), CL_BLOCK_GRACE);
	CHECK_EQUAL(state_of(p), CL_BLOCK_GRACE);
	CHECK_EQUAL(cl_count_get(graces_cut), 1);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(frees_of(p), 1);
}

/* A driver that gives no attributes, and refuses the second request for a handle. */
static CUresult (*handle_before)(CUipcMemHandle *, CUdeviceptr);
static unsigned int asked;
static CUresult handle_once(CUipcMemHandle *handle, CUdeviceptr p)
{
	return asked++ ? CUDA_ERROR_INVALID_VALUE : handle_before(handle, p);
}
IN_A_CHILD(no_handle_leaves_with_a_refusal)
{
	static const CUipcMemHandle empty;
	CUipcMemHandle handle;

	start_with(0, CL_COLLECTOR_INLINE);
	handle_before = cl_driver.cuIpcGetMemHandle;
	cl_driver.cuIpcGetMemHandle = handle_once;
	cl_driver.cuMemGetAddressRange_v2 = no_range;
	CHECK_EQUAL(cl_memory_export(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(asked, 2);
	CHECK(!memcmp(&handle, &empty, sizeof handle));
}

static CUresult (*attribute_before)(void *, CUpointer_attribute, CUdeviceptr);
static bool gives_back; /* releases the block at the next query about a pointer */
static CUresult attribute_and_give_back(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
	CUresult result = attribute_before(data, attribute, p);

	if (gives_back) {
		gives_back = false;
		cl_limbo_collect(&cl_exporter, true);
	}
	return result;
}

/* A pointer into a freed block: the driver still knows it when asked, and then the block is released. */
IN_A_CHILD(what_goes_back_while_it_is_exported_is_no_new_block)
{
	struct other other = start_other(0);
	CUipcMemHandle handle;
	uint64_t open;
	CUdeviceptr p;

	start_with(0, CL_COLLECTOR_INLINE); /* no collection runs before the call returns */
	p = fake_alloc(2 * MIB, CONTEXT_A);
	handle = export_block(p);
	open = others_open(&other, handle);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	others_close(&other, open);
	CHECK_EQUAL(frees_of(p), 0);
	attribute_before = cl_driver.cuPointerGetAttribute;
	cl_driver.cuPointerGetAttribute = attribute_and_give_back;
	gives_back = true;
	CHECK_EQUAL(cl_memory_export(&handle, p + 512), CUDA_ERROR_INVALID_VALUE);
	CHECK(!gives_back);
	CHECK_EQUAL(frees_of(p), 1);
	CHECK(!is_known(p));
}

/* A new block at an address that was exported before costs the same as any other. */
IN_A_CHILD(the_driver_is_asked_for_a_handle_once)
{
	CUipcMemHandle handle;
	CUdeviceptr p;
	uint32_t calls;

	start_with(0, CL_COLLECTOR_THREAD);
	p = fake_alloc(MIB, CONTEXT_A);
	for (int i = 0; i < 3; i++) {
		calls = fake.handle_calls;
		CHECK_EQUAL(cl_memory_export(&handle, p), CUDA_SUCCESS);
		CHECK_EQUAL(fake.handle_calls, calls + 1);
		CHECK_EQUAL(cl_memory_export(&handle, p), CUDA_SUCCESS);
		CHECK_EQUAL(fake.handle_calls, calls + 2);
		CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
		CHECK_EQUAL(frees_of(p), 1);
		fake_alloc_again(p, CONTEXT_A);
	}
}

/* ---------------------------------------------------------------------- of which pool */
/* The program frees @p, of which a handle may be on its way, and destroys its pool: that waits for the block. */
static void its_pool_waits(CUdeviceptr p)
{
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_pool_destroy(OWN_POOL), CUDA_SUCCESS);
	CHECK_EQUAL(pool.destroys, 0);
	NO_MEMORY();
	fails_again();
	CHECK_EQUAL(frees_of(p), 1);
	cl_limbo_collect(&cl_exporter, true);
	CHECK_EQUAL(pool.destroys, 1);
}

IN_A_CHILD(without_memory_no_pointer_leaves_without_its_pool)
{
	CUmemPoolPtrExportData data, none;
	CUresult result;
	CUdeviceptr p;
	int callocs;

	start_pools();
	p = fake_alloc(4096, NULL);
	memset(&none, 0x5a, sizeof none);
	for (callocs = 0; callocs < 16; callocs++) {
		data = none;
		atomic_store(&callocs_left, callocs);
		result = cl_pool_pointer_export(&data, p);
		atomic_store(&callocs_left, -1);
		if (result == CUDA_SUCCESS)
			break;
		CHECK_EQUAL(result, CUDA_ERROR_OUT_OF_MEMORY);
		CHECK(!memcmp(&data, &none, sizeof data));
		CHECK_EQUAL(state_in_pool(p), CL_BLOCK_DELETED);
	}
	CHECK_EQUAL(result, CUDA_SUCCESS);
	CHECK(callocs > 0);
	CHECK_EQUAL(logged("]: warning: no memory for the record of an export"), 1);
	its_pool_waits(p);
}

/* At its first export the driver does not say of which pool a block is: its next one asks again. */
IN_A_CHILD(a_block_whose_pool_was_not_known_gets_it_at_its_next_export)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr p;

	start_pools();
	pool.unsaid = true;
	p = shared(&data);
	pool.unsaid = false;
	CHECK_EQUAL(cl_pool_pointer_export(&data, p), CUDA_SUCCESS);
	its_pool_waits(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_room_for_a_stamp_small_blocks_are_kept_and_the_rest_is_not),
		cmocka_unit_test(each_byte_of_a_stamp_may_be_one_that_the_driver_uses),
		cmocka_unit_test(what_is_kept_without_a_stamp_has_the_limit_of_what_is_held),
		cmocka_unit_test(on_a_fabric_a_block_is_protected_as_any_other),
		cmocka_unit_test(on_a_fabric_a_block_whose_handles_differ_at_their_end_is_one),
		cmocka_unit_test(without_memory_no_handle_of_memory_leaves),
		cmocka_unit_test(without_memory_no_handle_of_an_event_leaves),
		cmocka_unit_test(without_memory_no_handle_of_a_successor_leaves),
		cmocka_unit_test(what_the_driver_refuses_leaves_nothing_behind),
		cmocka_unit_test(a_block_of_unknown_size_is_tracked),
		cmocka_unit_test(a_block_of_unknown_size_takes_nothing_of_the_budget),
		cmocka_unit_test(no_handle_leaves_with_a_refusal),
		cmocka_unit_test(the_driver_is_asked_for_a_handle_once),
		cmocka_unit_test(what_goes_back_while_it_is_exported_is_no_new_block),
		cmocka_unit_test(without_memory_no_pointer_leaves_without_its_pool),
		cmocka_unit_test(a_block_whose_pool_was_not_known_gets_it_at_its_next_export),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
