/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of culimbo.h. */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "preload/culimbo.h"
#include "shim/asked.h"
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

PUBLIC int culimbo_collect(void)
{
	return cl_asked_collect();
}

PUBLIC int culimbo_report(int fd, const char *format)
{
	if (format && strcmp(format, "text") != 0 && strcmp(format, "jsonl") != 0)
		return -EINVAL;
	return cl_asked_report(fd, format && format[0] == 'j');
}

PUBLIC int culimbo_stats(struct culimbo_stats *stats, size_t size)
{
	struct cl_asked_numbers now;
	struct culimbo_stats known;

	if (!stats || !size)
		return -EINVAL;
	cl_asked_stats(&now);
	known = (struct culimbo_stats){
		.exports = now.exports, .opens = now.opens, .closes = now.closes,
		.open = now.open, .open_bytes = now.open_bytes,
		.kept = now.kept, .returned = now.returned, .returned_bytes = now.returned_bytes,
		.limbo = now.limbo, .limbo_bytes = now.limbo_bytes,
		.held = now.held, .held_bytes = now.held_bytes,
		.refused = now.refused, .dead_holders = now.dead_holders,
		.short_of_memory = now.short_of_memory, .findings = now.findings,
	};
	memset(stats, 0, size);
	memcpy(stats, &known, size < sizeof known ? size : sizeof known);
	return 0;
}
