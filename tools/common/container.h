/* SPDX-License-Identifier: Apache-2.0 */
/* The pod, the container and the host's name of a process that has namespaces of its own. */
#ifndef CU_CONTAINER_H
#define CU_CONTAINER_H

#include <stddef.h>
#include <sys/types.h>

/*
 * The UID of Kubernetes' pod that @cgroup, the path of a cgroup, is of: "" if it is of none.  Its name
 * the kernel does not know; `kubectl get pods -o custom-columns=UID:.metadata.uid,NAME:.metadata.name`
 * does.
 */
void cu_pod_of(const char *cgroup, char to[40]);
/*
 * What @pid calls its host, where that is not this one: a pod's name, or the id of a container.  It is
 * what the variable HOSTNAME was when it began, which container engines set; "" if that is
 * not known.
 */
void cu_proc_host(pid_t pid, char *to, size_t size);

#endif
