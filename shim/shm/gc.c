/* SPDX-License-Identifier: Apache-2.0 */
/* Removes the files of dead exporters: see gc.h.  No malloc: this also runs at exit. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "shim/shm/gc.h"
#include "shim/shm/liveness.h"
#include "shim/base/options.h"

/*
 * How much a process looks at when it starts and ends, so that neither takes long, whatever
 * others left.  A file that stays costs some 3 us, a file that is judged some 100 us.  The next
 * process looks at the rest.
 */
enum {
	MOST_SEEN = 4096,
	MOST_JUDGED = 256,
	YOUNG = 2, /* s */
	OLD = 60, /* s */
	MOST_KEPT = 16, /* files of dead processes, for reports */
	LEFT = 4, /* they take at most 1/LEFT of what is free */
};

/* Returns true if this process made the file before it called exec: pid and start time are ours. */
static bool is_of_former_image(const struct cl_region *region)
{
	const struct cl_identity *made = &region->header->exporter;
	struct cl_identity self;

	cl_identity_self(&self);
	return self.start_time && self.pid == made->pid && self.pid_ns == made->pid_ns &&
	       self.start_time == made->start_time;
}

/* Relaxed: it is only a time, and it does not matter which of two writers wins. */
static void write_lock_free(_Atomic uint64_t *word, uint64_t before, uint64_t since)
{
	if (since != before)
		atomic_compare_exchange_strong_explicit(word, &before, since, memory_order_relaxed,
							memory_order_relaxed);
}

enum cl_liveness cl_gc_judge(struct cl_region *region)
{
	_Atomic uint64_t *word = &region->header->exporter_lock_free;
	uint64_t before = atomic_load_explicit(word, memory_order_relaxed), since = before;
	uint64_t now = cl_now();
	enum cl_liveness is;

	/* asked first, since most exporters live; a former image of this process has no lock any more */
	if (region->locks->is_locked(region, CL_LOCK_EXPORTER) == 1) {
		write_lock_free(word, before, 0);
		return CL_ALIVE;
	}
	if (is_of_former_image(region))
		return CL_DEAD;
	if (since > now) /* not written by culimbo */
		since = 0;
	is = cl_liveness_judge(region, CL_LOCK_EXPORTER, &region->header->exporter, &since, now,
			       cl_options.settle.number);
	write_lock_free(word, before, since);
	return is;
}

int cl_gc_file(struct cl_region *region, int dirfd)
{
	int err;

	if (cl_gc_judge(region) != CL_DEAD)
		return -EBUSY;
	/* only the process that gets the lock removes the file: another one might remove a later exporter's */
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

	/* counted from the first look at the dead; a process that called exec has not crashed */
	return cl_options.keep_dead.number && since && since <= now &&
	       now - since < cl_options.keep_dead.number && !is_of_former_image(region);
}

/* The files of dead exporters that stay for reports, as one look at the directory finds them. */
struct kept {
	unsigned int n, fit; /* fit: how many there were when they last kept within their bounds */
	uint64_t bytes;
	struct {
		uint32_t id;
		uint64_t since, bytes; /* first seen dead, CLOCK_MONOTONIC ns; memory that it takes */
	} file[MOST_KEPT + 1];
};

/* One look at a directory. */
struct sweep {
	int dirfd;
	bool (*is_open)(uint32_t file_id); /* NULL: a command looks, and no file is kept */
	struct cl_known known;
	struct kept kept;
	unsigned int judged; /* files that took many system calls */
};

static void keep(struct sweep *sweep, uint32_t id, uint64_t since, int fd)
{
	struct kept *kept = &sweep->kept;
	struct stat st = { 0 };

	if (fstat(fd, &st) || kept->n > MOST_KEPT)
		return;
	kept->file[kept->n].id = id;
	kept->file[kept->n].since = since;
	kept->file[kept->n++].bytes = (uint64_t)st.st_blocks * 512;
	kept->bytes += (uint64_t)st.st_blocks * 512;
}

/*
 * Returns true if the file stays: its exporter has its lock, or it is dead, somebody saw that
 * before, and CULIMBO_KEEP_DEAD has not passed.  Does not map the file, since most files stay.
 * The caller must not have it open: close() would drop its locks.
 */
