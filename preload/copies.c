/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a second copy of this library, by its symbol culimbo_version: see copies.h. */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
#include "config.h"
#include "preload/copies.h"
#include "preload/culimbo.h"
#include "preload/real_dlsym.h"
#include "shim/base/log.h"

static const char here = 0; /* an address in this copy: an exported name may be bound to the other copy */

/* Returns true, with what is known of it, if the dynamic linker finds another copy in @scope. */
static bool find_other(void *scope, Dl_info *other, void **version)
{
	Dl_info own;

	*version = cl_real_dlsym()(scope, "culimbo_version");
	return *version && dladdr(*version, other) && dladdr(&here, &own) &&
	       other->dli_fbase != own.dli_fbase;
}

bool cl_copies_is_second(void)
{
	Dl_info first;
	void *version;

	return find_other(RTLD_DEFAULT, &first, &version);
}

void cl_copies_say(void)
{
	culimbo_version_fn *others_version;
	Dl_info own, second;
	void *version;

	if (find_other(RTLD_NEXT, &second, &version) && dladdr(&here, &own)) {
		memcpy(&others_version, &version, sizeof(others_version));
		cl_log(CL_LOG_WARN,
		       "two copies of culimbo are loaded: %s (version %s) is used, %s (version %s) does "
		       "nothing; preload only one",
		       own.dli_fname, PACKAGE_VERSION, second.dli_fname, others_version());
	}
	/* clear the error of a failed search: the program must not see it */
	dlerror();
}
