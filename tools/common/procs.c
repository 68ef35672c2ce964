/* SPDX-License-Identifier: Apache-2.0 */
/* Other processes, as /proc shows them: see procs.h. */
#include "config.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tools/common/procs.h"
#include "tools/common/text.h"

static FILE *open_of(pid_t pid, const char *name)
{
	char path[320];

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
	return fopen(path, "re");
}

int cu_proc_maps(pid_t pid)
{
	FILE *f = open_of(pid, "maps");
	size_t size = 0;
	char *line = NULL;
	bool whole = false;
	int maps = 0, error;

	if (!f)
		return -errno;
	errno = 0;
	while (getline(&line, &size, f) > 0) {
		const char *name = strrchr(line, '/');

		whole |= strstr(line, " [stack]") != NULL;
		if (name && !strncmp(name, "/libcuda.so", 11))
			maps |= CU_MAPS_CUDA;
		else if (name && !strncmp(name, "/libculimbo.so", 14))
			maps |= CU_MAPS_CULIMBO;
	}
	error = ferror(f) ? errno : 0;
	free(line);
	fclose(f);
	/* a process that ends or becomes another program amid this has no more lines: its stack is above all files */
	return error ? -error : whole ? maps : -ESRCH;
}

bool cu_proc_driver(pid_t pid, char *to, size_t size)
{
	FILE *f = open_of(pid, "maps");
	size_t room = 0;
	char *line = NULL;
	bool found = false;

	while (f && !found && getline(&line, &room, f) > 0) {
		const char *path = strchr(line, '/'), *name = strrchr(line, '/');

		line[strcspn(line, "\n")] = 0;
		found = name && !strncmp(name, "/libcuda.so", 11) &&
			(size_t)snprintf(to, size, "/proc/%d/root%s", (int)pid, path) < size;
	}
	free(line);
	if (f)
		fclose(f);
	return found;
}

uint64_t cu_proc_start(pid_t pid)
{
	FILE *f = open_of(pid, "stat");
	char line[1024], *at;
	uint64_t start = 0;
	size_t n;

	if (!f)
		return 0;
	n = fread(line, 1, sizeof(line) - 1, f);
	fclose(f);
	line[n] = 0;
	/*
	 * field 2, the name, may contain any byte, so count fields from its end: field 3 is the
	 * state
	 */
	at = strrchr(line, ')');
	if (!at || at[1] != ' ' || at[2] == 'Z' || at[2] == 'X')
		return 0;
	at += 2;
	for (int field = 3; field < 22 && at; field++)
		at = strchr(at + 1, ' ');
	if (at)
		start = strtoull(at, NULL, 10);
	return start ? start : 1;
}

uint64_t cu_proc_age(uint64_t start)
{
	uint64_t began = start * (1000000000u / (uint64_t)sysconf(_SC_CLK_TCK)), now;
	struct timespec t = { 0, 0 };

	clock_gettime(CLOCK_BOOTTIME, &t);
	now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	return now > began ? now - began : 0;
}

bool cu_proc_cmdline(pid_t pid, char *to, size_t size)
{
	FILE *f = open_of(pid, "cmdline");
	char text[512];
	size_t n = 0;

	if (f) {
		n = fread(text, 1, sizeof(text), f);
		fclose(f);
	}
	while (n && !text[n - 1])
		n--;
	for (size_t i = 0; i < n; i++)
		if (!text[i])
			text[i] = ' ';
	if (n)
		cu_clean(to, size, text, n < size ? n : size - 1);
	return n > 0;
}

void cu_proc_command(pid_t pid, char *to, size_t size)
{
	char text[64];
	size_t n;
	FILE *f;

	*to = 0;
	if (cu_proc_cmdline(pid, to, size) || !(f = open_of(pid, "comm")))
		return;
	n = fread(text, 1, sizeof(text), f);
	fclose(f);
	n -= n && text[n - 1] == '\n';
	cu_clean(to, size, text, n < size ? n : size - 1);
}

void cu_proc_children(pid_t pid, void (*each)(void *data, pid_t child), void *data)
{
	char path[64];
	const struct dirent *d;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	tasks = opendir(path);
	/* each thread lists the children that it has started */
	while (tasks && (d = readdir(tasks)) != NULL) {
		char name[300];
		FILE *f;
		int child;

		if (!isdigit((unsigned char)d->d_name[0]))
			continue;
		snprintf(name, sizeof(name), "task/%.20s/children", d->d_name);
		f = open_of(pid, name);
		while (f && fscanf(f, "%d", &child) == 1)
			each(data, child);
		if (f)
			fclose(f);
	}
	if (tasks)
		closedir(tasks);
}

