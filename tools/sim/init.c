/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuInit, and the start and end of the process.
 *
 * What must hold: a normal end leaves nothing of ours behind, and no code that
 * still runs writes into memory that other processes get from then on.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

#define DRIVER_VERSION 13000

/* A normal end of the process: removes everything of ours. */
__attribute__((destructor)) static void leave(void)
{
	if (sim_ready())
		return;
	atomic_store(&sim.exiting, true);
	/* From now on our threads must not write into device memory: other processes may get it. */
	for (int i = 0; i < 1000 && atomic_load(&sim.running); i++)
		usleep(1000);
	sim_linger_stop();
	pool_detach();
}

SIM_CALL(cuInit, (unsigned int flags))
{
	static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
	pthread_condattr_t attr;
	CUresult result = CUDA_SUCCESS;
	_Atomic int *here;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (atomic_load_explicit(&sim.initialised, memory_order_acquire))
		return sim_ready();
	pthread_mutex_lock(&init_lock);
	if (atomic_load(&sim.initialised))
		goto out;
	here = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (here == MAP_FAILED) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
		goto out;
	}
	madvise(here, 4096, MADV_WIPEONFORK);
	if (pool_attach()) {
		munmap(here, 4096);
		result = CUDA_ERROR_OPERATING_SYSTEM;
		goto out;
	}
	if (!pool_devices()) {
		pool_detach();
		munmap(here, 4096);
		result = CUDA_ERROR_NO_DEVICE;
		goto out;
	}
	result = sim_address_space_init();
	if (result)
		goto out;
	sim_linger_begin();
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&sim.changed, &attr);
	pthread_condattr_destroy(&attr);
	sim.here = here;
	atomic_store(here, 1);
	atomic_store_explicit(&sim.initialised, 1, memory_order_release);
out:
	pthread_mutex_unlock(&init_lock);
	return result;
}

SIM_CALL(cuDriverGetVersion, (int *version))
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = DRIVER_VERSION;
	return CUDA_SUCCESS;
}
