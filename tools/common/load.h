/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Libraries that a subcommand loads when it needs them.
 *
 * The command is linked with the C library alone, so that `culimbo run` and `culimbo check` work in
 * an image that has nothing else.  Other subcommands load a library at its first use.  If it is
 * missing, the subcommand works in a plainer form, and one line says what is left out.
 */
#ifndef CU_LOAD_H
#define CU_LOAD_H

#include <stdbool.h>
#include <stddef.h>

struct cu_wanted {
	const char *name; /* of the function or the variable */
	void *to;	  /* the pointer that gets its address */
};
#define CU_WANTED(in, name) { #name, &(in).name },

/*
 * Loads the first of the libraries @names, ended by NULL, that exists and has all @n of @wanted.
 * On failure *why is the reason, in ld.so's words; it stays valid until the next call.
 */
bool cu_load(const char *const *names, const struct cu_wanted *wanted, size_t n, const char **why);

#endif
