/* SPDX-License-Identifier: Apache-2.0 */
/* Taking away the files that dead exporters left: see gc.h.  No malloc: this also runs at exit. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shim/gc.h"
#include "shim/liveness.h"
#include "shim/options.h"

/* Made by what this very process was before it called exec: its pid and start time are ours. */
static bool is_of_former_image(const struct cl_region *region)
{
	const struct cl_witness *made = &region->header->exporter;
	struct cl_witness self;

	cl_witness_self(&self);
	return self.start_time && self.pid == made->pid && self.pid_ns == made->pid_ns &&
	       self.start_time == made->start_time;
}

enum cl_liveness cl_gc_judge(struct cl_region *region)
{
	_Atomic uint64_t *kept = &region->header->exporter_lock_free;
	uint64_t before = atomic_load_explicit(kept, memory_order_relaxed), since = before;
	uint64_t now = cl_now();
	enum cl_liveness is;

	if (is_of_former_image(region))
		return CL_DEAD;
	if (since > now) /* written by nobody who can be believed */
		since = 0;
	is = cl_liveness_judge(region, CL_LOCK_EXPORTER, &region->header->exporter, &since, now,
			       cl_options.settle.number);
	/* relaxed: only a time; two who look at once agree well enough */
	if (since != before)
		atomic_compare_exchange_strong_explicit(kept, &before, since, memory_order_relaxed,
							memory_order_relaxed);
	return is;
}

int cl_gc_file(struct cl_region *region, int dirfd)
{
	int err;

	if (cl_gc_judge(region) != CL_DEAD)
		return -EBUSY;
	/* two that take the same file away: one of them, so that neither takes its successor's */
	err = region->locks->try_lock(region, CL_LOCK_EXPORTER);
	if (err)
		return err == -EAGAIN ? -EBUSY : err;
	err = cl_region_unlink(region, dirfd);
	region->locks->unlock(region, CL_LOCK_EXPORTER);
	return err;
}

bool cl_gc_is_kept(const struct cl_region *region)
{
	uint64_t since = atomic_load_explicit(&region->header->exporter_lock_free, memory_order_relaxed);
	uint64_t now = cl_now();

	/* since somebody first looked; a former image of ours has not crashed */
	return cl_options.keep_dead.number && since && since <= now &&
	       now - since < cl_options.keep_dead.number && !is_of_former_image(region);
}

/*
 * Most are of the living: seen by one lock, without mapping it.  (Not for who may
 * have it open: that descriptor's end is its locks' end.)
 */
static bool is_of_the_living(int dirfd, const char *name)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = CL_LOCK_EXPORTER,
			      .l_len = 1 };
	int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	bool locked;

	if (fd < 0)
		return false;
	locked = fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
	close(fd);
	return locked;
}

/* Left by who died before it had a header in it; who makes one needs milliseconds. */
static bool is_old_and_empty(int dirfd, const char *name)
{
	struct timespec now;
	struct stat st;

	return !fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode) &&
	       st.st_uid == geteuid() && !clock_gettime(CLOCK_REALTIME, &now) &&
	       now.tv_sec - st.st_ctim.tv_sec > 60;
}

static bool take_away(int dirfd, const char *name, bool (*is_open)(uint32_t file_id))
{
	uint32_t id = cl_region_name_id(name), unfinished = id ? 0 : cl_region_unfinished_id(name);
	struct cl_region region;
	bool gone;
	int err;

	if (id && is_open && is_open(id))
		return false;
	if (id && is_of_the_living(dirfd, name))
		return false;
	if (id)
		err = cl_region_open(&region, dirfd, id, NULL);
	else if (unfinished)
		err = cl_region_open_unfinished(&region, dirfd, unfinished);
	else
		return false;
	/* -ESTALE: of an earlier boot, nobody has it */
	if (err == -ESTALE || (err == -EBADMSG && unfinished && is_old_and_empty(dirfd, name)))
		return unlinkat(dirfd, name, 0) == 0;
	if (err)
		return false;
	gone = cl_gc_judge(&region) == CL_DEAD && !(is_open && cl_gc_is_kept(&region)) &&
	       cl_gc_file(&region, dirfd) == 0;
	cl_region_close(&region);
	return gone;
}

unsigned int cl_gc_directory(int dirfd, bool (*is_open)(uint32_t file_id))
{
	_Alignas(8) char buffer[2048];
	int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	unsigned int gone = 0;
	long n;

	if (fd < 0)
		return 0;
	/* (opendir() would want malloc) ino 8, off 8, reclen 2, type 1, name */
	while ((n = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0)
		for (long at = 0; at < n;) {
			uint16_t length;

			memcpy(&length, buffer + at + 16, sizeof length);
			gone += take_away(dirfd, buffer + at + 19, is_open);
			at += length;
		}
	close(fd);
	return gone;
}
