/* SPDX-License-Identifier: Apache-2.0 */
/* This process: see self.h.  It uses nothing of the shim but shm/ and base/. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "shim/base/clock.h"
#include "shim/base/descriptor.h"
#include "shim/base/hot.h"
#include "shim/base/log.h"
#include "shim/base/options.h"
#include "shim/self/self.h"
#include "shim/shm/region.h"

CL_HOT_DATA atomic_int cl_sharing_flag;
CL_HOT_LOCKED struct cl_lock cl_exports_lock = CL_LOCK_INIT(CL_RANK_EXPORTS);
CL_HOT_SHARING_LOCKED struct cl_lock cl_imports_lock = CL_LOCK_INIT(CL_RANK_IMPORTS);
struct cl_self cl_self;
CL_HOT_SHARING_LOCKED struct cl_counts cl_counts;
struct cl_known cl_self_known;
CL_HOT_DATA uint32_t *_Atomic cl_self_word;
void (*cl_self_begin_anew)(void);

/* ------------------------------------------------------------------- identity */
/* Returns the same number for the whole life of this program.  A forked child, which has another pid, may have it, too. */
static uint32_t own_image(void)
{
	static _Atomic uint32_t image;
	uint32_t mine = 0;

	/* relaxed: the number stands alone.  The time differs from that of any earlier program of this process */
	if (atomic_compare_exchange_strong_explicit(&image, &mine, (uint32_t)cl_mix(cl_now()) | 1, memory_order_relaxed,
						    memory_order_relaxed))
		mine = atomic_load_explicit(&image, memory_order_relaxed);
	return mine;
}

void cl_self_identify(struct cl_identity *identity)
{
	cl_identity_self(identity);
	identity->image = own_image();
}

/* ------------------------------------------------------------------ directory */
void cl_self_dir_path(char *path, size_t size)
{
	if (cl_options.dir.text[0])
		snprintf(path, size, "%s", cl_options.dir.text);
	else
		snprintf(path, size, "/dev/shm/culimbo-%u", (unsigned int)geteuid());
}

struct cl_places cl_self_find_places(void)
{
	struct cl_places places = { 0 };
	char path[4096], *end, *slash;
	uint8_t boot_id[16];
	struct stat st;

	cl_known_boot_id(&cl_self_known, boot_id);
	cl_self_dir_path(path, sizeof path);
	for (end = path + strlen(path); end > path + 1 && end[-1] == '/'; end--)
		end[-1] = 0;
	if (stat(path, &st) == 0)
		places.own = cl_place_of(&st, boot_id);
	slash = strrchr(path, '/');
	if (slash) {
		*slash = 0;
		if (stat(slash == path ? "/" : path, &st) == 0) {
			places.above = cl_place_of(&st, boot_id);
			places.named = cl_place_named(&st, boot_id, slash + 1);
		}
	}
	return places;
}

uint64_t cl_self_place(int dirfd)
{
	uint8_t boot_id[16];
	struct stat st;

	if (!cl_options.dir.text[0])
		return cl_self_find_places().named;
	if (dirfd < 0)
		return cl_self_find_places().own;
	cl_known_boot_id(&cl_self_known, boot_id);
	return fstat(dirfd, &st) ? 0 : cl_place_of(&st, boot_id);
}

enum cl_sight cl_self_sight(struct cl_stamp stamp)
{
	struct cl_places now = cl_self_find_places(), then = cl_self.places;

	if (cl_stamp_is_of(stamp, now.own) || cl_stamp_is_of(stamp, now.named))
		return CL_HERE;
	if (then.above && now.above != then.above)
		return CL_OUT_OF_SIGHT;
	/* the directory existed once, and was removed with all files in it */
	return !now.own && cl_stamp_is_of(stamp, then.own) ? CL_HERE : CL_ELSEWHERE;
}

/* Not into a buffer of PATH_MAX, which would take half of a signal handler's stack. */
static const char *dir_path(char room[64])
{
	if (cl_options.dir.text[0])
		return cl_options.dir.text;
	cl_self_dir_path(room, 64);
	return room;
}

