/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mapped exporter file: making it (create.c), opening somebody else's, growing it.
 *
 * No globals: a region is a parameter, so that tests can give each thread its
 * own and let threads play processes.  Every function returns 0 or -errno.
 * The reader (cl_region_open) trusts nothing in the file before it checked it.
 */
#ifndef CL_REGION_H
#define CL_REGION_H

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>
#include "shim/shm/layout.h"

struct cl_region;

/*
 * How slots' byte locks are taken: POSIX record locks in life; tests that play
 * several processes in one replace them.  Each returns 0 or -errno;
 * try_lock: -EAGAIN when another has it.  is_locked: 1 when another has it.
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
 * Whether process @pid, as our PID namespace counts, has a lock on that byte (and
 * the next, at most).  One system call: that the descriptor is still ours is not
 * asked, for where it is a file of the program's that is hardly ever true.
 */
bool cl_region_is_locked_by(const struct cl_region *region, off_t byte, uint32_t pid);

struct cl_region {
	int fd; /* kept high; locks hang on it, so it is the process's only one of that file */
	dev_t dev;
	ino_t ino;
	uint32_t file_id;
	uint16_t tag, salt; /* of its stamps, as they were when it was opened */
	const struct cl_lock_ops *locks;
	struct cl_header *header; /* the mapping; the others point into it */
	_Atomic uint64_t *word_pages;
	struct cl_ready_top *ready_top;
	struct cl_slot *slot;
	_Atomic uint64_t *lock_free; /* of each slot */
	_Atomic uint64_t *ready;
	struct cl_record *record;
	_Atomic uint64_t *holders;
};

/*
 * What the kernel has said to this process, for all files that it opens: zeros at first.  Any
 * thread, and a forked child goes on with it.  NULL in its place: the kernel is asked again.
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
 * Where a directory is, so that every process that sees it says the same, by whatever
 * path: by its file system and inode.  One that is removed and made again by that name is
 * to be the same as well: cl_place_named(), by the directory above it.  Never 0.
 */
uint64_t cl_place_of(const struct stat *directory);
uint64_t cl_place_named(const struct stat *above, const char *name);

/*
 * Makes and maps the exporter file of this process in directory @dirfd, with
 * one record chunk, its first holder word, and byte 0 locked before anybody
 * can see it.  @identity is this process's, @place the directory's for its stamps.
 */
int cl_region_create_in(struct cl_region *region, int dirfd, uint64_t place,
			const struct cl_identity *identity);
/* The same in cl_place_of() the directory. */
int cl_region_create(struct cl_region *region, int dirfd, const struct cl_identity *identity);
/*
 * The same in the directory at @path, with one descriptor in all: the file's own.  (Where the
 * other opens it without a name at first, this one names it "new-ID" at once.)
 */
int cl_region_create_by_path(struct cl_region *region, const char *path, uint64_t place,
			     const struct cl_identity *identity);

/* The stamp of generation @generation of @record. */
static inline uint64_t cl_region_stamp(const struct cl_region *r, uint32_t record, uint32_t generation)
{
	return cl_stamp_pack((struct cl_stamp){ r->file_id, record,
						(generation ^ r->salt) & (CL_GENERATIONS - 1), r->tag });
}
/*
 * Whether @stamp, whose file id is that of @region, is of this file and not of another
 * of that number, elsewhere or before it.  Then its generation is as the file counts.
 */
static inline bool cl_region_has_stamped(const struct cl_region *r, struct cl_stamp *stamp)
{
	if (stamp->tag != r->tag)
		return false;
	stamp->generation ^= r->salt;
	return true;
}

/*
 * While it is made it is named "new-ID", whole and with its header (on a file
 * system without O_TMPFILE: empty at first); nobody imports from that.
 */
int cl_region_open_unfinished(struct cl_region *region, int dirfd, uint32_t file_id);

/*
 * Opens and maps file @file_id of @dirfd.  -ENOENT: there is none.
 * -EBADMSG: not a file of ours or damaged; -EPROTO: of another layout version;
 * -EPERM: not this user's alone; -ESTALE: of an earlier boot.
 * @why, if not NULL, is set to a constant text that says which check failed.
 */
