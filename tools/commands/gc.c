/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo gc`: removes the files that dead exporters left.
 *
 * This is safe at any time: only shim/shm/gc.h removes a file, if its exporter is dead
 * and we hold its byte lock, or if it is of an earlier boot.  Files that are not
 * understood are left, and listed.
 */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shim/shm/gc.h"
#include "shim/base/options.h"
#include "tools/commands/check_folder.h"
#include "tools/commands/commands.h"
#include "tools/common/scan.h"
#include "tools/common/table.h"
#include "tools/common/text.h"

enum { OPTION_DRY_RUN = 'n' };

enum { ACTION, GCFILE, PID, COMMAND, STATE, BLOCKS, DISK, WHY };

static const struct cu_column columns[] = {
	[ACTION] = { "ACTION", CU_TEXT, 0,
		     "removed; would-remove (--dry-run); kept: its process lives, or may; left: not ours to judge; failed" },
	[GCFILE] = { "FILE", CU_TEXT, 0, "the file" },
	[PID] = { "PID", CU_NUMBER, 0, "its process, as its own PID namespace counts" },
	[COMMAND] = { "COMMAND", CU_TEXT, CU_CUT, "the command line of its process" },
	[STATE] = { "STATE", CU_TEXT, 0, "of its process or of the file, as in `culimbo ps`" },
	[BLOCKS] = { "BLOCKS", CU_NUMBER, 0, "blocks that it exported or had in limbo when it ended" },
	[DISK] = { "DISK", CU_BYTES, 0, "the space that the file takes" },
	[WHY] = { "WHY", CU_TEXT, CU_BELOW, "why, or what to do" },
	{ .name = NULL },
};

struct file {
	char name[48];
	const char *action, *state, *why;
	char command[129];
	uint32_t id, pid; /* pid 0: not known */
	bool unfinished;
	enum cl_liveness judged;
	uint64_t disk, blocks;
};

static void fill(struct cu_cell *cell, unsigned int column, const void *row)
{
	const struct file *f = row;

	switch (column) {
	case ACTION:
		cu_cell_text(cell, f->action);
		break;
	case GCFILE:
		cu_cell_text(cell, f->name);
		break;
	case PID:
		if (f->pid)
			cu_cell_number(cell, f->pid);
		break;
	case COMMAND:
		cu_cell_text(cell, f->command);
		break;
	case STATE:
		cu_cell_text(cell, f->state);
		break;
	case BLOCKS:
		if (f->pid)
			cu_cell_number(cell, f->blocks);
		break;
	case DISK:
		cu_cell_number(cell, f->disk);
		break;
	case WHY:
		cu_cell_text(cell, f->why);
		break;
	default:
		break;
	}
}

struct gc {
	struct file *file;
	struct cl_region region;
	int dirfd, result;
	bool dry;
};

/* Reads the mapped file, which may be cut meanwhile. */
static void judge_and_take(void *data)
{
	struct gc *gc = data;
	struct file *f = gc->file;
	struct cl_header *h = gc->region.header;

	f->pid = h->exporter.pid;
	cu_clean(f->command, sizeof(f->command), h->command, sizeof(h->command));
	f->blocks = atomic_load(&h->live_blocks) + atomic_load(&h->limbo_blocks);
	f->judged = cl_gc_judge(&gc->region);
	f->state = cu_liveness_word(f->judged);
	gc->result = f->judged != CL_DEAD ? -EBUSY : gc->dry ? 0 : cl_gc_file(&gc->region, gc->dirfd);
}

/* Looks again, for a file whose process /proc does not show. */
static void try_file(struct gc *gc)
{
	struct file *f = gc->file;
	const char *why = NULL;
	struct stat st;
	int error;

	if (fstatat(gc->dirfd, f->name, &st, AT_SYMLINK_NOFOLLOW)) {
		f->action = NULL; /* it has disappeared */
		return;
	}
	f->disk = (uint64_t)st.st_blocks * 512;
	f->judged = CL_ALIVE;
	error = f->unfinished ? cl_region_open_unfinished(&gc->region, gc->dirfd, f->id) :
				cu_region_open(&gc->region, gc->dirfd, f->id, &why);
	if (error == -ENOENT) {
		f->action = NULL;
		return;
	}
	if (error) {
		struct cu_process as = { .error = error };

		f->state = cu_state_word(&as);
		f->why = why ? why : strerror(-error);
		f->action = "left";
		if (error == -ESTALE) {
			f->action = gc->dry ? "would-remove" : "removed";
			if (!gc->dry && unlinkat(gc->dirfd, f->name, 0)) {
				f->action = "failed";
				f->why = strerror(errno);
			}
		}
		if (cl_gc_other_version(gc->dirfd, f->name, f->id, gc->dry)) {
			f->action = gc->dry ? "would-remove" : "removed";
			f->why = "its process, of another version of culimbo, has ended";
			return;
		}
		if (error == -EBADMSG && f->unfinished)
			f->why = "it is being made, or was when its process ended: the library takes it away";
		return;
	}
	if (!cu_guarded(judge_and_take, gc)) {
		f->state = "damaged";
		f->action = "left";
		f->why = "it was cut while it was read";
	} else if (!gc->result) {
		f->action = gc->dry ? "would-remove" : "removed";
		f->why = f->unfinished ? "its process ended while it made it" : "its process has ended";
	} else if (gc->result == -EBUSY) {
		f->action = "kept";
		f->why = f->judged == CL_ALIVE	? "its process lives" :
			 f->judged == CL_DEAD	? "another takes it away" :
			 f->judged == CL_LEAVING ? "its process is ending: its GPU work may go on" :
						   "nothing is known of its process yet but that its lock is free: ask again";
	} else if (gc->result == -ENOENT || gc->result == -ESTALE) {
		f->action = NULL; /* another process has removed it */
	} else {
		f->action = "failed";
		f->why = strerror(-gc->result);
	}
	cl_region_close(&gc->region);
}

/* Lists the folders that killed checks left, behind the files. */
struct folders {
	struct file *file;
	long n;
	bool dry;
};

static void add_folder(void *data, const char *path, uint64_t bytes, bool removed)
{
	struct folders *to = data;
	struct file *more = realloc(to->file, (size_t)(to->n + 1) * sizeof(*more));

	if (!more)
		return;
	to->file = more;
	more[to->n] = (struct file){ .judged = CL_DEAD, .disk = bytes, .state = "dead",
				     .action = removed ? "removed" : to->dry ? "would-remove" : "failed",
				     .why = "the folder of a `culimbo check` that was killed" };
	snprintf(more[to->n++].name, sizeof(more->name), "%s", path);
}

static int compare(const void *x, const void *y)
{
	const struct file *a = x, *b = y;

	return strcmp(a->name, b->name);
}

/* Returns their number, or -ENOMEM. */
static long list_files(int dirfd, struct file **list)
{
	int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;
	size_t n = 0, room = 0;

	*list = NULL;
	if (!dir) {
		if (fd >= 0)
			close(fd);
		return fd < 0 ? -errno : -ENOMEM;
	}
	while ((entry = readdir(dir)) != NULL) {
		uint32_t id = cl_region_name_id(entry->d_name);
		bool unfinished = !id;

		if (!id)
			id = cl_region_unfinished_id(entry->d_name);
		if (!id)
			continue;
		if (n == room) {
			struct file *more = realloc(*list, (room = room ? 2 * room : 64) * sizeof(**list));

			if (!more) {
				closedir(dir);
				return -ENOMEM;
			}
			*list = more;
		}
		(*list)[n] = (struct file){ .id = id, .unfinished = unfinished };
		snprintf((*list)[n++].name, sizeof((*list)->name), "%.40s", entry->d_name);
	}
	closedir(dir);
	if (n)
		qsort(*list, n, sizeof(**list), compare);
	return (long)n;
}

static void say_sum(const struct file *file, size_t n, bool dry)
{
	uint64_t gone = 0, disk = 0, kept = 0, left = 0, failed = 0;
	char size[24];

	for (size_t i = 0; i < n; i++) {
		const char *action = file[i].action;

		if (!action)
			continue;
		if (!strcmp(action, "kept")) {
			kept++;
		} else if (!strcmp(action, "left")) {
			left++;
		} else if (!strcmp(action, "failed")) {
			failed++;
		} else {
			gone++;
			disk += file[i].disk;
		}
	}
	cu_bytes_long(size, disk);
	printf("%s%llu file%s, %s%s; kept, of processes that live: %llu",
	       dry ? "Would remove " : "Removed ", (unsigned long long)gone, gone == 1 ? "" : "s",
	       size, dry ? " (--dry-run)" : "", (unsigned long long)kept);
	if (left)
		printf("; left, not understood: %llu (to be removed by hand, when nothing runs under culimbo)",
		       (unsigned long long)left);
	if (failed)
		printf("; failed: %llu", (unsigned long long)failed);
	printf(".\n");
}

static int gc(const struct cu_command *command, int argc, char **argv)
{
	struct cu_format format = { 0 };
	struct gc gc = { .dirfd = -1 };
	struct file *list = NULL;
	struct cu_table *table;
	const char *dir = NULL;
	bool people, again = false;
	int got, status;
	long n = 0;

	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		if (got == CU_OPTION_DIR)
			dir = optarg;
		else if (got == OPTION_DRY_RUN)
			gc.dry = true;
		else if (!cu_format_option(&format, got))
			return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
	table = cu_table_new(command, "files", &format, &status);
	if (!table)
		return status;
	people = !format.json && !format.raw;
	cu_directory_set(command, dir);
	gc.dirfd = cu_directory_open(command);
	if (gc.dirfd < 0 && gc.dirfd != -ENOENT) {
		cu_table_drop(table);
		return CU_FAILED;
	}
	if (gc.dirfd >= 0)
		n = list_files(gc.dirfd, &list);
	for (long i = 0; i < n; i++) {
		gc.file = &list[i];
		try_file(&gc);
		again |= list[i].judged == CL_SETTLING || list[i].judged == CL_LEAVING;
	}
	if (again) {
		/* the first look begins a wait that the second one ends: see shim/shm/liveness.h */
		uint64_t wait = cl_options.settle.number + 10000000;
		struct timespec t = { (time_t)(wait / 1000000000), (long)(wait % 1000000000) };

		while (nanosleep(&t, &t) && errno == EINTR)
			;
		for (long i = 0; i < n; i++)
			if (list[i].judged == CL_SETTLING || list[i].judged == CL_LEAVING) {
				gc.file = &list[i];
				try_file(&gc);
			}
	}
	if (gc.dirfd >= 0)
		close(gc.dirfd);
	/* a user who names a directory means only that one */
	if (n >= 0 && !dir && !getenv("CULIMBO_DIR")) {
		struct folders folders = { list, n, gc.dry };

		cu_check_folders_left(!gc.dry, add_folder, &folders);
		list = folders.file;
		n = folders.n;
	}
	status = CU_OK;
	if (n < 0) {
		cu_error(command, "cannot read %s: %s", cu_directory(), strerror((int)-n));
		status = CU_FAILED;
	}
	for (long i = 0; i < n; i++) {
		if (!list[i].action)
			continue;
		if (!strcmp(list[i].action, "failed"))
			status = CU_FAILED;
		/*
		 * people want to see what was done; files of living processes are only counted
		 * below
		 */
		if (!people || format.output || list[i].judged != CL_ALIVE ||
		    strcmp(list[i].action, "kept") != 0)
			cu_table_line(table, fill, &list[i]);
	}
	if (cu_table_end(table))
		status = CU_FAILED;
	if (people && n >= 0)
		say_sum(list, (size_t)n, gc.dry);
	free(list);
	return status;
}

static const struct cu_option options[] = {
	{ "dry-run", OPTION_DRY_RUN, NULL, "only say what would be removed" },
	CU_TABLE_OPTIONS,
	CU_DIR_OPTION,
	{ .name = NULL },
};

static const struct cu_exit exits[] = {
	{ CU_OK, "no file of a dead process is left" },
	{ CU_FAILED, "a file of a dead process could not be removed: its line says why" },
	{ CU_USAGE, "the command line is wrong" },
	{ 0, NULL },
};

static const struct cu_example examples[] = {
	{ "culimbo gc --dry-run", "lists what would be removed" },
	{ "culimbo gc", "removes it" },
	{ .line = NULL },
};

const struct cu_command cu_gc = {
	.name = "gc",
	.arguments = "",
	.summary = "remove files left by dead processes",
	.help = "Removes the exporter files of killed processes.  This is safe while others run: a\n"
		"file is removed only if its process is surely dead.  Running processes do the same\n"
		"now and then; nothing depends on it.  Folders in /dev/shm and /tmp that a killed\n"
		"`culimbo check` left are removed, too, unless a directory is named (--dir,\n"
		"CULIMBO_DIR).  `culimbo report` shows what a dead process had shared; call it before.",
	.options = options,
	.columns = columns,
	.exits = exits,
	.examples = examples,
	.run = gc,
};
