/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares GPU memory on command.  It reads a command a line from stdin, and answers
 * each with a line on stdout ("ok ..." or "error N").  A shell can drive several.
 *
 *   export BYTES N    allocates and exports N blocks; prints the last one's handle
 *   alloc BYTES       allocates a block and keeps it
 *   free N            frees the N oldest exported blocks
 *   virtual BYTES     maps virtual memory and exports it by a handle (CULIMBO_SHARE=all); prints the handle
 *   async BYTES       the same, of a block of cuMemAllocAsync
 *   fabric BYTES      exports virtual memory by a fabric handle; prints that
 *   fabric-pool       the same, of a memory pool
 *   join HANDLE       imports virtual memory by a fabric handle, and maps it
 *   join-pool HANDLE  imports a memory pool by one
 *   device            prints the number of the device of what was joined last, as the driver tells it
 *   event             creates and exports an event
 *   destroy           destroys the event that was created or opened last
 *   import HANDLE     opens an event's handle and keeps it open
 *   open HANDLE       opens a block's handle and keeps it open
 *   close             closes the block that was opened last
 *   pool BYTES        allocates a block of its memory pool and exports its pointer; prints the data, and
 *                     its pid and the descriptor of the pool
 *   drop              frees the block of the pool that was exported last
 *   take DATA PID FD  imports that pool and that pointer
 *   leave             frees what was imported last
 *   name TEXT         sets the process's name (/proc/self/comm); \xNN stands for a byte
 *   lock FILE         locks FILE as an exporter locks its own
 *   reset             resets the primary context: all that it allocated goes
 *   abort             kills itself with SIGKILL
 *   exec FILE         becomes the program FILE
 * It exits when stdin ends.
 */
#include <cuda.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST 200000

static CUdeviceptr block[MOST], import[1024];
static unsigned int first, blocks, imports;

static void say(CUresult result, const unsigned char *handle)
{
	if (result) {
		printf("error %d\n", result);
		return;
	}
	printf("ok ");
	for (int i = 0; handle && i < 64; i++)
		printf("%02x", handle[i]);
	putchar('\n');
}

static void read_handle(const char *text, void *to)
{
	unsigned int byte;

	for (int i = 0; i < 64 && sscanf(text + 2 * i, "%2x", &byte) == 1; i++)
		((unsigned char *)to)[i] = (unsigned char)byte;
}

static CUresult export_many(size_t bytes, unsigned int n, CUipcMemHandle *handle)
{
	CUresult result = CUDA_SUCCESS;

	while (n-- && !result && blocks < MOST) {
		result = cuMemAlloc(&block[blocks], bytes);
		if (!result)
			result = cuIpcGetMemHandle(handle, block[blocks++]);
	}
	return result;
}

