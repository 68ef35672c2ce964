/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The books on mirrors (mirror.h): which mirrors there are, which pieces each has, and which thread has the turn
 * with a reservation.
 *
 * The caller of a function that ends in _locked holds cl_imports_lock.
 */
#ifndef CL_MIRROR_BOOKS_H
#define CL_MIRROR_BOOKS_H

#include "shim/base/list.h"
#include "shim/base/table.h"
#include "shim/importer/mirror.h"

/* An allocation that is mapped in a mirror. */
struct cl_mirrored {
	uint64_t offset, size, from, id;
	uint64_t imports; /* how many imports use it; at 0 it is unmapped */
};

/* A range of a mirror without holes. */
struct cl_mirror_run {
	uint64_t begin, end;
};

/* An address that opens have returned, and what they took. */
struct cl_mirror_import {
	uint64_t offset; /* in the mirror */
	uint64_t opens;
	struct cl_mirror_run *run; /* in order; no two touch */
	uint64_t runs;
	uint64_t reach; /* the greatest end of this import and all before it */
};

struct cl_mirror_reservation;
struct cl_mirror {
	struct cl_mirror_reservation *of;
	struct cl_node node; /* in its list */
	CUdeviceptr base;
	uint64_t size;
	/* written with the turn and under the lock: one of the two is enough to read them */
	struct cl_mirror_import *import; /* in order of their offsets */
	uint64_t imports, import_room;
	/* only for the thread that has the turn */
	struct cl_mirrored *piece; /* in order of their offsets */
	uint64_t pieces, piece_room;
	bool refused;	  /* the driver has refused to unmap something */
	/* those of .devices to which the driver has refused some piece; an open by such a device asks it again */
	uint64_t lacks;
	uint64_t devices; /* a bit for each device that has access; written under the lock, too */
};

/* A reservation of an exporter, while it has mirrors or a thread wants the turn with it. */
struct cl_mirror_reservation {
	struct cl_link link;
	struct cl_mirror_name name;
	struct cl_list mirrors; /* the oldest first */
	uint64_t wanted;	/* how many threads want the turn or have it */
	bool taken;
};

/* The turn with a reservation, or none: then .of is NULL. */
struct cl_mirror_turn {
	struct cl_mirror_reservation *of;
	uint64_t forks; /* a child that was forked meanwhile has forgotten the turn */
};

extern uint64_t cl_mirror_pieces_n; /* of all mirrors, and those being mapped; under cl_imports_lock */

/* Returns the reservation @name, a new one if there is none, or NULL if there is no memory. */
struct cl_mirror_reservation *cl_mirror_reservation_get_locked(const struct cl_mirror_name *name);
/* Waits until no other thread has the turn with @of, and takes it. */
void cl_mirror_turn_begin_locked(struct cl_mirror_turn *turn, struct cl_mirror_reservation *of);
/* Ends @turn, if it is one.  The reservation is freed if it has no mirrors and nobody wants its turn. */
void cl_mirror_turn_end_locked(struct cl_mirror_turn *turn);

/* Makes room for @n mirrors that are listed at once; 0 frees it.  Returns false if there is no memory. */
bool cl_mirrors_room_locked(uint64_t n);
/* Counts @n mirrors less. */
void cl_mirrors_gone_locked(uint64_t n);
/* A mirror is found by its addresses from list() until unlist(). */
void cl_mirror_list_locked(struct cl_mirror *mirror);
void cl_mirror_unlist_locked(const struct cl_mirror *mirror);
/* Returns the only mirror in which @address can lie, or NULL. */
struct cl_mirror *cl_mirror_at_locked(CUdeviceptr address);
/* Returns the first mirror at @from or above to which @of has access and @device has not, or NULL. */
struct cl_mirror *cl_mirror_next_without_locked(CUdeviceptr from, CUdevice of, CUdevice device);

/* These need the lock or the turn.  imports_below() returns how many begin at @offset or below. */
uint64_t cl_mirror_imports_below(const struct cl_mirror *mirror, uint64_t offset);
struct cl_mirror_import *cl_mirror_import_at(const struct cl_mirror *mirror, uint64_t offset);
/* Called when the imports of @mirror from the one at index @from on are others, or have other runs. */
void cl_mirror_imports_changed_locked(struct cl_mirror *mirror, uint64_t from);
extern uint64_t cl_mirror_steps; /* imports that cl_mirror_find() has looked at; for tests; under cl_imports_lock */
/* Returns the index of the first piece of @mirror that ends above @offset.  Needs the turn. */
uint64_t cl_mirror_piece_from(const struct cl_mirror *mirror, uint64_t offset);

#endif
