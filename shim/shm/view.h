/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the exporter files say, for people: the one reader that the report at
 * exit, `culimbo report` and all other subcommands share.
 *
 * Reads only; trusts nothing: every index, length and text that comes from a
 * file is checked, so that a damaged one gives wrong words at worst.  No
 * globals, no malloc, no stdio: it also runs in a process that is ending.
 * A file may change while it is read: each block is a snapshot of its own.
 */
#ifndef CL_VIEW_H
#define CL_VIEW_H

#include "shim/shm/liveness.h"
#include "shim/shm/record.h"

/* One process's file. */
struct cl_view {
	struct cl_region region;
	enum cl_liveness state; /* of its process, when the view was made */
	bool own;		/* this very process's own file */
	bool borrowed;		/* this process had it open already */
	uint64_t now;		/* CLOCK_MONOTONIC ns, when the view was made */
};

/*
 * What the opener of a view hands in: gives the region by which this process has file @file_id
 * open already, or NULL; *own: it is its own file.  Such a one is never opened a second time:
 * closing that would drop this process's locks on it.  A command, which has none open, hands in
 * NULL.  In a process that shares (cl_peer_has_open() of importer/peers.h) the caller of the next
 * three has both of its locks.
 */
typedef const struct cl_region *cl_view_has_open_fn(uint32_t file_id, bool *own);

/* -errno as of cl_region_open(), with @why (may be NULL). */
int cl_view_open(struct cl_view *view, int dirfd, uint32_t file_id, cl_view_has_open_fn *has_open,
		 const char **why);
/* Of the process that @who names (whatever its own file's id).  -ENOENT: it has none in @dirfd. */
int cl_view_open_process(struct cl_view *view, int dirfd, const struct cl_identity *who,
			 cl_view_has_open_fn *has_open);
/* The same, among the first @most entries of the directory. */
int cl_view_open_process_among(struct cl_view *view, int dirfd, const struct cl_identity *who,
			       cl_view_has_open_fn *has_open, unsigned int most);
void cl_view_close(struct cl_view *view);

struct cl_view_process {
	struct cl_identity who;
	uint32_t file_id, uid;
	enum cl_liveness state;
	uint64_t created;	/* CLOCK_REALTIME ns */
	char command[129];	/* no control bytes */
	uint64_t live_blocks, limbo_blocks, limbo_bytes; /* as its own counts say */
	uint64_t shared_bytes;	/* of the file, what takes memory */
};
void cl_view_process(const struct cl_view *view, struct cl_view_process *process);

/* ----------------------------------------------------------------- blocks */
/* Why a block is worth a word; the order is that of the report. */
enum cl_view_class {
	CL_VIEW_HELD_LIMBO,  /* freed, and mapped by others */
	CL_VIEW_GRACE,	     /* freed; a handle may be on its way */
	CL_VIEW_LIMBO,	     /* freed, on its way back to the driver */
	CL_VIEW_HELD,	     /* not freed, mapped by others */
	CL_VIEW_GONE,	     /* its context ended; mapped by others */
	CL_VIEW_LIVE,	     /* exported, not freed, held by nobody: an ordinary block */
	CL_VIEW_CLASSES,
};

struct cl_view_block {
	uint32_t record, generation;
	enum cl_view_class class;
	enum cl_kind kind;
	uint64_t base, size;	    /* device address (or CUevent), bytes */
	unsigned int device, exports;
	uint64_t exported, freed;   /* CLOCK_MONOTONIC ns; freed 0: not */
	uint32_t export_stack, free_stack; /* 0: none */
	unsigned int holders;
	bool pinned;		    /* held by somebody without a slot: kept to the end */
};
/* Records are 0 to below this. */
uint32_t cl_view_records(const struct cl_view *view);
/* False: record @record is free. */
bool cl_view_block(const struct cl_view *view, uint32_t record, struct cl_view_block *block);

/*
 * When the block with @generation of @record, whose handle begins with the 56 bytes
 * at @handle, was freed (CLOCK_MONOTONIC ns), and where (a stack of this view; 0: not
 * noted): also when the driver has it back, until its record is used again.  False:
 * it was not, or that is not known any more.
 */
bool cl_view_freed(const struct cl_view *view, uint32_t record, uint32_t generation,
		   const uint8_t handle[56], uint64_t *when, uint32_t *stack);

/* Who holds a block: a slot of its exporter's file. */
struct cl_view_holder {
	unsigned int slot;
	struct cl_identity who;	/* all zeros: not known yet */
	char name[17];
	bool alive;
	uint64_t since;		/* when it first opened anything of this exporter, CLOCK_MONOTONIC ns */
};
/* Returns how many there are; fills in @max of them at most. */
unsigned int cl_view_holders(const struct cl_view *view, uint32_t record,
			     struct cl_view_holder *to, unsigned int max);

/*
 * The same in two steps, for who goes through many blocks: which slots hold one
 * (cheap), and who is in a slot (asks the kernel).
 */
unsigned int cl_view_holder_slots(const struct cl_view *view, uint32_t record, uint16_t *slots,
				  unsigned int max);
bool cl_view_slot(const struct cl_view *view, unsigned int slot, struct cl_view_holder *to);

/* ---------------------------------------------------------------- imports */
struct cl_view_import {
	uint32_t index;
	enum cl_kind kind;
	uint64_t key, size, opens, since; /* as in struct cl_import_note */
	uint32_t file_id, record, generation, exporter_pid, stack;
	unsigned int device;
};
/* Entries are 0 to below this; an entry that is not in use gives false. */
uint32_t cl_view_imports(const struct cl_view *view);
bool cl_view_import(const struct cl_view *view, uint32_t index, struct cl_view_import *import);
/*
 * The holder's side of a hold: its open import of @generation of @record of file @file_id.
 * Goes through all imports of the holder, 64 at a time: for the few that are shown.
 */
bool cl_view_import_of(const struct cl_view *holder, uint32_t file_id, uint32_t record,
		       uint32_t generation, struct cl_view_import *import);

/* --------------------------------------------------------------- findings */
uint32_t cl_view_findings(const struct cl_view *view);
/* A copy; false: it is being written. */
bool cl_view_finding(const struct cl_view *view, uint32_t index, struct cl_finding *finding);
/* How many there were of a kind, also those that are not listed. */
uint64_t cl_view_found(const struct cl_view *view, enum cl_finding_kind kind);

/* ----------------------------------------------------------------- stacks */
struct cl_view_frame {
	uint64_t address;	/* as it was in the process: a return address */
	uint64_t offset;	/* as its module's file counts; 0 without one */
	char path[209];		/* of the module; "": not known (JIT code, or it has no file) */
	bool foreign;		/* of another process than the one that noted it */
	uint8_t build_id[20];
	unsigned int build_id_length;
};
/* How many frames stack @stack has (0: none); *frame is frame @index, 0 the innermost. */
unsigned int cl_view_stack_depth(const struct cl_view *view, uint32_t stack);
bool cl_view_stack_frame(const struct cl_view *view, uint32_t stack, unsigned int index,
			 struct cl_view_frame *frame);

#endif
