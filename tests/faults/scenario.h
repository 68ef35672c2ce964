/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes share memory, from beginning to end, and each reports its results.
 *
 * The exporter shares two blocks and an event.  The importer opens all three.  The exporter
 * frees them, and allocates their addresses for other bytes if the driver gives them.  The
 * importer reads and closes.  The memory comes back.  Each process ends with its own status,
 * within the call.
 */
#ifndef FAULTS_SCENARIO_H
#define FAULTS_SCENARIO_H

#include <stdbool.h>

/*
 * With scenario_virtual it is virtual memory instead (CULIMBO_SHARE=all): the exporter shares two
 * allocations side by side, after a block.  The importer opens them three times, and closes them.  The
 * exporter unmaps them, and the importer opens them once more.  With scenario_async, too, the two are one block of
 * the default pool, which the exporter frees.
 */
enum { EXPORTER_STATUS = 7, IMPORTER_STATUS = 8 };

/* A process's report, which is one message on its socket. */
struct verdict {
	int calls;	   /* driver calls whose result was checked */
	int refused;	   /* exporter: exports that were refused for lack of memory */
	int wrong_line;	   /* the first call whose result differs from the driver's own, or 0 */
	int wrong_result;
	int wrong_wanted;
	int failed;	   /* importer: opens of virtual memory that gave an error, or not all of it */
	bool waited;	   /* importer: the first open waited for the exporter, and nothing else was tried */
	int left;	   /* descriptors (importer) or holds (exporter) that were left */
	bool foreign;	   /* importer: read bytes that are not its block's */
	bool kept;	   /* exporter: memory did not come back */
	bool reused;	   /* exporter: the driver gave it the address of its freed block */
};

/*
 * If not NULL, each process calls this when it has a context and its blocks, just before
 * its first call that shares.  By then the driver has all the resources that it needs.
 */
extern void (*scenario_condition)(void);
extern bool scenario_virtual, scenario_async;
/*
 * Once the first blocks are open, the exporter shares so many more small blocks, which
 * no process opens.  It calls this, if not NULL, in between.
 */
extern int scenario_more_blocks;
extern void (*scenario_later)(void);

/* @other leads to the other process, @up to the judge.  Neither function returns. */
__attribute__((noreturn)) void play_exporter(int other, int up);
__attribute__((noreturn)) void play_importer(int other, int up);

#endif