static bool must_stay(struct sweep *sweep, const char *name, uint32_t id)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = CL_LOCK_EXPORTER,
			      .l_len = 1 };
	int fd = openat(sweep->dirfd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	uint32_t pid = 0;
	uint64_t since = 0, now;
	bool stays;

	if (fd < 0)
		return false;
	stays = fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
	if (!stays && sweep->is_open && cl_options.keep_dead.number &&
	    pread(fd, &since, sizeof since, offsetof(struct cl_header, exporter_lock_free)) ==
		    sizeof since &&
	    pread(fd, &pid, sizeof pid, offsetof(struct cl_header, exporter.pid)) == sizeof pid) {
		now = cl_now();
		stays = since && since <= now && now - since < cl_options.keep_dead.number &&
			pid != (uint32_t)getpid(); /* ours may be of a former image, which is not kept */
		if (stays)
			keep(sweep, id, since, fd);
	}
	close(fd);
	return stays;
}

/* Returns true if @name is of us, a file or socket as @type says, and older than @seconds. */
static bool is_old(int dirfd, const char *name, mode_t type, int seconds)
{
	struct timespec now;
	struct stat st;

	return !fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) && (st.st_mode & S_IFMT) == type &&
	       st.st_uid == geteuid() && !clock_gettime(CLOCK_REALTIME, &now) &&
	       now.tv_sec - st.st_ctim.tv_sec > seconds;
}

/*
 * Removes the socket of exporter @id if that has no file: a culimbo that knows no sockets has removed
 * the file.  An exporter has its file before its socket, and a socket that was just made stays.
 */
static bool remove_alone(const struct sweep *sweep, const char *socket, uint32_t id)
{
	char name[16], unfinished[16];
	struct stat st;

	cl_region_name(name, id);
	cl_region_unfinished_name(unfinished, id);
	return fstatat(sweep->dirfd, name, &st, AT_SYMLINK_NOFOLLOW) && errno == ENOENT &&
	       fstatat(sweep->dirfd, unfinished, &st, AT_SYMLINK_NOFOLLOW) && errno == ENOENT &&
	       is_old(sweep->dirfd, socket, S_IFSOCK, OLD) && !unlinkat(sweep->dirfd, socket, 0);
}

/* Reads a field of the header that lies there in all versions. */
#define READ(fd, to, field) (pread(fd, to, sizeof *(to), offsetof(struct cl_header, field)) == sizeof *(to))

/* Returns true if nobody has a lock on @region's file, and the process that made it is dead. */
static bool has_dead_exporter(struct cl_region *region, const struct cl_identity *made)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	uint64_t since = 1; /* the file is old enough for the lock to have settled */

	return fcntl(region->fd, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK &&
	       cl_liveness_judge(region, CL_LOCK_EXPORTER, made, &since, cl_now(), cl_options.settle.number) == CL_DEAD;
}

