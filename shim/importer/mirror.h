/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mirrors: the importer's half of virtual handles.
 *
 * A program shares virtual memory by a handle that names a reservation of its exporter
 * (cuMemAddressReserve) and where the pointer lies in it.  The importer reserves a range of the same
 * size, the mirror, and maps each allocation at its offset, once.  A hole stays a hole; what the
 * exporter maps there later goes into the same mirror.  So a program that counts from the beginning of
 * the reservation and one that counts from the beginning of an allocation both find their bytes.
 *
 * What must hold:
 *  - An open takes the allocation in which its offset lies, and all that are mapped side by side
 *    after it; at offset 0, all of the reservation.
 *  - An address that opens have returned is one import, as a legacy one.  What any of them took stays
 *    mapped until it is closed as often as it was opened: nobody can tell which of them is closed.
 *  - An allocation is unmapped when no import has it any more.  The reservation goes with the last.
 *  - What is mapped at an offset is never replaced.  If the exporter has mapped another allocation
 *    there, a new open gets a second mirror of the reservation, and old opens keep the old bytes.
 *    The same handle gives the same address, as long as it leads to the same allocations.
 *  - A call that fails leaves nothing mapped, reserved or held, and what was there as it was.  (Access
 *    for one device more may stay; the next open gives it again.)  What the driver refuses to unmap or
 *    to free stays in the books, and the next open or close of that reservation tries again.
 *  - No lock of ours is held while the driver is called.  Whoever changes the mirrors of a reservation
 *    has its turn, from before it chooses a mirror until the result is in the books.  Two threads that
 *    open the same reservation wait for each other; all others don't.  cl_mirror_find() waits for no
 *    turn: it reads the imports alone, which change under cl_imports_lock.
 *  - An open or a close takes time in proportion to what is given and to what its mirror has.
 *
 * Any thread may call these functions, without a lock of ours.  Fork: cl_mirrors_forget().
 */
#ifndef CL_MIRROR_H
#define CL_MIRROR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "shim/driver/driver.h"

enum { CL_MIRROR_DEVICES = 64 };

/* Names a reservation of an exporter.  No other reservation on this host has that name or gets it later. */
struct cl_mirror_name {
	uint64_t exporter, reservation;
};

/* An allocation that the exporter has mapped in its reservation. */
struct cl_mirror_piece {
	uint64_t offset, size;
	uint64_t from; /* the offset in the allocation */
	uint64_t id;   /* of the allocation: no other allocation of this exporter has it or gets it later */
	int fd;	       /* which the caller closes; -1: none is needed if it is mapped here already */
	/* its import, which the caller releases, in place of a descriptor; 0: none */
	CUmemGenericAllocationHandle memory;
	/*
	 * Set by cl_mirror_open(), also if that fails: it has mapped this allocation, so that
	 * cl_mirror_on_unmapped() will be called, or was called, once for it.
	 */
	bool mapped;
};

struct cl_mirror_want {
	struct cl_mirror_name name;
	uint64_t size;	  /* of the reservation */
	uint64_t offset;  /* of the pointer in it */
	CUdevice device;  /* that opens it, and must get access */
	uint64_t devices; /* a bit for each other device that gets access, if it can reach the memory */
	struct cl_mirror_piece *piece; /* in order of their offsets; more than the open takes do no harm */
	uint64_t pieces;
};

/*
 * Opens what @want names.  Errors: CUDA_ERROR_NOT_MAPPED if nothing is mapped at the offset, or the
 * pieces overlap or leave the reservation; CUDA_ERROR_NOT_FOUND if a piece without a descriptor is not
 * mapped here: call again with it; CUDA_ERROR_OUT_OF_MEMORY, also if there are too many
 * pieces; CUDA_ERROR_NOT_SUPPORTED by a driver without virtual memory; else the driver's.
 */
CUresult cl_mirror_open(const struct cl_mirror_want *want, CUdeviceptr *address);
/*
 * Closes @address.  Returns false, having done nothing, if no open has returned it, or each was closed.
 * Else *result is the driver's first error, or CUDA_SUCCESS.  The import has ended in any case.
 */
bool cl_mirror_close(CUdeviceptr address, CUresult *result);

/* True if there may be mirrors: only then the functions below have something to do. */
extern _Atomic uint64_t cl_mirrors_n;
static inline bool cl_mirrors_any(void)
{
	return __builtin_expect(atomic_load_explicit(&cl_mirrors_n, memory_order_relaxed) != 0, 0);
}
/*
 * Answers for @address what cuMemGetAddressRange() answers for a legacy import: *base is what an open has
 * returned, *size reaches to the end of what it took, with the holes between.  Of several imports
 * that reach there it is the one that begins last.  If @mapped is not NULL, *mapped is @address or, if that is in a
 * hole of the import, where the hole ends.  Returns false if there is none.
 */
bool cl_mirror_find(CUdeviceptr address, CUdeviceptr *base, uint64_t *size, CUdeviceptr *mapped);
/*
 * Gives @device access to all mirrors to which device @of has it: a context of @device has got peer access
 * to one of @of.  Returns the first error; the other mirrors get access all the same.
 *
 * An open under way on another thread is waited for.  One whose caller has read the list of peers
 * but not called yet is not seen: so that caller reads the list once more afterwards.
 */
CUresult cl_mirrors_add_device(CUdevice of, CUdevice device);

/*
 * Called, if set, for each allocation that is unmapped.  The thread holds no lock, but a turn: it must not
 * open or close any mirror.
 */
extern void (*cl_mirror_on_unmapped)(const struct cl_mirror_name *name, uint64_t id);
/* So many pieces all mirrors may have together.  A variable for tests. */
extern uint64_t cl_mirror_pieces_most;

void cl_mirrors_forget(void); /* in a forked child, which has none of its parent's mirrors */

#endif
