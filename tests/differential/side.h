/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two sides of a play: the same sequence without and with culimbo.  Each side is a process group, and has
 * a file for its lines, one for its stderr, and one for its current call.
 *
 * Rules: No side outlives this program, however it ends.  No wait for a side is unbounded.  Whatever ends
 * a side, its status, or the reason why it was killed, and its current call are known.
 */
#ifndef DIFFERENTIAL_SIDE_H
#define DIFFERENTIAL_SIDE_H

#include <signal.h>
#include <sys/types.h>

#include "tests/differential/play.h"

enum { LINES_MAX = 4 * OPS_MAX };

struct side {
	const char *name;
	pid_t pid; /* 0: it was reaped */
	int pidfd, status;
	char *text, *line[LINES_MAX];
	unsigned int lines;
	struct underway *at; /* its current call */
	uint64_t moves, moved; /* the number of moves, and when it last grew */
	const char *killed; /* the reason why it was killed; NULL: it was not */
	uint64_t still_ms;  /* then: time without progress */
};
extern struct side bare, preloaded;

/* The signal that is to end this program, or 0.  It is blocked except while a side is waited for. */
extern volatile sig_atomic_t stopped;

void sides_set_up(const char *program, bool on_gpu);
void sides_catch_signals(void);
/* Removes what a play left, even of killed processes. */
void sides_clean(void);

/* Starts the play; @keep as for direct(). */
void side_start(struct side *side, const struct settings *s, unsigned int ops, const char *keep);
/* Waits for the ends of both sides and reads their output; when @stopped is set it does neither. */
void sides_collect(void);
/* Kills both sides without waiting. */
void sides_abandon(void);

/* The side's director reached the end of the play. */
bool side_is_orderly(const struct side *side);
/* The driver gave one of the side's processes no context, so there was no play. */
bool side_had_no_context(const struct side *side);
/* Prints as comments how the side ended, when the play did not end, and its current call. */
void side_say_end(const struct side *side);
/* Prints as comments the side's last lines and the first lines of its stderr. */
void side_show(const struct side *side);

#endif
