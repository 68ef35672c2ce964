/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts: the driver that does nothing, and a helper process that is told what to do.
 */
#include "tests/bench/parts.h"

#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim/base/options.h"
#include "shim/self/own_file.h"

struct board *board;

/* ------------------------------------------------------------ the null driver */

static CUdeviceptr next_block = FIRST_BLOCK;

NULL_DRIVER static CUresult null_alloc(CUdeviceptr *p, size_t size)
{
	(void)size;
	*p = next_block;
	next_block += BLOCK_STEP;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_free(CUdeviceptr p)
{
	(void)p;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_free_async(CUdeviceptr p, CUstream stream)
{
	(void)p, (void)stream;
	return CUDA_SUCCESS;
}
/* The byte lies behind the rest of its piece (shim/driver/wait.h). */
NULL_DRIVER static CUresult null_host_alloc(void **p, size_t size, unsigned int flags)
{
	(void)flags;
	*p = (char *)PINNED + (size == 1 ? PINNED_REST : 0);
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_host_free(void *p)
{
	(void)p;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_handle(CUipcMemHandle *handle, CUdeviceptr p)
{
	memset(handle, 0, sizeof *handle);
	memcpy(handle->reserved + 32, &p, sizeof p);
	return p == REFUSED_BLOCK ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}
NULL_DRIVER CUresult null_open(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags)
{
	(void)flags;
	memcpy(p, handle.reserved + 32, sizeof *p);
	*p += MAPPED_AT;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_range(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	*base = p;
	*size = BLOCK_STEP;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
	(void)p;
	if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT)
		*(CUcontext *)data = CONTEXT;
	else
		*(int *)data = 0;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_current(CUcontext *ctx)
{
	*ctx = CONTEXT;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_device(CUdevice *device)
{
	*device = 0;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_state(CUdevice device, unsigned int *flags, int *active)
{
	(void)device, (void)flags;
	*active = 1;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_retain(CUcontext *ctx, CUdevice device)
{
	(void)device;
	*ctx = CONTEXT;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_release(CUdevice device)
{
	(void)device;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_exchange(CUstreamCaptureMode *mode)
{
	(void)mode;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_stream(CUstream *stream, unsigned int flags)
{
	(void)flags;
	*stream = STREAM;
	return CUDA_SUCCESS;
}
NULL_DRIVER static CUresult null_stream_sync(CUstream stream)
{
	(void)stream;
	return CUDA_SUCCESS;
}

char folder[] = "/dev/shm/culimbo-bench-XXXXXX";

void prepare(void)
{
	char **environment = environ;

	cl_options_read(&cl_options, environment, NULL);
	cl_options.dir.text = folder;
	cl_options.grace.number = 0;
	cl_options.report.number = CL_REPORT_OFF;
	cl_options.warn_blocks.number = 0;
	cl_driver.cuMemAlloc_v2 = null_alloc;
	cl_driver.cuMemFree_v2 = null_free;
	cl_driver.cuMemHostAlloc = null_host_alloc;
	cl_driver.cuMemFreeHost = null_host_free;
	cl_driver.cuMemFreeAsync = null_free_async;
	cl_driver.cuIpcGetMemHandle = null_handle;
	cl_driver.cuIpcOpenMemHandle_v2 = null_open;
	cl_driver.cuIpcCloseMemHandle = null_free;
	cl_driver.cuMemGetAddressRange_v2 = null_range;
	cl_driver.cuPointerGetAttribute = null_attribute;
	cl_driver.cuCtxGetCurrent = null_current;
	cl_driver.cuCtxGetDevice = null_device;
	cl_driver.cuDevicePrimaryCtxGetState = null_state;
	cl_driver.cuDevicePrimaryCtxRetain = null_retain;
	cl_driver.cuDevicePrimaryCtxRelease_v2 = null_release;
	cl_driver.cuThreadExchangeStreamCaptureMode = null_exchange;
	cl_driver.cuStreamCreate = null_stream;
	cl_driver.cuStreamSynchronize = null_stream_sync;
}

/* ------------------------------------------------------------ two processes */

void make_board(uint64_t handles)
{
	board = mmap(NULL, sizeof *board + handles * sizeof board->handle[0], PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	MUST(board != MAP_FAILED);
}

void moment(void)
{
	nanosleep(&(struct timespec){ 0, 100000 }, NULL);
}

void wait_for(_Atomic uint32_t *what, uint32_t value)
{
	uint64_t end = bench_now() + 120000000000u;

	while (atomic_load(what) != value) {
		MUST(bench_now() < end);
		moment();
	}
}

/* Has the helper act on blocks @first to @first + @n, and waits until it is done. */
void helper_do(uint64_t first, uint64_t n)
{
	board->first = first;
	board->n = n;
	atomic_fetch_add(&board->step, 1);
	wait_for(&board->done, atomic_load(&board->step));
}

/* Called in the helper: waits for command number @step. */
void helper_wait(uint32_t step)
{
	wait_for(&board->step, step);
}
void helper_did(uint32_t step)
{
	atomic_store(&board->done, step);
}

pid_t helper_start(void (*body)(void))
{
	pid_t helper = fork();

	MUST(helper >= 0);
	if (helper)
		return helper;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prepare();
	body();
	cl_process_end(0);
	_exit(0);
}

uint64_t file_bytes(void)
{
	struct stat st;

	MUST(fstat(cl_own.fd, &st) == 0);
	return (uint64_t)st.st_blocks * 512;
}

uint64_t heap_bytes(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

/* Returns @what of /proc/self/smaps_rollup, in kB. */
double rollup(const char *what)
{
	FILE *f = fopen("/proc/self/smaps_rollup", "re");
	char line[256];
	double kb = 0;

	MUST(f);
	while (fgets(line, sizeof line, f))
		if (!strncmp(line, what, strlen(what)))
			sscanf(line + strlen(what), " %lf", &kb);
	fclose(f);
	return kb;
}
