/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors in flight: those that this process has for a moment only, on their way from the driver to an importer,
 * or from an exporter to the driver, and the sockets on which they travel.
 *
 * What must hold:
 *  - The program's own files get the numbers that they would get without us: each descriptor moves to a high number
 *    as soon as it is made, and is close-on-exec from then on.
 *  - A descriptor is closed only if its number still is that of our file: the program may have closed it, and have a
 *    file of its own there.
 *  - The program can open its own files: one batch takes a quarter of the descriptors that are free at most, or one.
 *  - A forked child has none of them: else it would keep device memory, for as long as it lives.  They are on a list
 *    that the child's fork handler reads.  The kernel copies descriptors and memory one after the other.  So a fork
 *    waits while a thread changes the list or makes a descriptor, and such a thread waits while the process forks.
 *    Both waits are bounded.
 *
 * Any thread may call these functions, with any lock of ours but none of a higher rank.
 */
#ifndef CL_FLIGHT_H
#define CL_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

/* In flight at once, at most.  Beyond that a descriptor is closed as soon as it is made. */
#define CL_FLIGHTS 4096u

/*
 * begin() and end() enclose each call that makes or closes such descriptors, also a call of the driver.  The thread waits
 * for nothing else in between.
 */
void cl_flight_begin(void);
void cl_flight_end(void);
/*
 * @fd was made since cl_flight_begin(): moves it to a high number, and enters it into the list.  Returns the new number,
 * or -EMFILE, having closed it, if there is no room in the list, or if the kernel does not know @fd any more.
 */
int cl_flight_enter(int fd);
/* Closes @fd if it is in flight and still the same file.  Includes begin() and end(). */
void cl_flight_close(int fd);
/* The same for @n of them. */
void cl_flight_close_all(const int *fds, unsigned int n);
/* The same for a socket, whose peer sees its end also if another process has it open, too. */
void cl_flight_hang_up(int fd);
/* Returns true if @fd is in flight and still the same file. */
bool cl_flight_is_ours(int fd);
/* Returns how many descriptors a batch of @wanted may have: 1 to @wanted. */
unsigned int cl_flight_most(unsigned int wanted);
/* @fd is in flight no more, and stays open: the caller keeps it.  Returns false if it is not the same file any more. */
bool cl_flight_leave(int fd);

/*
 * Before a fork: waits up to @wait ns for the threads between begin() and end(), and keeps others from beginning until
 * fork_over().  Returns false if it could not.  Then fork_over() must not be called.
 */
bool cl_flight_fork(uint64_t wait);
void cl_flight_fork_over(void); /* in the parent */
void cl_flights_forget(void);	/* in the child: closes all that is in flight */

#endif
