/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of culimbo.h. */
#include "config.h"
#include "preload/culimbo.h"
#include "shim/reclaim/callbacks.h"

#define PUBLIC __attribute__((visibility("default")))

PUBLIC const char *culimbo_version(void)
{
	return PACKAGE_VERSION;
}

PUBLIC int culimbo_register_free_memory_callback(culimbo_free_memory_fn *fn, void *data)
{
	return cl_callbacks_register(fn, data);
}

PUBLIC int culimbo_unregister_free_memory_callback(culimbo_free_memory_fn *fn, void *data)
{
	return cl_callbacks_unregister(fn, data);
}