bool cl_gc_other_version(int dirfd, const char *name, uint32_t file_id, bool dry)
{
	struct cl_region region = { .fd = -1, .locks = &cl_posix_locks, .file_id = file_id };
	struct cl_identity made;
	struct timespec now;
	char magic[8];
	uint32_t layout, id;
	uint64_t created;
	struct stat st;
	bool gone = false;

	/* for writing, or no lock is to be had */
	region.fd = openat(dirfd, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (region.fd < 0)
		return false;
	if (fstat(region.fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 07177))
		goto out;
	region.dev = st.st_dev;
	region.ino = st.st_ino;
	if (!READ(region.fd, &magic, magic) || memcmp(magic, CL_MAGIC, sizeof CL_MAGIC) ||
	    !READ(region.fd, &layout, layout) || layout == CL_LAYOUT_VERSION || !READ(region.fd, &id, file_id) ||
	    id != file_id || !READ(region.fd, &made, exporter) || !READ(region.fd, &created, created) ||
	    clock_gettime(CLOCK_REALTIME, &now) || (uint64_t)now.tv_sec < created / 1000000000u + OLD ||
	    !has_dead_exporter(&region, &made))
		goto out;
	/* as cl_gc_file(): of two processes one gets the lock */
	gone = dry || (region.locks->try_lock(&region, CL_LOCK_EXPORTER) == 0 &&
		       cl_region_unlink(&region, dirfd) == 0);
out:
	close(region.fd);
	return gone;
}

/* Removes one file if its exporter is dead and, unless @forced, it is not to be kept. */
static bool remove_if_dead(struct sweep *sweep, const char *name, bool forced)
{
	uint32_t id = cl_region_name_id(name), unfinished = id ? 0 : cl_region_unfinished_id(name);
	bool (*is_open)(uint32_t file_id) = sweep->is_open, gone = false, kept = false;
	struct cl_region region;
	int err;

	if (id && is_open && is_open(id))
		return false;
	if (id && !forced && must_stay(sweep, name, id))
		return false;
	/*
	 * Where many processes start at once, most unfinished files are just being made, which takes
	 * milliseconds.
	 */
	if (unfinished && is_open && !is_old(sweep->dirfd, name, S_IFREG, YOUNG))
		return false;
	sweep->judged += id || unfinished;
	if (id)
		err = cl_region_open_knowing(&region, sweep->dirfd, id, &sweep->known, NULL);
	else if (unfinished)
		err = cl_region_open_unfinished(&region, sweep->dirfd, unfinished);
	else if (cl_region_socket_id(name))
		return remove_alone(sweep, name, cl_region_socket_id(name));
	else
		return false;
	/* -ESTALE: the file is of an earlier boot, so its exporter is dead */
	if (err == -ESTALE || (err == -EBADMSG && unfinished && is_old(sweep->dirfd, name, S_IFREG, OLD)))
		return unlinkat(sweep->dirfd, name, 0) == 0;
	/* -EBADMSG: another version's file may have another size */
	if (err == -EPROTO || err == -EBADMSG)
		return cl_gc_other_version(sweep->dirfd, name, id ? id : unfinished, false);
	if (err)
		return false;
	if (cl_gc_judge(&region) == CL_DEAD) {
		kept = id && is_open && !forced && cl_gc_is_kept(&region);
		gone = !kept && cl_gc_file(&region, sweep->dirfd) == 0;
	}
	if (kept)
		keep(sweep, id, atomic_load_explicit(&region.header->exporter_lock_free, memory_order_relaxed),
		     region.fd);
	cl_region_close(&region);
	return gone;
}

/* The dead must not take the room that the files of living exporters need. */
static bool are_too_large(const struct sweep *sweep)
{
	uint64_t bytes = sweep->kept.bytes;
	struct statfs fs;

	if (bytes > cl_options.keep_dead_bytes.number)
		return true;
	/* a tmpfs without a limit has no blocks */
	return fstatfs(sweep->dirfd, &fs) == 0 && fs.f_blocks && bytes > fs.f_bavail * (uint64_t)fs.f_bsize / LEFT;
}

/*
 * Removes the oldest of what is kept until the rest is within its bounds: a program that is started
 * and crashes again and again must not fill the directory.  Returns how many it removed.
 */
static unsigned int keep_less(struct sweep *sweep)
{
	struct kept *kept = &sweep->kept;
	unsigned int gone = 0;

	while (kept->n > kept->fit && cl_options.keep_dead_bytes.number &&
	       (kept->n > MOST_KEPT || are_too_large(sweep))) {
		unsigned int oldest = 0;
		char name[16];

		for (unsigned int i = 1; i < kept->n; i++)
			if (kept->file[i].since < kept->file[oldest].since)
				oldest = i;
		cl_region_name(name, kept->file[oldest].id);
		gone += remove_if_dead(sweep, name, true);
		kept->bytes -= kept->file[oldest].bytes;
		kept->file[oldest] = kept->file[--kept->n];
		kept->fit = 0;
	}
	kept->fit = kept->n;
	return gone;
}

unsigned int cl_gc_directory(int dirfd, bool (*is_open)(uint32_t file_id))
{
	_Alignas(8) char buffer[2048];
	struct sweep sweep = { .dirfd = dirfd, .is_open = is_open };
	int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	unsigned int gone = 0, seen = 0;
	long n;

	if (fd < 0)
		return 0;
	/* not opendir(), which needs malloc.  An entry: ino 8, off 8, reclen 2, type 1, name */
	while ((n = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0)
		for (long at = 0; at < n;) {
			uint16_t length;

			if (is_open && (seen++ >= MOST_SEEN || sweep.judged >= MOST_JUDGED))
				goto out;
			memcpy(&length, buffer + at + 16, sizeof length);
			gone += remove_if_dead(&sweep, buffer + at + 19, false) + keep_less(&sweep);
			at += length;
		}
out:
	close(fd);
	return gone;
}
