/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where descriptors of ours are: among the highest numbers.  What the program opens stays where
 * it would be without us, and a program that closes "all it knows" low ones misses ours.
 */
#ifndef CL_DESCRIPTOR_H
#define CL_DESCRIPTOR_H

#include <stdatomic.h>

/*
 * Moves descriptor @fd up there, close-on-exec, and returns its number there.  When that can't
 * be, @fd stays.  Any thread; before a lock hangs on it.
 *
 * *@remembered is what the caller remembers between two calls, 0 at first: how many descriptors the
 * process's table has room for, which /proc says.  NULL: it is asked each time.
 */
int cl_fd_move_high(int fd, _Atomic unsigned int *remembered);

#endif
