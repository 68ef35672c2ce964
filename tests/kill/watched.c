/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kill test: what is compared at each boundary, and the copy of the file for the judge, with locks
 * of its own that say which process lives.
 */
#include "tests/kill/kill.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ------------------------------------------------------------ the judge's locks */
/* The owner of each byte's lock in the copy.  The judge acts for these processes and for itself. */
bool lives[1 + CL_SLOTS];

static int copy_try_lock(struct cl_region *region, off_t byte)
{
	return lives[byte] ? -EAGAIN : 0;
}
static int copy_unlock(struct cl_region *region, off_t byte)
{
	return 0;
}
static int copy_is_locked(struct cl_region *region, off_t byte)
{
	return lives[byte];
}
static const struct cl_lock_ops copy_locks = { copy_try_lock, copy_unlock, copy_is_locked };

/* --------------------------------------------------------------- what is watched */
/* Everything that operations write in such a world. */
static const struct range {
	uint64_t at;
	size_t length;
} watched[] = {
	{ CL_AT_HEADER, CL_PAGE },
	{ CL_AT_WORD_PAGES, CL_PAGE },
	{ CL_AT_READY_TOP, CL_PAGE },
	{ CL_AT_SLOTS, CL_PAGE },
	{ CL_AT_LOCK_FREE, CL_PAGE },
	{ CL_AT_READY, CL_PAGE },
	{ CL_AT_RECORDS, R_END * sizeof(struct cl_record) },
	{ CL_AT_HOLDERS, CL_PAGE },
	{ CL_AT_HOLDERS + CL_RECORDS * 8ull, CL_PAGE },
};
enum { WATCHED = sizeof watched / sizeof *watched };
static unsigned char seen[WATCHED][16384];
/* What is written for reports: compared where an operation writes it; only read, as reports do. */
static const uint64_t parts_at[] = { CL_AT_MODULES, CL_AT_STACKS, CL_AT_IMPORTS, CL_AT_FINDINGS };
enum { PARTS = sizeof parts_at / sizeof *parts_at, PARTS_PAGES = 2 };
static unsigned char seen_parts[PARTS][PARTS_PAGES * CL_PAGE];
static bool seen_name;

static uint64_t sum_of(const unsigned char *from, size_t length, uint64_t sum)
{
	uint64_t word;

	for (size_t i = 0; i + 8 <= length; i += 8) {
		memcpy(&word, from + i, 8);
		if (word)
			sum = (sum ^ word ^ i) * 0x9e3779b97f4a7c15u;
	}
	return sum;
}

/* A page that does not exist must not be created by reading it. */
static bool is_there(const struct cl_region *region, unsigned int i)
{
	return i < WATCHED - 1 || cl_region_has_word(region, 1, 0);
}

bool has_name(const struct world *w)
{
	char name[16], unfinished[16];

	cl_region_name(name, w->file_id);
	snprintf(unfinished, sizeof unfinished, "new-%06x", w->file_id);
	return faccessat(w->dir, name, F_OK, 0) == 0 || faccessat(w->dir, unfinished, F_OK, 0) == 0;
}

bool has_lost_its_file(const struct world *w)
{
	char socket[16];

	cl_region_socket_name(socket, w->file_id);
	return w->file_id && !has_name(w) && faccessat(w->dir, socket, F_OK, 0) == 0;
}

/* True when the file or its name has changed since the last call. */
bool has_changed(const struct world *w, const struct cl_region *region)
{
	const unsigned char *file = (const unsigned char *)region->header;
	bool changed = false, name = has_name(w);

	for (unsigned int i = 0; i < WATCHED; i++)
		if (is_there(region, i) && memcmp(seen[i], file + watched[i].at, watched[i].length)) {
			memcpy(seen[i], file + watched[i].at, watched[i].length);
			changed = true;
		}
	for (unsigned int i = 0; w->report_data && i < PARTS; i++) {
		unsigned char now[sizeof seen_parts[0]];

		MUST(pread(region->fd, now, sizeof now, (off_t)parts_at[i]) == sizeof now);
		if (memcmp(seen_parts[i], now, sizeof now)) {
			memcpy(seen_parts[i], now, sizeof now);
			changed = true;
		}
	}
	changed |= name != seen_name;
	seen_name = name;
	return changed;
}

