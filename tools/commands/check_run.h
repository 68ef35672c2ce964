/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs CMD for `culimbo check`, and watches the processes that CMD starts: which of them use CUDA
 * without culimbo, how they end, which still run.
 *
 * The command becomes the subreaper of these processes, so that one whose parent has ended stays
 * below it in the tree.  It looks at the tree every few milliseconds, which takes at most a
 * twentieth of a processor, and at once when a process first shares or loads CUDA's driver, which
 * takes at most a tenth.  It may still miss a process that lives for a shorter time.
 *
 * How a process ended whose parent takes its status is known of each in the first PID namespace, as root or
 * on Linux 6.6 and later (check_ends.h); elsewhere of those that were seen while they lived, on Linux 6.15
 * and later.
 */
#ifndef CU_CHECK_RUN_H
#define CU_CHECK_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tools/common/cli.h"

/* A process that CMD has started, or CMD itself. */
struct cu_descendant {
	pid_t pid;
	uint64_t start; /* clock ticks since boot */
	int pidfd;	/* -1: none */
	bool seen;	/* the present look at the tree has found it */
	bool runs;
	bool cuda, unprotected; /* it had the CUDA driver mapped; and never libculimbo.so with it */
	int status;	/* waitpid()'s; -1: not known */
	char command[129];
};

struct cu_watch {
	struct cu_descendant *list;
	size_t n, room;
	unsigned int pidfds;	/* open ones */
	int events;		/* inotify's; -1: none */
	bool directory;		/* it tells of new files in CULIMBO_DIR */
	unsigned int drivers;	/* processes that were asked for the path of CUDA's driver */
	struct cu_ends *ends;	/* what the kernel tells of all processes; NULL: nothing */
	uint64_t oom_kills; /* in this cgroup during the run */
};

/*
 * Runs the program at @path and waits for its end; then it waits, for @wait ns at most, for
 * processes that the program left running.  Without @watch it waits for the program only, and looks
 * at nothing, so that this costs no processor time.  Returns waitpid()'s status, or -1 after an error
 * message.
 */
int cu_check_run(const struct cu_command *command, const char *path, char **argv, uint64_t wait,
		 struct cu_watch *watch);
void cu_check_free(struct cu_watch *watch);

/* Writes a command line. */
void cu_check_command(char *to, size_t size, char **argv);

/* Ends like a process with this @status: dies by the same signal, or returns the exit status. */
int cu_check_end_as(int status);

#endif
