/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report: which blocks are held, by which processes, since when, where they were opened, and what to do about it.
 *
 * There is one rendering for the report at exit (exit.h), which looks at this process, and for
 * `culimbo report` (cl_report_look_at_view()), which looks at the file of any process, alive or
 * dead.  Both fill the same groups, and only cl_report_say() prints them.  Blocks to which the same
 * happened at the same place in the program (class, call stacks, device, other process) are one
 * group.
 *
 * One thread, one report at a time in a process.  No malloc, no stdio stream: a process may end
 * anywhere.  The groups lie in memory from mmap().  Without it there are a few static ones; a
 * block that has no group of its own is counted in one for all others of its class.
 */
#ifndef CL_REPORT_H
#define CL_REPORT_H

#include "shim/report/emit.h"
#include "shim/report/suppress.h"
#include "shim/shm/view.h"

/* The class of a group: what happened to its blocks.  The order is that of the report. */
enum cl_report_class {
	CL_REPORT_HELD_LIMBO,
	CL_REPORT_HELD,
	CL_REPORT_ORPHANED,
	CL_REPORT_UNTRACKED,
	CL_REPORT_NOT_CLOSED,
	CL_REPORT_UNMANAGED,
	CL_REPORT_RECLAIMED,
	CL_REPORT_FREED_TWICE,
	CL_REPORT_FREED_WHILE_MAPPED,
	CL_REPORT_OPENED_AFTER_FREE,
	CL_REPORT_EXPORTED_AFTER_FREE,
	CL_REPORT_IMPORT_FREED,
	CL_REPORT_CLOSED_TWICE,
	CL_REPORT_STALE_REFUSED,
	CL_REPORT_EVENT_DESTROYED_TWICE,
	CL_REPORT_EVENT_FORCED_OUT,
	CL_REPORT_HELD_FORCED_OUT,
	/* these need nothing to be done */
	CL_REPORT_GRACE,
	CL_REPORT_LIMBO,
	/* notes */
	CL_REPORT_REFUSED,
	CL_REPORT_DESCRIPTOR,
	CL_REPORT_CLASSES,
};

/* The source of a frame's address, as far as it is known; "" and 0: not known. */
struct cl_report_symbol {
	char function[256], file[256];
	unsigned int line;
};
/* Finds the source of @frame, in the process of @view.  Returns false if nothing is known of it. */
typedef bool cl_report_resolve_fn(void *data, const struct cl_view *view,
				  const struct cl_view_frame *frame, struct cl_report_symbol *symbol);

/* What was found in one process. */
struct cl_report_sums {
	uint64_t n[CL_REPORT_CLASSES], bytes[CL_REPORT_CLASSES]; /* without suppressed and young ones */
	uint64_t suppressed, suppressed_bytes;
	uint64_t young, young_bytes; /* younger than min_age */
	uint64_t told; /* counted in `n`, but no findings, because another process has reported them */
	uint64_t live, live_bytes;   /* exported, not freed, held by nobody */
	uint64_t fresh, fresh_exports; /* blocks whose grace runs, so that a handle may be on its way; their exports */
	uint64_t freed_observed, freed_observed_bytes; /* counted as HELD_LIMBO, but in no limbo */
	uint64_t findings;	     /* how many of `n` are findings */
};

/* Counts that only the process itself has.  The report of another process does not have them. */
struct cl_report_counts {
	uint64_t exports, imports, released, released_bytes, pinned, dead_holders;
	uint64_t unmanaged_imports, unmanaged_exports;
	uint64_t pool_exports;
	uint64_t cut, cut_bytes; /* blocks that went before their grace was over */
	uint64_t kept_mapped;	 /* blocks that waited in the limbo for processes that had them mapped */
};

/* Where a report comes from; "", 0 and -1: not known. */
struct cl_report_origin {
	char time[32]; /* when it was made, UTC: 2026-11-23T01:10:03Z */
	char host[65], driver[64];
	char container[16]; /* the first 12 digits of its id */
	uint32_t ppid;
	uint64_t pid_ns;    /* inode of its PID namespace; 0: the host's first one */
	int exit_status;    /* set by the caller, for a report at exit */
};

