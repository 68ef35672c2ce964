/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the scenario with two fresh processes and says what did not hold.
 *
 * What must hold whatever fails, but in a run without culimbo:
 *  - both processes get from every driver call what they would get bare, and
 *    end with their own status: no crash, no signal, no hang; but where it is
 *    memory that fails an export may be refused with CUDA_ERROR_OUT_OF_MEMORY,
 *    and a warning said so;
 *  - the importer reads its own bytes, or a warning said that they are not
 *    protected;
 *  - the memory comes back to the driver, or a warning said that it is kept;
 *  - no warning is given twice.
 *
 * The program that links this makes no CUDA call itself, and no thread.
 */
#ifndef FAULTS_JUDGE_H
#define FAULTS_JUDGE_H

#include <stdbool.h>
#include <sys/types.h>

#include "tests/faults/scenario.h"

enum { RUN_SECONDS = 20, SAID = 16384 };

struct side {
	pid_t pid;
	int status; /* of waitpid; -1: had to be killed */
	int up;	    /* its verdict comes here */
	int err;    /* a file of what it says */
	char said[SAID];
	bool has_verdict;
	struct verdict verdict;
};
extern struct side exporter, importer;

/*
 * One run: sets exporter and importer.  @begins, if not NULL, is called in
 * each new process, @condition in the side that it is for, see scenario.h.
 */
struct run {
	void (*begins)(bool in_importer);
	void (*exporter_condition)(void), (*importer_condition)(void);
};
void judge_run(const struct run *run);
/* The two halves of one side, for what is more than a run. */
void judge_start(struct side *side, int other, int close_too, bool in_importer,
		 const struct run *run);
void judge_finish(struct side *side);

/* What does not hold after a run, or NULL.  @no_memory: exports may be refused. */
const char *judge_what(bool no_memory);
/* Of the two, whether it gave a warning or told of an error of ours. */
bool judge_warned(const struct side *side);
/* What both said, as comments. */
void judge_show(void);

/* CULIMBO_DIR: what is in it, and away with it. */
const char *judge_folder(void);
unsigned int judge_files(void);
void judge_empty_folder(void);

/* A line of TAP; judge_end() prints the plan and returns the exit status. */
void ok(bool holds, const char *format, ...) __attribute__((format(printf, 2, 3)));
void skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
int judge_failures(void);
int judge_end(void);

#endif
