/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that are loaded at their first use: see load.h. */
#include "config.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "tools/common/load.h"

static char reason[256];

static bool take(void *library, const struct cu_wanted *wanted, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		void *found = dlsym(library, wanted[i].name);

		if (!found) {
			snprintf(reason, sizeof(reason), "it has no %s", wanted[i].name);
			return false;
		}
		memcpy(wanted[i].to, &found, sizeof(found));
	}
	return true;
}

bool cu_load(const char *const *names, const struct cu_wanted *wanted, size_t n, const char **why)
{
	*why = reason;
	for (size_t i = 0; names[i]; i++) {
		void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
		const char *said = library ? NULL : dlerror();

		if (library && take(library, wanted, n))
			return true;
		/* The first name is the one to install, so report its reason. */
		if (said && !i)
			snprintf(reason, sizeof(reason), "%s", said);
		if (library)
			dlclose(library);
	}
	return false;
}
