/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo doctor` checks that processes under culimbo can find one another: they share if they have one
 * directory of exporter files.  Containers mostly don't, because each has a /dev/shm of its own.
 *
 * From the outside all containers of this user are seen, and one whose processes use another directory
 * is named.  From inside a container only its own processes are seen.  So doctor can only say what the
 * other containers need, and how many of their processes have files here.
 */
#include "config.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/self/self.h"
#include "tools/common/procs.h"
#include "tools/common/scan.h"
#include "tools/common/text.h"
#include "tools/doctor/checks.h"

#define ADVICE                                                                                               \
	"to share with another container, mount one tmpfs into both and set CULIMBO_DIR to a directory on it " \
	"(security.md, Namespaces and containers)"

/* A directory other than ours, and the processes under culimbo that use it. */
struct other {
	dev_t dev;
	ino_t ino;
	unsigned int processes;
	pid_t pid; /* the first of them, its command, and how it names the directory */
	bool contained; /* it is in another PID or mount namespace */
	char command[96], path[PATH_MAX];
};

enum { OTHERS = 8 };
struct seen {
	struct stat ours; /* our directory; or what it would be in, if it is not there yet */
	uint64_t pid_ns, mounts;
	unsigned int n, more; /* others; and processes that use yet another directory */
	struct other other[OTHERS];
};

/* Returns the inode of the namespace of a kind, "pid" or "mnt", that a process is in; or 0. */
static uint64_t namespace_of(const char *process, const char *kind)
{
	char path[64], link[64] = "";
	const char *inode;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%s/ns/%s", process, kind);
	n = readlink(path, link, sizeof(link) - 1);
	link[n > 0 ? n : 0] = 0;
	inode = strchr(link, '[');
	return inode ? strtoull(inode + 1, NULL, 10) : 0;
}

/* Stores the directory that @pid was started with, as that process names it. */
static bool directory_of(pid_t pid, char to[PATH_MAX])
{
	char path[64], *entry = NULL;
	size_t size = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
	f = fopen(path, "re");
	if (!f)
		return false;
	snprintf(to, PATH_MAX, "/dev/shm/culimbo-%u", (unsigned int)geteuid());
	while (getdelim(&entry, &size, 0, f) > 0)
		if (!strncmp(entry, "CULIMBO_DIR=", 12) && entry[12])
			snprintf(to, PATH_MAX, "%s", entry + 12);
	free(entry);
	fclose(f);
	return *to == '/';
}

static void look_at(void *data, pid_t pid)
{
	char number[16], path[2 * PATH_MAX], theirs[PATH_MAX];
	struct seen *seen = data;
	struct other *other;
	struct stat st;
	int maps = cu_proc_maps(pid);

	if (pid == getpid() || maps < 0 || !(maps & CU_MAPS_CULIMBO) || !directory_of(pid, theirs))
		return;
	snprintf(path, sizeof(path), "/proc/%d/root%s", (int)pid, theirs);
	if (stat(path, &st)) {
		/* neither has been made yet: they are one if their names and their mounts are */
		snprintf(path, sizeof(path), "/proc/%d/root%.*s", (int)pid, (int)(strrchr(theirs, '/') - theirs), theirs);
		if (stat(path, &st))
			return;
	}
	if (st.st_dev == seen->ours.st_dev && st.st_ino == seen->ours.st_ino)
		return;
	for (other = seen->other; other < seen->other + seen->n; other++)
		if (other->dev == st.st_dev && other->ino == st.st_ino) {
			other->processes++;
			return;
		}
	if (seen->n == OTHERS) {
		seen->more++;
		return;
	}
	seen->n++;
	snprintf(number, sizeof(number), "%d", (int)pid);
	*other = (struct other){ .dev = st.st_dev, .ino = st.st_ino, .processes = 1, .pid = pid,
				 .contained = namespace_of(number, "pid") != seen->pid_ns ||
					      namespace_of(number, "mnt") != seen->mounts };
	cu_proc_command(pid, other->command, sizeof(other->command));
	snprintf(other->path, sizeof(other->path), "%s", theirs);
}

static void say(const struct other *other)
{
	char more[48] = "";

	if (other->processes > 1)
		snprintf(more, sizeof(more), " and %u more", other->processes - 1);
	cu_found("containers", WARN, other->contained ? ADVICE : "to share with them, set one CULIMBO_DIR for all",
		 "process %d (%s)%s %s under culimbo with another directory, %s%s: nothing is protected between %s and processes "
		 "that use %s",
		 (int)other->pid, other->command, more, other->processes > 1 ? "run" : "runs", other->path,
		 other->contained ? " of its container" : "", other->processes > 1 ? "them" : "it", cu_directory());
}

/* Returns how many living processes of other PID namespaces have files in our directory. */
static unsigned int guests(uint64_t pid_ns)
{
	int dirfd = cl_self_open_dir(false);
	struct cu_scan scan;
	unsigned int n = 0;

	if (dirfd < 0)
		return 0;
	if (!cu_scan(&scan, dirfd, 0))
		for (size_t i = 0; i < scan.processes; i++)
			n += !scan.process[i].error && scan.process[i].state != CL_DEAD && scan.process[i].who.pid_ns &&
			     scan.process[i].who.pid_ns != pid_ns;
	cu_scan_free(&scan);
	close(dirfd);
	return n;
}

void cu_check_containers(void)
{
	const uint64_t first = UINT64_C(4026531836); /* the kernel gives it to the first PID namespace */
	static struct seen seen;
	char above[PATH_MAX];
	unsigned int n;

	seen = (struct seen){ .pid_ns = namespace_of("self", "pid"), .mounts = namespace_of("self", "mnt") };
	snprintf(above, sizeof(above), "%s", cu_directory());
	if (stat(above, &seen.ours)) {
		*strrchr(above, '/') = 0;
		if (stat(above, &seen.ours))
			return; /* another check says so */
	}
	cu_proc_each(geteuid(), false, look_at, &seen);
	for (unsigned int i = 0; i < seen.n; i++)
		say(&seen.other[i]);
	if (seen.more)
		cu_found("containers", WARN, NULL, "%u more process%s under culimbo with yet other directories", seen.more,
			 seen.more == 1 ? " runs" : "es run");
	n = guests(seen.pid_ns);
	if (n)
		cu_found("containers", OK, NULL, "%u process%s of other PID namespaces (containers) %s files in %s", n,
			 n == 1 ? "" : "es", n == 1 ? "has" : "have", cu_directory());
	else if (seen.pid_ns && seen.pid_ns != first)
		cu_found("containers", OK, ADVICE,
			 "this is a PID namespace of its own (a container), and no process of another one has a file in %s",
			 cu_directory());
	else if (!seen.n)
		cu_found("containers", OK, NULL, "no process of this user runs under culimbo with another directory");
}
