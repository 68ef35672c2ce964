/* SPDX-License-Identifier: Apache-2.0 */
/* Free-memory callbacks: see callbacks.h. */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "shim/reclaim/callbacks.h"
#include "shim/self/self.h"

static struct cl_lock lock = CL_LOCK_INIT(CL_RANK_CALLBACKS);
static struct {
	cl_free_memory_fn *callback;
	void *data;
} registered[CL_CALLBACKS];
static unsigned int registered_n;

/* A callback that allocates must not ask the callbacks. */
static __thread bool inside __attribute__((tls_model("initial-exec")));

int cl_callbacks_register(cl_free_memory_fn *callback, void *data)
{
	CL_GUARD(ours);
	int err = callback ? 0 : -EINVAL;

	cl_lock(&lock);
	for (unsigned int i = 0; !err && i < registered_n; i++)
		if (registered[i].callback == callback && registered[i].data == data)
			err = -EEXIST;
	if (!err && registered_n == CL_CALLBACKS)
		err = -ENOSPC;
	if (!err) {
		registered[registered_n].callback = callback;
		registered[registered_n++].data = data;
	}
	cl_unlock(&lock);
	return err;
}

int cl_callbacks_unregister(cl_free_memory_fn *callback, void *data)
{
	CL_GUARD(ours);
	int err = -ENOENT;

	cl_lock(&lock);
	for (unsigned int i = 0; i < registered_n; i++)
		if (registered[i].callback == callback && registered[i].data == data) {
			memmove(&registered[i], &registered[i + 1],
				(--registered_n - i) * sizeof registered[0]);
			err = 0;
			break;
		}
	cl_unlock(&lock);
	return err;
}

void cl_callbacks_forget(void)
{
	cl_lock_reset(&lock);
	inside = false;
}

bool cl_callbacks_ask(size_t bytes)
{
	cl_free_memory_fn *callback[CL_CALLBACKS];
	void *data[CL_CALLBACKS];
	unsigned int n;
	size_t freed = 0;

	cl_lock(&lock);
	n = registered_n;
	for (unsigned int i = 0; i < n; i++) {
		callback[i] = registered[i].callback;
		data[i] = registered[i].data;
	}
	cl_unlock(&lock);
	inside = true;
	for (unsigned int i = 0; i < n; i++)
		freed += callback[i](bytes, data[i]);
	inside = false;
	return freed != 0;
}

bool cl_callbacks_inside(void)
{
	return inside;
}
