/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How `culimbo check` runs CMD, and what it sees of the processes that CMD starts: which of them
 * used CUDA without culimbo, how they ended, which still run.
 *
 * The command becomes the subreaper of what CMD starts, so that a process whose parent has ended
 * stays below it in the tree.  It looks at the tree every few milliseconds, and takes a twentieth
 * of a processor for that at most.  A process that lives for less than that may go unseen.
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
	bool seen;	/* in this look at the tree */
	bool runs;
	bool cuda, unprotected; /* it had the CUDA driver mapped; and never libculimbo.so with it */
	int status;	/* as waitpid() says; -1: not known */
	char command[129];
};

struct cu_watch {
	struct cu_descendant *list;
	size_t n, room;
	unsigned int pidfds;	/* that are open */
	uint64_t oom_kills; /* in this cgroup, meanwhile */
};

/*
 * Runs the program at @path, and waits for its end; then, for @wait ns at most, for that of what it
 * has left running.  Returns what waitpid() says of it, or -1 after a complaint.
 */
int cu_check_run(const struct cu_command *command, const char *path, char **argv, uint64_t wait,
		 struct cu_watch *watch);
void cu_check_free(struct cu_watch *watch);

/* Ends as a process with this @status did: by the same signal, or returns its exit status. */
int cu_check_end_as(int status);

#endif
