/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the exporter files say, for people.  The report at exit, `culimbo report` and all other
 * subcommands read the files through this.
 *
 * A view only reads, and trusts nothing: it checks every index, length and text from a file, so a
 * damaged file leads to a wrong report at worst.  No globals, no malloc, no stdio: it also runs in a
 * process that is ending.  A file may change while it is read; each block is read as it was
 * at one moment.
 */
#ifndef CL_VIEW_H
#define CL_VIEW_H

#include "shim/shm/liveness.h"
#include "shim/shm/record.h"

/* One process's file, or this very process's region in memory. */
struct cl_view {
	struct cl_region region;
	enum cl_liveness state; /* of its process, as judged when the view was made */
	bool called_exec;	/* and so has left, though another program runs in its process */
	bool own;		/* this very process's own file */
	bool borrowed;		/* this process had it open already */
	/* This process says of its own region how many records it has; they are read where they are mapped. */
	bool knows_records;
	uint32_t records;
	uint64_t now;		/* CLOCK_MONOTONIC ns, when the view was made */
};

/*
 * The caller of the next three functions passes one of these.  It returns the region by which this
 * process has file @file_id open already, or NULL; *own becomes true if that is the process's own
 * file.  Such a file is never opened a second time: closing it would drop this process's locks on
 * it.  A command, which has none open, passes NULL.  In a process that shares it is
 * cl_peer_has_open() of importer/peers.h, and the caller holds cl_imports_lock and cl_exports_lock.
 */
typedef const struct cl_region *cl_view_has_open_fn(uint32_t file_id, bool *own);

/* Opens file @file_id.  Returns 0, or -errno as cl_region_open(), with *why if @why is not NULL. */
int cl_view_open(struct cl_view *view, int dirfd, uint32_t file_id, cl_view_has_open_fn *has_open,
		 const char **why);
/* Finds and opens the file of process @who.  Returns -ENOENT if it has none in @dirfd. */
int cl_view_open_process(struct cl_view *view, int dirfd, const struct cl_identity *who,
			 cl_view_has_open_fn *has_open);
/* As cl_view_open_process(), among the first @most entries of the directory. */
int cl_view_open_process_among(struct cl_view *view, int dirfd, const struct cl_identity *who,
			       cl_view_has_open_fn *has_open, unsigned int most);
void cl_view_close(struct cl_view *view);

struct cl_view_process {
	struct cl_identity who;
	uint32_t file_id, uid;
	enum cl_liveness state;
	bool called_exec;
	bool collects;		/* a thread gives its freed blocks back; else the next CUDA call of its program does */
	uint64_t created;	/* CLOCK_REALTIME ns */
	char command[129];	/* no control bytes */
	uint64_t live_blocks, limbo_blocks, limbo_bytes; /* from the file's own counts */
	uint64_t shared_bytes;	/* memory that the file takes */
};
void cl_view_process(const struct cl_view *view, struct cl_view_process *process);

/* Returns true if any process under culimbo has ever opened something of this one, or tried to. */
bool cl_view_was_opened(const struct cl_view *view);

/* ----------------------------------------------------------------- blocks */
/* What a block waits for, or who has it; in the order of the report. */
enum cl_view_class {
	CL_VIEW_HELD_LIMBO,  /* freed, and mapped by others */
	CL_VIEW_GRACE,	     /* freed; a handle may be on its way */
	CL_VIEW_LIMBO,	     /* freed, on its way back to the driver */
	CL_VIEW_HELD,	     /* not freed, mapped by others */
	CL_VIEW_ORPHANED,	     /* the driver has freed or unmapped it, and others still map it */
	CL_VIEW_LIVE,	     /* exported, not freed, held by nobody */
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
	bool pinned;		    /* an importer without a slot has it: kept until the exporter ends */
	bool given_back;	    /* ORPHANED, though no context ended: its exporter gave it back before its holders were done */
	bool is_virtual;	    /* its program does not free it, but unmaps it */
	bool unmapped;		    /* ORPHANED: virtual memory; its importers keep the bytes that it had */
	bool freed_observed;	    /* as given_back, but its program freed it, under CULIMBO_MODE=observe */
	bool told;		    /* set by a report: another process has reported it */
};
/* Returns a bound: every record's number is below it. */
uint32_t cl_view_records(const struct cl_view *view);
/* Reads record @record.  Returns false if it is free. */
bool cl_view_block(const struct cl_view *view, uint32_t record, struct cl_view_block *block);

