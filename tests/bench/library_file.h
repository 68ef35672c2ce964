/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that a library's file defines, whatever dlsym() says of them.  A program that runs under a preload
 * finds the driver's own functions so, and can call them beside the preload's.
 */
#ifndef CL_BENCH_LIBRARY_FILE_H
#define CL_BENCH_LIBRARY_FILE_H

#include <stddef.h>

/*
 * Calls @with for each function that the file of @library (from dlopen()) defines, with its address in this process.
 * Ends the program if the file cannot be read.
 */
void each_function(void *library, void (*with)(const char *name, void *address));

/* A function that is looked for, by its name in the file, and where its address is written. */
struct file_function {
	const char *name;
	void *at; /* a pointer to a function pointer */
};

/* Finds @n functions in the file of @library.  Ends the program, with the name, if the file does not define one of them. */
void find_functions(void *library, const struct file_function *functions, size_t n);

#endif
