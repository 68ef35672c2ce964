/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by tests of the budgets of the limbo: an exporter with a budget, and blocks that it shares and frees. */
#ifndef CL_TEST_BUDGET_H
#define CL_TEST_BUDGET_H

#include "tests/unit/other.h"

#include "shim/limbo/grace.h"

#define PAGE CL_GRACE_PAGE

/* No grace period ends in these tests: a block is released only because of a budget. */
static inline void start_with_budget(uint64_t bytes)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_options.grace_bytes.number = bytes;
	cl_options.grace_bytes.from_environment = true;
}

static inline CUdeviceptr share(size_t size, CUipcMemHandle *handle)
{
	CUdeviceptr p = fake_alloc(size, CONTEXT_A);
	CUipcMemHandle made = export_block(p);

	if (handle)
		*handle = made;
	return p;
}
static inline void free_block(CUdeviceptr p)
{
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
}

/* @other opens and closes the block once. */
static inline void visit(struct other *other, CUipcMemHandle handle)
{
	others_close(other, others_open(other, handle));
}

#endif
