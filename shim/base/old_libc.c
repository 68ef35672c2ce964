/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls for which older C libraries have no function, by the names that newer ones give
 * them.  Nothing is compiled where the C library has them.
 */
#include "config.h"

#include <sys/random.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef HAVE_GETRANDOM /* since glibc 2.25 */
ssize_t getrandom(void *to, size_t size, unsigned int flags)
{
	return syscall(SYS_getrandom, to, size, flags);
}
#endif

#ifndef HAVE_RENAMEAT2 /* since glibc 2.28 */
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned int flags)
{
	return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}
#endif
