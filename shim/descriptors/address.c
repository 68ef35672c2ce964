/* SPDX-License-Identifier: Apache-2.0 */
/* Where the socket of a descriptor service is: see address.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/self/self.h"
#include "shim/descriptors/address.h"

int cl_serve_address(struct sockaddr_un *address, uint32_t file_id, int *dirfd)
{
	char dir[4096], name[16];

	*address = (struct sockaddr_un){ .sun_family = AF_UNIX };
	*dirfd = -1;
	cl_region_socket_name(name, file_id);
	cl_self_dir_path(dir, sizeof dir);
	if (strlen(dir) + 1 + strlen(name) < sizeof address->sun_path) {
		memcpy(address->sun_path, dir, strlen(dir));
		address->sun_path[strlen(dir)] = '/';
		strcpy(address->sun_path + strlen(dir) + 1, name);
		return 0;
	}
	*dirfd = cl_self_open_dir(false);
	if (*dirfd < 0)
		return *dirfd;
	/* by the thread: /proc/self/fd is empty once the first thread has ended */
	snprintf(address->sun_path, sizeof address->sun_path, "/proc/self/task/%ld/fd/%d/%s",
		 syscall(SYS_gettid), *dirfd, name);
	return 0;
}
