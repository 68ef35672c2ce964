/* SPDX-License-Identifier: Apache-2.0 */
/* Who is alive: see liveness.h. No malloc, no stdio streams: this also runs at exit. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shim/shm/liveness.h"

static ssize_t read_file(const char *path, char *to, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read(fd, to, size - 1);
	if (n < 0)
		n = -errno;
	close(fd);
	if (n >= 0)
		to[n] = 0;
	return n;
}

/*
 * Reads the state letter and the start time from a stat line.  The name of the command in it may
 * contain anything, so fields are counted from the last parenthesis.
 */
static int parse_stat(const char *line, char *state, uint64_t *start)
{
	const char *p = strrchr(line, ')');
	int field = 2;

	if (!p || p[1] != ' ')
		return -EBADMSG;
	*state = p[2];
	for (p++; *p && field < 22; p++)
		if (*p == ' ')
			field++;
	*start = strtoull(p, NULL, 10);
	return field == 22 ? 0 : -EBADMSG;
}

void cl_identity_self(struct cl_identity *w)
{
	char line[1024], state;
	struct stat st;
	ssize_t n;

	memset(w, 0, sizeof *w);
	w->pid = (uint32_t)getpid();
	/* a /proc of another PID namespace may be mounted here, which knows us by another pid */
	n = readlink("/proc/self", line, sizeof line - 1);
	if (n <= 0)
		return;
	line[n] = 0;
	if (strtoul(line, NULL, 10) != w->pid)
		return;
	if (read_file("/proc/self/stat", line, sizeof line) <= 0 ||
	    parse_stat(line, &state, &w->start_time))
		return;
	if (stat("/proc/self/ns/time", &st) == 0)
		w->time_ns = (uint32_t)st.st_ino;
	if (stat("/proc/self/ns/pid", &st) == 0)
		w->pid_ns = st.st_ino;
}

/* ------------------------------------------------------------ what /proc says */
enum proc_says { PROC_NOBODY, PROC_LEADER_ONLY_ZOMBIE, PROC_TASKS, PROC_UNKNOWN };

static enum proc_says ask_proc(const struct cl_identity *w, bool comparable)
{
	char path[48], line[1024], state, buffer[1024];
	uint64_t start;
	ssize_t n;
	unsigned int tasks = 0;
	int fd;

