/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo doctor` checks the system: the directory of exporter files, the files in
 * it, logind, limits and /proc.
 *
 * It changes nothing, and undoes what it tries.
 */
#include "config.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/self/self.h"
#include "tools/commands/check_folder.h"
#include "tools/common/scan.h"
#include "tools/common/text.h"
#include "tools/doctor/checks.h"

/* --------------------------------------------------------- the directory's place */
static const char *file_system(long type)
{
	switch (type) {
	case 0x01021994:
		return "tmpfs";
	case 0x858458f6:
		return "ramfs";
	case 0x6969:
		return "NFS";
	case 0xff534d42:
	case 0xfe534d42:
		return "SMB";
	case 0x65735546:
		return "FUSE";
	case 0x01021997:
		return "9p";
	default:
		return "";
	}
}

static void check_room(const char *path)
{
	struct statfs fs;
	char all[24], left[24];
	const char *kind;
	uint64_t free_bytes;
	int fd;

	if (statfs(path, &fs)) {
		cu_found("room", FAIL, "mount a tmpfs there, or set CULIMBO_DIR", "%s: %s", path,
			 strerror(errno));
		return;
	}
	kind = file_system((long)fs.f_type);
	free_bytes = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
	cu_bytes_long(all, (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize);
	cu_bytes_long(left, free_bytes);
	if (!strcmp(kind, "NFS") || !strcmp(kind, "SMB") || !strcmp(kind, "9p"))
		cu_found("room", FAIL, "set CULIMBO_DIR to a directory on a local file system",
			 "%s is on %s: locks and shared memory do not work across machines", path, kind);
	else if (free_bytes < 1024 * 1024)
		cu_found("room", FAIL,
			 "make room: `culimbo gc`, `df`; containers: a larger --shm-size",
			 "%s: %s of %s free; an exporter's file takes 148 KiB, and 136 bytes a block", path,
			 left, all);
	else if (free_bytes < 16 * 1024 * 1024)
		cu_found("room", WARN,
			 "make room: `culimbo gc`, `df`; containers: a larger --shm-size",
			 "%s: only %s of %s free; an exporter's file takes 148 KiB, and 136 bytes a block",
			 path, left, all);
	else
		cu_found("room", OK, NULL, "%s: %s of %s free%s%s%s", path, left, all,
			 *kind ? " (" : "", kind,
			 *kind ? ")" : "");
	/* the library's first step; it leaves nothing behind */
	fd = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0 && errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) {
		cu_found("files", FAIL, "set CULIMBO_DIR to a directory of this user's",
			 "no file can be made in %s: %s", path, strerror(errno));
	} else if (fd >= 0) {
		if (fallocate(fd, 0, 0, 65536))
			cu_found("files", FAIL,
				 errno == EOPNOTSUPP ? "set CULIMBO_DIR to a directory on tmpfs, ext4 or xfs" :
						       "make room, or set CULIMBO_DIR",
				 "no memory can be had for a file in %s: %s", path,
				 strerror(errno));
		close(fd);
	}
}

static void check_directory(void)
{
	char path[PATH_MAX], above[PATH_MAX], *slash;
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s", cu_directory());
	snprintf(above, sizeof(above), "%s", path);
	slash = strrchr(above, '/');
	if (slash)
		slash[slash == above] = 0;
	fd = cl_self_open_dir(false);
	if (fd >= 0) {
		fstat(fd, &st);
		close(fd);
		if (access(path, W_OK | X_OK))
			cu_found("directory", FAIL,
				 "chmod 700 it, or set CULIMBO_DIR to another one",
				 "%s: %s", path, strerror(errno));
		else
			cu_found("directory", OK, NULL, "%s (mode %04o)%s", path,
				 (unsigned int)st.st_mode & 07777,
				 st.st_mode & 077 ? ": others may list it, the files in it are this user's alone" :
						    "");
		check_room(path);
	} else if (fd == -ENOENT && slash && stat(above, &st) && errno == ENOENT) {
		cu_found("directory", FAIL,
			 "make it (mkdir -p -m 700), or set CULIMBO_DIR to a directory on a tmpfs",
			 "%s is not there, nor is the folder that it would be in: the library makes the last one only", path);
	} else if (fd == -EACCES) {
		cu_found("directory", FAIL,
			 "another user's, or below a folder that keeps this one out: set CULIMBO_DIR to one of its own",
			 "%s: %s", path, strerror(EACCES));
	} else if (fd == -ENOENT) {
		cu_found("directory", OK, NULL, "%s is not there yet: the first export makes it",
			 path);
		if (slash && !stat(above, &st) && access(above, W_OK | X_OK))
			cu_found("directory", FAIL,
				 "mount /dev/shm with mode 1777, or set CULIMBO_DIR to a directory of this user's",
				 "%s cannot be written to: %s", above, strerror(errno));
		else if (slash && st.st_mode & 022 && !(st.st_mode & S_ISVTX))
			cu_found("directory", WARN,
				 "chmod +t it: others could remove culimbo's directory",
				 "%s (mode %04o) is open to all and not sticky", above,
				 (unsigned int)st.st_mode & 07777);
		check_room(slash ? above : ".");
	} else if (fd == -EPERM) {
		cu_found("directory", FAIL,
			 "chmod 700 it if it is yours, else set CULIMBO_DIR to another one: the library shares nothing as it is",
			 "%s belongs to another user, or others may write there", path);
	} else {
		cu_found("directory", FAIL, "take it away, or set CULIMBO_DIR", "%s: %s", path,
			 strerror(-fd));
	}
}

static void check_files(void)
{
	unsigned int dead = 0, unread = 0, alive = 0;
	struct cu_scan scan;
	int fd = cl_self_open_dir(false);

	if (fd < 0)
		return;
	if (!cu_scan(&scan, fd, 0)) {
		for (size_t i = 0; i < scan.processes; i++) {
			const struct cu_process *p = &scan.process[i];

			unread += p->error && p->error != -ESTALE;
			dead += p->error == -ESTALE || (!p->error && p->file_id && p->state == CL_DEAD);
			alive += !p->error && p->state == CL_ALIVE;
		}
		if (unread)
			cu_found("exporters", WARN, "see `culimbo ps`",
				 "%u file%s cannot be read (another version's, or damaged)", unread,
				 unread == 1 ? "" : "s");
		if (dead)
			cu_found("exporters", WARN, "`culimbo gc` removes them",
				 "%u file%s of dead processes", dead, dead == 1 ? "" : "s");
		if (!unread && !dead)
			cu_found("exporters", OK, NULL, "%u process%s share%s", alive,
				 alive == 1 ? "" : "es",
				 alive == 1 ? "s" : "");
	}
	cu_scan_free(&scan);
	close(fd);
}

struct left {
	unsigned int folders;
	uint64_t bytes;
	char one[128];
};

static void count_folder(void *data, const char *path, uint64_t bytes, bool removed)
{
	struct left *left = data;

	(void)removed;
	if (!left->folders++)
		snprintf(left->one, sizeof(left->one), "%s", path);
	left->bytes += bytes;
}

static void check_folders(void)
{
	struct left left = { .folders = 0 };
	char size[24];

	cu_check_folders_left(false, count_folder, &left);
	cu_bytes_long(size, left.bytes);
	if (left.folders)
		cu_found("leftovers", WARN, "`culimbo gc` removes them (without --dir and CULIMBO_DIR)",
			 "%u folder%s of killed `culimbo check`, %s: %s%s", left.folders,
			 left.folders == 1 ? "" : "s", size, left.one, left.folders == 1 ? "" : " and others");
}

/* -------------------------------------------------------------------- the system */
/* Sets *value to the last RemoveIPC of @path. */
static void read_remove_ipc(const char *path, char *value, size_t size)
{
	char text[8192];

	if (!cu_slurp(path, text, sizeof(text)))
		return;
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		line += strspn(line, " \t");
		if (strncmp(line, "RemoveIPC", 9))
			continue;
		line += 9;
		line += strspn(line, " \t");
		if (*line == '=')
			snprintf(value, size, "%s", line + 1 + strspn(line + 1, " \t"));
	}
}

static void check_remove_ipc(void)
{
	static const char *const main_files[] = { "/usr/lib/systemd/logind.conf",
						  "/run/systemd/logind.conf",
						  "/etc/systemd/logind.conf" };
	static const char *const folders[] = { "/usr/lib/systemd/logind.conf.d",
					       "/run/systemd/logind.conf.d",
					       "/etc/systemd/logind.conf.d" };
	char value[64] = "", path[PATH_MAX];
	const struct passwd *user;
	struct stat st;

	if (strncmp(cu_directory(), "/dev/shm/", 9)) {
		cu_found("RemoveIPC", OK, NULL,
			 "the directory is not in /dev/shm: logind leaves it");
		return;
	}
	snprintf(path, sizeof(path), "%s/run/systemd/system", cu_doctor_root);
	if (stat(path, &st)) {
		cu_found("RemoveIPC", OK, NULL,
			 "systemd does not run here: nothing removes files at logout");
		return;
	}
	for (size_t i = 0; i < 3; i++)
		read_remove_ipc(main_files[i], value, sizeof(value));
	for (size_t i = 0; i < 3; i++) {
		struct dirent **names;
		int n;

		snprintf(path, sizeof(path), "%s%s", cu_doctor_root, folders[i]);
		n = scandir(path, &names, NULL, alphasort);
		for (int j = 0; j < n; j++) {
			snprintf(path, sizeof(path), "%s/%s", folders[i], names[j]->d_name);
			if (strstr(names[j]->d_name, ".conf"))
				read_remove_ipc(path, value, sizeof(value));
			free(names[j]);
		}
		if (n >= 0)
			free(names);
	}
	if (*value && strchr("nN0fF", *value)) {
		cu_found("RemoveIPC", OK, NULL, "RemoveIPC=%s: logind leaves /dev/shm at logout",
			 value);
		return;
	}
	if (!*cu_doctor_root && geteuid() < 1000) {
		cu_found("RemoveIPC", OK, NULL,
			 "logind removes files of ordinary users at logout, but not those of system users (uid %u)",
			 (unsigned int)geteuid());
		return;
	}
	user = getpwuid(geteuid());
	snprintf(path, sizeof(path), "%s/var/lib/systemd/linger/%s", cu_doctor_root,
		 user ? user->pw_name : "?");
	if (user && !stat(path, &st)) {
		cu_found("RemoveIPC", OK, NULL, "this user lingers: its files stay at logout");
		return;
	}
	cu_found("RemoveIPC", WARN,
		 "for jobs that outlive the login: RemoveIPC=no in /etc/systemd/logind.conf, or `loginctl enable-linger`, or CULIMBO_DIR elsewhere",
		 "RemoveIPC=%s: at this user's last logout logind removes our files; what is freed after that is kept to the end",
		 *value ? value : "yes (the default)");
}

static void check_limits(void)
{
	struct rlimit limit;
	char text[24];

	getrlimit(RLIMIT_FSIZE, &limit);
	cu_bytes_long(text, limit.rlim_cur);
	if (limit.rlim_cur < CL_FILE_SIZE)
		cu_found("fsize", FAIL,
			 "ulimit -f unlimited (the file is sparse: 148 KiB are real)",
			 "files may have %s; an exporter's is %" PRIu64 " MiB long", text,
			 (uint64_t)CL_FILE_SIZE >> 20);
	else
		cu_found("fsize", OK, NULL, "files may be as long as an exporter's");
	getrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_cur < 256)
		cu_found("nofile", WARN, "ulimit -n 1024",
			 "%llu descriptors: the library needs one for each exporter it imports from",
			 (unsigned long long)limit.rlim_cur);
	else if (limit.rlim_cur == RLIM_INFINITY)
		cu_found("nofile", OK, NULL, "descriptors without limit");
	else
		cu_found("nofile", OK, NULL, "%llu descriptors",
			 (unsigned long long)limit.rlim_cur);
	getrlimit(RLIMIT_AS, &limit);
	cu_bytes_long(text, limit.rlim_cur);
	if (limit.rlim_cur != RLIM_INFINITY)
		cu_found("address space", WARN,
			 "ulimit -v unlimited (CUDA itself reserves far more)",
			 "limited to %s; each exporter's file takes %" PRIu64 " MiB of addresses", text,
			 (uint64_t)CL_FILE_SIZE >> 20);
}

/* Tries to read the maps of another process of this user.  Returns 0 or -errno. */
static int look_at_child(void)
{
	char path[48], byte;
	int error = 0, fd;
	pid_t child = fork();

	if (child < 0)
		return -errno;
	if (!child)
		for (;;)
			pause();
	snprintf(path, sizeof(path), "/proc/%d/maps", (int)child);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, &byte, 1) < 0)
		error = -errno;
	if (fd >= 0)
		close(fd);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return error;
}

static void check_proc(void)
{
	char text[8192], *options = NULL, *save;
	struct cl_identity self;
	int error;

	cl_identity_self(&self);
	if (!self.start_time)
		cu_found("/proc", WARN,
			 "mount /proc of this PID namespace (unshare --mount-proc, docker does it): else a death is known only after CULIMBO_SETTLE",
			 "it is not mounted, or is another PID namespace's");
	else if ((error = look_at_child()) != 0)
		cu_found("/proc", WARN,
			 "a security module or seccomp forbids it; a death is then known only after CULIMBO_SETTLE",
			 "/proc/PID/maps of our own processes cannot be read: %s",
			 strerror(-error));
	else
		cu_found("/proc", OK, NULL, "our own processes can be looked at");
	cu_slurp("/proc/self/mounts", text, sizeof(text));
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char where[64], kind[32], flags[512];

		if (sscanf(line, "%*s %63s %31s %511s", where, kind, flags) == 3 &&
		    !strcmp(where, "/proc") && !strcmp(kind, "proc"))
			options = strcpy(text, flags);
	}
	if (options && (strstr(options, "hidepid=4") || strstr(options, "hidepid=ptraceable")))
		cu_found("hidepid", WARN,
			 "mount -o remount,hidepid=0 /proc (or run as one that may ptrace)",
			 "/proc shows only what may be traced: processes of ours may look dead");
	else if (options && strstr(options, "hidepid=") && !strstr(options, "hidepid=0") &&
		 !strstr(options, "hidepid=off"))
		cu_found("hidepid", OK, NULL,
			 "/proc hides other users' processes; those do not share with this user's anyway");
	else
		cu_found("hidepid", OK, NULL, "/proc hides no process");
	if (options && strstr(options, "subset=pid"))
		cu_found("hidepid", WARN, "mount /proc without subset=pid",
			 "/proc lacks the boot id: files of an earlier boot are not told from new ones");
	if (cu_slurp("/proc/sys/kernel/yama/ptrace_scope", text, sizeof(text)) && atoi(text) >= 2)
		cu_found("ptrace", WARN,
			 "sysctl kernel.yama.ptrace_scope=1, to debug a process that hangs",
			 "kernel.yama.ptrace_scope=%d: debuggers cannot look at a process (culimbo itself needs no ptrace)",
			 atoi(text));
	else
		cu_found("ptrace", OK, NULL, "%s%.*s: debuggers can look at our processes",
			 *text && isdigit((unsigned char)*text) ? "kernel.yama.ptrace_scope=" :
								  "not restricted",
			 isdigit((unsigned char)*text) ? 1 : 0, text);
}

void cu_check_system(void)
{
	check_directory();
	check_files();
	check_folders();
	check_remove_ipc();
	check_limits();
	check_proc();
}
