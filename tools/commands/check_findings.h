/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collects what `culimbo check` and `culimbo run --names` find in CMD's processes, from the
 * report that each writes at its end and from the files that killed ones left.  Everything is
 * read before anything is written, since two processes may report the same block.
 */
#ifndef CU_CHECK_FINDINGS_H
#define CU_CHECK_FINDINGS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "tools/commands/check_folder.h"
#include "tools/commands/check_run.h"
#include "tools/commands/report.h"
#include "tools/common/symbols.h"

/* A process that shared and ended without the report that it writes at its end. */
struct cu_lost {
	uint32_t pid; /* as its own PID namespace counts */
	uint64_t pid_ns;
	uint64_t start; /* clock ticks since boot */
	char command[129];
};

struct cu_check_findings {
	const struct cu_check_folder *folder;
	struct cl_report *report;
	struct cu_symbols *symbols;
	struct cl_suppressions *suppressions;
	FILE *to;
	struct cu_reports reports; /* of all processes, to be written together */
	bool whole;		   /* write reports without a finding as well */
	bool simulated;		   /* CMD ran on the simulated driver */
	uint64_t began;	      /* CLOCK_REALTIME ns; an older process is not CMD's */
	uint64_t n, suppressed, processes, cuda, killed, alive;
	uint64_t shared;	      /* processes that exported or imported something, or may have */
	uint64_t never_opened;	      /* processes with exports that none under culimbo opened */
	uint64_t unmanaged_imports;   /* processes that opened what a process without culimbo, or its file, exports */
	uint64_t running, running_cuda, unprotected; /* processes that CMD has started */
	const struct cu_watch *watch;
	struct cu_lost *lost;
	size_t n_lost;
};

/* Reads the reports in the folder. */
void cu_check_take_reports(struct cu_check_findings *findings);
/* Reads the files in CULIMBO_DIR of processes that wrote no report. */
void cu_check_take_files(struct cu_check_findings *findings);
/* Returns true if a process with this number wrote a report at its end. */
bool cu_check_has_reported(const struct cu_check_findings *findings, uint64_t pid);
/* Writes everything that was read, counts its findings, and frees the reports. */
void cu_check_tell(struct cu_check_findings *findings);

#endif
