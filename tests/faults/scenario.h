/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One sharing of memory between two processes, from beginning to end, in which
 * each says what it got.
 *
 * The exporter shares two blocks and an event; the importer opens all three;
 * the exporter frees them, and takes their addresses for other bytes if the
 * driver has them to give; the importer reads, and closes; the memory comes
 * back; both end with a status of their own.  Each process ends in the call.
 */
#ifndef FAULTS_SCENARIO_H
#define FAULTS_SCENARIO_H

#include <stdbool.h>

enum { EXPORTER_STATUS = 7, IMPORTER_STATUS = 8 };

/* What is in a process's report, which is one message of its socket. */
struct verdict {
	int calls;	   /* driver calls whose answer was looked at */
	int refused;	   /* exporter: exports that were refused for want of memory */
	int wrong_line;	   /* the first that answered otherwise than bare, or 0 */
	int wrong_result;
	int wrong_wanted;
	bool foreign;	   /* importer: read bytes that are not its block's */
	bool kept;	   /* exporter: memory did not come back */
	bool reused;	   /* exporter: the driver gave it the address of its freed block */
};

/*
 * If not NULL, called by either when it has a context and its blocks, just
 * before the first call by which it shares: the driver has what it needs then.
 */
extern void (*scenario_condition)(void);
/*
 * The exporter shares so many more small blocks, which nobody opens, once the
 * first are open; and calls this, if not NULL, in between.
 */
extern int scenario_more_blocks;
extern void (*scenario_later)(void);

/* @other: to the other process; @up: to whom the verdict goes.  Neither returns. */
__attribute__((noreturn)) void play_exporter(int other, int up);
__attribute__((noreturn)) void play_importer(int other, int up);

#endif