/*
 * Returns true if generation @generation of @record was freed, and its handle agrees with the 56
 * bytes at @handle: then *when is the time of the free (CLOCK_MONOTONIC ns) and *stack its call stack
 * in this view (0: not known).  The file says so until the record is used again, also when the driver
 * has the block back.  Returns false if the generation was not freed, or the record was used again.
 */
bool cl_view_freed(const struct cl_view *view, uint32_t record, uint32_t generation,
		   const uint8_t handle[56], uint64_t *when, uint32_t *stack);

/* A holder of a block: the owner of a slot in its exporter's file. */
struct cl_view_holder {
	unsigned int slot;
	struct cl_identity who;	/* all zeros: not known yet */
	char name[17];
	bool alive;
	bool called_exec;	/* not alive, though another program runs in its process */
	uint8_t told;		/* bits of enum cl_told */
	uint64_t since;		/* when it first opened anything of this exporter, CLOCK_MONOTONIC ns */
};
/*
 * cl_view_holder_slots() returns how many slots hold @record, and fills in the first @max of them, which is
 * cheap.  cl_view_slot() says who has a slot, for which it asks the kernel; it returns false if there is no
 * such slot.
 */
unsigned int cl_view_holder_slots(const struct cl_view *view, uint32_t record, uint16_t *slots,
				  unsigned int max);
bool cl_view_slot(const struct cl_view *view, unsigned int slot, struct cl_view_holder *to);

/* ---------------------------------------------------------------- imports */
struct cl_view_import {
	uint32_t index;
	enum cl_kind kind;
	uint64_t key, size, opens, since; /* as in struct cl_import_entry */
	uint32_t file_id, record, generation, exporter_pid, stack;
	unsigned int device;
	bool told; /* set by a report: its exporter has reported it */
};
/* Returns a bound: every index is below it.  cl_view_import() returns false for unused entries. */
uint32_t cl_view_imports(const struct cl_view *view);
bool cl_view_import(const struct cl_view *view, uint32_t index, struct cl_view_import *import);
/*
 * Finds the open import in @holder's file of @generation of @record of file @file_id.  Returns
 * false if there is none.  Reads all imports of the holder, 64 at a time: for the few that are
 * shown.
 */
bool cl_view_import_of(const struct cl_view *holder, uint32_t file_id, uint32_t record,
		       uint32_t generation, struct cl_view_import *import);

/* --------------------------------------------------------------- findings */
uint32_t cl_view_findings(const struct cl_view *view);
/* Copies finding @index.  Returns false if there is none, or it is just being written. */
bool cl_view_finding(const struct cl_view *view, uint32_t index, struct cl_finding *finding);
/* Returns how many findings there were of @kind, also those without an entry. */
uint64_t cl_view_finding_count(const struct cl_view *view, enum cl_finding_kind kind);

/* ----------------------------------------------------------------- stacks */
struct cl_view_frame {
	uint64_t address;	/* as it was in the process: a return address */
	uint64_t offset;	/* as its module's file counts; 0 without one */
	char path[209];		/* of the module; "": not known, as for JIT code */
	bool foreign;		/* of another process than the one whose file has the stack */
	bool is_start;		/* the program's _start */
	uint8_t build_id[20];
	unsigned int build_id_length;
};
/*
 * cl_view_stack_depth() returns how many frames @stack has, 0 for none.  cl_view_stack_frame()
 * reads frame @index (0: the innermost), and returns false if there is none.
 */
unsigned int cl_view_stack_depth(const struct cl_view *view, uint32_t stack);
bool cl_view_stack_frame(const struct cl_view *view, uint32_t stack, unsigned int index,
			 struct cl_view_frame *frame);

/* The Python frames of a stack, which are not among those above; no control bytes. */
struct cl_view_python {
	char function[CL_PYTHON_TEXT + 1], file[CL_PYTHON_TEXT + 1];
	unsigned int line; /* 0: not known */
};
/*
 * cl_view_python_depth() returns how many there are; *unread, if @unread is not NULL, becomes true if
 * there may be some that could not be read.  cl_view_python_frame() reads frame @index (0: the
 * innermost), and returns false if there is none.
 */
unsigned int cl_view_python_depth(const struct cl_view *view, uint32_t stack, bool *unread);
bool cl_view_python_frame(const struct cl_view *view, uint32_t stack, unsigned int index,
			  struct cl_view_python *frame);

#endif
