/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A region: a mapped exporter file, or a part of its layout in private memory.
 *
 * No globals: a region is a parameter, so that in tests threads can play processes, each
 * with its own region.  Every function that can fail returns 0 or -errno.  Any thread, one at a
 * time for each region.  cl_region_open() trusts nothing in the file before it has checked it.
 */
#ifndef CL_REGION_H
#define CL_REGION_H

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>
#include "shim/shm/layout.h"

struct cl_region;

/*
 * How the byte locks of slots are taken: by POSIX record locks.  Tests that play several
 * processes in one replace them.  Each returns 0 or -errno.  try_lock() returns -EAGAIN, and
 * is_locked() returns 1, if another process has the lock.
 */
struct cl_lock_ops {
	int (*try_lock)(struct cl_region *region, off_t byte);
	int (*unlock)(struct cl_region *region, off_t byte);
	int (*is_locked)(struct cl_region *region, off_t byte);
};
extern const struct cl_lock_ops cl_posix_locks;

/* Which bytes of the file are locked: the exporter's life, and each slot's holder. */
#define CL_LOCK_EXPORTER 0
#define CL_LOCK_SLOT(slot) (1 + (off_t)(slot))

/*
 * Returns true if process @pid, as our PID namespace counts, has a lock on @byte, and on no more
 * than @byte and the next one.  One system call: whether the descriptor is still ours is not
 * checked, since a file of the program's hardly ever has such a lock.
 */
bool cl_region_is_locked_by(const struct cl_region *region, off_t byte, uint32_t pid);

struct cl_region {
	_Atomic int fd; /* the process's only one of this file: to close another would drop our locks */
	dev_t dev;
	ino_t ino;
	uint32_t file_id;
	uint16_t tag, salt; /* of its stamps, copied when it was opened */
	uint16_t more;	    /* of its stamps, which only the exporter makes */
	const struct cl_lock_ops *locks;
	struct cl_header *header; /* the mapping; the others point into it */
	_Atomic uint64_t *word_pages;
	struct cl_ready_top *ready_top;
	struct cl_slot *slot;
	_Atomic uint64_t *lock_free; /* a word a slot, see CL_LOCK_FREE_UNIT_BITS */
	_Atomic uint64_t *ready;
	struct cl_record *record;
	_Atomic uint64_t *holders;
	char *report_data; /* in memory alone: see cl_region_in_memory() */
	/*
	 * Asked before the holds of a dead process are taken back: returns 1 while contexts of the
	 * process outlive it, 0 if none does, -errno if that cannot be told now.  NULL: none does.
	 */
	int (*is_outlived)(const struct cl_identity *who);
};

/*
 * What the kernel has told this process that does not change, for all files that it opens.  It
 * starts as zeros.  Any thread; a forked child keeps it.  Where a parameter of this type is NULL
 * the kernel is asked each time.
 */
struct cl_known {
	_Atomic unsigned int room; /* see cl_fd_move_high() */
	_Atomic bool has_boot_id;
	_Atomic uint64_t boot_id[2];
};

static inline _Atomic uint64_t *cl_region_word(const struct cl_region *r, unsigned int word,
					       uint32_t record)
{
	return &r->holders[(uint64_t)word * CL_RECORDS + record];
}

/*
 * cl_place_of() identifies a directory by its file system and inode, so that every process that
 * sees it computes the same number, by whatever path.  cl_place_named() identifies it by the
 * directory above and its name, so that the number stays when it is removed and made again.
 * Other machines have the same numbers for directories of theirs, and for one that they mount from a
 * server; so does the next boot.  So @boot_id, from cl_known_boot_id(), is part of both: it is the same
 * in all containers of a machine, but for those that have one of their own (systemd-nspawn).
 * Neither is ever 0.
 */
uint64_t cl_place_of(const struct stat *directory, const uint8_t boot_id[16]);
uint64_t cl_place_named(const struct stat *above, const uint8_t boot_id[16], const char *name);

