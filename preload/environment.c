/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the options of this process: see environment.h. */
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
 * Our own copy of the CULIMBO_ variables and of NO_COLOR, because a program that sets its title overwrites
 * the environment.  cl_environment_complain() reads it later.
 */
enum { copied_bytes = 8192, copied_names = 64 };
static char copied_text[copied_bytes];
static char *copied[copied_names + 1];
static atomic_bool options_known;

static void options_read(void)
{
	size_t used = 0, names = 0;

	/*
	 * The program has more rights than the user who started it: /etc/ld.so.preload also
	 * reaches setuid programs.  That user's environment must not name files for it to
	 * write.  So culimbo does nothing in it.
	 */
	if (getauxval(AT_SECURE)) {
		copied[0] = (char *)"CULIMBO_DISABLE=1";
		cl_options_read(&cl_options, copied, NULL);
		return;
	}
	for (char **name = environ; name && *name && names < copied_names; name++) {
		size_t bytes = strlen(*name) + 1;

		if (strncmp(*name, "CULIMBO_", strlen("CULIMBO_")) && strncmp(*name, "NO_COLOR=", strlen("NO_COLOR=")))
			continue;
		if (bytes > copied_bytes - used) { /* no room: use it where it is */
			copied[names++] = *name;
			continue;
		}
		copied[names++] = memcpy(copied_text + used, *name, bytes);
		used += bytes;
	}
	cl_options_read(&cl_options, copied, NULL);
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
	 * The options are read once: by our constructor, or by an earlier constructor that calls a
	 * hook.  If there are two threads that early, both read the same.
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

	cl_options_read(&again, copied, warn);
}
