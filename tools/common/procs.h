/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other processes, as /proc shows them: which of them use CUDA, and whether under culimbo.
 *
 * A process may end at any moment, and another process may get its pid.  So a caller that
 * keeps a pid keeps its start time, too.  For one thread only.
 */
#ifndef CU_PROCS_H
#define CU_PROCS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	CU_MAPS_CUDA = 1,    /* libcuda.so.*: the driver of CUDA */
	CU_MAPS_CULIMBO = 2, /* libculimbo.so */
};

/*
 * Returns which of these @pid has mapped, or -errno: ESRCH, ENOENT (it has ended), EACCES
 * (another user's).
 */
int cu_proc_maps(pid_t pid);
/*
 * Stores the path by which this process can open the file of CUDA's driver that @pid has mapped.
 * Returns false if there is none.
 */
bool cu_proc_driver(pid_t pid, char *to, size_t size);
/* Returns when @pid began, in clock ticks since boot; 0: it is gone, or a zombie. */
uint64_t cu_proc_start(pid_t pid);
/*
 * Returns the pid, in this PID namespace, of the process with number @pid in the PID namespace with
 * inode @pid_ns that began at @start (clock ticks since boot); 0: it is not visible from here.
 */
pid_t cu_proc_here(uint32_t pid, uint64_t pid_ns, uint64_t start);
/* Stores the path of its cgroup, "" if it is not known. */
void cu_proc_cgroup(pid_t pid, char *to, size_t size);
/* Returns for how long it has run, ns. */
uint64_t cu_proc_age(uint64_t start);
/* Stores its command line without control bytes, or its name if it has no command line. */
void cu_proc_command(pid_t pid, char *to, size_t size);
/* The same, and false if there is none, as of a process that has ended; then *to stays. */
bool cu_proc_cmdline(pid_t pid, char *to, size_t size);
/* Calls @each with each direct child of @pid. */
void cu_proc_children(pid_t pid, void (*each)(void *data, pid_t child), void *data);
/* Calls @each with each process of user @uid, or of all users if @everybody. */
void cu_proc_each(uid_t uid, bool everybody, void (*each)(void *data, pid_t pid), void *data);
/*
 * Returns how many processes of this process's memory cgroup the kernel has killed because memory
 * ran out; 0 if that cannot be read.
 */
uint64_t cu_proc_oom_kills(void);

#endif
