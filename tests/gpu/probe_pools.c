/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions about shared pools that facts 11 to 19 and 28 to 33 leave open.  probe_captures.c asks
 * about captures.
 */
#include "probe_pools.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void release_stream(CUstream in)
{
	go_on();
	MUST(cu.cuStreamSynchronize(in));
}

/* ---- a new import while the last free is pending in a stream ---- */

static void again_pending(void)
{
	CUdeviceptr first = begin_with_import(), second = 0;
	int freed, imported;

	block_stream(stream);
	freed = DO(cu.cuMemFreeAsync(first, stream));
	imported = import_again(&second);
	measured("an import freed in a blocked stream (%d), imported again: %d, %s address, reads %d (%d is right)", freed, imported,
		 first == second ? "the same" : "another", imported ? 0 : byte_at(second), OURS);
	release_stream(stream);
	measured("the stream waited for: its address range gives %d", known(second));
	measured("and it reads %d", byte_at(second));
	freed = DO(cu.cuMemFree_v2(second));
	measured("and cuMemFree gives %d, once more %d", freed, DO(cu.cuMemFree_v2(second)));
}

static void again_freed_again(void)
{
	CUdeviceptr first = begin_with_import(), second = 0;
	int freed, imported, twice;

	block_stream(stream);
	freed = DO(cu.cuMemFreeAsync(first, stream));
	twice = DO(cu.cuMemFreeAsync(first, stream));
	measured("an import freed in a blocked stream: %d; freed there once more: %d", freed, twice);
	imported = import_again(&second);
	freed = imported ? -1 : DO(cu.cuMemFreeAsync(second, stream));
	measured("imported again: %d; freed in the same stream: %d", imported, freed);
	release_stream(stream);
	measured("the stream waited for: cuCtxSynchronize gives %d", DO(cu.cuCtxSynchronize()));
}

static void again_after(void)
{
	CUdeviceptr first = begin_with_import(), second = 0;
	int freed, imported;

	freed = DO(cu.cuMemFreeAsync(first, stream));
	imported = import_again(&second);
	measured("an import freed in an idle stream (%d) that nobody waited for, imported again: %d, %s address, reads %d", freed,
		 imported, first == second ? "the same" : "another", imported ? 0 : byte_at(second));
	MUST(cu.cuStreamSynchronize(stream));
	measured("the stream waited for, it reads %d", byte_at(second));
}

/* ---- what the importer's stream-ordered free waits for ---- */

