/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of a report: between those who look, and the one who says; see report.h. */
#ifndef CL_REPORT_TABLE_H
#define CL_REPORT_TABLE_H

#include "shim/report/report.h"

enum {
	CL_REPORT_ITEMS = 3,	/* blocks kept of a group, the largest */
	CL_REPORT_HOLDERS = 4,	/* holders kept of a group */
};

/* One block, import or finding. */
struct cl_report_item {
	uint64_t key, bytes;
	uint64_t since;	      /* exported, opened or found, CLOCK_MONOTONIC ns; 0: not known */
	uint64_t other_since; /* freed, ...; 0: not, or not known */
	uint64_t opens;
	uint32_t record, generation, exports;
};

struct cl_report_group {
	/* what makes it one */
	uint8_t class, kind, device;
	bool others; /* of its class, all that found no room in the table */
	uint32_t stack[2], pid, file_id; /* the other process, and its file */

	bool suppressed;
	uint64_t n, bytes, pinned, own_opens, stays;
	uint64_t oldest;	  /* the least of the items' since */
	char name[17];		  /* of process pid; "": not known */
	unsigned int items, holders;
	struct cl_report_item item[CL_REPORT_ITEMS];
	struct {
		uint16_t slot;
		uint32_t record, generation;
		uint64_t n;
	} holder[CL_REPORT_HOLDERS];
	uint64_t other_holds; /* of holders that are not in this list */
};

struct cl_report_table {
	unsigned int n, size;
	size_t mapped; /* bytes; 0: it is the static one */
	uint64_t listed[CL_REPORT_CLASSES];   /* findings that are in a group */
	uint64_t unlisted[CL_REPORT_CLASSES]; /* and those that are only counted */
	uint16_t *index; /* group + 1 by hash; NULL: looked for one by one */
	uint32_t index_mask;
	struct cl_report_group group[];
};

enum { CL_REPORT_A_BLOCK = 1, CL_REPORT_AN_IMPORT = 2, CL_REPORT_A_FINDING = 4,
       CL_REPORT_FOUND = 8 /* somebody should do something about it */ };
struct cl_report_class_row {
	const char *name;		 /* JSON */
	const char *title, *event_title; /* of memory, and of events; NULL: the same */
	int what;
	enum cl_finding_kind kind;
	const char *happened, *other_happened; /* at the two stacks; NULL: nothing */
};
extern const struct cl_report_class_row cl_report_classes[CL_REPORT_CLASSES];

/* To look at a process: between these two. */
void cl_report_look_begin(struct cl_report *report, const struct cl_view *view, uint64_t now);
void cl_report_look_end(struct cl_report *report);
/* NULL: it is too young to be listed. */
struct cl_report_group *cl_report_add_block(struct cl_report *report, enum cl_report_class as,
					    const struct cl_view_block *block);
void cl_report_add_holders(struct cl_report_group *group, const struct cl_view_block *block,
			   const uint16_t *slots, unsigned int n);
/* @stays: its exporter has freed it and waits for us. */
void cl_report_add_import(struct cl_report *report, const struct cl_view_import *import, bool stays);
void cl_report_add_finding(struct cl_report *report, const struct cl_finding *finding);
/* All that are noted in report->view, and @count(kind) in all. */
void cl_report_add_findings(struct cl_report *report, uint64_t (*count)(const struct cl_view *view,
									 enum cl_finding_kind kind));

#endif
