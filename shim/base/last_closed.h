/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An open file that a process closes after all its other files, when it ends or calls exec.
 *
 * At that moment the kernel closes all descriptors, and then releases their files (since 4.3 the one that was closed last
 * comes first).  A file in a socket's queue is released after the socket, and so after all of these (measured on Linux
 * 6.18 only).  So a lock on such a file lasts until the other files of that process are closed, the driver's among them.
 *
 * That is not so where several processes have copies of the socket and end at the same time.  Then one may close the
 * driver's file last, and another one the socket, some ms before that (measured: 9 of 200 groups of four processes with
 * 900 files each).  So each process needs a socket of its own.
 *
 * The socket is all that a process has of the file.  It is copied by fork, and closed, as other descriptors are.
 * Nothing here has a state or takes a lock.  Any thread, a signal handler and a forked child may call it.
 */
#ifndef CL_LAST_CLOSED_H
#define CL_LAST_CLOSED_H

/*
 * Puts the file of @fd into the queue of a socket, and closes @fd.  Returns the socket, close-on-exec, or -errno: then
 * @fd is open as before.  The kernel refuses it if the files that the user has on their way are more than
 * RLIMIT_NOFILE (-ETOOMANYREFS).
 */
int cl_last_closed_put(int fd);
/*
 * Returns a new descriptor, close-on-exec, of the file in the queue of @socket, where it stays; the caller closes it.  Or
 * -errno: -EMFILE if there is no free number, -ENOTSOCK if @socket is none.
 */
int cl_last_closed_look(int socket);

#endif
