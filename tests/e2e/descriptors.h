/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors from one process to another, as a program sends them that was written for it: several in a message of a
 * SOCK_SEQPACKET socket (SCM_RIGHTS).  For programs of the tests; any thread may call these functions.
 */
#ifndef CL_TEST_DESCRIPTORS_H
#define CL_TEST_DESCRIPTORS_H

#include <stdbool.h>
#include <stdint.h>

#define DESCRIPTORS_AT_ONCE 64

/* Returns how many of @n go into the message that begins with the one at index @from. */
unsigned int descriptors_next(uint64_t n, uint64_t from);
/* Send and receive exactly @count, at most DESCRIPTORS_AT_ONCE.  Return false and set errno, or have another message. */
bool descriptors_send(int socket, const int *fd, unsigned int count);
bool descriptors_receive(int socket, int *fd, unsigned int count);

#endif