/*
 * Makes and maps the exporter file of this process in directory @dirfd.  It has one record chunk
 * with its first holder word, and byte 0 is locked before any process can see it.  @identity is
 * this process's; @place, of the directory, goes into its stamps.
 */
int cl_region_create_in(struct cl_region *region, int dirfd, uint64_t place,
			const struct cl_identity *identity);
/* As cl_region_create_in(), with cl_place_of() the directory. */
int cl_region_create(struct cl_region *region, int dirfd, const struct cl_identity *identity);
/*
 * As cl_region_create_in(), in the directory at @path, and with no descriptor but the file's.  So
 * the file is named "new-ID" from the start, where cl_region_create_in() makes it without a name.
 */
int cl_region_create_by_path(struct cl_region *region, const char *path, uint64_t place,
			     const struct cl_identity *identity);

/*
 * Makes a region without a file, in this process's own memory, which nobody else can find.  Its file
 * id is 0, which no file has, and it has no descriptor.  It has a header, at @header, and modules,
 * stacks and findings: cl_region_get() maps them when they are first needed, and returns -ENOMEM
 * where that fails.  It has no records, slots or imports.
 */
void cl_region_in_memory(struct cl_region *region, struct cl_header *header,
			 const struct cl_identity *identity);
/*
 * Copies what @memory, such a region, has of modules, stacks, findings and devices into @file, which
 * was just made, and unmaps it.  A part that finds no room there is left out.  Readers of @file see
 * whole entries only.
 */
void cl_region_move_from_memory(struct cl_region *file, struct cl_region *memory);
/* Returns the address of byte @at of the layout, in a part that has memory. */
void *cl_region_at(const struct cl_region *region, uint64_t at);

/*
 * Writes to @uuid, 16 bytes, the UUID of the device that the exporter of @region counts as @ordinal.  Returns false if
 * the header does not have it.  Any thread, of any process that has mapped the file.
 */
bool cl_region_device_uuid(const struct cl_region *region, unsigned int ordinal, uint8_t uuid[16]);

/* Returns the stamp of generation @generation of @record. */
static inline uint64_t cl_region_stamp(const struct cl_region *r, uint32_t record, uint32_t generation)
{
	return cl_stamp_pack((struct cl_stamp){ r->file_id, record,
						(generation ^ r->salt) & (CL_GENERATIONS - 1), r->tag, r->more });
}
/*
 * @stamp has the file id of @region.  Returns true if it is of this file, and makes its
 * generation the file's own number.  Returns false if it is of another file with that id: one in
 * another directory, or an earlier one.
 */
static inline bool cl_region_has_stamped(const struct cl_region *r, struct cl_stamp *stamp)
{
	if (stamp->tag != r->tag)
		return false;
	stamp->generation ^= r->salt;
	return true;
}

/*
 * Opens a file that is being made.  It is named "new-ID" then, and has its size and header (on a
 * file system without O_TMPFILE it is empty at first).  No process imports from it.
 */
int cl_region_open_unfinished(struct cl_region *region, int dirfd, uint32_t file_id);

/*
 * Opens and maps file @file_id of @dirfd.  Returns -ENOENT if there is none, -EBADMSG if it is not
 * a file of ours or is damaged, -EPROTO if it has another layout version, -EPERM if other users
 * may use it, -ESTALE if it is of an earlier boot.  *why, if @why is not NULL, becomes a constant
 * text that says which check failed.
 */
int cl_region_open_knowing(struct cl_region *region, int dirfd, uint32_t file_id,
			   struct cl_known *known, const char **why);
/* As cl_region_open_knowing(), with @known NULL. */
int cl_region_open(struct cl_region *region, int dirfd, uint32_t file_id, const char **why);

/* As cl_region_open_knowing(), by the file's path: the directory needs no descriptor. */
int cl_region_open_path(struct cl_region *region, const char *path, uint32_t file_id,
			struct cl_known *known, const char **why);
/* Closes the descriptor and keeps the mapping: no locks and no growing from then on. */
void cl_region_close_descriptor(struct cl_region *region);

/* Unmaps and closes the file.  All locks of this process on it are lost. */
void cl_region_close(struct cl_region *region);

