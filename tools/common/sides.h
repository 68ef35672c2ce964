/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two sides of a leak: an importer says that it never closed a block, the block's exporter says
 * that it took it back, or that the importer has it.  Here they are put together: the importer's
 * side is the finding, with where the exporter has freed the block.
 *
 * All reports are learned from before any is asked about.
 */
#ifndef CU_SIDES_H
#define CU_SIDES_H

#include <stdbool.h>
#include <stdint.h>

struct cu_sides;
/* NULL: no memory. */
struct cu_sides *cu_sides_new(void);
void cu_sides_free(struct cu_sides *sides);

/* Whose report is read. */
struct cu_side {
	char file[32];	   /* its exporter file; "": none is known */
	uint32_t pid;
	bool living;	   /* what it holds is its work, and no finding */
};
/* Takes the process from its object @line of JSON. */
void cu_side_begin(struct cu_side *side, const char *line);

/* Learns from the report @text, of JSON Lines or with an object behind each part of its text. */
void cu_sides_learn(struct cu_sides *sides, char *text);
/*
 * Returns the process that tells of group @object of @side, the exporter, in a group of its own; or
 * 0: it is told here.
 */
uint32_t cu_sides_told_by(const struct cu_sides *sides, const struct cu_side *side, const char *object);
/*
 * Returns true if group @object of @side, the importer, stands for its exporter's side too.
 * *text becomes the lines of where it was freed there, *json that stack; both are NULL if it is not known.
 */
bool cu_sides_stands_for(const struct cu_sides *sides, const struct cu_side *side, const char *object,
			 const char **text, const char **json);

#endif
