/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the library and the simulated driver from this executable: in the build tree
 * where it was built, else in the tree where it is installed, even if that was moved,
 * else where `make install` would put them.
 */
#include "config.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/common/where.h"

static const struct {
	const char *built;	/* from the top of the build tree */
	const char *directory;	/* as configured */
	const char *installed;	/* in that directory */
} files[] = {
	[CU_LIBRARY] = { ".libs/libculimbo.so", CULIMBO_LIBDIR, "libculimbo.so" },
	[CU_SIMULATED_DRIVER] = { "tools/sim/.libs/libcuda.so.1", CULIMBO_PKGLIBDIR,
				  "sim/libcuda.so.1" },
};

/*
 * Finds the place of @directory from @here, the folder of this executable.  CULIMBO_BINDIR is
 * the configured folder; the part that it has in common with @directory may have been moved.
 * Returns false if @here doesn't end like CULIMBO_BINDIR.
 */
static bool relocate(char *path, size_t size, const char *here, const char *directory,
		     const char *name)
{
	static const char bin[] = CULIMBO_BINDIR;
	size_t common = 0, here_length = strlen(here), rest;

	for (size_t i = 0; bin[i] && bin[i] == directory[i]; i++)
		if (bin[i] == '/')
			common = i;
	if (!strncmp(bin, directory, sizeof(bin) - 1) && directory[sizeof(bin) - 1] == '/')
		common = sizeof(bin) - 1;
	rest = strlen(bin + common);
	if (here_length < rest || strcmp(here + here_length - rest, bin + common))
		return false;
	return snprintf(path, size, "%.*s%s/%s", (int)(here_length - rest), here, directory + common,
			name) < (int)size;
}

int cu_where(enum cu_file file, char *path, size_t size)
{
	static const char tools[] = "/tools";
	char here[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", here, sizeof(here) - 1);
	size_t length;
	char *slash;

	if (n >= 0) {
		here[n] = 0;
		slash = strrchr(here, '/');
		if (slash)
			*slash = 0;
		length = strlen(here);
		if (length >= strlen(tools) && !strcmp(here + length - strlen(tools), tools)) {
			if (snprintf(path, size, "%.*s/%s", (int)(length - strlen(tools)), here,
				     files[file].built) < (int)size &&
			    !access(path, F_OK))
				return 0;
		}
		if (relocate(path, size, here, files[file].directory, files[file].installed) &&
		    !access(path, F_OK))
			return 0;
	}
	if (snprintf(path, size, "%s/%s", files[file].directory, files[file].installed) >= (int)size)
		return -ENAMETOOLONG;
	return access(path, F_OK) ? -errno : 0;
}