/* The rest of the file, which has_changed() does not compare. */
uint64_t sum_of_the_rest(const struct world *w, const struct cl_region *region)
{
	const unsigned char *file = (const unsigned char *)region->header;
	off_t at = 0, end;
	uint64_t sum = 1;

	while ((at = lseek(region->fd, at, SEEK_DATA)) >= 0) {
		end = lseek(region->fd, at, SEEK_HOLE);
		for (; at < end; at += 8) {
			bool looked_at = false;

			for (unsigned int i = 0; i < WATCHED; i++)
				looked_at |= (uint64_t)at >= watched[i].at &&
					     (uint64_t)at < watched[i].at + watched[i].length;
			for (unsigned int i = 0; w->report_data && i < PARTS; i++)
				looked_at |= (uint64_t)at >= parts_at[i] &&
					     (uint64_t)at < parts_at[i] + sizeof seen_parts[0];
			if (!looked_at)
				sum = sum_of(file + at, 8, sum);
		}
	}
	return sum;
}

/* What the judge cannot see in a copy. */
const char *look_at_memory(const struct world *w, const struct cl_region *region)
{
	return w->role == EXPORTER && spare_bytes(region) < w->spare ?
		       "something is counted that the file has no memory for" :
		       NULL;
}

/* Copies the file into the other folder and runs the judge on it. */
const char *judge_copy(struct world *w, const struct cl_region *region)
{
	const unsigned char *file = (const unsigned char *)region->header;
	uint32_t chunks = atomic_load(&region->header->record_chunks);
	struct cl_region copy;
	const char *wrong, *why;
	struct stat st;
	char name[16];
	uint64_t inode;
	int fd;

	cl_region_name(name, w->file_id);
	unlinkat(w->copies_dir, name, 0);
	fd = openat(w->copies_dir, name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
	MUST(fd >= 0 && ftruncate(fd, CL_FILE_SIZE) == 0);
	MUST(fallocate(fd, 0, 0, CL_AT_READY + CL_PAGE) == 0);
	MUST(fallocate(fd, 0, CL_AT_RECORDS, (off_t)(chunks * CL_CHUNK * sizeof(struct cl_record))) == 0);
	for (unsigned int i = 0; i < WATCHED; i++)
		if (is_there(region, i))
			MUST(pwrite(fd, file + watched[i].at, watched[i].length,
				    (off_t)watched[i].at) == (ssize_t)watched[i].length);
	for (unsigned int i = 0; w->report_data && i < PARTS; i++)
		for (unsigned int at = 0; at < sizeof seen_parts[0]; at += CL_PAGE)
			if (sum_of(seen_parts[i] + at, CL_PAGE, 0)) /* a hole stays a hole */
				MUST(pwrite(fd, seen_parts[i] + at, CL_PAGE, (off_t)(parts_at[i] + at)) ==
				     CL_PAGE);
	/* which would distinguish the copy from the file */
	MUST(fstat(fd, &st) == 0);
	inode = region->header->inode ? st.st_ino : 0;
	MUST(pwrite(fd, &inode, sizeof inode, offsetof(struct cl_header, inode)) == sizeof inode);
	close(fd);
	if (cl_region_open(&copy, w->copies_dir, w->file_id, &why))
		return why;
	copy.locks = &copy_locks;
	wrong = look_at_memory(w, region);
	if (!wrong)
		wrong = judge(w, &copy, w->copies_dir);
	cl_region_close(&copy);
	return wrong;
}

/* Before a new world: nothing is compared with the last one. */
void forget_what_was_seen(void)
{
	memset(seen, 0, sizeof seen);
	memset(seen_parts, 0, sizeof seen_parts);
}
