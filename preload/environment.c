/* SPDX-License-Identifier: Apache-2.0 */
/* The options of this process: see environment.h. */
#include <stdatomic.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>
#include "preload/copies.h"
#include "preload/environment.h"
#include "shim/base/log.h"
#include "shim/base/options.h"
#include "shim/shim.h"

/*
 * Our own copy of the CULIMBO_ part of the environment: programs that set their
 * title write over where the kernel has put it.
 */
enum { kept_bytes = 8192, kept_names = 64 };
static char kept_text[kept_bytes];
static char *kept[kept_names + 1];
static atomic_bool options_known;

static void options_read(void)
{
	size_t used = 0, names = 0;

	/*
	 * More rights than who started it (/etc/ld.so.preload reaches setuid programs): what
	 * is in that user's environment must not name files for it to write.  Step aside.
	 */
	if (getauxval(AT_SECURE)) {
		kept[0] = (char *)"CULIMBO_DISABLE=1";
		cl_options_read(&cl_options, kept, NULL);
		return;
	}
	for (char **name = environ; name && *name && names < kept_names; name++) {
		size_t bytes = strlen(*name) + 1;

		if (strncmp(*name, "CULIMBO_", strlen("CULIMBO_")))
			continue;
		if (bytes > kept_bytes - used) { /* then it stays where it is */
			kept[names++] = *name;
			continue;
		}
		kept[names++] = memcpy(kept_text + used, *name, bytes);
		used += bytes;
	}
	cl_options_read(&cl_options, kept, NULL);
	if (cl_copies_is_second()) {
		cl_options.disable.number = 1;
		return;
	}
	cl_trace_begin();
}

static void warn(const char *line)
{
	cl_log(CL_LOG_WARN, "%s", line);
}

bool cl_environment_disables(void)
{
	/*
	 * Once, in our constructor, or when another constructor that ran before it came here.
	 * Should two threads be started that early, both read the same.
	 */
	if (!atomic_load_explicit(&options_known, memory_order_acquire)) {
		options_read();
		atomic_store_explicit(&options_known, true, memory_order_release);
	}
	return cl_options.disable.number;
}

void cl_environment_complain(void)
{
	struct cl_options again;

	cl_options_read(&again, kept, warn);
}
