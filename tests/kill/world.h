/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes and records among which an operation is killed.
 *
 *   the judge     this test: importer A, alive, with slot 0; where the victim is
 *                 no exporter, the exporter too
 *   the dead one  D, slot 1, killed with holds, a note of a record that it did not
 *                 make ready, and a record's hint half set
 *   the victim    a child that is stepped; an importer's slot is 2
 */
#ifndef CL_KILL_WORLD_H
#define CL_KILL_WORLD_H

#include <stdbool.h>
#include <stdio.h>
#include "shim/shm/slot.h"
#include "shim/shm/view.h"

/* Records, by what they are when the operation begins. */
enum {
	R_EXPORTED = 0,	 /* held by nobody */
	R_HELD = 1,	 /* in limbo, by A */
	R_OPENED = 2,	 /* exported, held by the victim (an importer), else by nobody */
	R_LAST = 3,	 /* in limbo, held by the victim alone (which may have none: by nobody) */
	R_BOTH = 4,	 /* in limbo, held by the victim and A */
	R_FREE = 5,	 /* never published */
	R_DEAD = 6,	 /* in limbo, held by D */
	R_DUE = 7,	 /* in limbo, held by nobody; its exporter knows that */
	R_READY = 8,	 /* the same, and a hint says so */
	R_SHARED = 9,	 /* exported, held by A */
	R_NOTED = 10,	 /* in limbo; D was killed before it made it ready */
	R_FAR = 70,	 /* as R_DEAD, in another word of the ready map */
	R_END = 71,
};
enum { SLOT_A = 0, SLOT_D = 1, SLOT_VICTIM = 2 };

enum role {
	IMPORTER, /* the exporter lives on, and must find all that comes free */
	EXPORTER, /* the file ends with its exporter: who imports must get away, and it must go */
	SWEEPER,  /* takes a dead exporter's file away */
	MAKER,	  /* makes the file, and is killed before it is whole or after */
};

struct world {
	char folder[48], copies[48];
	int dir, copies_dir;
	uint32_t file_id; /* 0: no file has been seen */
	enum role role;
	bool has_region;	 /* A is there */
	bool victim_held;	 /* and what the victim was to hold */
	struct cl_region region; /* its mapping of the real file */
	uint64_t claim_of_a;
	bool held_by_a[R_END];
	const struct noting *notes; /* what the victim notes for reports; NULL: nothing */
	int64_t spare;	     /* bytes of memory that the file has beyond what it counts */
	struct cl_identity self;
};

/* What the victim and the judge both see of each other. */
struct stage {
	uint32_t file_id;
	int slot; /* the victim's, or -1 */
};

/* Notes for reports, which the victim writes into its own file. */
struct noting {
	/* what it notes before, so that the operation begins where it is to */
	void (*prepare)(struct cl_region *region);
	unsigned int imports; /* that are open from the beginning to the end */
};

struct op {
	const char *name;
	enum role role;
	/* what it does, in the victim; @region is its own mapping */
	void (*run)(struct world *world, struct cl_region *region);
	/* with another importer that takes and drops its hold of this record at each boundary; -1: none */
	int neighbour_of;
	bool no_slot; /* the victim starts without */
	unsigned int chunks; /* of records that the file has grown to; 0: one */
	const struct noting *notes; /* NULL: it writes none */
};
extern const struct op ops[];
extern const unsigned int op_count;

extern const uint8_t handle[64];

/* Notes that can be told from their `record`, which is @serial, to be right in all they say. */
struct cl_import_note import_note(uint32_t serial);
struct cl_finding finding_note(uint32_t serial);
/* A process notes a stack, an import and a finding in its file @region, its first ones. */
void note_each(struct cl_region *region);

/* From now on this process's stacks have Python frames. */
void play_python(void);
/* NULL: @stack has no Python frames, or all that are played, as they are; else what is wrong. */
const char *look_at_python(const struct cl_view *view, uint32_t stack);
/* Returns how many words follow @word, the first of a text; 0: it is none. */
uint32_t words_of_text(const struct cl_view *view, uint32_t word);

/*
 * NULL: all is well; else what is not.  @region is in directory @dir, and gone
 * afterwards; NULL where the victim left no file.
 */
const char *judge(struct world *world, struct cl_region *region, int dir);

/*
 * Bytes of memory that the file has beyond what it counts.  Less than there were:
 * something is counted that is not there, whose touch is SIGBUS when memory is short.
 */
int64_t spare_bytes(const struct cl_region *region);

#endif
