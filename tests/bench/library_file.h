/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that a library's file defines, whatever dlsym() says of them.  A program that runs under a preload
 * finds the driver's own functions so, and can call them beside the preload's.
 */
#ifndef CL_BENCH_LIBRARY_FILE_H
#define CL_BENCH_LIBRARY_FILE_H

/*
 * Calls @with for each function that the file of @library (from dlopen()) defines, with its address in this process.
 * Ends the program if the file cannot be read.
 */
void each_function(void *library, void (*with)(const char *name, void *address));

#endif