enum { CL_REPORT_PEERS = 16 };
struct cl_report_table;

struct cl_report {
	/* set by the caller after cl_report_begin() */
	unsigned int top;		       /* groups that are listed of each class and kind; 0: all */
	uint64_t min_age;		       /* ns */
	struct cl_suppressions *suppressions;  /* NULL: none */
	cl_report_resolve_fn *resolve;	       /* NULL: frames have module, offset and build id only */
	void *data;			       /* for resolve() */
	cl_view_has_open_fn *has_open;	       /* of this process; NULL: it has no file open */
	int dirfd;			       /* of exporter files; < 0: look at no other process */
	bool dir_refused;		       /* since others could change what is in it */
	bool generate;			       /* print suppressions instead of a report */
	bool at_exit;			       /* the report of a process that is ending */
	bool once;			       /* what another process has reported is no finding */
	bool both;			       /* text, each part followed by its JSON object */
	bool all;			       /* the text has what needs nothing to be done, too */
	bool full_stacks;		       /* the text has all frames */
	const char *file;		       /* where a report at exit goes; NULL: to stderr */

	/* of the process that was looked at last */
	struct cl_report_sums sums;
	struct cl_view_process process;
	struct cl_report_origin origin;
	const struct cl_view *view;
	uint64_t now;

	struct cl_emit emit;
	struct cl_report_table *table;
	struct {
		struct cl_view view;
		int err;
	} peer[CL_REPORT_PEERS];
	unsigned int peers;
	uint32_t imports_left; /* to be looked at, of holders: see report_table.h */
	struct cl_identity peer_who[CL_REPORT_PEERS];
};

/* Makes an empty report with the defaults.  cl_report_end() frees all that it has. */
void cl_report_begin(struct cl_report *report);
void cl_report_end(struct cl_report *report);

/* Looks at the process of @view, which must stay open until the next look or cl_report_end(). */
void cl_report_look_at_view(struct cl_report *report, const struct cl_view *view);
/* Prints what was seen to report->emit.  @counts is NULL if they are not known. */
void cl_report_say(struct cl_report *report, const struct cl_report_counts *counts);
/*
 * The patterns of a "stack:" suppression: one for each frame of the program itself, from the innermost outwards.
 * cl_pattern_add() leaves out the frames of interpreters, of CUDA, of the C library and the like, which stand in the
 * stacks of all programs.  All programs have a `main` as well, so if the first pattern is of `main`, it is its place,
 * MODULE+0xOFFSET.  The pattern of a frame without a @function is its place, too.  A frame without a place either is
 * left out; if it is the innermost one, there is no pattern at all.
 */
struct cl_pattern {
	char text[2048]; /* "": no frame of the program is known, so there is no suppression */
	bool cut;	 /* there was no room for more; with "" in `text`: the innermost frame has no name */
	bool gap;	 /* the last frame was left out: "..." stands for it */
};
void cl_pattern_add(struct cl_pattern *pattern, const char *function, const char *path, uint64_t offset);
/* The same for a Python frame.  Those of the standard library and of installed packages are left out. */
void cl_pattern_add_python(struct cl_pattern *pattern, const char *function, const char *file);
/* What a suppression is printed for: a finding of @class with @n @what ("blocks") of process @pid. */
struct cl_suppressible {
	const char *class, *what;
	bool many; /* of a holder that has opened them at several places */
	uint64_t n, bytes;
	uint32_t pid;
};
void cl_report_say_pattern(struct cl_emit *emit, const struct cl_suppressible *of,
			   const struct cl_pattern *pattern);
/* Returns true if module @path is CUDA's or ours, so that no suppression should name it. */
bool cl_report_is_inner(const char *path);
/* The same, or an interpreter's, the C library's or the like, so that all programs have it in their stacks. */
bool cl_report_is_runtime(const char *path);
/* Prints the suppressions that matched since cl_report_begin(). */
void cl_report_say_suppressions(struct cl_report *report);

#endif
