/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tools/common/load.h"
#include "tools/common/smartcols.h"

const struct cu_smartcols *cu_smartcols(const char **why)
{
	static struct cu_smartcols smartcols;
	static const char *const names[] = { "libsmartcols.so.1", NULL };
#define WANTED(name) CU_WANTED(smartcols, name)
	static const struct cu_wanted wanted[] = { CU_SMARTCOLS(WANTED) };
	static bool there;

	if (!there)
		there = cu_load(names, wanted, sizeof(wanted) / sizeof(*wanted), why);
	return there ? &smartcols : NULL;
}
