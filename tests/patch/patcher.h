/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patches a function: its callers reach another one, which can still call the original.
 *
 * It does so as UCX does.  It moves the instructions that the patch overwrites to a page of
 * its own, followed by a jump to the rest of the function.  This is not safe while another
 * thread is in the function.
 */
#ifndef TESTS_PATCH_PATCHER_H
#define TESTS_PATCH_PATCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct patch {
	uint8_t *function;
	void *original; /* call this for the original function */
	uint8_t before[16];
	size_t bytes;
};

/* The longest patch, and on x86-64 also a shorter one of five bytes. */
enum patch_how { PATCH_FAR, PATCH_NEAR };

/* Returns whether the function's first instructions can be moved. */
bool patch_possible(const void *function);

/* Makes @function lead to @hook.  False: it can't be patched and is unchanged. */
bool patch_put(struct patch *patch, void *function, const void *hook, enum patch_how how);

/* Removes the patch. */
bool patch_undo(const struct patch *patch);

#endif
