/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the driver where the current context has ended: see elsewhere.h. */
#include "shim/base/thread.h"
#include "shim/driver/context.h"
#include "shim/driver/elsewhere.h"
#include "shim/driver/visit.h"

struct elsewhere {
	void (*call)(void *);
	void *arg;
};

static void *elsewhere_main(void *of)
{
	CL_CALLS_OF_OURS;
	const struct elsewhere *elsewhere = of;

	cl_thread_begin();
	elsewhere->call(elsewhere->arg);
	return NULL;
}

/* Calls @call in this thread if its current context lives, or if it has none.  Returns false otherwise. */
static bool call_here(void (*call)(void *), void *arg)
{
	CL_CALLS_OF_OURS;

	if (cl_context_pool_free_refusal() != CUDA_SUCCESS)
		return false;
	call(arg);
	return true;
}

int cl_without_ended_context(void (*call)(void *), void *arg)
{
	struct elsewhere elsewhere = { call, arg };
	pthread_t thread;
	int err;

	if (call_here(call, arg))
		return 0;
	err = cl_thread_start(&thread, elsewhere_main, &elsewhere);
	if (!err)
		pthread_join(thread, NULL);
	return err;
}
