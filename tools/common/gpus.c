/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs of this machine: see gpus.h. */
#include "config.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/gpus.h"
#include "tools/common/load.h"
#include "tools/common/text.h"

struct cu_gpu *cu_gpus_find(struct cu_gpus *gpus, const uint8_t uuid[16])
{
	struct cu_gpu *gpu;

	for (unsigned int i = 0; i < gpus->n; i++)
		if (!memcmp(gpus->gpu[i].uuid, uuid, 16))
			return &gpus->gpu[i];
	if (gpus->n == CU_GPUS_MOST)
		return NULL;
	gpu = &gpus->gpu[gpus->n++];
	*gpu = (struct cu_gpu){ .known = false };
	memcpy(gpu->uuid, uuid, 16);
	return gpu;
}

void cu_gpu_word(char to[48], const uint8_t uuid[16])
{
	size_t at = (size_t)snprintf(to, 48, "GPU");

	for (unsigned int i = 0; i < 16; i++)
		at += (size_t)snprintf(to + at, 48 - at, "%s%02x",
				       i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

void cu_gpus_add(struct cu_gpus *gpus, const struct cl_view *view)
{
	const struct cl_header *header = view->region.header;
	uint32_t devices = atomic_load_explicit(&header->devices, memory_order_acquire);

	/* CL_ANY_DEVICE stands for devices with unknown UUIDs */
	for (uint32_t i = CL_ANY_DEVICE + 1; i < devices && i < CL_DEVICE_LIMBOS; i++) {
		const struct cl_device_limbo *device = &header->device[i];
		/* in this order: a block enters before it returns */
		uint64_t returned = atomic_load_explicit(&device->returned, memory_order_acquire);
		uint64_t entered = atomic_load_explicit(&device->entered, memory_order_acquire);
		struct cu_gpu *gpu = cu_gpus_find(gpus, device->uuid);

		if (gpu && entered > returned)
			gpu->limbo += entered - returned;
	}
}

void cu_gpus_append(struct cu_gpus *gpus, const struct cu_gpus *more)
{
	for (unsigned int i = 0; i < more->n; i++) {
		struct cu_gpu *gpu = cu_gpus_find(gpus, more->gpu[i].uuid);

		if (gpu)
			gpu->limbo += more->gpu[i].limbo;
	}
}

/* ---------------------------------------------------------------- NVIDIA's library */
/* As in its documentation.  All functions return 0 on success. */
struct nvml_memory {
	unsigned long long total, free, used;
};

static struct {
	int (*init)(void);
	int (*count)(unsigned int *);
	int (*device)(unsigned int, void **);
	int (*memory)(void *, struct nvml_memory *);
	int (*uuid)(void *, char *, unsigned int);
	int (*name)(void *, char *, unsigned int);
} nvml;

static char not_asked[256]; /* why the library cannot be asked; "": it can */

static bool load(void)
{
	static const char *const names[] = { "libnvidia-ml.so.1", NULL };
	static const struct cu_wanted wanted[] = {
		{ "nvmlInit_v2", &nvml.init },
		{ "nvmlDeviceGetCount_v2", &nvml.count },
		{ "nvmlDeviceGetHandleByIndex_v2", &nvml.device },
		{ "nvmlDeviceGetMemoryInfo", &nvml.memory },
		{ "nvmlDeviceGetUUID", &nvml.uuid },
		{ "nvmlDeviceGetName", &nvml.name },
	};
	static bool tried;
	const char *why;
	int error;

	if (tried)
		return !*not_asked;
	tried = true;
	if (!cu_load(names, wanted, sizeof(wanted) / sizeof(*wanted), &why)) {
		snprintf(not_asked, sizeof(not_asked), "%s", why);
		return false;
	}
	error = nvml.init();
	if (error)
		snprintf(not_asked, sizeof(not_asked), "%s: nvmlInit_v2 returned %d", names[0], error);
	return !error;
}

/* Parses "GPU-63756c69-6d62-...". */
static bool read_uuid(const char *text, uint8_t uuid[16])
{
	unsigned int n = 0;

	if (strncmp(text, "GPU-", 4) != 0)
		return false;
	for (text += 4; *text && n < 16; n++) {
		char digits[3] = { 0 }, *end;

		text += *text == '-';
		digits[0] = *text ? *text++ : 0;
		digits[1] = *text ? *text++ : 0;
		uuid[n] = (uint8_t)strtoul(digits, &end, 16);
		if (end != digits + 2)
			return false;
	}
	return n == 16;
}

static int compare(const void *x, const void *y)
{
	const struct cu_gpu *a = x, *b = y;

	if (a->known != b->known)
		return a->known ? -1 : 1;
	if (a->known && a->index != b->index)
		return a->index > b->index ? 1 : -1;
	return memcmp(a->uuid, b->uuid, sizeof(a->uuid));
}

const char *cu_gpus_ask(struct cu_gpus *gpus)
{
	unsigned int n = 0;

	if (load() && nvml.count(&n))
		n = 0;
	for (unsigned int i = 0; i < n; i++) {
		struct nvml_memory memory;
		char text[96] = "", name[96] = "";
		struct cu_gpu *gpu;
		uint8_t uuid[16];
		void *device;

		if (nvml.device(i, &device) || nvml.uuid(device, text, sizeof(text)) ||
		    !read_uuid(text, uuid) || nvml.memory(device, &memory))
			continue;
		gpu = cu_gpus_find(gpus, uuid);
		if (!gpu)
			continue;
		if (!nvml.name(device, name, sizeof(name)))
			cu_clean(gpu->name, sizeof(gpu->name), name, sizeof(gpu->name) - 1);
		gpu->known = true;
		gpu->index = i;
		gpu->used = memory.used;
		gpu->free = memory.free;
	}
	qsort(gpus->gpu, gpus->n, sizeof(*gpus->gpu), compare);
	return *not_asked ? not_asked : NULL;
}

void cu_gpu_say(const struct cu_gpu *gpu, char *to, size_t size)
{
	char used[24], left[24], limbo[24], which[128];

	cu_bytes_long(used, gpu->used);
	cu_bytes_long(left, gpu->free);
	cu_bytes_long(limbo, gpu->limbo);
	if (gpu->known)
		snprintf(which, sizeof(which), "GPU %u   used %s   free %s", gpu->index, used, left);
	else
		snprintf(which, sizeof(which), "GPU %02x%02x%02x%02x", gpu->uuid[0], gpu->uuid[1],
			 gpu->uuid[2], gpu->uuid[3]);
	/* say why there are no numbers */
	if (!gpu->known)
		snprintf(to, size, "%s   limbo takes %s (2 MiB pages)   used and free are not known: %s", which, limbo,
			 *not_asked ? "no libnvidia-ml.so.1" : "libnvidia-ml.so.1 does not list it");
	else
		snprintf(to, size, "%s   limbo takes %s (2 MiB pages)%s%s", which, limbo,
			 gpu->name[0] ? "   " : "", gpu->name);
}
