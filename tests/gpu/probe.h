/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the questions of the probe (probe.c) have in common.  Each question is a process of its own
 * with a deadline, and makes its calls through DO or MUST, so that a crash or a hang can be named.
 */
#ifndef CL_TEST_PROBE_H
#define CL_TEST_PROBE_H

#include <stdio.h>

#include "tests/e2e/cuda_door.h"

enum { QUESTION_MS = 6000, SMALL = 1024, LARGE = 4 << 20 };

extern char *at; /* shared with the process that asks: what this one is at */
extern CUcontext primary;
extern CUstream stream; /* non-blocking */

/* A "# measured:" line. */
void measured(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says what is under way; gives the result of it. */
#define DO(call) (snprintf(at, 128, "%s", #call), (int)(call))
/* The question can't be asked without it: the process ends. */
void must(int result, const char *what);
#define MUST(call) must(DO(call), #call)
double now_ms(void);
/* cuInit, the primary context, the stream. */
void begin(void);

/* probe_pools.c, probe_captures.c; the last has no name */
struct pool_question {
	const char *name;
	void (*ask)(void);
	unsigned int limit_ms; /* 0: QUESTION_MS */
};
extern const struct pool_question pool_questions[], capture_questions[];

#endif