	snprintf(path, sizeof path, "/proc/%u/stat", w->pid);
	n = read_file(path, line, sizeof line);
	if (n == -ENOENT || n == -ESRCH)
		return PROC_NOBODY;
	if (n <= 0 || parse_stat(line, &state, &start))
		return PROC_UNKNOWN;
	if (comparable && start != w->start_time)
		return PROC_NOBODY; /* another process with its pid */
	if (state != 'Z' && state != 'X')
		return PROC_TASKS;
	snprintf(path, sizeof path, "/proc/%u/task", w->pid);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? PROC_NOBODY : PROC_UNKNOWN;
	while ((n = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0)
		for (ssize_t at = 0; at < n;) {
			/* ino 8, off 8, reclen 2, type 1, name */
			uint16_t length;

			memcpy(&length, buffer + at + 16, sizeof length);
			tasks += buffer[at + 19] != '.';
			at += length;
		}
	close(fd);
	if (n < 0)
		return errno == ENOENT || errno == ESRCH ? PROC_NOBODY : PROC_UNKNOWN;
	return tasks <= 1 ? PROC_LEADER_ONLY_ZOMBIE : PROC_TASKS;
}

/*
 * Returns 1 if the process or task of @path, a maps file of /proc, maps the file, 0 if not, -errno if that can't be
 * told.  The file is known by its inode number and (a part of) its name; its device is not always the one
 * that fstat() says (btrfs, overlays).
 */
static int maps_file_by(const char *path, const char *wanted, const char *name)
{
	char buffer[4096];
	size_t kept = 0;
	ssize_t n;
	int fd, found = 0;

	/* "address perms offset dev inode path", a line each */
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while (!found && (n = read(fd, buffer + kept, sizeof buffer - 1 - kept)) > 0) {
		char *line = buffer, *next;

		buffer[kept + (size_t)n] = 0;
		for (; !found && (next = strchr(line, '\n')) != NULL; line = next + 1) {
			*next = 0;
			found = strstr(line, wanted) && strstr(line, name);
		}
		/* a line longer than the buffer has a longer path than ours */
		kept = strlen(line) < sizeof buffer - 1 ? strlen(line) : 0;
		memmove(buffer, line, kept);
	}
	if (!found && n < 0)
		found = -errno;
	close(fd);
	return found;
}

static int maps_file(uint32_t pid, const char *wanted, const char *name)
{
	char path[48];

	snprintf(path, sizeof path, "/proc/%u/maps", pid);
	return maps_file_by(path, wanted, name);
}

/*
 * Asks each task of process @pid once whether it maps the file.  Returns as maps_file_by(); -EAGAIN if none does, but
 * @seen was not what it is now: a number for these tasks.
 */
static int look_at_tasks(uint32_t pid, const char *name, uint64_t *seen)
{
	char path[64], buffer[1024];
	uint64_t now = 1;
	int fd, found = 0;
	ssize_t n;

	snprintf(path, sizeof path, "/proc/%u/task", pid);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while (!found && (n = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0)
		for (ssize_t at = 0; at < n && !found;) {
			uint16_t length;

			memcpy(&length, buffer + at + 16, sizeof length);
			if (buffer[at + 19] != '.') {
				snprintf(path, sizeof path, "/proc/%u/task/%.10s/maps", pid, buffer + at + 19);
				found = maps_file_by(path, "", name);
				if (found == -ENOENT || found == -ESRCH)
					found = 0; /* on its way out: it has no memory any more */
				/* of what comes after a task that ends just now the folder need not show anything */
				*strrchr(path, '/') = 0;
				now = cl_mix(now + strtoul(buffer + at + 19, NULL, 10)) + !access(path, F_OK);
			}
			at += length;
		}
	close(fd);
	if (!found && n < 0)
		found = -errno;
	if (!found && now != *seen)
		found = -EAGAIN;
	*seen = now;
	return found;
}

enum { LOOKS = 100 }; /* a process that ends is soon through with its threads, or they stay for a while */

/*
 * Returns what maps_file() does, asked of each task: a process whose first thread has ended works on, and its own maps
 * file is empty.  A thread may start another one and end while we look.  One without memory starts none: so nobody maps
 * the file if the same tasks are there at a second look.
 */
static int task_maps_file(uint32_t pid, const char *name)
{
	uint64_t seen = 0;
	int maps = -EAGAIN;

	for (unsigned int i = 0; i < LOOKS && maps == -EAGAIN; i++)
		maps = look_at_tasks(pid, name, &seen);
	return maps;
}

bool cl_liveness_has_left(const struct cl_identity *exporter, uint32_t file_id)
{
	struct cl_identity self;
	char name[16];
	int maps;

	cl_identity_self(&self);
	if (!self.pid_ns || exporter->pid_ns != self.pid_ns)
		return false;
	cl_region_name(name, file_id);
	maps = task_maps_file(exporter->pid, name);
	/* /proc may hide a process that lives (hidepid) */
	if (maps == -ENOENT || maps == -ESRCH)
		return kill((pid_t)exporter->pid, 0) < 0 && errno == ESRCH;
	return maps == 0;
}

bool cl_liveness_is_exporter(uint32_t pid, uint32_t file_id, bool in_doubt)
{
	char name[16];
	int maps;

	cl_region_name(name, file_id);
	maps = task_maps_file(pid, name);

	return maps > 0 || (in_doubt && maps < 0 && maps != -ENOENT && maps != -ESRCH);
}

enum cl_liveness cl_liveness_judge(struct cl_region *region, off_t lock_byte,
				   const struct cl_identity *identity, uint64_t *free_since,
				   uint64_t now, uint64_t settle)
{
	struct cl_identity self;
	int locked = region->locks->is_locked(region, lock_byte);

	if (locked) { /* or an error: in doubt, it is alive */
		*free_since = 0;
		return CL_ALIVE;
	}
	if (!*free_since)
		*free_since = now;
	cl_identity_self(&self);
	if (self.pid_ns && identity->pid_ns == self.pid_ns) {
		/* start times of another time namespace do not compare: then its mappings decide */
		switch (ask_proc(identity, identity->time_ns == self.time_ns)) {
		case PROC_NOBODY:
		case PROC_LEADER_ONLY_ZOMBIE:
			return CL_DEAD;
		case PROC_TASKS: {
			char path[48], wanted[32], name[16], line[1024], state = 'Z';
			uint64_t start;
			int maps;

			snprintf(path, sizeof path, "/proc/%u/stat", identity->pid);
			if (read_file(path, line, sizeof line) > 0 &&
			    parse_stat(line, &state, &start) == 0 && state == 'Z')
				return CL_LEAVING; /* its other tasks are on their way */
			snprintf(wanted, sizeof wanted, " %llu ", (unsigned long long)region->ino);
			cl_region_name(name, region->file_id);
			/*
			 * an importer maps it by either name, since an exporter renames its file
			 * when it ends
			 */
			maps = maps_file(identity->pid, wanted,
					 lock_byte == CL_LOCK_EXPORTER ? name : strchr(name, '-'));
			if (maps) {
				/* it lives and maps the file: the program closed our descriptor */
				*free_since = 0;
				return CL_ALIVE;
			}
			/* it called exec: its context ends with its old image */
			return now - *free_since >= settle ? CL_DEAD : CL_LEAVING;
		}
		case PROC_UNKNOWN:
			break;
		}
	}
	return now - *free_since >= settle ? CL_DEAD : CL_SETTLING;
}
