/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is recorded when CUDA refuses to share: how the memory was allocated, by the driver's attributes.
 * Refusals at one place are counted together, and leave room for findings.  Also their messages.
 */
#include "tests/unit/report_data.h"

#include "shim/asked.h"
#include "shim/diag/happened.h"
#include "shim/diag/note_words.h"
#include "shim/driver/made.h"
#include "shim/refused.h"
#include "shim/shm/pool_handle.h"
#include "shim/shm/virtual_handle.h"

/* What the driver reports for the only address. */
static struct {
	bool known, managed, legacy_known, legacy, has_context, has_range, hidden;
	unsigned int type;
	unsigned long long types;
	CUmemoryPool pool;
	CUdeviceptr base, start;
	size_t size, reserved;
} says;
static CUstreamCaptureMode mode;

static CUresult CUDAAPI exchange(CUstreamCaptureMode *with)
{
	CUstreamCaptureMode was = mode;

	mode = *with;
	*with = was;
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI range(CUdeviceptr *base, size_t *size, CUdeviceptr dptr)
{
	CHECK_EQUAL(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
	if (!says.has_range)
		return CUDA_ERROR_INVALID_VALUE;
	*base = says.base;
	*size = says.size;
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI attribute(void *data, CUpointer_attribute which, CUdeviceptr dptr)
{
	CHECK_EQUAL(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
	if (!says.known)
		return CUDA_ERROR_INVALID_VALUE;
	switch ((int)which) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		memcpy(data, &says.type, sizeof says.type);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned int *)data = says.managed;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		memcpy(data, &says.pool, sizeof says.pool);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(bool *)data = says.legacy;
		return says.legacy_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		memcpy(data, &says.types, sizeof says.types);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)data = says.has_context ? CONTEXT_A : NULL;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		memcpy(data, &says.start, sizeof says.start);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		memcpy(data, &says.reserved, sizeof says.reserved);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = says.hidden ? CU_DEVICE_INVALID : 3;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

/* Device memory of 2 MiB that CUDA shares by legacy handles. */
static void say_device_memory(void)
{
	memset(&says, 0, sizeof says);
	says.known = says.legacy_known = says.legacy = says.has_context = says.has_range = true;
	says.type = CU_MEMORYTYPE_DEVICE;
	says.base = says.start = DEVICE_BASE;
	says.size = says.reserved = 2 * MIB;
}

/* Reports name no device of a pool's block that is on the host, or on a device without a number here. */
IN_A_CHILD(memory_of_a_pool_may_have_no_device)
{
	cl_driver.cuPointerGetAttribute = attribute;
	mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* the caller has it */
	CHECK_EQUAL(cl_pool_memory_device(DEVICE_BASE), 0); /* the driver does not know it */
	say_device_memory();
	CHECK_EQUAL(cl_pool_memory_device(DEVICE_BASE), 3);
	says.hidden = true;
	CHECK_EQUAL(cl_pool_memory_device(DEVICE_BASE), CL_NO_DEVICE);
	says.hidden = false;
	says.type = CU_MEMORYTYPE_HOST;
	CHECK_EQUAL(cl_pool_memory_device(DEVICE_BASE), CL_NO_DEVICE);
}

IN_A_CHILD(the_attributes_say_how_memory_was_made)
{
	struct cl_memory_made memory;

	cl_driver.cuThreadExchangeStreamCaptureMode = exchange;
	cl_driver.cuMemGetAddressRange_v2 = range;
	cl_driver.cuPointerGetAttribute = attribute;
	CHECK_EQUAL(cl_memory_made(DEVICE_BASE).made, CL_MADE_UNKNOWN);
	CHECK_EQUAL(cl_memory_made(DEVICE_BASE).device, 0);
	say_device_memory();
	memory = cl_memory_made(DEVICE_BASE + 5);
	CHECK_EQUAL(memory.made, CL_MADE_ALLOC);
	CHECK_EQUAL(memory.base, DEVICE_BASE);
	CHECK_EQUAL(memory.size, 2 * MIB);
	CHECK_EQUAL(memory.device, 3);
	/* a driver that does not know the attribute: it must not be called virtual */
	says.legacy = says.legacy_known = false;
	CHECK_EQUAL(cl_memory_made(DEVICE_BASE).made, CL_MADE_ALLOC);
	says.legacy_known = true;
	CHECK_EQUAL(cl_memory_made(DEVICE_BASE).made, CL_MADE_OTHER);
	/* each of three signs of virtual memory is enough */
	says.types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	CHECK_EQUAL(cl_memory_made(DEVICE_BASE).made, CL_MADE_VIRTUAL);
	says.types = 0;
	says.has_context = false;
	CHECK_EQUAL(cl_memory_made(DEVICE_BASE).made, CL_MADE_VIRTUAL_ALONE);
	says.has_context = true;
	says.reserved = 8 * MIB;
	CHECK_EQUAL(cl_memory_made(DEVICE_BASE).made, CL_MADE_VIRTUAL_ALONE);
	says.pool = (CUmemoryPool)0x9;
	CHECK_EQUAL(cl_memory_made(DEVICE_BASE).made, CL_MADE_POOL);
	says.managed = true;
	CHECK_EQUAL(cl_memory_made(DEVICE_BASE).made, CL_MADE_MANAGED);
	/* the driver gives no address range for host memory */
	say_device_memory();
	says.has_range = false;
	says.type = CU_MEMORYTYPE_HOST;
	memory = cl_memory_made(DEVICE_BASE + 5);
	CHECK_EQUAL(memory.made, CL_MADE_HOST);
	CHECK_EQUAL(memory.base, DEVICE_BASE);
	CHECK_EQUAL(memory.size, 2 * MIB);
	CHECK_EQUAL(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static struct cl_about refusal(unsigned int result)
{
	return (struct cl_about){ .key = 7, .size = 100, .kind = CL_MEMORY, .made = CL_MADE_POOL,
				  .call = CL_CALL_GET_HANDLE, .result = result };
}

IN_A_CHILD(notes_of_one_place_are_counted_together_and_leave_room_for_findings)
{
	struct cl_asked_numbers stats;
	struct cl_about about = refusal(1);
	struct cl_finding f;
	struct cl_view view;
	CUipcMemHandle handle;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
	for (int i = 0; i < 3; i++) {
		cl_happened(CL_FINDING_REFUSED, &about, 0);
		about.key++;
		about.size++;
	}
	view = own();
	CHECK_EQUAL(cl_view_findings(&view), 1);
	CHECK(cl_view_finding(&view, 0, &f));
	CHECK_EQUAL(f.kind, CL_FINDING_REFUSED);
	CHECK_EQUAL(f.key, 7);
	CHECK_EQUAL(f.size, 100);
	CHECK_EQUAL(f.times, 3);
	CHECK_EQUAL(f.bytes, 303);
	CHECK_EQUAL(f.made, CL_MADE_POOL);
	CHECK_EQUAL(f.result, 1);
	/* however many places there are */
	for (unsigned int i = 0; i < 2 * CL_FINDINGS; i++) {
		about = refusal(10 + i);
		cl_happened(CL_FINDING_REFUSED, &about, 0);
	}
	CHECK(cl_view_findings(&view) < CL_FINDINGS / 2);
	CHECK_EQUAL(cl_view_finding_count(&view, CL_FINDING_REFUSED), 3 + 2 * CL_FINDINGS);
	about = (struct cl_about){ .kind = CL_MEMORY, .key = 9 };
	cl_happened(CL_FINDING_FREED_TWICE, &about, 0);
	CHECK(cl_view_finding(&view, cl_view_findings(&view) - 1, &f));
	CHECK_EQUAL(f.kind, CL_FINDING_FREED_TWICE);
	CHECK_EQUAL(f.times, 0);
	/* refusals are not findings */
	cl_asked_stats(&stats);
	CHECK_EQUAL(stats.findings, 1);
}

static _Atomic unsigned int questions;
static CUresult CUDAAPI counted_range(CUdeviceptr *base, size_t *size, CUdeviceptr dptr)
{
	questions++;
	return range(base, size, dptr);
}
static CUresult CUDAAPI counted_attribute(void *data, CUpointer_attribute which, CUdeviceptr dptr)
{
	questions++;
	return attribute(data, which, dptr);
}
static CUresult refuses;
static unsigned int asked;
static CUresult CUDAAPI refused(CUipcMemHandle *handle, CUdeviceptr dptr)
{
	asked++;
	memset(handle, 0, sizeof *handle);
	memcpy(handle->reserved, &dptr, sizeof dptr);
	return refuses;
}

IN_A_CHILD(what_is_refused_again_is_only_counted)
{
	struct cl_finding f;
	struct cl_view view;
	CUipcMemHandle handle;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	cl_driver.cuThreadExchangeStreamCaptureMode = exchange;
	cl_driver.cuMemGetAddressRange_v2 = counted_range;
	cl_driver.cuPointerGetAttribute = counted_attribute;
	cl_driver.cuIpcGetMemHandle = refused;
	say_device_memory();
	says.pool = (CUmemoryPool)0x9;
	says.legacy = false;
	refuses = CUDA_ERROR_INVALID_VALUE;
	CHECK_EQUAL(cl_memory_export(&handle, DEVICE_BASE), CUDA_ERROR_INVALID_VALUE);
	CHECK(questions > 0 && asked == 1);
	questions = 0;
	errno = ENOTBLK;
	for (unsigned int i = 0; i < 1000; i++)
		CHECK_EQUAL(cl_memory_export(&handle, DEVICE_BASE + i), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(errno, ENOTBLK);
	CHECK_EQUAL(questions, 0);
	CHECK_EQUAL(asked, 1001);
	view = own();
	CHECK_EQUAL(cl_view_findings(&view), 1);
	CHECK(cl_view_finding(&view, 0, &f));
	CHECK_EQUAL(f.times, 1001);
	CHECK_EQUAL(f.bytes, 1001ull * 2 * MIB);
	CHECK_EQUAL(cl_view_finding_count(&view, CL_FINDING_REFUSED), 1001);
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_REFUSED]), 1001);
	/* the memory behind it is another block */
	says.base = says.start = DEVICE_BASE + 2 * MIB;
	CHECK_EQUAL(cl_memory_export(&handle, DEVICE_BASE + 2 * MIB), CUDA_ERROR_INVALID_VALUE);
	CHECK(questions > 0);
	/* another result has a record of its own */
	says.base = says.start = DEVICE_BASE;
	questions = 0;
	refuses = CUDA_ERROR_NOT_SUPPORTED;
	CHECK_EQUAL(cl_memory_export(&handle, DEVICE_BASE), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(questions > 0);
	CHECK_EQUAL(cl_view_findings(&view), 3);
	/* memory that can be shared gets its addresses, and is protected like any other */
	says.pool = NULL;
	says.legacy = true;
	refuses = CUDA_SUCCESS;
	mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* the fake driver wants it */
	CHECK_EQUAL(cl_memory_export(&handle, DEVICE_BASE), CUDA_SUCCESS);
	CHECK(cl_handle_stamp(handle.reserved, CL_MEMORY));
	CHECK_EQUAL(cl_count_get(exports), 1);
	/* a forked child has no record of it */
	refuses = CUDA_ERROR_INVALID_VALUE;
	CHECK(cl_refused_before(DEVICE_BASE + 2 * MIB));
	cl_refused_forget();
	CHECK(!cl_refused_before(DEVICE_BASE + 2 * MIB));
}

static CUresult CUDAAPI properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	driver_entered();
	memset(prop, 0, sizeof *prop);
	prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop->location.id = 2;
	return handle == 0x66 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Returns the record of @call, whose refusals here all have one place.  The next call overwrites it. */
static const struct cl_finding *note_of(enum cl_call call)
{
	static const struct cl_finding none;
	static struct cl_finding f;
	struct cl_view view = own();

	for (uint32_t i = 0; i < cl_view_findings(&view); i++)
		if (cl_view_finding(&view, i, &f) && f.kind == CL_FINDING_DESCRIPTOR && f.call == call)
			return &f;
	return &none;
}

IN_A_CHILD(descriptors_are_counted_with_their_bytes_as_far_as_these_are_known)
{
	struct cl_view view;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_options.stack.number = 0; /* so that each call is one place */
	cl_driver.cuMemGetAllocationPropertiesFromHandle = properties;
	cl_descriptor_created(0x10, 2 * MIB);
	cl_descriptor_created(0x20, 4 * MIB);
	cl_descriptor_note(CL_CALL_EXPORT, 0x10);
	cl_descriptor_note(CL_CALL_EXPORT, 0x10);
	cl_descriptor_note(CL_CALL_EXPORT, 0x20);
	cl_descriptor_note(CL_CALL_EXPORT, 0x30);
	CHECK_EQUAL(note_of(CL_CALL_EXPORT)->times, 4);
	CHECK_EQUAL(note_of(CL_CALL_EXPORT)->bytes, 8 * MIB);
	CHECK_EQUAL(note_of(CL_CALL_EXPORT)->device, 2);
	/* the handle is another allocation's now */
	cl_descriptor_created(0x10, MIB);
	cl_descriptor_note(CL_CALL_EXPORT, 0x10);
	CHECK_EQUAL(note_of(CL_CALL_EXPORT)->bytes, 9 * MIB);
	/* a device that is not told, as of a pool */
	cl_descriptor_note(CL_CALL_EXPORT_FABRIC, 0x66);
	CHECK_EQUAL(note_of(CL_CALL_EXPORT_FABRIC)->device, CL_NO_DEVICE);
	cl_descriptor_note(CL_CALL_POOL_EXPORT, 0);
	CHECK_EQUAL(note_of(CL_CALL_POOL_EXPORT)->made, CL_MADE_POOL);
	CHECK_EQUAL(note_of(CL_CALL_POOL_EXPORT)->device, CL_NO_DEVICE);
	/* an import has its size when it is mapped, and once */
	CHECK(!cl_descriptor_imports_wait());
	cl_descriptor_note(CL_CALL_IMPORT, 0x40);
	CHECK(cl_descriptor_imports_wait());
	cl_descriptor_mapped(0x50, MIB);
	CHECK_EQUAL(note_of(CL_CALL_IMPORT)->bytes, 0);
	cl_descriptor_mapped(0x40, 3 * MIB);
	cl_descriptor_mapped(0x40, 3 * MIB);
	CHECK_EQUAL(note_of(CL_CALL_IMPORT)->bytes, 3 * MIB);
	CHECK_EQUAL(note_of(CL_CALL_IMPORT)->times, 1);
	CHECK(!cl_descriptor_imports_wait());
	view = own();
	CHECK_EQUAL(cl_view_finding_count(&view, CL_FINDING_DESCRIPTOR), 8);
	/* however many there are */
	for (unsigned int i = 0; i < 20000; i++) {
		cl_descriptor_created(0x1000 + 16 * i, MIB);
		cl_descriptor_note(CL_CALL_IMPORT, 0x1000 + 16 * i);
	}
	CHECK_EQUAL(note_of(CL_CALL_IMPORT)->times, 20001);
	cl_descriptor_mapped(0x1000 + 16 * 19999, MIB);
	CHECK_EQUAL(note_of(CL_CALL_IMPORT)->bytes, 4 * MIB);
}

IN_A_CHILD(a_forked_child_counts_none_of_its_parents_imports_by_descriptor)
{
	pid_t child;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_driver.cuMemGetAllocationPropertiesFromHandle = properties;
	cl_descriptor_note(CL_CALL_IMPORT, 0x40);
	child = fork();
	if (!child) {
		cl_descriptor_note(CL_CALL_IMPORT, 0x50);
		cl_descriptor_mapped(0x40, MIB);
		cl_descriptor_mapped(0x50, 2 * MIB);
		CHECK(!cl_descriptor_imports_wait());
		CHECK_EQUAL(note_of(CL_CALL_IMPORT)->bytes, 2 * MIB);
		_exit(0);
	}
	child_judge(child);
	CHECK(cl_descriptor_imports_wait());
}

/* ------------------------------------------------------------------------ hints */
static CUresult of_open;
static CUresult CUDAAPI open_refused(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags)
{
	return of_open;
}
static bool has_context;
static CUresult CUDAAPI current(CUcontext *ctx)
{
	*ctx = has_context ? CONTEXT_A : NULL;
	return CUDA_SUCCESS;
}
static CUresult CUDAAPI old_version(int *version)
{
	*version = 12010;
	return CUDA_SUCCESS;
}

/* Returns the hint of the newest note, or "" if there is none. */
static const char *newest_hint(void)
{
	struct cl_view view = own();
	uint32_t n = cl_own.header ? cl_view_findings(&view) : 0;
	struct cl_finding f;

	if (!n)
		return "";
	CHECK(cl_view_finding(&view, n - 1, &f));
	CHECK_EQUAL(f.kind, CL_FINDING_REFUSED);
	return cl_note_hint(f.made, f.call, f.result, f.why);
}

static uint64_t mark; /* of the handle; 0: of the driver */
static const char *hint_of_open(CUresult result, unsigned int flags)
{
	CUipcMemHandle handle = { .reserved = { 1 } };
	CUdeviceptr p;

	memcpy(handle.reserved + offsetof(struct cl_virtual_handle, mark), &mark, sizeof mark);
	of_open = result;
	CHECK_EQUAL(cl_memory_import(&p, handle, flags, open_refused), result);
	return newest_hint();
}

IN_A_CHILD(the_hint_of_a_refused_open_is_of_what_was_wrong)
{
	const unsigned int lazy = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_driver.cuCtxGetCurrent = current;
	/* no context is current: that is no matter of the memory */
	CHECK(!hint_of_open(CUDA_ERROR_INVALID_CONTEXT, lazy)[0]);
	has_context = true;
	CHECK(strstr(hint_of_open(CUDA_ERROR_INVALID_CONTEXT, lazy), "its own handles"));
	CHECK(strstr(hint_of_open(CUDA_ERROR_INVALID_VALUE, 0), "flags"));
	CHECK(!strstr(hint_of_open(CUDA_ERROR_INVALID_VALUE, lazy), "flags"));
	CHECK(strstr(newest_hint(), "freed"));
	CHECK(!strstr(hint_of_open(CUDA_ERROR_INVALID_VALUE, lazy | 2), "flags"));
	CHECK(strstr(hint_of_open(CUDA_ERROR_INVALID_HANDLE, lazy), "ended"));
	CHECK(strstr(hint_of_open(CUDA_ERROR_INVALID_DEVICE, lazy), "cannot reach the device"));
}

/* Handles that culimbo has made, of a process that has no file here: the driver is asked, and refuses. */
IN_A_CHILD(a_handle_of_ours_that_is_not_opened_is_noted_too)
{
	const unsigned int lazy = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
	const enum cl_made made[] = { CL_MADE_VIRTUAL, CL_MADE_POOL };
	const uint64_t marks[] = { CL_VIRTUAL_MARK, CL_POOL_HANDLE_MARK };
	struct cl_finding f;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	has_context = true;
	cl_driver.cuCtxGetCurrent = current;
	for (unsigned int i = 0; i < 2; i++) {
		struct cl_view view;

		mark = marks[i];
		CHECK(strstr(hint_of_open(CUDA_ERROR_INVALID_VALUE, lazy), "no file of its exporter"));
		CHECK(strstr(hint_of_open(CUDA_ERROR_INVALID_VALUE, 0), "flags"));
		view = own();
		CHECK_EQUAL(cl_view_findings(&view), 2 * i + 2);
		CHECK(cl_view_finding(&view, 2 * i, &f));
		CHECK_EQUAL(f.made, made[i]);
		CHECK_EQUAL(f.call, CL_CALL_OPEN_HANDLE);
		/* these say nothing of the handle */
		CHECK(strstr(hint_of_open(CUDA_ERROR_OUT_OF_MEMORY, lazy), "flags"));
		CHECK(strstr(hint_of_open(CUDA_ERROR_LAUNCH_FAILED, lazy), "flags"));
		has_context = false;
		CHECK(strstr(hint_of_open(CUDA_ERROR_INVALID_CONTEXT, lazy), "flags"));
		has_context = true;
		CHECK(!strstr(cl_note_hint(made[i], CL_CALL_OPEN_HANDLE, CUDA_ERROR_UNKNOWN, CL_WHY_RESULT_ALONE), "freed"));
		CHECK(strstr(cl_note_hint(made[i], CL_CALL_OPEN_HANDLE, CUDA_ERROR_INVALID_HANDLE, CL_WHY_RESULT_ALONE),
			     "no file of its exporter"));
		CHECK(strstr(cl_note_hint(made[i], CL_CALL_OPEN_HANDLE, CUDA_ERROR_OPERATING_SYSTEM, CL_WHY_RESULT_ALONE),
			     "gave no descriptor"));
		CHECK(strstr(cl_note_hint(made[i], CL_CALL_OPEN_HANDLE, CUDA_ERROR_NOT_SUPPORTED, CL_WHY_RESULT_ALONE),
			     "cudaMalloc"));
	}
	cl_options.mode.number = CL_MODE_OBSERVE;
	CHECK(strstr(hint_of_open(CUDA_ERROR_INVALID_VALUE, lazy), "observe"));
	CHECK(!strstr(cl_note_hint(CL_MADE_ALLOC, CL_CALL_OPEN_HANDLE, CUDA_ERROR_OPERATING_SYSTEM, CL_WHY_RESULT_ALONE),
		      "descriptor"));
}

static const char *hint_of_handle(void)
{
	CUipcMemHandle handle;

	cl_refused_forget();
	CHECK_EQUAL(cl_memory_export(&handle, DEVICE_BASE), CUDA_ERROR_INVALID_VALUE);
	return newest_hint();
}

IN_A_CHILD(who_has_the_option_is_not_told_to_set_it)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_driver.cuThreadExchangeStreamCaptureMode = exchange;
	cl_driver.cuMemGetAddressRange_v2 = range;
	cl_driver.cuPointerGetAttribute = attribute;
	cl_driver.cuIpcGetMemHandle = refused;
	cl_driver.cuDriverGetVersion = old_version;
	refuses = CUDA_ERROR_INVALID_VALUE;
	mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* the fake driver wants it */
	say_device_memory();
	says.legacy = says.has_context = false;
	CHECK(strstr(hint_of_handle(), "--share-all"));
	cl_options.share.number = CL_SHARE_ALL_FORCE;
	CHECK(!strstr(hint_of_handle(), "--share-all") && strstr(newest_hint(), "not shared"));
	cl_options.share.number = CL_SHARE_ALL;
	CHECK(strstr(hint_of_handle(), "all,force"));
	cl_options.mode.number = CL_MODE_OBSERVE;
	CHECK(strstr(hint_of_handle(), "observe"));
	/* the option has nothing to do with host memory */
	says.type = CU_MEMORYTYPE_HOST;
	CHECK(strstr(hint_of_handle(), "cudaHostRegister"));
}

static void each_kind_has_its_words(void **state)
{
	for (unsigned int made = 0; made < CL_MADE_KINDS; made++) {
		CHECK(cl_made_words(made)[0] && cl_made_key(made)[0]);
		for (unsigned int why = 0; why < CL_WHYS; why++)
			CHECK(cl_note_hint(made, CL_CALL_GET_HANDLE, 1, why)[0]);
		CHECK(cl_note_hint(made, CL_CALL_GET_HANDLE, 1, CL_WHY_RESULT_ALONE)[0]);
		for (unsigned int other = 0; other < made; other++)
			CHECK(strcmp(cl_made_key(made), cl_made_key(other)) != 0);
	}
	for (unsigned int call = 0; call < CL_CALLS; call++)
		CHECK(cl_call_name(call)[0]);
	for (uint32_t result = 1; result < 1000; result++)
		CHECK(cl_note_hint(CL_MADE_ALLOC, CL_CALL_OPEN_HANDLE, result, CL_WHY_RESULT_ALONE)[0]);
	/* what a damaged file has */
	CHECK(!strcmp(cl_made_key(200), "unknown"));
	CHECK(!cl_call_name(200)[0]);
	CHECK(cl_note_hint(200, 200, 1, 200)[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_of_a_pool_may_have_no_device),
		cmocka_unit_test(the_attributes_say_how_memory_was_made),
		cmocka_unit_test(notes_of_one_place_are_counted_together_and_leave_room_for_findings),
		cmocka_unit_test(what_is_refused_again_is_only_counted),
		cmocka_unit_test(descriptors_are_counted_with_their_bytes_as_far_as_these_are_known),
		cmocka_unit_test(a_forked_child_counts_none_of_its_parents_imports_by_descriptor),
		cmocka_unit_test(the_hint_of_a_refused_open_is_of_what_was_wrong),
		cmocka_unit_test(a_handle_of_ours_that_is_not_opened_is_noted_too),
		cmocka_unit_test(who_has_the_option_is_not_told_to_set_it),
		cmocka_unit_test(each_kind_has_its_words),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
