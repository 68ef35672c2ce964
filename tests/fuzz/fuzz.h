/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the fuzz targets: functions that take input from the front, and one that ends
 * the run when a promise is broken.  Each target has LLVMFuzzerTestOneInput().  libFuzzer
 * calls it; without libFuzzer, replay.c does.
 *
 * What must hold: an input does the same in every run (no time and no process id decides),
 * and no input leaves anything behind for the next.
 */
#ifndef CL_FUZZ_H
#define CL_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PROMISE(what)                                                                         \
	do {                                                                                  \
		if (!(what)) {                                                                \
			fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #what);    \
			abort();                                                              \
		}                                                                             \
	} while (0)

struct input {
	const uint8_t *data;
	size_t left;
};

static inline uint64_t eat(struct input *in, unsigned int bytes)
{
	uint64_t value = 0;

	for (unsigned int i = 0; i < bytes && in->left; i++, in->left--)
		value |= (uint64_t)*in->data++ << (8 * i);
	return value;
}

/* A folder for this process's files, in $FUZZ_DIR, which the script removes. */
static inline const char *fuzz_folder(void)
{
	static char path[4096];
	const char *in = getenv("FUZZ_DIR");

	if (!path[0]) {
		snprintf(path, sizeof path, "%s/fuzz-XXXXXX", in ? in : "/tmp");
		if (!mkdtemp(path)) {
			fprintf(stderr, "no folder %s (FUZZ_DIR)\n", path);
			exit(1);
		}
	}
	return path;
}

#endif
