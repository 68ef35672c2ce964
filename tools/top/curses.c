/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#define CU_CURSES_TABLE
#include "tools/common/load.h"
#include "tools/top/curses.h"

struct cu_curses cu_curses;

bool cu_curses_load(const char **why)
{
	/* Both have the same functions; 5 is the version of the oldest systems. */
	static const char *const names[] = { "libncursesw.so.6", "libncursesw.so.5", NULL };
#define WANTED(name) { #name, &cu_curses.name##_ },
	static const struct cu_wanted wanted[] = { CU_CURSES(WANTED) };

	return cu_load(names, wanted, sizeof(wanted) / sizeof(*wanted), why);
}
