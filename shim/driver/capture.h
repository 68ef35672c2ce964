/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread's capture mode is relaxed while we call the driver for something that the program has not
 * asked for, so that a capture of the program stays valid.
 */
#ifndef CL_CAPTURE_H
#define CL_CAPTURE_H

#include <stdbool.h>
#include "shim/driver/driver.h"

struct cl_capture {
	CUstreamCaptureMode mode;
	bool exchanged;
};

static inline struct cl_capture cl_capture_relax(void)
{
	struct cl_capture capture = { .mode = CU_STREAM_CAPTURE_MODE_RELAXED };

	capture.exchanged = cl_driver.cuThreadExchangeStreamCaptureMode &&
			    cl_driver.cuThreadExchangeStreamCaptureMode(&capture.mode) == CUDA_SUCCESS;
	return capture;
}

static inline void cl_capture_restore(struct cl_capture *capture)
{
	if (capture->exchanged)
		cl_driver.cuThreadExchangeStreamCaptureMode(&capture->mode);
}

#endif
