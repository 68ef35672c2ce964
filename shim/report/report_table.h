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
	CL_REPORT_HOLDER_COMMAND = 32, /* bytes; a longer one is not shown: the holder's name says how it begins */
	CL_REPORT_BUILD_ID = 8, /* bytes of a build id that a folded text has */
	CL_REPORT_OWN_ALLOCATION = 2 << 20, /* bytes: such a block shares no pages with others */
};

/* One block, import or finding. */
struct cl_report_item {
	uint64_t key, bytes;
	uint64_t since;	      /* when it was exported, opened or found, CLOCK_MONOTONIC ns; 0: not known */
	uint64_t other_since; /* when the second thing happened to it, such as its free; 0: it did not, or not known */
	uint64_t opens;
	uint64_t after_free;  /* ns from its free to the end of its last mapping, or to its open; 0: not known */
	uint32_t record, generation, exports;
};

struct cl_report_group {
	/* what has the same values in these members is one group */
	uint8_t class, kind, device;
	uint8_t exporter_gone;	/* of stale handles */
	uint8_t made, call;	/* enum cl_made, in notes alone more than CL_MADE_VIRTUAL or 0; enum cl_call, of notes alone */
	uint8_t why; /* of refusals: enum cl_why */
	bool told;   /* another process has reported it */
	bool others; /* the group of all of its class and kind for which the table has no room */
	uint64_t place[2]; /* of the two stacks: see place.h */
	uint32_t pid, file_id; /* of the other process */
	uint32_t result; /* of notes, and of what was opened after its free: the driver's CUresult */

	uint32_t stack[2]; /* of the first item that was added */
	bool suppressed;
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

/* cl_report_look_at_view() and the report at exit call these two, before and after they add what they see. */
void cl_report_look_begin(struct cl_report *report, const struct cl_view *view, uint64_t now);
void cl_report_look_end(struct cl_report *report);
/*
 * Adds all blocks that have a record in report->view.  If that is a view of this process itself, @own_opens returns how
 * often this process has opened the block of @record.  Else it is NULL.
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
 * Returns the stack at which holder @index of @group has opened one of its blocks, and in *view the holder's file, to
 * which the stack belongs.  Returns 0 if the stack is not known.
 */
uint32_t cl_report_holder_stack(struct cl_report *report, const struct cl_report_group *group, unsigned int index,
				const struct cl_view **view);
/*
 * Returns true if holder @index of @group has opened the group's blocks at several places, so that the stack of one open
 * does not stand for all.  A report looks at CL_REPORT_IMPORTS imports at most.  After that this returns true for
 * each holder that has opened several blocks.
 */
enum { CL_REPORT_IMPORTS = 1 << 17 };
bool cl_report_holder_has_more_stacks(struct cl_report *report, const struct cl_report_group *group,
				      unsigned int index);
/* Adds an import of the process that is looked at.  @stays: the exporter has freed the block, and waits for it. */
void cl_report_add_import(struct cl_report *report, const struct cl_view_import *import, bool stays);
/* Adds all findings of report->view.  @count returns how many there were of a kind. */
void cl_report_add_findings(struct cl_report *report, uint64_t (*count)(const struct cl_view *view,
									 enum cl_finding_kind kind));

#endif
