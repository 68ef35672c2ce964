/* SPDX-License-Identifier: Apache-2.0 */
/* The pod, the container and the host name of a process that has its own namespaces. */
#ifndef CU_CONTAINER_H
#define CU_CONTAINER_H

#include <stddef.h>
#include <sys/types.h>

/*
 * Stores the UID of the Kubernetes pod to which @cgroup, the path of a cgroup, belongs; "" if to
 * none.  The kernel does not know the pod's name; to see both:
 * `kubectl get pods -o custom-columns=UID:.metadata.uid,NAME:.metadata.name`
 */
void cu_pod_of(const char *cgroup, char to[40]);
/*
 * Stores the host name that @pid sees, if it is not this host's: a pod's name, or the id of a
 * container.  It is the value of HOSTNAME when @pid began; container engines set this variable.
 * "" if it is not known.
 */
void cu_proc_host(pid_t pid, char *to, size_t size);

#endif
