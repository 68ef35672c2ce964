/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tools/common/cli.h"
#include "tools/common/libdw.h"
#include "tools/common/load.h"

#ifdef HAVE_LIBDW
struct cu_libdw cu_libdw;

bool cu_has_libdw(void)
{
	static const char *const names[] = { "libdw.so.1", NULL };
#define WANTED(name) CU_WANTED(cu_libdw, name)
	static const struct cu_wanted wanted[] = { CU_LIBDW(WANTED) };
	static bool asked, there;
	const char *why;

	if (asked)
		return there;
	asked = true;
	there = cu_load(names, wanted, sizeof(wanted) / sizeof(*wanted), &why);
	if (!there)
		cu_error(NULL, "without names and lines: libdw is missing (Debian: libdw1; Fedora: elfutils-libs): %s",
			 why);
	return there;
}
#endif
