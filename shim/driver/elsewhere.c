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
	const struct elsewhere *elsewhere = of;
	struct cl_stay stay;

	cl_thread_begin();
	cl_stay_begin(&stay, NULL, CL_STAY_RELAXED);
	elsewhere->call(elsewhere->arg);
	cl_stay_end(&stay);
	return NULL;
}

int cl_without_ended_context(void (*call)(void *), void *arg)
{
	struct elsewhere elsewhere = { call, arg };
	struct cl_stay stay;
	pthread_t thread;
	bool here;
	int err;

	cl_stay_begin(&stay, NULL, CL_STAY_RELAXED);
	here = cl_context_pool_free_refusal() == CUDA_SUCCESS;
	if (here)
		call(arg);
	cl_stay_end(&stay);
	if (here)
		return 0;
	err = cl_thread_start(&thread, elsewhere_main, &elsewhere);
	if (!err)
		pthread_join(thread, NULL);
	return err;
}
