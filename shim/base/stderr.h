/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether descriptor 2 is the program's stderr.
 *
 * A program that closes 0, 1 and 2, as daemons do, gets these numbers for files and sockets of
 * its own, and a line of ours there would be a record of its data or a word of its protocol.
 * So nothing is written to descriptor 2 before this was asked.  In doubt it is not stderr: what
 * we have to say can be had by CULIMBO_LOG_FILE and CULIMBO_REPORT_FILE, bytes in a data file
 * cannot be taken back.
 */
#ifndef CL_STDERR_H
#define CL_STDERR_H

#include <stdbool.h>

/*
 * When the process begins to share: what is descriptor 2 now is its stderr, if it can be one at
 * all.  Any thread.  A forked child that begins to share says so anew.
 */
void cl_stderr_remember(void);

/*
 * False: it is closed, or another file than it was then, or none that a program is started
 * with.  Another one is stderr all the same if it is this session's terminal, a pipe to another
 * process, or what descriptor 1 is: such are put there, not got by accident.  Any thread, any
 * time; a few system calls; errno is kept.
 */
bool cl_stderr_is_there(void);

#endif
