/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report: what is held, by whom, since when, from where, and what to do.
 *
 * One rendering for the report at exit (exit.h, which looks at this process) and
 * for `culimbo report` (cl_report_look_at_view(), which looks at a file, whoever's,
 * alive or dead): both fill the same groups, and only cl_report_say() prints.  What happened at the same place in the program (class,
 * call stacks, device, other process) is one group, however many blocks it is.
 *
 * No malloc, no stdio stream: a process may end anywhere.  The groups lie in
 * memory got by mmap(); refused, there are a few static ones, and what finds no
 * room in them is counted by class.
 */
#ifndef CL_REPORT_H
#define CL_REPORT_H

#include "shim/report/emit.h"
#include "shim/report/suppress.h"
#include "shim/shm/view.h"

/* What is told of, in the order of the report. */
enum cl_report_class {
	CL_REPORT_HELD_LIMBO,
	CL_REPORT_HELD,
	CL_REPORT_GONE,
	CL_REPORT_UNTRACKED,
	CL_REPORT_NOT_CLOSED,
	CL_REPORT_UNMANAGED,
	CL_REPORT_RECLAIMED,
	CL_REPORT_FREED_TWICE,
	CL_REPORT_EXPORTED_AFTER_FREE,
	CL_REPORT_IMPORT_FREED,
	CL_REPORT_CLOSED_TWICE,
	CL_REPORT_STALE_REFUSED,
	CL_REPORT_EVENT_DESTROYED_TWICE,
	CL_REPORT_EVENT_FORCED_OUT,
	CL_REPORT_HELD_FORCED_OUT,
	/* nobody need do anything about these */
	CL_REPORT_GRACE,
	CL_REPORT_LIMBO,
	CL_REPORT_CLASSES,
};

/* What a frame's address means, as far as it is known; "" and 0: not known. */
struct cl_report_symbol {
	char function[256], file[256];
	unsigned int line;
};
/* False: nothing is known of @frame of the process that @view is of. */
typedef bool cl_report_resolve_fn(void *data, const struct cl_view *view,
				  const struct cl_view_frame *frame, struct cl_report_symbol *symbol);

/* What was found in one process. */
struct cl_report_sums {
	uint64_t n[CL_REPORT_CLASSES], bytes[CL_REPORT_CLASSES]; /* but for the next two */
	uint64_t suppressed, suppressed_bytes;
	uint64_t young, young_bytes; /* younger than min_age */
	uint64_t live, live_bytes;   /* exported, not freed, held by nobody */
	uint64_t findings;	     /* of these, what somebody should do something about */
};

/* Counts that only the process itself has; for others they are not told. */
struct cl_report_counts {
	uint64_t exports, imports, released, released_bytes, pinned, dead_holders;
	uint64_t unmanaged_imports, unmanaged_exports;
	uint64_t pool_exports;
	uint64_t cut, cut_bytes; /* blocks that went before their grace was over */
};

enum { CL_REPORT_PEERS = 16 };
struct cl_report_table;

struct cl_report {
	/* set by the caller after cl_report_begin() */
	unsigned int top;		       /* groups a class that are listed; 0: all */
	uint64_t min_age;		       /* ns */
	struct cl_suppressions *suppressions;  /* NULL: none */
	cl_report_resolve_fn *resolve;	       /* NULL: module, offset and build id */
	void *data;			       /* for resolve() */
	cl_view_has_open_fn *has_open;	       /* of this process; NULL: it has no file open */
	int dirfd;			       /* of the exporter files; -1: other processes' are not looked at */
	bool generate;			       /* print suppressions of what is found, instead of it */
	bool at_exit;			       /* of a process that is just ending */
	bool both;			       /* text, and behind each part of it the object that says the same */

	/* of the process that was looked at last */
	struct cl_report_sums sums;
	struct cl_view_process process;
	const struct cl_view *view;
	uint64_t now;

	struct cl_emit emit;
	struct cl_report_table *table;
	struct {
		struct cl_view view;
		int err;
	} peer[CL_REPORT_PEERS];
	unsigned int peers;
	struct cl_identity peer_who[CL_REPORT_PEERS];
};

/* Empty, with the defaults; cl_report_end() gives everything back. */
void cl_report_begin(struct cl_report *report);
void cl_report_end(struct cl_report *report);

/* Looks at the process that @view (which stays open until the next) is of. */
void cl_report_look_at_view(struct cl_report *report, const struct cl_view *view);
/* Says what was seen then; report->emit is where.  @counts: NULL when they are not known. */
void cl_report_say(struct cl_report *report, const struct cl_report_counts *counts);
/*
 * The line that suppresses a finding of @class with @n @what ("blocks") of process
 * @pid, made at @function of module @path; "": not known.
 */
struct cl_suppressible {
	const char *class, *what, *function, *path;
	uint64_t n, bytes;
	uint32_t pid;
};
void cl_report_say_pattern(struct cl_emit *emit, const struct cl_suppressible *of);
/* Whether module @path is CUDA's or ours: no place of the program's to name. */
bool cl_report_is_inner(const char *path);
/* The suppressions that matched since cl_report_begin(). */
void cl_report_say_suppressions(struct cl_report *report);

#endif