static CUresult export_virtual(size_t bytes, CUipcMemHandle *handle)
{
	CUmemAllocationProp property = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					 .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	CUmemAccessDesc access = { .location = property.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle memory;
	CUdeviceptr at;
	CUresult result = cuMemAddressReserve(&at, bytes, 0, 0, 0);

	if (!result)
		result = cuMemCreate(&memory, bytes, &property, 0);
	if (!result)
		result = cuMemMap(at, bytes, 0, memory, 0);
	if (!result)
		result = cuMemSetAccess(at, bytes, &access, 1);
	return result ? result : cuIpcGetMemHandle(handle, at);
}

static CUresult export_async(size_t bytes, CUipcMemHandle *handle)
{
	CUdeviceptr at;
	CUresult result = cuMemAllocAsync(&at, bytes, NULL);

	if (!result)
		result = cuStreamSynchronize(NULL);
	return result ? result : cuIpcGetMemHandle(handle, at);
}

/* ----------------------------------------------------------------- fabric handles */
/* CU_MEM_HANDLE_TYPE_FABRIC: cuda.h has this name, and CUmemFabricHandle of 64 bytes, from 12.3 on. */
#define FABRIC ((CUmemAllocationHandleType)8)

static CUresult fabric_export(size_t bytes, unsigned char handle[64])
{
	CUmemAllocationProp property = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					 .requestedHandleTypes = FABRIC,
					 .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	CUmemGenericAllocationHandle memory;
	CUresult result = cuMemCreate(&memory, bytes, &property, 0);

	return result ? result : cuMemExportToShareableHandle(handle, memory, FABRIC, 0);
}

static CUresult fabric_export_pool(unsigned char handle[64])
{
	CUmemPoolProps wanted = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				  .handleTypes = FABRIC,
				  .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	CUmemoryPool pool;
	CUresult result = cuMemPoolCreate(&pool, &wanted);

	return result ? result : cuMemPoolExportToShareableHandle(handle, pool, FABRIC, 0);
}

static CUmemGenericAllocationHandle joined;

static CUresult fabric_join(unsigned char handle[64])
{
	size_t bytes = 2 << 20;
	CUdeviceptr at;
	CUresult result = cuMemImportFromShareableHandle(&joined, handle, FABRIC);

	if (!result)
		result = cuMemAddressReserve(&at, bytes, 0, 0, 0);
	return result ? result : cuMemMap(at, bytes, 0, joined, 0);
}

/* ------------------------------------------------------------------- memory pools */
#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static CUdeviceptr pool_block, pool_import;

static void pool_export(size_t bytes)
{
	CUmemPoolProps wanted = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				  .handleTypes = POSIX_FD,
				  .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	static CUmemoryPool pool;
	static int fd = -1;
	CUmemPoolPtrExportData data;
	CUresult result = CUDA_SUCCESS;

	if (!pool) {
		result = cuMemPoolCreate(&pool, &wanted);
		if (!result)
			result = cuMemPoolExportToShareableHandle(&fd, pool, POSIX_FD, 0);
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* for pidfd_getfd under Yama */
	}
	if (!result)
		result = cuMemAllocFromPoolAsync(&pool_block, bytes, pool, NULL);
	if (!result)
		result = cuStreamSynchronize(NULL);
	memset(&data, 0xee, sizeof(data)); /* the driver leaves some bytes as they were */
	if (!result)
		result = cuMemPoolExportPointer(&data, pool_block);
	if (result) {
		say(result, NULL);
		return;
	}
	printf("ok ");
	for (int i = 0; i < 64; i++)
		printf("%02x", ((unsigned char *)&data)[i]);
	printf(" %d %d\n", (int)getpid(), fd);
}

static CUresult pool_take(const char *text, int pid, int its)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0), fd;
	CUmemPoolPtrExportData data;
	CUmemoryPool pool;
	CUresult result;

	read_handle(text, &data);
	fd = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, its, 0);
	result = fd < 0 ? CUDA_ERROR_UNKNOWN : cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, POSIX_FD, 0);
	if (fd >= 0)
		close(fd);
	if (pidfd >= 0)
		close(pidfd);
	return result ? result : cuMemPoolImportPointer(&pool_import, pool, &data);
}

static void set_name(const char *text)
{
	char name[64];
	unsigned int byte, n = 0;

	while (*text && *text != '\n' && n < sizeof(name) - 1) {
		if (!strncmp(text, "\\x", 2) && sscanf(text + 2, "%2x", &byte) == 1) {
			name[n++] = (char)byte;
			text += 4;
		} else {
			name[n++] = *text++;
		}
	}
	name[n] = 0;
	prctl(PR_SET_NAME, name);
}

