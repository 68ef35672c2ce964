/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the kill test (kill.c) share: what is watched of the file at each
 * boundary (watched.c), and the world around a victim (around.c).
 */
#ifndef CL_KILL_KILL_H
#define CL_KILL_KILL_H

#include <stdlib.h>
#include <unistd.h>

#include "tests/kill/world.h"

#include <errno.h>

#define MUST(what)                                                                      \
	do {                                                                            \
		if (!(what)) {                                                          \
			printf("Bail out! %s:%d: %s (errno %d)\n", __FILE__, __LINE__,  \
			       #what, errno);                                           \
			fflush(stdout);                                                 \
			_exit(99);                                                      \
		}                                                                       \
	} while (0)

/* watched.c */
void forget_what_was_seen(void);
extern bool lives[1 + CL_SLOTS];
bool has_name(const struct world *w);
/* True when the file has gone, and its socket has not: the socket may be a later exporter's with that id. */
bool has_lost_its_file(const struct world *w);
bool has_changed(const struct world *w, const struct cl_region *region);
uint64_t sum_of_the_rest(const struct world *w, const struct cl_region *region);
const char *look_at_memory(const struct world *w, const struct cl_region *region);
const char *judge_copy(struct world *w, const struct cl_region *region);

/* around.c */
extern struct stage *stage;
void make_folder(char *path, size_t size, int *dir);
void empty_folder(int dir);
pid_t begin(struct world *w, const struct op *op);
void finish(struct world *w, pid_t child);
bool step(pid_t child);

#endif
