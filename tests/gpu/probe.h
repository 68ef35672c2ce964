/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the questions of the probe (probe.c).  Each question is a process of its own with a
 * deadline.  It makes its calls through DO or MUST, so that a crash or a hang can be named.
 */
#ifndef CL_TEST_PROBE_H
#define CL_TEST_PROBE_H

#include <stdio.h>

#include "tests/e2e/cuda_door.h"

enum { QUESTION_MS = 6000, SMALL = 1024, LARGE = 4 << 20 };

extern char *at; /* shared with the parent: the call in progress */
extern CUcontext primary;
extern CUstream stream; /* non-blocking */

/* Prints a "# measured:" line. */
void measured(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Records the call in progress and returns its result. */
#define DO(call) (snprintf(at, 128, "%s", #call), (int)(call))
/* Like DO, but ends the process on an error: the question depends on the call. */
void must(int result, const char *what);
#define MUST(call) must(DO(call), #call)
double now_ms(void);
/* Calls cuInit, retains the primary context, creates the stream. */
void begin(void);

/* The questions of the other files; the last entry has no name. */
struct more_question {
	const char *name;
	void (*ask)(void);
	unsigned int limit_ms; /* 0: QUESTION_MS */
};
extern const struct more_question pool_questions[], capture_questions[], pinned_questions[], import_questions[],
	last_questions[], costs_questions[];

#endif
