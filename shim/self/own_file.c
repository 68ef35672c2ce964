/* SPDX-License-Identifier: Apache-2.0 */
/* This process's own region: see own_file.h. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/base/backoff.h"
#include "shim/base/hot.h"
#include "shim/base/log.h"
#include "shim/base/options.h"
#include "shim/self/outlive.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"

/* The header of a region in memory.  Not mapped, because a mapping would take whole pages. */
static struct cl_header header;
#define NOTHING_YET { .fd = -1, .locks = &cl_posix_locks, .header = &header }
CL_HOT_LOCKED struct cl_region cl_own = NOTHING_YET;
CL_HOT_DATA _Atomic uint32_t cl_own_id;

/* What is remembered of failures to make the file. */
struct no_file {
	struct cl_backoff backoff;
	bool said;
};
static struct {
	struct no_file exporter, importer; /* who wanted it */
} no_file;

/* Makes the file with the spare descriptor, which the caller has released.  Not inlined: it needs much stack. */
static __attribute__((noinline)) int create_by_path(struct cl_region *made)
{
	char path[4096];
	int err;

	cl_self_dir_path(path, sizeof path);
	err = cl_self_check_dir(path);
	return err ? err : cl_region_create_by_path(made, path, cl_self_place(-1), &cl_self.identity);
}

static int create_own_file(struct cl_region *made, bool importer)
{
	int err = -ENOENT;

	/* the last process to leave takes the directory away: it may go between the two */
	for (int tries = 0; tries < 16 && err == -ENOENT; tries++) {
		int dirfd = cl_self_open_dir(true);

		err = dirfd;
		if (dirfd < 0)
			continue;
		err = cl_region_create_in(made, dirfd, cl_self_place(dirfd), &cl_self.identity);
		close(dirfd);
	}
	/* an importer does without: it keeps that descriptor for the files of exporters */
	if ((err == -EMFILE || err == -ENFILE) && !importer && cl_self_spare_release()) {
		err = create_by_path(made);
		cl_self_spare_restore();
	}
	return err;
}

/* Returns why the directory at @path cannot be used, after error @err of it. */
static const char *why_not(const char *path, int err)
{
	struct stat st;

	if (err != -EPERM || fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW))
		return strerror(-err);
	return st.st_uid != geteuid() && st.st_uid != 0 ? "it is another user's" :
	       (st.st_mode & 022) && !(st.st_mode & S_ISVTX) ? "others may write to it (chmod 700 mends that)" :
								strerror(-err);
}

static void say_no_file(bool importer, int err)
{
	char path[256];

	cl_self_dir_path(path, sizeof path);
	if (importer)
		cl_log(CL_LOG_INFO,
		       "cannot make this process's exporter file in %s: %s; its imports are protected all "
		       "the same, but `culimbo report` cannot list them",
		       path, why_not(path, err));
	else
		cl_log(CL_LOG_ERROR,
		       "cannot make this process's exporter file in %s: %s; its blocks stay usable, but once "
		       "exported and freed, those under 2 MiB, and those of pools, stay allocated until this process "
		       "ends. %s",
		       path, why_not(path, err),
		       err == -EPERM ? "`culimbo doctor` says what to do" :
				       "Make room there, or set CULIMBO_DIR to a directory on a tmpfs");
}

static void make_own_file(bool importer)
{
	struct no_file *before = importer ? &no_file.importer : &no_file.exporter;
	struct cl_region made, memory = cl_own;
	uint64_t now = cl_now();
	int err;

	if (!cl_backoff_is_over(&before->backoff, now))
		return;
	err = create_own_file(&made, importer);
	if (err) {
		cl_backoff_failed(&before->backoff, now);
		if (!before->said)
			say_no_file(importer, err);
		before->said = true;
		return;
	}
	made.header->grace = cl_options.grace.number;
	made.is_outlived = cl_outlive_is_outlived;
	cl_own = made;
	cl_region_move_from_memory(&cl_own, &memory);
	/* what was counted while there was no file */
	cl_live_add(&cl_own, CL_LIVE_HANDLES, cl_count_get(exports));
	cl_live_add(&cl_own, CL_LIVE_OPENS, cl_count_get(imports));
	cl_live_add(&cl_own, CL_LIVE_CLOSES, cl_count_get(closes));
	cl_live_add(&cl_own, CL_LIVE_SHORT, cl_count_get(calls_short));
	/* release: a thread that has a handle of ours sees this id */
	atomic_store_explicit(&cl_own_id, cl_own.file_id, memory_order_release);
	if (no_file.exporter.said)
		cl_log(CL_LOG_WARN, "this process's exporter file could be made now: what is exported from "
				    "here on is tracked, and goes back once freed");
}

CL_HOT_SHARING bool cl_own_need_locked(bool importer)
{
	/* once the report is written an importer makes no file: nobody would remove it */
	if (!cl_own.file_id && !(importer && cl_self.ended))
		make_own_file(importer);
	if (!cl_own.file_id && !header.layout) {
		cl_region_in_memory(&cl_own, &header, &cl_self.identity);
		header.grace = cl_options.grace.number;
	}
	return cl_own.file_id != 0;
}

void cl_own_forget(void)
{
	memset(&no_file, 0, sizeof no_file);
	/* the mapping is not there in a child, and closing the file here unlocks nothing of the parent's */
	if (cl_own.fd >= 0 && cl_region_fd_intact(&cl_own))
		close(cl_own.fd);
	cl_own = (struct cl_region)NOTHING_YET;
	memset(&header, 0, sizeof header);
	atomic_store_explicit(&cl_own_id, 0, memory_order_relaxed);
}
