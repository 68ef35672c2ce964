/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patches a function: who calls it comes to another, which can still call the original.
 *
 * As UCX does it, in small: the instructions that the patch takes are moved to a page
 * of ours, followed by a jump to what comes after them in the function.  Not safe while
 * another thread is in the function.
 */
#ifndef TESTS_PATCH_PATCHER_H
#define TESTS_PATCH_PATCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct patch {
	uint8_t *function;
	void *original; /* call this for what the function did */
	uint8_t before[16];
	size_t bytes;
};

/* The longest patch, and where there is one (x86-64) a shorter one of five bytes. */
enum patch_how { PATCH_FAR, PATCH_NEAR };

/* Whether the function begins with what can be moved. */
bool patch_possible(const void *function);

/* From here on @function leads to @hook.  False: it can't be patched, and is as it was. */
bool patch_put(struct patch *patch, void *function, const void *hook, enum patch_how how);

/* As if it had never been. */
bool patch_undo(const struct patch *patch);

#endif