void cu_proc_each(uid_t uid, bool everybody, void (*each)(void *data, pid_t pid), void *data)
{
	DIR *proc = opendir("/proc");
	const struct dirent *d;

	while (proc && (d = readdir(proc)) != NULL) {
		struct stat st;

		if (isdigit((unsigned char)d->d_name[0]) && !fstatat(dirfd(proc), d->d_name, &st, 0) &&
		    (everybody || st.st_uid == uid))
			each(data, (pid_t)atoi(d->d_name));
	}
	if (proc)
		closedir(proc);
}

/* -------------------------------------------------------------------- namespaces */
struct sought {
	uint32_t pid;
	uint64_t pid_ns, start;
	pid_t found;
};

static void try_one(void *data, pid_t pid)
{
	struct sought *sought = data;
	char path[64], link[64] = "", line[512];
	unsigned long long ns;
	uint32_t inner = 0;
	ssize_t n;
	FILE *f;

	if (sought->found || cu_proc_start(pid) != sought->start)
		return;
	snprintf(path, sizeof(path), "/proc/%d/ns/pid", (int)pid);
	n = readlink(path, link, sizeof(link) - 1);
	link[n > 0 ? n : 0] = 0;
	if (sscanf(link, "pid:[%llu]", &ns) == 1 && ns != sought->pid_ns)
		return;
	f = open_of(pid, "status");
	/* its number in each namespace, from ours to its own */
	while (f && !inner && fgets(line, sizeof(line), f))
		if (!strncmp(line, "NSpid:", 6))
			inner = (uint32_t)strtoul(strrchr(line, '\t') ? strrchr(line, '\t') : "0", NULL, 10);
	if (f)
		fclose(f);
	if (inner == sought->pid)
		sought->found = pid;
}

pid_t cu_proc_here(uint32_t pid, uint64_t pid_ns, uint64_t start)
{
	struct sought sought = { .pid = pid, .pid_ns = pid_ns, .start = start };

	if (start)
		cu_proc_each(0, true, try_one, &sought);
	return sought.found;
}

void cu_proc_cgroup(pid_t pid, char *to, size_t size)
{
	FILE *f = open_of(pid, "cgroup");
	char line[4200];

	*to = 0;
	/* "0::/PATH" is cgroup v2; with v1 the memory controller's path has the container's name */
	while (f && fgets(line, sizeof(line), f)) {
		char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;

		if (!path)
			continue;
		path++;
		path[strcspn(path, "\n")] = 0;
		if (!strncmp(list, ":memory:", 8) || (!strncmp(list, "::", 2) && (!*to || !strcmp(to, "/"))))
			cu_clean(to, size, path, size - 1);
	}
	if (f)
		fclose(f);
}

/* ------------------------------------------------------------------ out of memory */
static bool read_count(const char *path, uint64_t *count)
{
	FILE *f = fopen(path, "re");
	char line[128];
	bool got = false;

	while (f && !got && fgets(line, sizeof(line), f))
		got = sscanf(line, "oom_kill %" SCNu64, count) == 1;
	if (f)
		fclose(f);
	return got;
}

uint64_t cu_proc_oom_kills(void)
{
	FILE *f = fopen("/proc/self/cgroup", "re");
	uint64_t count = 0;
	char *line = NULL;
	size_t size = 0;
	bool got = false;

	/* "0::/PATH" is cgroup v2, "N:memory:/PATH" is v1; in a container PATH may be the host's */
	while (f && !got && getline(&line, &size, f) > 0) {
		char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
		bool v2 = path == list + 1;
		const char *root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
		const char *file = v2 ? "memory.events" : "memory.oom_control";
		char name[4200];

		if (!path || (!v2 && strncmp(list, ":memory:", 8)))
			continue;
		path[strcspn(path, "\n")] = 0;
		snprintf(name, sizeof(name), "%s%.4000s/%s", root, path + 1, file);
		got = read_count(name, &count);
		if (!got) {
			snprintf(name, sizeof(name), "%s/%s", root, file);
			got = read_count(name, &count);
		}
	}
	free(line);
	if (f)
		fclose(f);
	return count;
}
