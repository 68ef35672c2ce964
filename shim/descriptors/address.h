/* SPDX-License-Identifier: Apache-2.0 */
/* Where the socket of an exporter's descriptor service is.  No state; any thread. */
#ifndef CL_SERVE_ADDRESS_H
#define CL_SERVE_ADDRESS_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

/*
 * Finds the address of the service of exporter file @file_id, in the directory of exporter files.  A
 * path that is too long for an address leads through a descriptor of the directory: then *@dirfd is
 * that, and else -1.  The caller closes it after its use of the address.  Returns 0 or -errno.
 */
int cl_serve_address(struct sockaddr_un *address, uint32_t file_id, int *dirfd);

#endif
