/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes and records around an operation that is killed.
 *
 *   the judge        this test: importer A, alive, with slot 0; also the exporter, where the victim is
 *                    not an exporter
 *   the dead one     D, slot 1, killed with holds, with `closing` at a record that it did not make ready, and
 *                    with a half-set hint for a record
 *   the victim       a child that is stepped; an importer has slot 2
 */
#ifndef CL_KILL_WORLD_H
#define CL_KILL_WORLD_H

#include <stdbool.h>
#include <stdio.h>
#include "shim/shm/slot.h"
#include "shim/shm/view.h"

/* Records, by their state when the operation begins. */
enum {
	R_EXPORTED = 0,	 /* no process holds it */
	R_HELD = 1,	 /* in the limbo, held by A */
	R_OPENED = 2,	 /* exported, held by the victim (an importer), else by none */
	R_LAST = 3,	 /* in the limbo, held only by the victim (or by none, when the victim has no holds) */
	R_BOTH = 4,	 /* in the limbo, held by the victim and A */
	R_FREE = 5,	 /* never published */
	R_DEAD = 6,	 /* in the limbo, held by D */
	R_DUE = 7,	 /* in the limbo, held by none; its exporter knows that */
	R_READY = 8,	 /* the same, and a hint says so */
	R_SHARED = 9,	 /* exported, held by A */
	R_CLOSING = 10,	 /* in the limbo; D was killed before it made the record ready */
	R_FAR = 70,	 /* like R_DEAD, in another word of the ready map */
	R_END = 71,
};
enum { SLOT_A = 0, SLOT_D = 1, SLOT_VICTIM = 2 };

enum role {
	IMPORTER, /* the exporter lives on, and must find every block that becomes free */
	EXPORTER, /* the file ends with its exporter: importers must be able to close, and the file must be removed */
	SWEEPER,  /* removes a dead exporter's file */
	MAKER,	  /* creates the file, and is killed before it is complete or after */
};

struct world {
	char folder[48], copies[48];
	int dir, copies_dir;
	uint32_t file_id; /* 0: no file was seen */
	enum role role;
	bool has_region;	 /* A exists */
	bool victim_held;	 /* and what the victim should hold */
	struct cl_region region; /* its mapping of the real file */
	uint64_t claim_of_a;
	bool held_by_a[R_END];
	/* what the judge last saw of a record, so that a count that goes down is seen */
	struct {
		uint64_t life;
		uint16_t opens;
	} counted[R_END];
	const struct writing *report_data; /* what the victim records for reports; NULL: nothing */
	int64_t spare;	     /* bytes of memory that the file has beyond those it counts */
	struct cl_identity self;
};

/* State that the victim and the judge share. */
struct stage {
	uint32_t file_id;
	int slot; /* the victim's, or -1 */
};

/* Entries for reports, which the victim writes into its own file. */
struct writing {
	/* written before, so that the operation begins at the right place */
	void (*prepare)(struct cl_region *region);
	unsigned int imports; /* imports that stay open all the time */
};

struct op {
	const char *name;
	enum role role;
	/* runs in the victim; @region is the victim's mapping */
	void (*run)(struct world *world, struct cl_region *region);
	/* the record that another importer takes and drops at each boundary; -1: none */
	int neighbour_of;
	bool no_slot; /* the victim starts without a slot */
	unsigned int chunks; /* number of chunks of records in the file; 0: one */
	const struct writing *report_data; /* NULL: it records nothing */
};
extern const struct op ops[];
extern const unsigned int op_count;

extern const uint8_t handle[64];

/* Entries whose contents all follow from their `record`, @serial, so that the judge can check them. */
struct cl_import_entry import_entry(uint32_t serial);
struct cl_finding finding_entry(uint32_t serial);
/* Writes a process's first stack, import and finding into its file @region. */
void write_each(struct cl_region *region);

/* From now on this process's stacks have Python frames. */
void play_python(void);
/* NULL: @stack has no Python frames, or exactly those of the fake interpreter; else the error. */
const char *look_at_python(const struct cl_view *view, uint32_t stack);
/* Returns the number of words after @word, the first of a text; 0: it is not a text. */
uint32_t words_of_text(const struct cl_view *view, uint32_t word);

/*
 * Returns NULL when all is well, else the error.  @region is in directory @dir, and removed afterwards; NULL
 * where the victim left no file.
 */
const char *judge(struct world *world, struct cl_region *region, int dir);

/*
 * Bytes of memory that the file has beyond those it counts.  A lower number than before means: the file
 * counts memory that it does not have, and a touch of it is a SIGBUS when memory is short.
 */
int64_t spare_bytes(const struct cl_region *region);

#endif
