/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests promise 4 at the 1,048,577th live export.  It succeeds as without culimbo, and one
 * warning is printed.  Its block is kept after the free, since no record says who holds it.
 * Blocks that were exported before are released as usual.
 *
 * The shim runs over a driver of a few lines, because the simulated driver would take
 * minutes.  It needs 300 MB, half of it in /dev/shm; with less it is skipped with a message.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "shim/base/options.h"
#include "shim/self/self.h"
#include "shim/shm/handle.h"
#include "shim/shim.h"

#define FIRST 0x7f0000000000ull
enum { SIZE = 1024, BEYOND = 3 };

static unsigned char freed[CL_STAMP_RECORDS + BEYOND];
static unsigned long frees;
static int number, failures;

static CUresult get_handle(CUipcMemHandle *handle, CUdeviceptr p)
{
	memset(handle, 0, sizeof *handle);
	memcpy(handle, &p, sizeof p);
	return CUDA_SUCCESS;
}
static CUresult get_range(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	*base = p;
	*size = SIZE;
	return CUDA_SUCCESS;
}
static CUresult get_attribute(void *to, CUpointer_attribute what, CUdeviceptr p)
{
	if (what == CU_POINTER_ATTRIBUTE_CONTEXT)
		*(CUcontext *)to = NULL;
	else
		*(int *)to = 0;
	return CUDA_SUCCESS;
}
static CUresult allocate(CUdeviceptr *p, size_t size)
{
	*p = 1; /* the shim frees this to wait as a free does */
	return CUDA_SUCCESS;
}
static CUresult release(CUdeviceptr p)
{
	if (p == 1)
		return CUDA_SUCCESS;
	if (p < FIRST) /* the shim frees this to learn why a free would be refused */
		return CUDA_ERROR_INVALID_VALUE;
	freed[(p - FIRST) / SIZE]++;
	frees++;
	return CUDA_SUCCESS;
}
static CUresult get_current(CUcontext *ctx)
{
	*ctx = NULL;
	return CUDA_SUCCESS;
}

static void ok(int holds, const char *what)
{
	printf("%sok %d - %s\n", holds ? "" : "not ", ++number, what);
	failures += !holds;
}

static unsigned long lines_in(int fd, const char *word)
{
	static char text[65536];
	ssize_t n = pread(fd, text, sizeof text - 1, 0);
	unsigned long found = 0;

	text[n > 0 ? n : 0] = 0;
	for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
		found++;
	return found;
}

int main(void)
{
	int said = memfd_create("said", MFD_CLOEXEC), err = dup(2);
	const char *folder = getenv("CULIMBO_DIR");
	unsigned long refused = 0, stamped = 0, beyond_stamped = 0, twice = 0;
	CUipcMemHandle handle;
	struct statvfs room;
	char parent[600];

	if (!folder)
		return 2;
	snprintf(parent, sizeof parent, "%s", folder);
	*strrchr(parent, '/') = 0;
	if (statvfs(parent, &room) || (uint64_t)room.f_bavail * room.f_bsize < 512u << 20 ||
	    sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE) < 1l << 30) {
		printf("1..0 # SKIP too little memory, or room in /dev/shm\n");
		return 0;
	}
	dup2(said, 2);
	cl_options_read(&cl_options, environ, NULL);
	cl_driver.cuIpcGetMemHandle = get_handle;
	cl_driver.cuMemGetAddressRange_v2 = get_range;
	cl_driver.cuPointerGetAttribute = get_attribute;
	cl_driver.cuMemAlloc_v2 = allocate;
	cl_driver.cuMemFree_v2 = release;
	cl_driver.cuCtxGetCurrent = get_current;

	for (unsigned long i = 0; i < CL_STAMP_RECORDS + BEYOND; i++) {
		if (cl_memory_export(&handle, FIRST + i * SIZE))
			refused++;
		if (i < CL_STAMP_RECORDS)
			stamped += cl_handle_stamp(handle.reserved, CL_MEMORY) != 0;
		else
			beyond_stamped += cl_handle_stamp(handle.reserved, CL_MEMORY) != 0;
	}
	ok(!refused, "1,016,067 live exports: none is refused");
	ok(stamped == CL_STAMP_RECORDS, "the first 1,016,064 are marked");
	ok(!beyond_stamped, "the rest is not, and has no other's mark");
	ok(lines_in(said, "]: error: ") == 1 && lines_in(said, "]: warning: ") == 0,
	   "that is said once");

	for (unsigned long i = 0; i < CL_STAMP_RECORDS + BEYOND; i++)
		if (cl_memory_free(FIRST + i * SIZE))
			refused++;
	for (unsigned int i = CL_STAMP_RECORDS; i < CL_STAMP_RECORDS + BEYOND; i++)
		twice += cl_memory_free(FIRST + (uint64_t)i * SIZE) == CUDA_ERROR_INVALID_VALUE;
	ok(!refused && twice == BEYOND, "all are freed, and not a second time");
	/* the collector is inline and CULIMBO_GRACE=0, so each block was released at once */
	ok(frees == CL_STAMP_RECORDS, "what was marked went back to the driver");
	ok(!freed[CL_STAMP_RECORDS] && !freed[CL_STAMP_RECORDS + 1] && !freed[CL_STAMP_RECORDS + 2],
	   "what was not is kept");
	ok(cl_memory_export(&handle, FIRST) == CUDA_SUCCESS && cl_handle_stamp(handle.reserved, CL_MEMORY) &&
	   !memcmp(&handle, &(uint64_t){ FIRST }, CL_STAMP_HIGH), "and there is room for exports again");
	ok(cl_process_end(5) == 5, "the process ends as it would");
	dup2(err, 2);
	if (failures) {
		static char text[4096];

		if (pread(said, text, sizeof text - 1, 0) > 0)
			printf("# %s\n", text);
	}
	printf("1..%d\n", number);
	return failures != 0;
}