int main(void)
{
	static char line[4096];
	unsigned long long bytes;
	unsigned char name[64] = { 0 };
	CUipcEventHandle event_handle;
	CUipcMemHandle handle;
	CUcontext context;
	CUresult result;
	CUevent event = NULL;
	unsigned int n;
	int pid, fd;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
		return 1;
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "export %llu %u", &bytes, &n) == 2) {
			result = export_many(bytes, n, &handle);
			say(result, (unsigned char *)&handle);
		} else if (sscanf(line, "alloc %llu", &bytes) == 1) {
			CUdeviceptr kept;

			say(cuMemAlloc(&kept, bytes), NULL);
		} else if (sscanf(line, "free %u", &n) == 1) {
			for (result = CUDA_SUCCESS; n-- && first < blocks && !result;)
				result = cuMemFree(block[first++]);
			say(result, NULL);
		} else if (sscanf(line, "virtual %llu", &bytes) == 1) {
			result = export_virtual(bytes, &handle);
			say(result, (unsigned char *)&handle);
		} else if (sscanf(line, "async %llu", &bytes) == 1) {
			result = export_async(bytes, &handle);
			say(result, (unsigned char *)&handle);
		} else if (sscanf(line, "fabric %llu", &bytes) == 1) {
			result = fabric_export(bytes, name);
			say(result, name);
		} else if (!strncmp(line, "fabric-pool", 11)) {
			result = fabric_export_pool(name);
			say(result, name);
		} else if (!strncmp(line, "device", 6)) {
			CUmemAllocationProp property;

			result = cuMemGetAllocationPropertiesFromHandle(&property, joined);
			if (result)
				say(result, NULL);
			else
				printf("ok %d\n", property.location.id);
		} else if (!strncmp(line, "join ", 5)) {
			read_handle(line + 5, name);
			say(fabric_join(name), NULL);
		} else if (!strncmp(line, "join-pool ", 10)) {
			CUmemoryPool pool;

			read_handle(line + 10, name);
			say(cuMemPoolImportFromShareableHandle(&pool, name, FABRIC, 0), NULL);
		} else if (!strncmp(line, "event", 5)) {
			result = cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
			if (!result)
				result = cuIpcGetEventHandle(&event_handle, event);
			say(result, (unsigned char *)&event_handle);
		} else if (!strncmp(line, "destroy", 7)) {
			say(cuEventDestroy(event), NULL);
		} else if (!strncmp(line, "import ", 7)) {
			read_handle(line + 7, &event_handle);
			say(cuIpcOpenEventHandle(&event, event_handle), NULL);
		} else if (!strncmp(line, "open ", 5)) {
			memset(&handle, 0, sizeof(handle));
			read_handle(line + 5, &handle);
			result = cuIpcOpenMemHandle(&import[imports], handle,
						    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
			imports += !result && imports < 1023;
			say(result, NULL);
		} else if (!strncmp(line, "close", 5)) {
			say(imports ? cuIpcCloseMemHandle(import[--imports]) : CUDA_ERROR_INVALID_VALUE,
			    NULL);
		} else if (sscanf(line, "pool %llu", &bytes) == 1) {
			pool_export(bytes);
		} else if (!strncmp(line, "drop", 4)) {
			say(cuMemFree(pool_block), NULL);
		} else if (sscanf(line, "take %*128s %d %d", &pid, &fd) == 2) {
			say(pool_take(line + 5, pid, fd), NULL);
		} else if (!strncmp(line, "leave", 5)) {
			say(cuMemFree(pool_import), NULL);
		} else if (!strncmp(line, "name ", 5)) {
			set_name(line + 5);
			say(CUDA_SUCCESS, NULL);
		} else if (!strncmp(line, "lock ", 5)) {
			struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1 };

			line[strcspn(line, "\n")] = 0;
			say(fcntl(open(line + 5, O_RDWR), F_SETLK, &lock) ? CUDA_ERROR_UNKNOWN :
									    CUDA_SUCCESS,
			    NULL);
		} else if (!strncmp(line, "reset", 5)) {
			say(cuDevicePrimaryCtxReset(0), NULL);
		} else if (!strncmp(line, "abort", 5)) {
			raise(SIGKILL);
		} else if (!strncmp(line, "exec ", 5)) {
			line[strcspn(line, "\n")] = 0;
			execl(line + 5, line + 5, NULL);
			say(CUDA_ERROR_UNKNOWN, NULL);
		} else {
			printf("error: what is %s", line);
		}
	}
	return 0;
}
