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
		w->pid_ns = (uint32_t)st.st_ino;
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
 * What the memory of a process says of a file.  All tasks of a process share one memory, so any task that still has it
 * speaks for all.  A negative number, -errno: /proc does not tell.
 */
enum { MAPS_NOT, MAPS_IT, NO_MEMORY /* the process ends */ };

/*
 * Asks the process or task of @path, a maps file of /proc.  The file is known by its inode number, @wanted, and (a part
 * of) its name; its device is not always the one that fstat() says (btrfs, overlays).
 */
static int ask_maps(const char *path, const char *wanted, const char *name)
{
	int fd, says = NO_MEMORY;
	char buffer[4096];
	size_t kept = 0;
	ssize_t n;

	/* "address perms offset dev inode path", a line each */
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while (says != MAPS_IT && (n = read(fd, buffer + kept, sizeof buffer - 1 - kept)) > 0) {
		char *line = buffer, *next;

		says = MAPS_NOT;
		buffer[kept + (size_t)n] = 0;
		for (; says != MAPS_IT && (next = strchr(line, '\n')) != NULL; line = next + 1) {
			*next = 0;
			if (strstr(line, wanted) && strstr(line, name))
				says = MAPS_IT;
		}
		/* a line longer than the buffer has a longer path than ours */
		kept = strlen(line) < sizeof buffer - 1 ? strlen(line) : 0;
		memmove(buffer, line, kept);
	}
	if (says != MAPS_IT && n < 0)
		says = -errno;
	close(fd);
	return says;
}

/*
 * Asks each task of process @pid, once, until one has memory.  Returns -EAGAIN if none had, but that is not sure: the
 * tasks were not the same as in the look before, of which *@seen says something.
 */
static int ask_tasks(uint32_t pid, const char *wanted, const char *name, uint64_t *seen)
{
	char path[64], buffer[1024];
	int fd, says = NO_MEMORY;
	uint64_t now = 1;
	nlink_t tasks = 0;
	struct stat st;
	ssize_t n;

	snprintf(path, sizeof path, "/proc/%u/task", pid);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while (says == NO_MEMORY && (n = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0)
		for (ssize_t at = 0; at < n && says == NO_MEMORY;) {
			uint16_t length;

			memcpy(&length, buffer + at + 16, sizeof length);
			if (buffer[at + 19] != '.') {
				snprintf(path, sizeof path, "/proc/%u/task/%.10s/maps", pid, buffer + at + 19);
				says = ask_maps(path, wanted, name);
				if (says == -ENOENT || says == -ESRCH)
					says = NO_MEMORY;
				now = cl_mix(now + strtoul(buffer + at + 19, NULL, 10));
				tasks++;
			}
			at += length;
		}
	if (says == NO_MEMORY && n < 0)
		says = -errno;
	/* a task that has just ended hides those behind it: the folder's links count all that there are */
	if (says == NO_MEMORY && (fstat(fd, &st) || st.st_nlink != tasks + 2))
		now = 0;
	close(fd);
	if (says == NO_MEMORY && (!now || now != *seen))
		says = -EAGAIN;
	*seen = now;
	return says;
}

enum { LOOKS = 100 }; /* a process that ends is soon through with its threads, or they stay for a while */

/*
 * Asks the memory of process @pid.  Its own maps file is that of its first thread, and empty once that has ended (or not
 * there, a kernel may say): then its tasks are asked.  A task may start another one and end while we look.  One without memory starts none: so the
 * process has no memory if the same tasks have none at a second look.
 */
static int ask_memory(uint32_t pid, const char *wanted, const char *name)
{
	uint64_t seen = 0;
	char path[48];
	int says;

	snprintf(path, sizeof path, "/proc/%u/maps", pid);
	says = ask_maps(path, wanted, name);
	if (says != NO_MEMORY && says != -ENOENT && says != -ESRCH)
		return says;
	says = -EAGAIN;
	for (unsigned int i = 0; i < LOOKS && says == -EAGAIN; i++)
		says = ask_tasks(pid, wanted, name, &seen);
	return says;
}

bool cl_liveness_has_left(const struct cl_identity *exporter, uint32_t file_id)
{
	struct cl_identity self;
	char name[16];
	int says;

	cl_identity_self(&self);
	if (!self.pid_ns || exporter->pid_ns != self.pid_ns)
		return false;
	cl_region_name(name, file_id);
	says = ask_memory(exporter->pid, "", name);
	/* /proc may hide a process that lives (hidepid) */
	if (says == -ENOENT || says == -ESRCH)
		return kill((pid_t)exporter->pid, 0) < 0 && errno == ESRCH;
	return says == MAPS_NOT || says == NO_MEMORY;
}

bool cl_liveness_is_exporter(uint32_t pid, uint32_t file_id, bool in_doubt)
{
	char name[16];
	int says;

	cl_region_name(name, file_id);
	says = ask_memory(pid, "", name);
	return says == MAPS_IT || (in_doubt && says < 0 && says != -ENOENT && says != -ESRCH);
}

/* Asks whether process @who maps the file by which it has @lock_byte. */
static int ask_of_file(const struct cl_region *region, off_t lock_byte, const struct cl_identity *who)
{
	char wanted[32], name[16];

	snprintf(wanted, sizeof wanted, " %llu ", (unsigned long long)region->ino);
	cl_region_name(name, region->file_id);
	/* an importer maps it by either name, since an exporter renames its file when it ends */
	return ask_memory(who->pid, wanted, lock_byte == CL_LOCK_EXPORTER ? name : strchr(name, '-'));
}

bool cl_liveness_called_exec(const struct cl_region *region, off_t lock_byte, const struct cl_identity *who, bool said)
{
	struct cl_identity self;

	cl_identity_self(&self);
	return self.pid_ns && who->pid_ns == self.pid_ns && who->time_ns == self.time_ns &&
	       ask_proc(who, true) == PROC_TASKS && (said || ask_of_file(region, lock_byte, who) == MAPS_NOT);
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
		case PROC_TASKS:
			switch (ask_of_file(region, lock_byte, identity)) {
			case NO_MEMORY:
				return CL_LEAVING; /* its tasks are on their way */
			case MAPS_NOT:
				/* it called exec: its context ends with its old image */
				return now - *free_since >= settle ? CL_DEAD : CL_LEAVING;
			default:
				/* it lives and maps the file: the program closed our descriptor.  Or it may do so */
				*free_since = 0;
				return CL_ALIVE;
			}
		case PROC_UNKNOWN:
			break;
		}
	}
	return now - *free_since >= settle ? CL_DEAD : CL_SETTLING;
}
