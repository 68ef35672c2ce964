/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes an exporter file.  Before any process can find it, it is complete, locked, and mapped under
 * the name that it keeps.  See shm/region.h for the contract, shm/layout.h for the rules.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shim/base/descriptor.h"
#include "shim/shm/live.h"

/* --------------------------------------------------------------- the directory */
uint64_t cl_place_of(const struct stat *directory, const uint8_t boot_id[16])
{
	uint64_t boot[2];

	memcpy(boot, boot_id, sizeof boot);
	return cl_mix(cl_mix(cl_mix(cl_mix(boot[0]) + boot[1]) + directory->st_dev) + directory->st_ino) | 1;
}

uint64_t cl_place_named(const struct stat *above, const uint8_t boot_id[16], const char *name)
{
	uint64_t place = cl_mix(cl_place_of(above, boot_id));

	for (; *name; name++)
		place = cl_mix(place + (unsigned char)*name);
	return place | 1;
}

/* What is the same for all attempts to make one file. */
struct creation {
	int dirfd;
	const char *path; /* of the directory; NULL: use dirfd */
	const struct cl_identity *identity;
	uint8_t boot_id[16];
	_Atomic unsigned int room; /* see cl_fd_move_high() */
};

/* ------------------------------------------------------------------ the header */
static void read_command(char *to, size_t size)
{
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t n = 0;

	if (fd >= 0) {
		n = read(fd, to, size - 1);
		close(fd);
	}
	for (ssize_t i = 0; i + 1 < n; i++)
		/* NULs between arguments, and control bytes; letters in UTF-8 stay as they are */
		if ((unsigned char)to[i] < ' ')
			to[i] = ' ';
	to[n > 0 ? n : 0] = 0;
}

static void fill_header(struct cl_region *region, const struct cl_identity *identity,
			const uint8_t boot_id[16])
{
	struct cl_header *h = region->header;
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	h->layout = CL_LAYOUT_VERSION;
	h->header_size = CL_HEADER_SIZE;
	h->record_size = sizeof(struct cl_record);
	h->slot_size = sizeof(struct cl_slot);
	h->slots = CL_SLOTS;
	h->records = CL_RECORDS;
	h->chunk = CL_CHUNK;
	h->file_id = region->file_id;
	h->inode = region->ino;
	h->file_size = CL_FILE_SIZE;
	memcpy(h->boot_id, boot_id, sizeof h->boot_id);
	h->exporter = *identity;
	h->uid = geteuid();
	h->tag = region->tag;
	h->salt = region->salt;
	h->stamp_check = cl_stamp_check(region->file_id, region->tag, region->salt);
	h->created = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	read_command(h->command, sizeof h->command);
	atomic_store_explicit(&h->live[CL_LIVE_KNOWN], CL_LIVE_COUNTS, memory_order_relaxed);
	memcpy(h->magic, CL_MAGIC, sizeof CL_MAGIC);
}

/*
 * Opens a file without a name, and sets *named to false.  Where the file system has no
 * O_TMPFILE, or no descriptor is to be had for opening it by name later, the file gets @new_name at
 * once.
 */
