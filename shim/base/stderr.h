/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds out whether descriptor 2 is the program's stderr.
 *
 * A program that closes 0, 1 and 2, as daemons do, gets these numbers for files and sockets of
 * its own.  A line of ours there would damage its data or its protocol.  So the log and the report
 * ask cl_stderr_is_there() before they write to descriptor 2.  In doubt the answer is no: a user
 * can set CULIMBO_LOG_FILE and CULIMBO_REPORT_FILE, but bytes in a data file can't be taken back.
 */
#ifndef CL_STDERR_H
#define CL_STDERR_H

#include <stdbool.h>

/*
 * Remembers the file of descriptor 2 as the program's stderr, if a stderr can be such a file.
 * Called when the process begins to share, and again in a forked child that begins to share.
 * Any thread; keeps errno.
 */
void cl_stderr_remember(void);

/*
 * Returns true if descriptor 2 is the remembered file.  Returns true for another file, too, if it
 * is this session's terminal, a pipe to another process, or the file of descriptor 1: a program
 * gets such a file as descriptor 2 only on purpose.  Before cl_stderr_remember() any file that a
 * program can be started with will do.  Else, or if descriptor 2 is closed, returns false.
 * Any thread, any time; a few system calls; keeps errno.
 */
bool cl_stderr_is_there(void);

#endif
