/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of a report: a look at a process fills them, cl_report_say() prints them. */
#ifndef CL_REPORT_TABLE_H
#define CL_REPORT_TABLE_H

#include "shim/report/report.h"

enum {
	CL_REPORT_ITEMS = 3,	/* items that a group keeps, the largest */
	CL_REPORT_ITEMS_IN_TEXT = 2,
	CL_REPORT_HOLDERS = 16,	/* holders that a group keeps */
	CL_REPORT_HOLDERS_IN_TEXT = 4,
	CL_REPORT_HOLDER_COMMAND = 32, /* bytes: a longer one does not fit behind a holder's name, which it begins with */
	CL_REPORT_BUILD_ID = 8, /* bytes of a build id that a folded text has */
	CL_REPORT_OWN_ALLOCATION = 2 << 20, /* bytes: such a block shares no pages with others */
};

/* One block, import or finding. */
struct cl_report_item {
	uint64_t key, bytes;
	uint64_t since;	      /* exported, opened or found, CLOCK_MONOTONIC ns; 0: not known */
	uint64_t other_since; /* freed, ...; 0: not, or not known */
	uint64_t opens;
	uint64_t after_free;  /* ns: how long it stayed mapped after its free, or how long after its free it was opened */
	uint32_t record, generation, exports;
};

struct cl_report_group {
	/* these make it one group */
	uint8_t class, kind, device;
	uint8_t exporter_gone;	/* of stale handles */
	uint8_t made, call;	/* of notes: enum cl_made, enum cl_call */
	bool told;   /* another process has reported it */
	bool others; /* for all of its class and kind that found no room in the table */
	uint64_t place[2]; /* of the two stacks: see place.h */
	uint32_t pid, file_id; /* of the other process */
	uint32_t result; /* of notes, and of what was opened after its free: the driver's CUresult */

	uint32_t stack[2]; /* those of the first that was added */
	bool suppressed;
	bool unmapped;	     /* ORPHANED: virtual memory that its exporter has unmapped */
	bool freed_observed; /* HELD_LIMBO under CULIMBO_MODE=observe: the driver has it back */
	uint64_t n, bytes, pinned, own_opens, stays;
	uint64_t oldest;	  /* the earliest `since` of its items */
	char name[17];		  /* of process `pid`; "": not known */
	unsigned int items, holders;
	struct cl_report_item item[CL_REPORT_ITEMS];
	struct {
		uint16_t slot;
		uint32_t record, generation;
		uint64_t n;
	} holder[CL_REPORT_HOLDERS];
	uint64_t other_holds; /* of holders that are not in `holder` */
};

struct cl_report_table {
	unsigned int n, size;
	size_t mapped; /* bytes; 0: it is the static table */
	uint64_t listed[CL_REPORT_CLASSES];   /* findings that are in a group */
	uint64_t unlisted[CL_REPORT_CLASSES]; /* findings that are only counted */
	uint16_t *index; /* group + 1, by hash; NULL: groups are searched one by one */
	uint32_t index_mask;
	struct cl_report_group group[];
};

enum { CL_REPORT_A_BLOCK = 1, CL_REPORT_AN_IMPORT = 2, CL_REPORT_A_FINDING = 4,
       CL_REPORT_FOUND = 8, /* something should be done about it */
       CL_REPORT_A_NOTE = 16 /* nothing need be done, and each report lists it */ };
struct cl_report_class_row {
	const char *name; /* JSON */
	const char *title;
	int what;
	enum cl_finding_kind kind;
	const char *happened, *other_happened; /* what happened at the two stacks; NULL: nothing */
};
extern const struct cl_report_class_row cl_report_classes[CL_REPORT_CLASSES];

/* A look at a process begins and ends with these two. */
void cl_report_look_begin(struct cl_report *report, const struct cl_view *view, uint64_t now);
void cl_report_look_end(struct cl_report *report);
/*
 * Adds all blocks that have a record in report->view.  @own_opens, or NULL, is for a view of this
 * process itself: it returns how often this process has opened the block of @record.
 */
void cl_report_add_blocks(struct cl_report *report, unsigned int (*own_opens)(uint32_t record));
/* Returns the group of @block, or NULL if the block is younger than min_age. */
struct cl_report_group *cl_report_add_block(struct cl_report *report, enum cl_report_class as,
					    const struct cl_view_block *block);
void cl_report_add_holders(struct cl_report_group *group, const struct cl_view_block *block,
			   const uint16_t *slots, unsigned int n);
/* Returns true if each of the @n holders in @slots has reported at its end what it has open. */
bool cl_report_holders_have_told(const struct cl_report *report, const uint16_t *slots, unsigned int n);
/*
 * Returns the stack of the open of one of the blocks that holder @index of @group has, and in *view the
 * holder's file, if that is known.  Else returns 0.
 */
uint32_t cl_report_holder_stack(struct cl_report *report, const struct cl_report_group *group, unsigned int index,
				const struct cl_view **view);
/*
 * Returns true if that holder has opened blocks of @group at several places, so that the stack of one open
 * does not stand for all.  A report looks at CL_REPORT_IMPORTS imports at most.  After that, returns true for
 * each holder that has opened several blocks.
 */
enum { CL_REPORT_IMPORTS = 1 << 17 };
bool cl_report_holder_has_more_stacks(struct cl_report *report, const struct cl_report_group *group,
				      unsigned int index);
/* @stays: its exporter has freed it, and waits for this process. */
void cl_report_add_import(struct cl_report *report, const struct cl_view_import *import, bool stays);
/* Adds all findings of report->view.  @count returns how many there were of a kind. */
void cl_report_add_findings(struct cl_report *report, uint64_t (*count)(const struct cl_view *view,
									 enum cl_finding_kind kind));

#endif
