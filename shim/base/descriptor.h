/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps our descriptors among the highest numbers.  So the program's own files get the numbers
 * that they would get without us, and a program that closes all low numbers does not close ours.
 */
#ifndef CL_DESCRIPTOR_H
#define CL_DESCRIPTOR_H

#include <stdatomic.h>

/*
 * Moves the file of descriptor @fd to a high number, close-on-exec, and closes @fd.  Returns the
 * new number, or @fd itself, still open, if the move failed.  Any thread.  Call this before the
 * file is locked: closing @fd would drop the lock.
 *
 * *@remembered caches the size of the process's descriptor table between calls.  The caller
 * starts it at 0.  If @remembered is NULL, each call reads the size from /proc.
 */
int cl_fd_move_high(int fd, _Atomic unsigned int *remembered);
/*
 * The same for one of a batch of descriptors that are closed soon.  It leaves the highest numbers to those that stay,
 * and a batch has room below them.
 */
int cl_fd_move_high_for_now(int fd, _Atomic unsigned int *remembered);
/*
 * Returns how many numbers of descriptors this process may still use, but no more than @most.  It looks at some of the
 * highest numbers that the limit allows, and counts them one by one if most of those are in use.  Any thread.
 */
unsigned int cl_fd_count_free(unsigned int most);

#endif
