/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the scenario with two new processes and reports what did not hold.
 *
 * With culimbo this must hold whatever fails:
 *  - every driver call returns the same as without culimbo, and both processes end with
 *    their own status: no crash, no signal, no hang.  One exception: if an allocation
 *    fails, an export may be refused with CUDA_ERROR_OUT_OF_MEMORY and a warning;
 *  - the importer reads its own bytes, or a warning says that they are not protected;
 *  - the memory comes back to the driver, or a warning says that it is kept;
 *  - no warning is printed twice;
 *  - virtual memory: an export that cannot be served gets the driver's own refusal, and an open that fails
 *    gives an error.  Both are said.  No descriptor, no hold and no memory is left.
 *
 * The program that links this makes no CUDA call and starts no thread.
 */
#ifndef FAULTS_JUDGE_H
#define FAULTS_JUDGE_H

#include <stdbool.h>
#include <sys/types.h>

#include "tests/faults/scenario.h"

enum { RUN_SECONDS = 20, SAID = 16384 };

struct side {
	pid_t pid;
	int status; /* from waitpid; -1: it had to be killed */
	int up;	    /* its verdict arrives here */
	int err;    /* the file with its stderr */
	char said[SAID];
	bool has_verdict;
	struct verdict verdict;
};
extern struct side exporter, importer;

/*
 * Makes one run; sets exporter and importer.  @begins, if not NULL, is called in each new
 * process.  @condition is called in the side that it is for; see scenario.h.
 */
struct run {
	void (*begins)(bool in_importer);
	void (*exporter_condition)(void), (*importer_condition)(void);
};
void judge_run(const struct run *run);
/* Start and end one side, for tests that do more than a run. */
void judge_start(struct side *side, int other, int close_too, bool in_importer,
		 const struct run *run);
void judge_finish(struct side *side);

/* Returns what does not hold after a run, or NULL.  @no_memory: exports may be refused. */
const char *judge_what(bool no_memory);
/* True if the process printed a warning or an error of ours. */
bool judge_warned(const struct side *side);
/* Prints both processes' stderr as comments. */
void judge_show(void);

/* CULIMBO_DIR, and how to empty it. */
const char *judge_folder(void);
unsigned int judge_files(void);
void judge_empty_folder(void);

/* Prints a line of TAP; judge_end() prints the plan and returns the exit status. */
void ok(bool holds, const char *format, ...) __attribute__((format(printf, 2, 3)));
void skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
int judge_failures(void);
int judge_end(void);

#endif
