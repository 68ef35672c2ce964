/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices as other processes know them.  An ordinal means something in this process only
 * (CUDA_VISIBLE_DEVICES), so our file names a device by its UUID.
 */
#ifndef CL_DEVICES_H
#define CL_DEVICES_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/shm/region.h"

enum { CL_UUID = 16 };

/*
 * Stores the UUID of device @device in @uuid; in MIG mode, of the instance that this process has.
 * Returns false if the driver does not say it.  Any thread.  The first call for a device asks the
 * driver and takes cl_exports_lock, so no lock may be held; later calls only read memory.
 */
bool cl_device_uuid(int device, uint8_t uuid[CL_UUID]);

/* Which devices have an entry in an exporter's header.  All zeros: none has.  Under cl_exports_lock. */
struct cl_device_entries {
	/* by ordinal: the entry of the device, or CL_ANY_DEVICE (0) as long as it has none */
	uint8_t of[UINT8_MAX + 1];
	unsigned int n; /* entries in use; other processes may damage the header's own count */
};
/*
 * Returns the index in the `device` array of @region's header, our own, of the entry that counts
 * the limbo of @device.  Once a device has an entry, its index never changes.  Returns CL_ANY_DEVICE if all
 * entries are in use, or if cl_device_uuid() was not called for @device or failed.  The caller holds
 * cl_exports_lock, and our file exists.
 */
unsigned int cl_device_limbo_locked(struct cl_device_entries *entries,
				    const struct cl_region *region, int device);

#endif
