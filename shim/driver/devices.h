/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices as other processes know them.  An ordinal is this process's own
 * (CUDA_VISIBLE_DEVICES), so what is said to others about a device names it by its UUID.
 */
#ifndef CL_DEVICES_H
#define CL_DEVICES_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/shm/layout.h"

enum { CL_UUID = 16 };

/*
 * The UUID of device @device, in MIG mode of the instance that this process has.  False: it
 * can't be had.  Asks the driver the first time, so no lock may be held; then a load.
 */
bool cl_device_uuid(int device, uint8_t uuid[CL_UUID]);

/*
 * Which entry of our header's `device` has the limbo of @device: there is a file.  CL_ANY_DEVICE
 * where cl_device_uuid() was never asked, or could not tell; else always the same from then
 * on.  The caller has cl_exports_lock.
 */
unsigned int cl_device_limbo_locked(int device);
/* The same of a device that has been asked about so; by ordinal. */
extern uint8_t cl_device_entry[UINT8_MAX + 1];

void cl_devices_forget(void); /* in a forked child, whose file is another */

#endif
