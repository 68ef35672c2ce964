/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Says where a process crashed: a run of an hour has one crash, and nobody is there with a debugger.
 */
#ifndef CL_TEST_CRASH_H
#define CL_TEST_CRASH_H

#include <stdatomic.h>
#include <stdint.h>

enum { CRASHED = 2 };

/*
 * From now on a signal that says "crash" sets *doomed to CRASHED, so that others don't count on what this process
 * had, and writes lines to stderr: the signal, the address that it is about, the thread's name, and a line for
 * each frame of that thread's stack (file and offset in it, for addr2line).  Each begins with @program and
 * ": CRASH".  Then the signal ends the process as it would without this.  A forked child only writes.
 */
void crash_tell(const char *program, _Atomic uint32_t *doomed);

#endif