static void free_returns(void)
{
	CUdeviceptr pointer = begin_with_import();
	double from;
	int freed;

	block_stream(stream);
	from = now_ms();
	freed = DO(cu.cuMemFreeAsync(pointer, stream));
	measured("an import's cuMemFreeAsync in a blocked stream: %d after %.1f ms; its address range then gives %d", freed,
		 now_ms() - from, known(pointer));
	measured("and it reads %d (%d is right)", byte_at(pointer), OURS);
	go_on();
	snprintf(at, 128, "cuStreamQuery until the stream is done");
	while (cu.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
		;
	measured("the stream is done, as cuStreamQuery says: its address range gives %d", known(pointer));
	measured("and it reads %d", byte_at(pointer));
	MUST(cu.cuStreamSynchronize(stream));
	measured("the stream waited for: its address range gives %d", known(pointer));
}

static void free_other_stream(void)
{
	CUdeviceptr pointer = begin_with_import();
	CUstream other;
	double from;
	int r[2];

	MUST(cu.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	block_stream(other);
	from = now_ms();
	r[0] = DO(cu.cuMemFreeAsync(pointer, stream));
	r[1] = DO(cu.cuStreamSynchronize(stream));
	measured("while another stream of the importer is blocked: cuMemFreeAsync of an import %d, cuStreamSynchronize %d after "
		 "%.1f ms; its address range gives %d", r[0], r[1], now_ms() - from, known(pointer));
	go_on();
}

static void free_other_stream_sync(void)
{
	CUdeviceptr pointer = begin_with_import();
	CUstream other;
	double from;
	int result;

	MUST(cu.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	block_stream(other);
	from = now_ms();
	result = DO(cu.cuMemFree_v2(pointer));
	measured("while another stream of the importer is blocked: cuMemFree of an import %d after %.1f ms; its address range "
		 "gives %d", result, now_ms() - from, known(pointer));
	go_on();
}

static void free_exporter_busy(void)
{
	CUdeviceptr pointer = begin_with_import();
	double from;
	int r[2];

	tell(BUSY);
	from = now_ms();
	r[0] = DO(cu.cuMemFreeAsync(pointer, stream));
	r[1] = DO(cu.cuStreamSynchronize(stream));
	measured("while a stream of the exporter is blocked: the importer's cuMemFreeAsync %d, cuStreamSynchronize %d after %.1f ms",
		 r[0], r[1], now_ms() - from);
}

static void free_pending_reuse(void)
{
	CUdeviceptr pointer = begin_with_import();
	int freed;

	tell(FREE);
	block_stream(stream);
	freed = DO(cu.cuMemFreeAsync(pointer, stream));
	exported = tell(EXPORT); /* of the same size: it gets the same address */
	measured("freed by the exporter, then in a blocked stream by the importer (%d); while that is pending the exporter "
		 "allocates as much, the importer's old pointer reads %d (%d: its own, %d: the next block's)", freed,
		 byte_at(pointer), OURS, NEXT);
	go_on();
}

/* ---- a pool of another device ---- */

static CUmemoryPool begin_beside_device(void)
{
	CUmemoryPool pool;
	int devices = 0;

	/* the child is forked before cuInit, so it finds out itself that there is no device 1 */
	pool = begin_with_partner(1);
	MUST(p.cuDeviceGetCount(&devices));
	must(devices > 1 ? 0 : -1, "a second device");
	return pool;
}

static void import_of_device(const char *what)
{
	CUdeviceptr pointer = 0;
	int imported, freed, waited;

	exported = tell(EXPORT);
	imported = import_again(&pointer);
	measured("a pool of device 1, %s: export %d, import of a pointer %d, reads %d (%d is right)", what,
		 exported.result, imported, imported ? 0 : byte_at(pointer), OURS);
	if (imported)
		return;
	freed = DO(cu.cuMemFreeAsync(pointer, stream));
	waited = DO(cu.cuStreamSynchronize(stream));
	measured("cuMemFreeAsync in a stream of that context: %d, cuStreamSynchronize %d, its address range %d", freed, waited,
		 known(pointer));
}

static void device_plain(void)
{
	imported_pool = begin_beside_device();
	import_of_device("the importer's context is of device 0");
}

static void device_access(void)
{
	CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

	imported_pool = begin_beside_device();
	measured("cuMemPoolSetAccess of an imported pool of device 1 for device 0: %d",
		 DO(p.cuMemPoolSetAccess(imported_pool, &access, 1)));
	import_of_device("the importer's context is of device 0, access set");
}

static void device_own_context(void)
{
	CUcontext other;

	imported_pool = begin_beside_device();
	MUST(cu.cuDevicePrimaryCtxRetain(&other, 1));
	MUST(cu.cuCtxSetCurrent(other));
	MUST(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	import_of_device("the importer's context is of device 1");
}

/* The exporter allocates from a pool of device 1 with a context of device 0. */
static void device_exporter(void)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr block = 0;
	CUmemoryPool pool;
	int devices = 0, fd = -1, r[3];

	begin_pools();
	MUST(p.cuDeviceGetCount(&devices));
	must(devices > 1 ? 0 : -1, "a second device");
	pool = new_pool(1, true);
	r[0] = DO(p.cuMemPoolExportToShareableHandle(&fd, pool, POSIX_FD, 0));
	r[1] = DO(p.cuMemAllocFromPoolAsync(&block, LARGE, pool, stream));
	r[2] = r[1] ? -1 : DO(p.cuMemPoolExportPointer(&data, block));
	measured("with a context of device 0: export of a pool of device 1 %d, an allocation from it %d, its export %d", r[0], r[1],
		 r[2]);
	if (!r[1])
		measured("its cuMemFreeAsync in a stream of device 0: %d", DO(cu.cuMemFreeAsync(block, stream)));
}

/* ---- what the simulated driver assumes without a measurement ---- */

static void freed_pending_export(void)
{
	begin_exporter();
	prepare_export();
	block_stream(stream);
	MUST(cu.cuMemFreeAsync(subject, stream));
	measured("freed in a blocked stream, a block's export gives %d", call_export());
	go_on();
}

static void freed_import(enum order how, const char *what)
{
	CUdeviceptr pointer = 0;
	int result;

	imported_pool = begin_with_partner(0);
	exported = tell(EXPORT);
	result = tell(how).result;
	measured("%s: %d", what, result);
	result = import_again(&pointer);
	measured("then imported the first time: %d, reads %d", result, result ? 0 : byte_at(pointer));
}
static void import_of_freed(void) { freed_import(FREE, "freed, its place not used again"); }
static void import_of_pending(void) { freed_import(FREE_PENDING, "freed in a blocked stream"); }
static void import_of_destroyed(void) { freed_import(DESTROY, "the pool destroyed"); }
static void import_of_dead(void) { freed_import(END, "the exporter ended"); }

static void own_import(void)
{
	CUmemPoolPtrExportData data;
	CUmemoryPool again = NULL;
	CUdeviceptr pointer = 0;
	int fd, r[2];

	begin_exporter();
	prepare_export();
	MUST(p.cuMemPoolExportToShareableHandle(&fd, own_pool, POSIX_FD, 0));
	MUST(p.cuMemPoolExportPointer(&data, subject));
	r[0] = DO(p.cuMemPoolImportFromShareableHandle(&again, (void *)(intptr_t)fd, POSIX_FD, 0));
	r[1] = r[0] ? -1 : DO(p.cuMemPoolImportPointer(&pointer, again, &data));
	measured("in the process that exported: import of the pool %d, of the pointer %d, %s", r[0], r[1],
		 r[1] ? "none" : pointer == subject ? "the same address" : "another address");
}

static void plain_export(void)
{
	CUmemoryPool pool;
	int fd;

	begin_pools();
	pool = new_pool(0, false);
	measured("export of a pool that was made without a handle type: %d",
		 DO(p.cuMemPoolExportToShareableHandle(&fd, pool, POSIX_FD, 0)));
}

static void import_alloc(void)
{
	CUdeviceptr pointer;

	imported_pool = begin_with_partner(0);
	measured("an allocation from an imported pool: %d",
		 DO(p.cuMemAllocFromPoolAsync(&pointer, LARGE, imported_pool, stream)));
	measured("its destroy: %d", DO(p.cuMemPoolDestroy(imported_pool)));
}

static void import_pool_destroyed(void)
{
	CUdeviceptr pointer = begin_with_import();
	int destroyed = DO(p.cuMemPoolDestroy(imported_pool));

	measured("an imported pool destroyed (%d) while a pointer of it is imported: reads %d (%d is right)", destroyed,
		 byte_at(pointer), OURS);
	measured("and cuMemFree of that gives %d", DO(cu.cuMemFree_v2(pointer)));
}

static void import_pool_destroyed_pending(void)
{
	CUdeviceptr pointer = begin_with_import();
	double from;
	int r[3];

	block_stream(stream);
	r[0] = DO(cu.cuMemFreeAsync(pointer, stream));
	from = now_ms();
	r[1] = DO(p.cuMemPoolDestroy(imported_pool));
	measured("an import freed in a blocked stream (%d), its imported pool destroyed: %d after %.1f ms", r[0], r[1],
		 now_ms() - from);
	go_on();
	r[0] = DO(cu.cuStreamSynchronize(stream));
	r[2] = r[1] ? DO(p.cuMemPoolDestroy(imported_pool)) : 0;
	measured("the stream waited for (%d): destroyed again, if it was not, %d", r[0], r[2]);
}

static void context_end(void)
{
	CUcontext context, of = NULL;
	CUstream made;
	int r[3];

	begin_exporter();
	MUST(cu.cuCtxCreate_v2(&context, 0, 0));
	MUST(cu.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
	MUST(p.cuMemAllocFromPoolAsync(&subject, LARGE, own_pool, made));
	MUST(cu.cuStreamSynchronize(made));
	MUST(cu.cuMemsetD8_v2(subject, OURS, LARGE));
	r[0] = DO(cu.cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, subject));
	measured("CU_POINTER_ATTRIBUTE_CONTEXT of a pool's block: %d, %s", r[0],
		 !of ? "none" : of == context ? "the context it was allocated in" : of == primary ? "the primary one" : "another");
	r[1] = DO(cu.cuCtxDestroy_v2(context));
	MUST(cu.cuCtxSetCurrent(primary));
	r[2] = call_export();
	measured("after that context's end (%d): export of the block %d, it reads %d (%d is right)", r[1], r[2], byte_at(subject), OURS);
}

static void own_handle_other_pid(void)
{
	CUipcMemHandle handle;
	uint32_t pid = (1u << 22) + 1;
	CUdeviceptr opened = 0;
	int result;

	begin_pools();
	MUST(cu.cuMemAlloc_v2(&subject, LARGE));
	MUST(cu.cuIpcGetMemHandle(&handle, subject));
	memcpy(handle.reserved + 8, &pid, 4);
	result = DO(cu.cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	measured("one's own memory handle with another number in bytes 8-11 opens with %d, %s", result,
		 !opened ? "nothing" : opened == subject ? "the same address" : "another address");
}

/* ---- what a limbo for pool blocks would depend on ---- */

/* A copy is queued before the importer's stream-ordered free: does it still reach the memory? */
static void free_work_before(void)
{
	CUdeviceptr pointer = begin_with_import();
	unsigned char *bytes = NULL;
	int copied, freed, waited;

	MUST(p.cuMemHostAlloc((void **)&bytes, LARGE, 0));
	block_stream(stream);
	copied = DO(p.cuMemcpyDtoHAsync_v2(bytes, pointer, LARGE, stream));
	freed = DO(cu.cuMemFreeAsync(pointer, stream));
	go_on();
	waited = DO(cu.cuStreamSynchronize(stream));
	measured("behind what blocks a stream: a copy from an import (%d), then cuMemFreeAsync of it (%d): the stream ends with %d, "
		 "the copy has %d (%d is right)", copied, freed, waited, bytes[LARGE - 1], OURS);
}

static void CUDA_CB noted(void *when)
{
	*(double *)when = now_ms();
}

static void free_times(void)
{
	CUdeviceptr pointer = begin_with_import();
	double from, made, at_function = 0;
	CUevent event;
	int r[4];

	for (unsigned int i = 0; i < 4; i++) {
		from = now_ms();
		r[0] = DO(cu.cuMemFreeAsync(pointer, stream));
		measured("an import of 4 MiB, its cuMemFreeAsync in an idle stream: %d, %.1f us", r[0], (now_ms() - from) * 1e3);
		MUST(cu.cuStreamSynchronize(stream));
		MUST(import_again(&pointer));
		from = now_ms();
		r[0] = DO(cu.cuMemFree_v2(pointer));
		measured("its cuMemFree: %d, %.1f us", r[0], (now_ms() - from) * 1e3);
		from = now_ms();
		MUST(import_again(&pointer));
		measured("imported again: %.1f us", (now_ms() - from) * 1e3);
		from = now_ms();
		MUST(cu.cuLaunchHostFunc(stream, noted, &at_function));
		made = now_ms();
		MUST(cu.cuStreamSynchronize(stream));
		measured("cuLaunchHostFunc %.1f us; it runs %.1f us after that; cuStreamSynchronize over after %.1f us",
			 (made - from) * 1e3, (at_function - made) * 1e3, (now_ms() - made) * 1e3);
		from = now_ms();
		MUST(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
		MUST(cu.cuEventRecord(event, stream));
		made = now_ms();
		MUST(cu.cuEventSynchronize(event));
		measured("an event made and recorded: %.1f us, waited for: %.1f us", (made - from) * 1e3, (now_ms() - made) * 1e3);
		MUST(cu.cuEventDestroy_v2(event));
	}
}

static void no_context(void)
{
	CUdeviceptr pointer = begin_with_import();
	CUmemPoolPtrExportData data;
	CUmemoryPool pool = new_pool(0, true);
	CUdeviceptr one, two, three;
	CUcontext before;
	int fd, r[6];

	one = new_block(pool, LARGE, OURS);
	two = new_block(pool, LARGE, OURS);
	three = new_block(pool, LARGE, OURS);
	MUST(p.cuMemPoolExportToShareableHandle(&fd, pool, POSIX_FD, 0));
	MUST(cu.cuCtxPopCurrent_v2(&before));
	r[0] = DO(p.cuMemPoolExportPointer(&data, one));
	r[1] = DO(cu.cuMemFreeAsync(two, stream));
	r[2] = DO(cu.cuMemFreeAsync(two, NULL));
	r[3] = DO(cu.cuMemFree_v2(one));
	measured("without a current context: cuMemPoolExportPointer %d, cuMemFreeAsync %d, in the NULL stream %d, cuMemFree %d", r[0],
		 r[1], r[2], r[3]);
	r[0] = DO(p.cuMemPoolDestroy(pool));
	r[1] = DO(cu.cuMemFree_v2(three));
	measured("the pool destroyed without one: %d, and cuMemFree of its block %d", r[0], r[1]);
	r[0] = import_again(&pointer);
	r[1] = DO(cu.cuMemFreeAsync(pointer, stream));
	r[2] = DO(cu.cuMemFree_v2(pointer));
	measured("an import without one: %d, its cuMemFreeAsync %d, its cuMemFree %d", r[0], r[1], r[2]);
}

/* Which second free does the driver refuse, and with which error? */
static void freed_twice(void)
{
	int r[4];

	begin_exporter();
	prepare_export();
	r[0] = DO(cu.cuMemFree_v2(subject));
	r[1] = DO(cu.cuMemFree_v2(subject));
	r[2] = DO(cu.cuMemFreeAsync(subject, stream));
	r[3] = DO(cu.cuMemFreeAsync(subject, NULL));
	measured("a pool's block freed by cuMemFree %d, again %d, by cuMemFreeAsync %d, in the NULL stream %d", r[0], r[1], r[2], r[3]);
	prepare_export();
	r[0] = DO(cu.cuMemFreeAsync(subject, stream));
	r[1] = DO(cu.cuMemFree_v2(subject));
	r[2] = DO(cu.cuMemFreeAsync(subject, stream));
	measured("a pool's block freed by cuMemFreeAsync %d, again by cuMemFree %d, by cuMemFreeAsync %d", r[0], r[1], r[2]);
}

const struct more_question pool_questions[] = {
	{ "pool-importer-free-work-before", free_work_before, 0 },
	{ "pool-importer-free-times", free_times, 0 },
	{ "pool-no-context", no_context, 0 },
	{ "pool-freed-twice", freed_twice, 0 },
	{ "pool-import-again-pending", again_pending, 0 },
	{ "pool-import-again-freed-again", again_freed_again, 0 },
	{ "pool-import-again-after", again_after, 0 },
	{ "pool-importer-free-returns", free_returns, 0 },
	{ "pool-importer-free-other-stream", free_other_stream, 0 },
	{ "pool-importer-free-sync-other-stream", free_other_stream_sync, 0 },
	{ "pool-importer-free-exporter-busy", free_exporter_busy, 0 },
	{ "pool-importer-free-pending-reuse", free_pending_reuse, 0 },
	{ "pool-device-plain", device_plain, 0 },
	{ "pool-device-access", device_access, 0 },
	{ "pool-device-own-context", device_own_context, 0 },
	{ "pool-device-exporter", device_exporter, 0 },
	{ "pool-freed-pending-export", freed_pending_export, 0 },
	{ "pool-freed-import", import_of_freed, 0 },
	{ "pool-freed-pending-import", import_of_pending, 0 },
	{ "pool-destroyed-import", import_of_destroyed, 0 },
	{ "pool-dead-import", import_of_dead, 0 },
	{ "pool-own-import", own_import, 0 },
	{ "pool-plain-export", plain_export, 0 },
	{ "pool-import-alloc", import_alloc, 0 },
	{ "pool-import-pool-destroyed", import_pool_destroyed, 0 },
	{ "pool-import-pool-destroyed-pending", import_pool_destroyed_pending, 0 },
	{ "pool-context-end", context_end, 0 },
	{ "handle-own-other-pid", own_handle_other_pid, 0 },
	{ "pool-order-soak", pool_order_soak, 75000 },
	{ "pool-memory", pool_memory, 30000 },
	{ NULL, NULL, 0 },
};
