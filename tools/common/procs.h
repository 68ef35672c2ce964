/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other processes, as /proc shows them: which of them use CUDA, and whether under culimbo.
 *
 * What is read may be gone the next moment, and another process may have the pid.  So whoever
 * keeps a pid keeps its start time, too.  One thread.
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

/* Which of these @pid has mapped, or -errno: ESRCH, ENOENT (it has ended), EACCES (another user's). */
int cu_proc_maps(pid_t pid);
/* When it began, in clock ticks since boot; 0: it is gone, or a zombie. */
uint64_t cu_proc_start(pid_t pid);
/*
 * The process that is called @pid in the PID namespace with inode @pid_ns and began at @start (clock
 * ticks since boot), as it is called here; 0: it is not to be seen from here.
 */
pid_t cu_proc_here(uint32_t pid, uint64_t pid_ns, uint64_t start);
/* The path of its cgroup, "" if it is not known. */
void cu_proc_cgroup(pid_t pid, char *to, size_t size);
/* For how long it has run, ns. */
uint64_t cu_proc_age(uint64_t start);
/* Its command line, without control bytes; without one, its name. */
void cu_proc_command(pid_t pid, char *to, size_t size);
/* Calls @each with each child of @pid, one level. */
void cu_proc_children(pid_t pid, void (*each)(void *data, pid_t child), void *data);
/* Calls @each with each process of user @uid, or of all users if @everybody. */
void cu_proc_each(uid_t uid, bool everybody, void (*each)(void *data, pid_t pid), void *data);
/*
 * How many processes of this process's memory cgroup the kernel has killed because memory ran out,
 * or 0 if that cannot be read.
 */
uint64_t cu_proc_oom_kills(void);

#endif
