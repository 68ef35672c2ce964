/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joins the two sides of a leak.  An importer says that it never closed a block; the block's
 * exporter says that it took it back, or that the importer has it.  The importer's side becomes
 * the finding, with the place where the exporter has freed the block.
 *
 * Learn from all reports before you ask about any.
 */
#ifndef CU_SIDES_H
#define CU_SIDES_H

#include <stdbool.h>
#include <stdint.h>

struct cu_sides;
/* NULL: no memory. */
struct cu_sides *cu_sides_new(void);
void cu_sides_free(struct cu_sides *sides);

/* The process whose report is read. */
struct cu_side {
	char file[32];	   /* its exporter file; "": not known */
	uint32_t pid;
	bool living;	   /* it lives, so what it holds is its work and no finding */
};
/* Reads the process from @line, its object of JSON. */
void cu_side_begin(struct cu_side *side, const char *line);

/* Learns from the report @text, of JSON Lines or with an object behind each part of its text. */
void cu_sides_learn(struct cu_sides *sides, char *text);
/*
 * Returns the process that reports group @object of @side, the exporter, in its own group; 0: none,
 * so the exporter's group is the finding.
 */
uint32_t cu_sides_told_by(const struct cu_sides *sides, const struct cu_side *side, const char *object);
/*
 * Returns true if group @object of @side, the importer, replaces its exporter's group.  *text
 * becomes the lines of the stack of the exporter's free, *json that stack; both are NULL if it
 * is not known.  *ended is what the exporter did there: "freed", "destroyed" or "unmapped".
 */
bool cu_sides_stands_for(const struct cu_sides *sides, const struct cu_side *side, const char *object,
			 const char **ended, const char **text, const char **json);

#endif