/* As fstat() of the file.  Returns false if the descriptor is no longer of it. */
bool cl_region_stat(const struct cl_region *region, struct stat *st);
/* Returns true if the descriptor is still of our file.  Some programs close all they do not know. */
bool cl_region_fd_intact(const struct cl_region *region);
/* Opens the file again by its name, after the program closed our descriptor. */
int cl_region_fd_restore(struct cl_region *region, int dirfd);

/*
 * cl_region_grow(), cl_region_get_word(), cl_region_get() and cl_region_need_word() return -EBADF
 * and change nothing while the descriptor is not ours.
 */
/* The exporter adds one chunk of records.  -ENOSPC; -ENFILE if it has all that a file can have. */
int cl_region_grow(struct cl_region *region);

/* Gets memory for holder word @word of @record, which has none (see cl_region_need_word()).  -ENOSPC. */
int cl_region_get_word(struct cl_region *region, unsigned int word, uint32_t record);

/* The exporter gets memory for @length bytes (whole pages) at @at, in the part for reports.  -ENOSPC, -ENOMEM. */
int cl_region_get(struct cl_region *region, uint64_t at, uint64_t length);

static inline bool cl_region_has_word(const struct cl_region *r, unsigned int word, uint32_t record)
{
	uint32_t chunk = record / CL_CHUNK;

	/* acquire: pairs with the release that follows the page's allocation */
	return atomic_load_explicit(&r->word_pages[word * (CL_CHUNKS / 64) + chunk / 64],
				    memory_order_acquire) >> (chunk % 64) & 1;
}

/* Makes sure that holder word @word of @record has memory.  Returns as cl_region_get_word(). */
static inline int cl_region_need_word(struct cl_region *region, unsigned int word, uint32_t record)
{
	return cl_region_has_word(region, word, record) ? 0 : cl_region_get_word(region, word, record);
}

/*
 * Removes the file from @dirfd if its name, or the one that it had while it was made, is still
 * that of this very file.  Only the exporter may, or a process that has its byte lock (see gc.h).
 * The socket beside it goes first: as long as the file has its name, no later exporter has its id.
 * Returns -ENOENT or -ESTALE if the name is gone or is another file's.
 */
int cl_region_unlink(const struct cl_region *region, int dirfd);

/*
 * Returns true if the file has no name any more: its exporter has ended, or somebody has removed it.  Returns false
 * if @region has no descriptor, or the program has closed it.
 */
bool cl_region_has_no_name(const struct cl_region *region);

/*
 * Removes the exporter's own file at its end.  The process lives on for a moment with the file
 * mapped.  Others must not think meanwhile that it lives and somebody has removed its file: then
 * its stale handles would look good.  So the file is renamed first, which /proc/PID/maps shows.
 */
int cl_region_end(const struct cl_region *region, int dirfd);

/* For create.c: map() maps the file behind the descriptor; unmap() unmaps it if it is mapped. */
int cl_region_map(struct cl_region *region);
void cl_region_unmap(struct cl_region *region);
/* For memory.c, of a region in memory. */
void cl_region_unmap_report_data(struct cl_region *region);

/* Fills in this boot's id, zeros if it can't be read.  Three system calls. */
void cl_boot_id(uint8_t id[16]);
/* As cl_boot_id(), but does not ask again for what @known has: the boot id does not change under us. */
void cl_known_boot_id(struct cl_known *known, uint8_t id[16]);

/* Makes "exporter-xxxxxx": 16 bytes with its NUL. */
void cl_region_name(char name[16], uint32_t file_id);
/* Returns the file id in such a name, or 0. */
uint32_t cl_region_name_id(const char *name);
/* The same two for "new-xxxxxx", the name of a file that is being made. */
void cl_region_unfinished_name(char name[16], uint32_t file_id);
uint32_t cl_region_unfinished_id(const char *name);
/* The same two for "serve-xxxxxx", the socket beside the file: see shim/descriptors/server.h. */
void cl_region_socket_name(char name[16], uint32_t file_id);
uint32_t cl_region_socket_id(const char *name);

#endif
