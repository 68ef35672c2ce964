/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each GPU of this machine: what the limbos of all processes take of it, by their files, and how
 * much of its memory is used, by NVIDIA's management library, which needs no CUDA context.
 *
 * A GPU is known by its UUID.  The number of a device is another in each process (CUDA_VISIBLE_DEVICES).
 */
#ifndef CU_GPUS_H
#define CU_GPUS_H

#include "shim/shm/view.h"

struct cu_gpu {
	uint8_t uuid[16];
	uint64_t limbo; /* bytes of freed blocks that the driver does not have back, in whole pages of 2 MiB */
	bool known;	/* the rest is from NVIDIA's library */
	unsigned int index;
	char name[64];
	uint64_t used, free;
};

enum { CU_GPUS_MOST = 64 };

struct cu_gpus {
	struct cu_gpu gpu[CU_GPUS_MOST];
	unsigned int n;
};

/*
 * Stores the UUID of the GPU that the process of @view calls @device.  Returns false if it does not
 * say that.  To be called under cu_guarded().
 */
bool cu_gpu_of_device(const struct cl_view *view, unsigned int device, uint8_t uuid[16]);
/* "GPU-63756c69-6d62-...", as nvidia-smi -L has it; a part of a GPU (MIG) begins like this, too. */
void cu_gpu_word(char to[48], const uint8_t uuid[16]);
/* Adds what the process of @view has.  To be called under cu_guarded(): the file may be cut. */
void cu_gpus_add(struct cu_gpus *gpus, const struct cl_view *view);
/* Adds what *@more has of limbos. */
void cu_gpus_append(struct cu_gpus *gpus, const struct cu_gpus *more);
/* The one with this UUID, which is added if it is not there.  NULL: there are too many. */
struct cu_gpu *cu_gpus_find(struct cu_gpus *gpus, const uint8_t uuid[16]);
/*
 * Adds what libnvidia-ml.so.1 says, and the GPUs that it alone knows, in its order.  Without that
 * library it adds nothing, and returns the reason, which stays valid; else NULL.  It is loaded by the
 * first call, and stays.  One thread.
 */
const char *cu_gpus_ask(struct cu_gpus *gpus);
/* "GPU 0   used 2 GiB   free 137 GiB   ...": a line, after cu_gpus_ask(). */
void cu_gpu_say(const struct cu_gpu *gpu, char *to, size_t size);

#endif
