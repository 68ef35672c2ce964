/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two sides of a play: the same sequence, as it is and under culimbo, each a process group of
 * its own with a file for its lines, one for its stderr, and one that says what it is at.
 *
 * What must hold: no side outlives this program, however that ends; none is waited for without
 * a bound; and whatever ends one, its status, or why it was killed, and what it was at are there to be said.
 */
#ifndef DIFFERENTIAL_SIDE_H
#define DIFFERENTIAL_SIDE_H

#include <signal.h>
#include <sys/types.h>

#include "tests/differential/play.h"

enum { LINES_MAX = 4 * OPS_MAX };

struct side {
	const char *name;
	pid_t pid; /* 0: it has been waited for */
	int pidfd, status;
	char *text, *line[LINES_MAX];
	unsigned int lines;
	struct underway *at; /* what it says that it is at */
	uint64_t moves, moved; /* of that, and when it last grew */
	const char *killed; /* why it was killed, NULL: it was not */
	uint64_t still_ms;  /* then: how long nothing had moved */
};
extern struct side bare, preloaded;

/* The signal that is to end this program, or 0.  It is blocked but where a side is waited for. */
extern volatile sig_atomic_t stopped;

void sides_set_up(const char *program, bool on_gpu);
void sides_catch_signals(void);
/* Takes away what a play has left, that of killed processes included. */
void sides_clean(void);

/* Begins the play; @keep as for direct(). */
void side_start(struct side *side, const struct settings *s, unsigned int ops, const char *keep);
/* Waits for the ends of both, and takes what they have said; with @stopped set nothing of that. */
void sides_collect(void);
/* Kills both, without waiting. */
void sides_abandon(void);

/* Its director came to the end of the play. */
bool side_is_orderly(const struct side *side);
/* The driver gave one of its processes no context, so there was no play. */
bool side_had_no_context(const struct side *side);
/* As comments: how it ended, where not by the play's end, and what was under way then. */
void side_say_end(const struct side *side);
/* As comments: its last lines, and the first ones of its stderr. */
void side_show(const struct side *side);

#endif
