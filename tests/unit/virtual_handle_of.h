/* SPDX-License-Identifier: Apache-2.0 */
/* What a handle of virtual memory that this process has made says, and whether it can still be opened. */
#ifndef TEST_VIRTUAL_HANDLE_OF_H
#define TEST_VIRTUAL_HANDLE_OF_H

#include "tests/unit/limbo.h"

#include "shim/descriptors/server.h"
#include "shim/shm/virtual_handle.h"

static inline struct cl_stamp its_stamp(const CUipcMemHandle *handle)
{
	struct cl_virtual_handle its;
	struct cl_stamp stamp;

	memcpy(&its, handle, sizeof its);
	stamp = cl_stamp_unpack(its.stamp);
	CHECK(cl_region_has_stamped(&cl_own, &stamp));
	return stamp;
}

static inline bool is_live(const CUipcMemHandle *handle)
{
	struct cl_stamp stamp = its_stamp(handle);

	return cl_serve_is_live(&cl_own, stamp.record, stamp.generation);
}

#endif