/* Returns -EPERM if another user could replace an exporter's file in the directory, else 0. */
static int judge_dir(const struct stat *st)
{
	return (st->st_uid != geteuid() && st->st_uid != 0) ||
			       ((st->st_mode & 022) && !(st->st_mode & S_ISVTX)) ?
		       -EPERM :
		       0;
}

static int open_dir(const char *path)
{
	return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

int cl_self_open_dir(bool make)
{
	char room[64];
	const char *path = dir_path(room);
	bool made = make && mkdir(path, 0700) == 0;
	struct stat st;
	int fd, err;

	if (make && !made && errno != EEXIST)
		return -errno;
	fd = open_dir(path);
	/* a umask denied the owner to read it: some programs set such a one while they make a socket */
	if (fd < 0 && errno == EACCES && made && fchmodat(AT_FDCWD, path, 0700, AT_SYMLINK_NOFOLLOW) == 0)
		fd = open_dir(path);
	if (fd < 0)
		return -errno;
	err = fstat(fd, &st) ? -errno : judge_dir(&st);
	/*
	 * The directory is ours, but no file in it can be opened: its maker had a umask of 0177, as
	 * daemons have for sockets, or was killed before it could mend that.  Else no process
	 * of this user could make or open an exporter file.
	 */
	if (!err && st.st_uid == geteuid() && !(st.st_mode & S_IXUSR))
		fchmod(fd, (st.st_mode & 07777) | 0700);
	if (!err)
		return fd;
	close(fd);
	return err;
}

int cl_self_check_dir(const char *path)
{
	struct stat st;

	if (fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW))
		return -errno;
	return S_ISDIR(st.st_mode) ? judge_dir(&st) : -ENOTDIR;
}

bool cl_self_keep_descriptor(struct cl_region *region, off_t byte)
{
	int dirfd, err;

	if (cl_region_fd_intact(region))
		return true;
	if (!region->file_id) /* it is in memory */
		return false;
	dirfd = cl_self_open_dir(false);
	err = dirfd < 0 ? dirfd : cl_region_fd_restore(region, dirfd);
	if (dirfd >= 0)
		close(dirfd);
	if (!err && byte >= 0)
		err = region->locks->try_lock(region, byte);
	if (err == -EMFILE || err == -ENFILE)
		cl_log_once(CL_LOG_WARN,
			    "no descriptor is left for exporter file %06x: what is open of it may be kept longer than necessary",
			    region->file_id);
	else if (err && dirfd >= 0)
		cl_log_once(CL_LOG_WARN,
			    "the program closed culimbo's descriptor of exporter file %06x, and it cannot be "
			    "opened again (%s): its blocks may be kept longer than necessary",
			    region->file_id, strerror(-err));
	return !err;
}

/* ------------------------------------------------------------- a spare descriptor */
/*
 * Kept for the moment when the program has used up all descriptors: closed while a file is opened
 * and mapped, and opened again.
 */
static _Atomic int spare = -1;

/* The device number of /dev/null is the same on every Linux, and in containers. */
static bool is_dev_null(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3);
}

void cl_self_spare_restore(void)
{
	int fd, none = -1;

	if (atomic_load_explicit(&spare, memory_order_relaxed) >= 0)
		return;
	fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	fd = cl_fd_move_high(fd, &cl_self_known.room);
	/* relaxed: it is only a number */
	if (!is_dev_null(fd) || !atomic_compare_exchange_strong_explicit(&spare, &none, fd, memory_order_relaxed,
									 memory_order_relaxed))
		close(fd);
}

bool cl_self_spare_release(void)
{
	int fd = atomic_exchange_explicit(&spare, -1, memory_order_relaxed);
	/* the program may have closed it, and reused its number for a file of its own */
	bool ours = fd >= 0 && is_dev_null(fd);

	if (ours)
		close(fd);
	return ours;
}