static int open_nameless(int dirfd, const char *new_name, bool *named)
{
	int fd;

	*named = false;
	/* without /proc it could not get a name later (before Linux 6.10) */
	if (dirfd != AT_FDCWD && access("/proc/self/fd", X_OK) == 0) {
		fd = openat(dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
		if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
			return fd < 0 ? -errno : fd;
	}
	fd = openat(dirfd, new_name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
	*named = fd >= 0;
	return fd < 0 ? -errno : fd;
}

/*
 * Names the file @new_name, and opens and maps it again by that name.  /proc/PID/maps then shows
 * this name, and follows a rename.  Other processes see by it that the exporter lives though its
 * lock is gone.
 */
static int name_and_map_again(struct cl_region *region, int dirfd, const char *new_name,
			      struct creation *creation)
{
	char self[32];
	int fd;

	snprintf(self, sizeof self, "/proc/self/fd/%d", region->fd);
	if (linkat(AT_FDCWD, self, dirfd, new_name, AT_SYMLINK_FOLLOW) &&
	    /* the way without /proc; needs CAP_DAC_READ_SEARCH before Linux 6.10 */
	    (errno == EEXIST || linkat(region->fd, "", dirfd, new_name, AT_EMPTY_PATH)))
		return -errno;
	fd = openat(dirfd, new_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) {
		int err = -errno;

		unlinkat(dirfd, new_name, 0);
		return err;
	}
	/* this close() drops no lock: there is none yet */
	cl_region_unmap(region);
	close(region->fd);
	region->fd = cl_fd_move_high(fd, &creation->room);
	return cl_region_map(region);
}

/* Renames the file.  -EEXIST: the name is taken; -EAGAIN: the file or its directory has gone. */
static int give_final_name(int dirfd, const char *new_name, const char *name)
{
	if (renameat2(dirfd, new_name, dirfd, name, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno == EEXIST)
		return -EEXIST;
	if (errno == ENOENT) /* the directory was removed, or a gc took the file for a dead process's */
		return -EAGAIN;
	/* the file system, or a seccomp filter, does not allow this flag */
	if (linkat(dirfd, new_name, dirfd, name, 0))
		return -errno;
	unlinkat(dirfd, new_name, 0);
	return 0;
}

/* Returns -EEXIST or -EAGAIN if the caller should try another file id. */
static int create_with_names(struct cl_region *region, int dirfd, const struct cl_region *as,
			     const char *new_name, const char *name, struct creation *creation)
{
	struct stat st;
	bool named;
	int err = 0;

	*region = *as;
	region->fd = open_nameless(dirfd, new_name, &named);
	if (region->fd < 0)
		return region->fd;
	region->fd = cl_fd_move_high(region->fd, &creation->room);
	if (ftruncate(region->fd, CL_FILE_SIZE) || fchmod(region->fd, 0600) || fstat(region->fd, &st))
		err = -errno;
	if (err)
		goto fail;
	region->dev = st.st_dev;
	region->ino = st.st_ino;
	err = cl_region_get(region, 0, CL_AT_FIXED_END);
	if (!err)
		err = cl_region_map(region);
	if (!err)
		err = cl_region_grow(region);
	if (!err)
		err = cl_region_need_word(region, 0, 0);
	if (err)
		goto fail;
	fill_header(region, creation->identity, creation->boot_id);
	if (!named) {
		err = name_and_map_again(region, dirfd, new_name, creation);
		named = err != -EEXIST;
	}
	/* locked before it has its name: any process that finds it sees that its exporter lives */
	if (!err)
		err = region->locks->try_lock(region, CL_LOCK_EXPORTER);
	if (!err)
		err = give_final_name(dirfd, new_name, name);
	if (!err)
		return 0;
fail:
	if (named)
		unlinkat(dirfd, new_name, 0);
	cl_region_unmap(region);
	close(region->fd);
	region->fd = -1;
	return err;
}

/* Makes one attempt with the file id, tag and salt of @as. */
static int create_with_id(struct cl_region *region, const struct cl_region *as, struct creation *creation)
{
	const char *path = creation->path;
	size_t size = path ? strlen(path) + 17 : 0;
	char new_name[16], name[16], *paths;
	int err;

	cl_region_unfinished_name(new_name, as->file_id);
	cl_region_name(name, as->file_id);
	if (!path)
		return create_with_names(region, creation->dirfd, as, new_name, name, creation);
	/* not on the stack, where a signal handler may have no room for two paths */
	paths = malloc(2 * size);
	if (!paths)
		return -ENOMEM;
	snprintf(paths, size, "%s/%s", path, new_name);
	snprintf(paths + size, size, "%s/%s", path, name);
	err = create_with_names(region, AT_FDCWD, as, paths, paths + size, creation);
	free(paths);
	return err;
}

static int create(struct cl_region *region, struct creation *creation, uint64_t place)
{
	struct rlimit limit;
	int err = -EEXIST;

	*region = (struct cl_region){ .fd = -1, .locks = &cl_posix_locks };
	/* past this limit ftruncate() would not only fail but raise SIGXFSZ */
	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < CL_FILE_SIZE)
		return -EFBIG;
	/* before the file is opened: there may be only one descriptor in all */
	cl_boot_id(creation->boot_id);
	for (uint32_t tries = 0; tries < 64 && (err == -EEXIST || err == -EAGAIN); tries++) {
		uint32_t random, id;

		if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
			random = (uint32_t)time(NULL) * 2654435761u ^ (uint32_t)getpid() * 40503u ^ tries;
		id = cl_stamp_file_id(place, random);
		if (id)
			err = create_with_id(region,
					     &(struct cl_region){
						     .fd = -1,
						     .locks = &cl_posix_locks,
						     .file_id = id,
						     .tag = (uint16_t)cl_stamp_tag(place, id),
						     .more = (uint16_t)cl_stamp_more(place, id),
						     .salt = (uint16_t)(random >> (32 - CL_STAMP_GENERATION_BITS)) },
					     creation);
	}
	return err;
}

int cl_region_create(struct cl_region *region, int dirfd, const struct cl_identity *identity)
{
	uint8_t boot_id[16];
	struct stat st;

	*region = (struct cl_region){ .fd = -1, .locks = &cl_posix_locks };
	cl_boot_id(boot_id);
	return fstat(dirfd, &st) ? -errno :
				   cl_region_create_in(region, dirfd, cl_place_of(&st, boot_id), identity);
}

int cl_region_create_in(struct cl_region *region, int dirfd, uint64_t place,
			const struct cl_identity *identity)
{
	struct creation creation = { .dirfd = dirfd, .identity = identity };

	return create(region, &creation, place);
}

int cl_region_create_by_path(struct cl_region *region, const char *path, uint64_t place,
			     const struct cl_identity *identity)
{
	struct creation creation = { .dirfd = AT_FDCWD, .path = path, .identity = identity };

	return create(region, &creation, place);
}

void cl_region_in_memory(struct cl_region *region, struct cl_header *header,
			 const struct cl_identity *identity)
{
	static const uint8_t no_boot_id[16];

	*region = (struct cl_region){ .fd = -1, .locks = &cl_posix_locks, .header = header };
	fill_header(region, identity, no_boot_id);
}