int cl_region_open_knowing(struct cl_region *region, int dirfd, uint32_t file_id,
			   struct cl_known *known, const char **why);
/* The same, of which the process knows nothing. */
int cl_region_open(struct cl_region *region, int dirfd, uint32_t file_id, const char **why);

/* The same by a path, for who has no descriptor to spare for the directory. */
int cl_region_open_path(struct cl_region *region, const char *path, uint32_t file_id,
			struct cl_known *known, const char **why);
/* Closes the descriptor and keeps the mapping: no locks, no growing. */
void cl_region_close_descriptor(struct cl_region *region);

/* Unmaps and closes.  Locks of this process on that file are gone with it. */
void cl_region_close(struct cl_region *region);

/* Whether the descriptor is still the one we opened (programs close what they don't know). */
bool cl_region_fd_intact(const struct cl_region *region);
/* Gets a descriptor again after the program closed ours, through the name. */
int cl_region_fd_restore(struct cl_region *region, int dirfd);

/*
 * The next four give -EBADF while the descriptor is not ours (see above), and
 * touch nothing.
 */
/* The exporter: one more chunk of records.  -ENOSPC; -ENFILE: the file can't hold more. */
int cl_region_grow(struct cl_region *region);

/* Holder word @word of @record, which is not there (see cl_region_need_word()).  -ENOSPC. */
int cl_region_get_word(struct cl_region *region, unsigned int word, uint32_t record);

/* The exporter: gets @length bytes (whole pages) at @at, in the part for notes.  -ENOSPC. */
int cl_region_get(struct cl_region *region, uint64_t at, uint64_t length);

/* The exporter: chunks of records that there are, never more than there can be: others can write there. */
static inline uint32_t cl_region_chunks(const struct cl_region *region)
{
	/* relaxed: only the exporter changes it */
	uint32_t chunks = atomic_load_explicit(&region->header->record_chunks, memory_order_relaxed);

	return chunks < CL_CHUNKS ? chunks : CL_CHUNKS;
}

static inline bool cl_region_has_word(const struct cl_region *r, unsigned int word, uint32_t record)
{
	uint32_t chunk = record / CL_CHUNK;

	/* acquire: pairs with the release that follows the page's allocation */
	return atomic_load_explicit(&r->word_pages[word * (CL_CHUNKS / 64) + chunk / 64],
				    memory_order_acquire) >> (chunk % 64) & 1;
}

/* Makes sure that holder word @word of @record is there.  As cl_region_get_word(). */
static inline int cl_region_need_word(struct cl_region *region, unsigned int word, uint32_t record)
{
	return cl_region_has_word(region, word, record) ? 0 : cl_region_get_word(region, word, record);
}

/*
 * Takes the file away from @dirfd, if it is still this very file under its
 * name (or the one it had while it was made).  Only the exporter, or who holds
 * its byte lock (see gc.h), may.
 */
int cl_region_unlink(const struct cl_region *region, int dirfd);

/*
 * The same by the exporter itself, at its end: it lives on for a moment, with the
 * file mapped, and must not be taken by that for one whose file somebody removed:
 * its stale handles could not be told from good ones any more.  So the file has
 * another name first, which /proc/PID/maps shows.
 */
int cl_region_end(const struct cl_region *region, int dirfd);

/*
 * For create.c.  map(): the file behind the descriptor, 0 or -errno; unmap(): if it is mapped.
 */
int cl_region_map(struct cl_region *region);
void cl_region_unmap(struct cl_region *region);

/* This boot's id; zeros where it can't be read.  Three system calls. */
void cl_boot_id(uint8_t id[16]);

/* "exporter-xxxxxx", 16 bytes with its NUL. */
void cl_region_name(char name[16], uint32_t file_id);
/* The file id in such a name, or 0. */
uint32_t cl_region_name_id(const char *name);
/* The same for the name of one that is being made. */
void cl_region_unfinished_name(char name[16], uint32_t file_id);
uint32_t cl_region_unfinished_id(const char *name);

#endif
