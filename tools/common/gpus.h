/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of this machine.  How much of a GPU the limbos of all processes take is read from the
 * processes' files.  How much memory is used is asked of NVIDIA's management library, which needs
 * no CUDA context.
 *
 * The UUID identifies a GPU.  Device numbers differ from process to process (CUDA_VISIBLE_DEVICES).
 */
#ifndef CU_GPUS_H
#define CU_GPUS_H

#include "shim/shm/view.h"

struct cu_gpu {
	uint8_t uuid[16];
	uint64_t limbo; /* bytes of freed blocks that the driver does not have back, in whole pages of 2 MiB */
	bool known;	/* NVIDIA's library lists it; the fields below are set */
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
 * Formats "GPU-63756c69-6d62-...", as nvidia-smi -L does.  A part of a GPU (MIG) begins like
 * this, too.
 */
void cu_gpu_word(char to[48], const uint8_t uuid[16]);
/*
 * Adds the limbos of the process of @view.  To be called under cu_guarded(): the file may be cut.
 */
void cu_gpus_add(struct cu_gpus *gpus, const struct cl_view *view);
/* Adds the limbos of *@more. */
void cu_gpus_append(struct cu_gpus *gpus, const struct cu_gpus *more);
/* Returns the GPU with this UUID, which it adds if missing.  NULL: there are too many. */
struct cu_gpu *cu_gpus_find(struct cu_gpus *gpus, const uint8_t uuid[16]);
/*
 * Adds what libnvidia-ml.so.1 says, and GPUs that only this library lists, in its order.  Returns
 * NULL, or the reason why it cannot be asked, which stays valid; then nothing is added.  The
 * first call loads the library, which stays loaded.  For one thread only.
 */
const char *cu_gpus_ask(struct cu_gpus *gpus);
/* Formats the line "GPU 0   used 2 GiB   free 137 GiB   ...", after cu_gpus_ask(). */
void cu_gpu_say(const struct cu_gpu *gpu, char *to, size_t size);

#endif
