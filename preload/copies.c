/* SPDX-License-Identifier: Apache-2.0 */
/* Two copies of this library: see copies.h.  Each is known by its culimbo_version. */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
#include "config.h"
#include "preload/copies.h"
#include "preload/culimbo.h"
#include "preload/real_dlsym.h"
#include "shim/base/log.h"

static const char here = 0; /* an address in this very copy: all of its exported names may lead to the other */

/* The copy that the dynamic linker finds from here by @scope, if it is another. */
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
		       "two copies of culimbo are loaded, %s (version %s) and %s (version %s): the second steps "
		       "aside; preload one",
		       own.dli_fname, PACKAGE_VERSION, second.dli_fname, others_version());
	}
	/* where there is no second, that is no error that the program is to find */
	dlerror();
}
