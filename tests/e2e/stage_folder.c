/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in the scene's CULIMBO_DIR, and who removes what killed processes have left there: see stage.h. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "stage.h"

const char *limbo_folder(void)
{
	return setting("CULIMBO_DIR");
}

int files(void)
{
	DIR *directory = opendir(limbo_folder());
	struct dirent *entry;
	int n = 0;

	if (!directory)
		return 0;
	while ((entry = readdir(directory)))
		n += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
	closedir(directory);
	return n;
}

bool files_within(int n, double ms)
{
	double deadline = now_ms() + ms;

	while (files() != n)
		if (!watch_until(deadline))
			return false;
	return true;
}

bool no_file_is_left(void)
{
	DIR *directory = opendir(limbo_folder());
	struct dirent *entry;
	bool none = true;

	if (!directory)
		return true;
	while ((entry = readdir(directory)))
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) {
			note("%s is left", entry->d_name);
			none = false;
		}
	closedir(directory);
	return none;
}

bool no_file_stays(void)
{
	double deadline = now_ms() + 10000;

	while (files() && watch_until(deadline)) {
		struct actor *next = ENTER("next");

		export_block(next, alloc(next, SMALL));
		leave(next);
		for (double pause = now_ms() + 300; files() && watch_until(pause);)
			;
	}
	return no_file_is_left();
}
