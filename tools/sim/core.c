/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The start of every call: may this process use the driver, and which context is
 * current in the calling thread?  Also waiting, and the clock.
 *
 * What must hold: this file uses no other file.
 */
#include <time.h>

#include "sim.h"

struct sim sim = { .lock = PTHREAD_MUTEX_INITIALIZER };
__thread struct sim_current sim_current;

CUresult sim_ready(void)
{
	if (!atomic_load_explicit(&sim.initialised, memory_order_acquire))
		return CUDA_ERROR_NOT_INITIALIZED;
	/* A fork wipes the page in the child. */
	if (!atomic_load_explicit(sim.here, memory_order_relaxed))
		return CUDA_ERROR_NOT_INITIALIZED;
	if (atomic_load_explicit(&sim.exiting, memory_order_relaxed))
		return CUDA_ERROR_DEINITIALIZED;
	return CUDA_SUCCESS;
}

struct sim_context *sim_context_current(void)
{
	return sim_current.depth ? sim_current.stack[sim_current.depth - 1] : NULL;
}

struct sim_context *sim_green_current(void)
{
	struct sim_context *context = sim_context_current();

	return context && context->whole ? context : NULL;
}

CUresult sim_enter(struct sim_context **context)
{
	CUresult result = sim_ready();

	if (result)
		return result;
	*context = sim_context_current();
	if (!*context)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&sim.lock);
	if ((*context)->whole && (*context)->alive)
		*context = (*context)->whole;
	if (!(*context)->alive)
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	else
		result = (*context)->sticky;
	if (result)
		pthread_mutex_unlock(&sim.lock);
	return result;
}

struct sim_context *sim_context_of(CUcontext handle)
{
	struct sim_context *context = (struct sim_context *)handle;

	return context && context->magic == SIM_CONTEXT_MAGIC ? context : NULL;
}

uint64_t sim_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void sim_wait_changed(uint64_t ns)
{
	uint64_t until = sim_now_ns() + ns;
	struct timespec at = { .tv_sec = (time_t)(until / 1000000000),
			       .tv_nsec = (long)(until % 1000000000) };

	if (ns)
		pthread_cond_timedwait(&sim.changed, &sim.lock, &at);
	else
		pthread_cond_wait(&sim.changed, &sim.lock);
}

/* The driver reads through the given handle, and so do we (fact 9). */
__attribute__((noinline)) void sim_crash(void)
{
	static int *volatile nowhere = (int *)16;

	*nowhere = 0;
	__builtin_trap();
}
