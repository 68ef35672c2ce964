/* SPDX-License-Identifier: Apache-2.0 */
/* The UUIDs of devices, and their entries in our file: see devices.h. */
#include <string.h>

#include "shim/base/hot.h"
#include "shim/driver/devices.h"
#include "shim/driver/driver.h"
#include "shim/self/self.h"

enum { DEVICES = 64 }; /* ordinals; a device beyond has no entry of its own */
enum known { NOT_ASKED, KNOWN, UNKNOWN };

static struct {
	_Atomic uint8_t known;
	uint8_t uuid[CL_UUID];
} devices[DEVICES];

static bool ask_driver(int device, uint8_t uuid[CL_UUID])
{
	CUuuid says;

	/* in MIG mode only the second form distinguishes the instances of a device */
	if ((!cl_driver.cuDeviceGetUuid_v2 ||
	     cl_driver.cuDeviceGetUuid_v2(&says, device) != CUDA_SUCCESS) &&
	    (!cl_driver.cuDeviceGetUuid ||
	     cl_driver.cuDeviceGetUuid(&says, device) != CUDA_SUCCESS))
		return false;
	memcpy(uuid, says.bytes, CL_UUID);
	return true;
}

CL_HOT_SHARING bool cl_device_uuid(int device, uint8_t uuid[CL_UUID])
{
	uint8_t says[CL_UUID];
	enum known known;

	if (device < 0 || device >= DEVICES)
		return false;
	known = (enum known)atomic_load_explicit(&devices[device].known, memory_order_acquire);
	if (known == NOT_ASKED) {
		known = ask_driver(device, says) ? KNOWN : UNKNOWN;
		cl_lock(&cl_exports_lock);
		/* the first answer stays: blocks may have been counted with it */
		if (atomic_load_explicit(&devices[device].known, memory_order_relaxed) == NOT_ASKED) {
			if (known == KNOWN)
				memcpy(devices[device].uuid, says, CL_UUID);
			atomic_store_explicit(&devices[device].known, (uint8_t)known,
					      memory_order_release);
		}
		known = (enum known)atomic_load_explicit(&devices[device].known, memory_order_relaxed);
		cl_unlock(&cl_exports_lock);
	}
	if (known == KNOWN)
		memcpy(uuid, devices[device].uuid, CL_UUID);
	return known == KNOWN;
}

static uint8_t take_entry_locked(struct cl_device_entries *entries, struct cl_header *h, int device)
{
	unsigned int entry = entries->n ? entries->n : CL_ANY_DEVICE + 1;

	if (entry >= CL_DEVICE_LIMBOS)
		return CL_ANY_DEVICE;
	memcpy(h->device[entry].uuid, devices[device].uuid, CL_UUID);
	h->device[entry].ordinal = (uint32_t)device + 1;
	entries->n = entry + 1;
	/* release: a reader that sees the entry sees its UUID */
	atomic_store_explicit(&h->devices, entries->n, memory_order_release);
	return (uint8_t)entry;
}

CL_HOT_SHARING unsigned int cl_device_limbo_locked(struct cl_device_entries *entries,
						   const struct cl_region *region, int device)
{
	if (device < 0 || device >= DEVICES)
		return CL_ANY_DEVICE;
	if (!entries->of[device] &&
	    atomic_load_explicit(&devices[device].known, memory_order_relaxed) == KNOWN)
		entries->of[device] = take_entry_locked(entries, region->header, device);
	return entries->of[device];
}
