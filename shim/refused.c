/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a note of what CUDA refuses to share or to open: see refused.h. */
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "shim/base/hot.h"
#include "shim/base/options.h"
#include "shim/diag/happened.h"
#include "shim/diag/report_data.h"
#include "shim/driver/made.h"
#include "shim/exporter/virtual.h"
#include "shim/importer/mappings.h"
#include "shim/importer/open.h"
#include "shim/refused.h"
#include "shim/self/self.h"

/* Returns true if @result says something of the memory or the handle, and not of the thread or the driver. */
static bool is_of_memory(CUresult result)
{
	switch (result) {
	case CUDA_SUCCESS:
	case CUDA_ERROR_OUT_OF_MEMORY:
	case CUDA_ERROR_NOT_INITIALIZED:
	case CUDA_ERROR_DEINITIALIZED:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED:
	/* a kernel of the program has ended its context: each call gives its error */
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
		return false;
	default:
		return true;
	}
}

/* ------------------------------------------------------------ what was refused last */
enum { REMEMBERED = 32 };
static struct refusal {
	/* the memory: its first address, and the one behind its last; read without the lock; 0: none */
	_Atomic uint64_t start, end;
	struct cl_about about; /* this and the rest under cl_exports_lock */
	uint32_t stack;
} refusals[REMEMBERED];
static unsigned int next_refusal;
static atomic_uint refusals_n; /* entries ever used: a process that was never refused looks at no entry */

/* Relaxed: a thread that sees half of a change asks the driver and looks again under the lock. */
static bool has(const struct refusal *refusal, CUdeviceptr dptr)
{
	return dptr >= atomic_load_explicit(&refusal->start, memory_order_relaxed) &&
	       dptr < atomic_load_explicit(&refusal->end, memory_order_relaxed);
}

CL_HOT_SHARING bool cl_refused_before(CUdeviceptr dptr)
{
	unsigned int n = atomic_load_explicit(&refusals_n, memory_order_relaxed);

	for (unsigned int i = 0; i < n; i++)
		if (has(&refusals[i], dptr))
			return true;
	return false;
}

static void remember(const struct cl_about *about, uint32_t stack)
{
	struct refusal *refusal;

	cl_lock(&cl_exports_lock);
	refusal = &refusals[next_refusal++ % REMEMBERED];
	refusal->about = *about;
	refusal->stack = stack;
	atomic_store_explicit(&refusal->start, about->key, memory_order_relaxed);
	/* of memory that the driver does not know, only this address */
	atomic_store_explicit(&refusal->end, about->key + (about->size ? about->size : 1), memory_order_relaxed);
	if (next_refusal <= REMEMBERED)
		atomic_store_explicit(&refusals_n, next_refusal, memory_order_relaxed);
	cl_unlock(&cl_exports_lock);
}

bool cl_refused_again(CUdeviceptr dptr, CUresult result)
{
	bool same = false;
	int err = errno;

	cl_lock(&cl_exports_lock);
	for (unsigned int i = 0; i < REMEMBERED && !same; i++) {
		struct refusal *refusal = &refusals[i];

		if (!has(refusal, dptr))
			continue;
		same = refusal->about.result == (uint32_t)result;
		if (same)
			cl_happened_locked(CL_FINDING_REFUSED, &refusal->about, refusal->stack);
		else /* other memory is there now */
			atomic_store_explicit(&refusal->end, 0, memory_order_relaxed);
	}
	cl_unlock(&cl_exports_lock);
	errno = err;
	return same;
}

void cl_refused_forget(void)
{
	/* the stacks' numbers are of the parent's file */
	memset(refusals, 0, sizeof refusals);
	next_refusal = 0;
	atomic_store_explicit(&refusals_n, 0, memory_order_relaxed);
}

/* ------------------------------------------------------------------- each refusal */
/* Returns what CULIMBO_SHARE=all has to do with a handle that was refused. */
static enum cl_why why_not_by_all(void)
{
	if (!cl_shares_all())
		return CL_WHY_RESULT_ALONE;
	if (cl_observes())
		return CL_WHY_ALL_OBSERVES;
	return cl_virtual_is_slow_driver() ? CL_WHY_ALL_OLD : CL_WHY_ALL;
}

void cl_refused_handle(CUdeviceptr dptr, CUresult result)
{
	struct cl_about import, about = { .kind = CL_MEMORY, .call = CL_CALL_GET_HANDLE, .result = result };
	struct cl_memory_made memory;
	uint32_t stack;

	/* without a context the driver tells nothing of the memory */
	if (!is_of_memory(result) || result == CUDA_ERROR_INVALID_CONTEXT)
		return;
	memory = cl_memory_made(dptr);
	if (cl_import_find(memory.base, &import)) {
		memory.made = CL_MADE_IMPORT;
		about.pid = import.pid;
	}
	/* the driver would share this memory, so culimbo has refused it: a finding says that already */
	if (memory.made == CL_MADE_ALLOC && result == CUDA_ERROR_INVALID_VALUE)
		return;
	about.key = memory.base;
	about.size = memory.size;
	about.device = (uint8_t)memory.device;
	about.made = (uint8_t)memory.made;
	about.why = (uint8_t)why_not_by_all();
	stack = cl_stack_write(true);
	cl_happened(CL_FINDING_REFUSED, &about, stack);
	remember(&about, stack);
}

/* Notes the open that @about tells of. */
static void note_open(struct cl_about *about, enum cl_why why)
{
	CUdevice device = 0;
	CUcontext current = NULL;

	/* then it says that no context is current, and nothing of the handle */
	if (about->result == CUDA_ERROR_INVALID_CONTEXT && cl_driver.cuCtxGetCurrent &&
	    (cl_driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS || !current))
		return;
	about->kind = CL_MEMORY;
	about->call = CL_CALL_OPEN_HANDLE;
	about->why = (uint8_t)why;
	if (cl_driver.cuCtxGetDevice && cl_driver.cuCtxGetDevice(&device) == CUDA_SUCCESS && device > 0)
		about->device = (uint8_t)device;
	cl_happened(CL_FINDING_REFUSED, about, cl_stack_write(true));
}

void cl_refused_open(const struct cl_resolved *resolved, const CUipcMemHandle *handle, CUresult result, bool arguments)
{
	struct cl_about about = { .made = CL_MADE_ALLOC, .result = result, .pid = resolved->pid };

	if (!is_of_memory(result))
		return;
	/* the size that the driver would map (measured); in bytes that are no handle it is garbage */
	memcpy(&about.size, handle->reserved + 16, sizeof about.size);
	if (about.size >> 48)
		about.size = 0;
	note_open(&about, arguments ? CL_WHY_ARGUMENTS : CL_WHY_RESULT_ALONE);
}

void cl_refused_open_of_ours(enum cl_made made, uint32_t pid, uint64_t size, CUresult result, enum cl_why why)
{
	struct cl_about about = { .made = (uint8_t)made, .result = result, .pid = pid, .size = size };

	/* its arguments are refused without the driver, which may have shut down */
	if (is_of_memory(result) && (why != CL_WHY_ARGUMENTS || cl_driver_works()))
		note_open(&about, why);
}
