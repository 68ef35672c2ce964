/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo doctor`: whether everything that the library stands on is there, and
 * what to do where it is not.
 *
 * Must always hold: it ends (the driver is asked in another process, for a
 * bounded time), needs no GPU to say what it can, and changes nothing.
 */
#include "config.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/base/options.h"
#include "shim/self/self.h"
#include "tools/commands/commands.h"
#include "tools/common/scan.h"
#include "tools/common/table.h"
#include "tools/common/text.h"
#include "tools/common/where.h"
#include "tools/doctor.h"

enum { OPTION_SIMULATE = 128, OPTION_PROBE, OPTION_ROOT, OPTION_PATIENCE };

enum verdict { OK, WARN, FAIL };
static const char *const verdict_word[] = { "ok", "warn", "fail" };

enum { STATUS, CHECK, WHAT, ADVICE };
static const struct cu_column columns[] = {
	[STATUS] = { "STATUS", CU_TEXT, 0, "ok, warn or fail" },
	[CHECK] = { "CHECK", CU_TEXT, 0, "what was looked at" },
	[WHAT] = { "WHAT", CU_TEXT, CU_WRAP, "what was found" },
	[ADVICE] = { "ADVICE", CU_TEXT, CU_WRAP, "what to do about it" },
	{ .name = NULL },
};

enum { CHECKS_MOST = 64 };
static struct check {
	enum verdict verdict;
	const char *name;
	char what[600], advice[600];
} checks[CHECKS_MOST];
static unsigned int checks_n;
static const char *root = ""; /* before /etc, /proc and /run */

__attribute__((format(printf, 4, 5))) static void found(const char *name, enum verdict verdict,
							const char *advice, const char *format, ...)
{
	struct check *check = &checks[checks_n < CHECKS_MOST ? checks_n++ : CHECKS_MOST - 1];
	char text[600];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	check->name = name;
	check->verdict = verdict;
	cu_clean(check->what, sizeof(check->what), text, sizeof(text));
	snprintf(check->advice, sizeof(check->advice), "%s", advice ? advice : "");
}

/* The start of a small file below the root; "" where it can't be read.  False then. */
static bool slurp(const char *path, char *to, size_t size)
{
	char full[PATH_MAX];
	ssize_t n = -1;
	int fd;

	snprintf(full, sizeof(full), "%s%s", root, path);
	fd = open(full, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, to, size - 1);
		close(fd);
	}
	to[n > 0 ? n : 0] = 0;
	return n >= 0;
}

/* ----------------------------------------------------------------- the options */
static unsigned int complaints;

static void complain(const char *line)
{
	complaints++;
	found("options", WARN, "correct it where it is set, or unset it: `culimbo config` shows what is allowed",
	      "%s", line);
}

static void check_options(void)
{
	cl_options_read(&cl_options, environ, complain);
	if (cl_options.disable.number)
		found("options", WARN, "unset CULIMBO_DISABLE",
		      "CULIMBO_DISABLE=1: the library does nothing in what is started from here");
	else if (!complaints)
		found("options", OK, NULL, "all CULIMBO_* that are set are understood");
}

/* ------------------------------------------------------------------ the driver */
struct probe {
	char text[4096], step[64], log[2048];
	int status; /* of waitpid(); -1: it was killed because it took too long */
};

/* The value of @name in what it said, into @to; false: it did not say. */
static bool said(const struct probe *probe, const char *name, char *to, size_t size)
{
	size_t length = strlen(name);

	*to = 0;
	for (const char *line = probe->text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, name, length) || line[length] != '=')
			continue;
		snprintf(to, size, "%.*s", (int)strcspn(line + length + 1, "\n"), line + length + 1);
		return true;
	}
	return false;
}

/*
 * A directory beside the real one: whoever begins to share takes away what the
 * dead have left in its own, and the doctor changes nothing.  "": there is no place.
 */
static void make_own_directory(char *path, size_t size)
{
	char *slash;

	snprintf(path, size - sizeof("/culimbo-doctor-XXXXXX"), "%s", cu_directory());
	slash = strrchr(path, '/');
	strcpy(slash ? slash : path, slash ? "/culimbo-doctor-XXXXXX" : "culimbo-doctor-XXXXXX");
	if (!mkdtemp(path))
		*path = 0;
}

static void take_away(const char *path)
{
	struct dirent **names;
	char file[PATH_MAX];
	int n = scandir(path, &names, NULL, NULL);

	for (int i = 0; i < n; i++) {
		/* (of a probe that was killed) */
		snprintf(file, sizeof(file), "%s/%s", path, names[i]->d_name);
		unlink(file);
		free(names[i]);
	}
	if (n >= 0)
		free(names);
	rmdir(path);
}

/* What the library said to the process whose log @path is. */
static void read_log(const char *path, char *to, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, to, size - 1);

	if (fd >= 0)
		close(fd);
	to[n > 0 ? n : 0] = 0;
}

/* Runs ourselves with --probe, bare or under the library.  0 or -errno. */
static int run_probe(struct probe *probe, bool preload, bool simulate, int patience_ms)
{
	uint64_t until = cl_now() + (uint64_t)patience_ms * 1000000;
	char self[PATH_MAX], own[PATH_MAX], log[PATH_MAX + 8];
	const char *argv[10], **arg = argv;
	size_t n = 0;
	ssize_t got = readlink("/proc/self/exe", self, sizeof(self) - 1);
	int to[2], null;
	pid_t child;

	*probe = (struct probe){ .status = -1 };
	if (got < 0)
		return -errno;
	self[got] = 0;
	if (pipe2(to, O_CLOEXEC))
		return -errno;
	*arg++ = self;
	*arg++ = "run";
	if (simulate)
		*arg++ = "--simulate";
	if (!preload)
		*arg++ = "--no-preload";
	*arg++ = "--";
	*arg++ = self;
	*arg++ = "doctor";
	*arg++ = "--probe";
	*arg = NULL;
	make_own_directory(own, sizeof(own));
	snprintf(log, sizeof(log), "%s/log", own);
	child = fork();
	if (child < 0) {
		int error = -errno;

		take_away(own);
		close(to[0]);
		close(to[1]);
		return error;
	}
	if (!child) {
		setpgid(0, 0);
		null = open("/dev/null", O_RDWR | O_CLOEXEC);
		dup2(null, 0);
		dup2(to[1], 1);
		dup2(null, 2);
		if (*own) {
			setenv("CULIMBO_DIR", own, 1);
			setenv("CULIMBO_LOG_FILE", log, 1);
		}
		setenv("CULIMBO_REPORT", "off", 1);
		setenv("CULIMBO_LOG", *own ? "warn" : "off", 1);
		unsetenv("CULIMBO_DISABLE");
		execv(self, (char **)argv);
		_exit(127);
	}
	close(to[1]);
	for (;;) {
		struct pollfd ready = { .fd = to[0], .events = POLLIN };
		uint64_t now = cl_now();

		if (now >= until || n == sizeof(probe->text) - 1)
			break;
		if (poll(&ready, 1, (int)((until - now) / 1000000) + 1) < 0 && errno != EINTR)
			break;
		if (!ready.revents)
			continue;
		got = read(to[0], probe->text + n, sizeof(probe->text) - 1 - n);
		if (got <= 0) {
			/* the end: or what it left behind has the pipe, which is none of ours */
			waitpid(child, &probe->status, 0);
			child = -1;
			break;
		}
		n += (size_t)got;
	}
	close(to[0]);
	if (child > 0) {
		kill(-child, SIGKILL);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	if (*own)
		read_log(log, probe->log, sizeof(probe->log));
	take_away(own);
	for (const char *line = probe->text; (line = strstr(line, "step=")) != NULL; line++)
		snprintf(probe->step, sizeof(probe->step), "%.*s", (int)strcspn(line + 5, "\n"), line + 5);
	return 0;
}

/* True when it came to its end; else what became of it is said. */
static bool probe_ended(const struct probe *probe, const char *name, const char *how, int patience_ms)
{
	if (probe->status == -1)
		found(name, FAIL,
		      "look at `nvidia-smi` and `dmesg`; --patience=1m waits longer (a GPU without persistence mode takes long to wake: nvidia-smi -pm 1)",
		      "the driver did not answer within %g s %s, at: %s", patience_ms / 1000.0, how,
		      probe->step[0] ? probe->step : "the start of the process that asks it");
	else if (WIFSIGNALED(probe->status))
		found(name, FAIL, "look at `dmesg`; reinstall the driver, or report it with this line",
		      "a process that asked the driver %s was killed by signal %d (%s), at: %s", how,
		      WTERMSIG(probe->status), strsignal(WTERMSIG(probe->status)), probe->step);
	else if (WEXITSTATUS(probe->status))
		found(name, FAIL, "run `culimbo run -- true`: it says why",
		      "a process that was to ask the driver %s could not be started (status %d)", how,
		      WEXITSTATUS(probe->status));
	else
		return true;
	return false;
}

static void say_driver(const struct probe *probe, bool simulate)
{
	char path[512], version[32], kernel[64], error[256], devices[16];

	if (said(probe, "missing", error, sizeof(error))) {
		found("driver", simulate ? FAIL : WARN,
		      simulate ? "build or install culimbo completely" :
				 "install NVIDIA's driver, or (in a container) start it with the GPUs (docker run --gpus all); to try culimbo without: culimbo run --simulate -- CMD",
		      "no libcuda.so.1: %s", error);
		return;
	}
	said(probe, "driver", path, sizeof(path));
	said(probe, "version", version, sizeof(version));
	slurp("/sys/module/nvidia/version", kernel, sizeof(kernel));
	kernel[strcspn(kernel, "\n")] = 0;
	found("driver", OK, NULL, "%s, CUDA %d.%d%s%s%s", path, atoi(version) / 1000,
	      atoi(version) % 1000 / 10, *kernel && !simulate ? ", kernel module " : "",
	      simulate ? "" : kernel, simulate ? " (simulated)" : "");
	if (said(probe, "devices", devices, sizeof(devices)))
		found("devices", atoi(devices) ? OK : WARN,
		      atoi(devices) ? NULL : "CUDA_VISIBLE_DEVICES may hide them: unset it", "%s",
		      atoi(devices) ? devices : "the driver has none");
	else if (said(probe, "error", error, sizeof(error)))
		found("devices", WARN,
		      "a driver without a GPU: see `nvidia-smi`; the module and the library must be of one version",
		      "%s", error);
}

static void say_handles(const struct probe *probe)
{
	char memory[16], event[16], error[256];

	if (!said(probe, "memory_tail", memory, sizeof(memory)) ||
	    !said(probe, "event_tail", event, sizeof(event))) {
		if (said(probe, "devices", memory, sizeof(memory)) && atoi(memory) &&
		    said(probe, "error", error, sizeof(error)))
			found("handles", WARN,
			      "CUDA IPC does not work here (WSL, vGPU, MIG or Jetson may lack it): nothing can be shared",
			      "%s", error);
		return;
	}
	if (!atoi(memory) && !atoi(event))
		found("handles", OK, NULL,
		      "bytes 56 to 63 of memory and event handles are zero: there is room for our stamp");
	else
		found("handles", WARN,
		      "nothing: records are then found by the whole handle, which is slower and cannot tell a freed block's handle from its successor's",
		      "bytes 56 to 63 of handles are in use by the driver (memory %s, event %s of 8 not zero)",
		      memory, event);
}

static void say_hooks(const struct probe *probe, bool stamps, bool simulate)
{
	unsigned int ours = 0, present = 0, got_ours = 0, got = 0;
	char hooks[64], error[256], tail[16];

	if (!said(probe, "hooks", hooks, sizeof(hooks)) ||
	    sscanf(hooks, "%u %u %u %u", &ours, &present, &got_ours, &got) != 4)
		return;
	if (ours == present && got_ours == got && present)
		found("hooks", OK, NULL,
		      "all %u calls that we look at are routed to us by dlsym, all %u by cuGetProcAddress",
		      present, got);
	else
		found("hooks", FAIL,
		      "programs may free what others hold. Another preloaded library may be why (see messages); if there is none, report it, with the driver's version and this line",
		      "of the calls that we look at, dlsym gives %u of %u to us, cuGetProcAddress %u of %u",
		      ours, present, got_ours, got);
	if (said(probe, "shared", error, sizeof(error))) {
		bool stamped = said(probe, "memory_tail", tail, sizeof(tail)) && atoi(tail);

		if (stamps && !stamped)
			found("sharing", WARN, "see what is said of the directory and its room",
			      "a block and an event were exported under the library, but it has no file in which "
			      "importers could say what they hold");
		else
			found("sharing", OK, NULL, "a block and an event were exported under the library%s",
			      stamps ? ", their handles stamped" : " (without a stamp)");
	} else if (said(probe, "error", error, sizeof(error)) && said(probe, "devices", tail, sizeof(tail)) &&
		   atoi(tail)) {
		found("sharing", FAIL, simulate ? "see the messages of `culimbo run --simulate`" :
						  "compare with `culimbo doctor --simulate`",
		      "under the library: %s", error);
	}
}

/* What the library itself said to the probe, one check a line; what is wrong with options is told by check_options(). */
static void say_messages(struct probe *probe)
{
	char *line, *rest;

	for (line = strtok_r(probe->log, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *said = strstr(line, "]: ");

		said = said ? said + 3 : line;
		if (strncmp(said, "warning: CULIMBO_", 17))
			found("messages", WARN, "doc/troubleshooting.md explains each message of the library", "%s",
			      said);
	}
}

static void check_driver(bool simulate, int patience_ms)
{
	struct probe probe;
	char text[256], path[PATH_MAX];
	bool stamps;
	int error;

	if (cu_where(CU_LIBRARY, path, sizeof(path))) {
		found("library", FAIL, "build or install culimbo completely", "there is no %s", path);
		return;
	}
	found("library", OK, NULL, "%s", path);
	error = run_probe(&probe, false, simulate, patience_ms);
	if (error) {
		found("driver", FAIL, "free some processes or memory", "cannot start a process: %s",
		      strerror(-error));
		return;
	}
	if (!probe_ended(&probe, "driver", "(without the library)", patience_ms))
		return;
	say_driver(&probe, simulate);
	if (said(&probe, "missing", text, sizeof(text)))
		return;
	say_handles(&probe);
	stamps = said(&probe, "memory_tail", text, sizeof(text)) && !atoi(text);
	if (!run_probe(&probe, true, simulate, patience_ms) &&
	    probe_ended(&probe, "hooks", "under the library", patience_ms)) {
		say_hooks(&probe, stamps, simulate);
		say_messages(&probe);
	}
}

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
		found("room", FAIL, "mount a tmpfs there, or set CULIMBO_DIR", "%s: %s", path,
		      strerror(errno));
		return;
	}
	kind = file_system((long)fs.f_type);
	free_bytes = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
	cu_bytes_long(all, (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize);
	cu_bytes_long(left, free_bytes);
	if (!strcmp(kind, "NFS") || !strcmp(kind, "SMB") || !strcmp(kind, "9p"))
		found("room", FAIL, "set CULIMBO_DIR to a directory on a local file system",
		      "%s is on %s: locks and shared memory do not work across machines", path, kind);
	else if (free_bytes < 1024 * 1024)
		found("room", FAIL, "make room: `culimbo gc`, `df`; containers: a larger --shm-size",
		      "%s: %s of %s free; an exporter's file takes 148 KiB, and 136 bytes a block", path,
		      left, all);
	else if (free_bytes < 16 * 1024 * 1024)
		found("room", WARN, "make room: `culimbo gc`, `df`; containers: a larger --shm-size",
		      "%s: only %s of %s free; an exporter's file takes 148 KiB, and 136 bytes a block",
		      path, left, all);
	else
		found("room", OK, NULL, "%s: %s of %s free%s%s%s", path, left, all, *kind ? " (" : "", kind,
		      *kind ? ")" : "");
	/* what the library does first, and leaves nothing */
	fd = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0 && errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) {
		found("files", FAIL, "set CULIMBO_DIR to a directory of this user's",
		      "no file can be made in %s: %s", path, strerror(errno));
	} else if (fd >= 0) {
		if (fallocate(fd, 0, 0, 65536))
			found("files", FAIL,
			      errno == EOPNOTSUPP ? "set CULIMBO_DIR to a directory on tmpfs, ext4 or xfs" :
						    "make room, or set CULIMBO_DIR",
			      "no memory can be had for a file in %s: %s", path, strerror(errno));
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
			found("directory", FAIL, "chmod 700 it, or set CULIMBO_DIR to another one",
			      "%s: %s", path, strerror(errno));
		else
			found("directory", OK, NULL, "%s (mode %04o)%s", path,
			      (unsigned int)st.st_mode & 07777,
			      st.st_mode & 077 ? ": others may list it, the files in it are this user's alone" :
						 "");
		check_room(path);
	} else if (fd == -ENOENT && slash && stat(above, &st) && errno == ENOENT) {
		found("directory", FAIL, "make it (mkdir -p -m 700), or set CULIMBO_DIR to a directory on a tmpfs",
		      "%s is not there, nor is the folder that it would be in: the library makes the last one only", path);
	} else if (fd == -EACCES) {
		found("directory", FAIL,
		      "another user's, or below a folder that keeps this one out: set CULIMBO_DIR to one of its own",
		      "%s: %s", path, strerror(EACCES));
	} else if (fd == -ENOENT) {
		found("directory", OK, NULL, "%s is not there yet: the first export makes it", path);
		if (slash && !stat(above, &st) && access(above, W_OK | X_OK))
			found("directory", FAIL,
			      "mount /dev/shm with mode 1777, or set CULIMBO_DIR to a directory of this user's",
			      "%s cannot be written to: %s", above, strerror(errno));
		else if (slash && st.st_mode & 022 && !(st.st_mode & S_ISVTX))
			found("directory", WARN, "chmod +t it: others could take our directory away",
			      "%s (mode %04o) is open to all and not sticky", above,
			      (unsigned int)st.st_mode & 07777);
		check_room(slash ? above : ".");
	} else if (fd == -EPERM) {
		found("directory", FAIL,
		      "chmod 700 it if it is yours, else set CULIMBO_DIR to another one: the library shares nothing as it is",
		      "%s is somebody else's, or others may write there", path);
	} else {
		found("directory", FAIL, "take it away, or set CULIMBO_DIR", "%s: %s", path, strerror(-fd));
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
			found("exporters", WARN, "see `culimbo ps`",
			      "%u file%s cannot be read (another version's, or damaged)", unread,
			      unread == 1 ? "" : "s");
		if (dead)
			found("exporters", WARN, "`culimbo gc` takes them away",
			      "%u file%s of dead processes", dead, dead == 1 ? "" : "s");
		if (!unread && !dead)
			found("exporters", OK, NULL, "%u process%s share%s", alive, alive == 1 ? "" : "es",
			      alive == 1 ? "s" : "");
	}
	cu_scan_free(&scan);
	close(fd);
}

/* -------------------------------------------------------------------- the system */
/* Sets *value to the last RemoveIPC of @path. */
static void read_remove_ipc(const char *path, char *value, size_t size)
{
	char text[8192];

	if (!slurp(path, text, sizeof(text)))
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
		found("RemoveIPC", OK, NULL, "the directory is not in /dev/shm: logind leaves it");
		return;
	}
	snprintf(path, sizeof(path), "%s/run/systemd/system", root);
	if (stat(path, &st)) {
		found("RemoveIPC", OK, NULL, "systemd does not run here: nobody takes files away at logout");
		return;
	}
	for (size_t i = 0; i < 3; i++)
		read_remove_ipc(main_files[i], value, sizeof(value));
	for (size_t i = 0; i < 3; i++) {
		struct dirent **names;
		int n;

		snprintf(path, sizeof(path), "%s%s", root, folders[i]);
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
		found("RemoveIPC", OK, NULL, "RemoveIPC=%s: logind leaves /dev/shm at logout", value);
		return;
	}
	if (!*root && geteuid() < 1000) {
		found("RemoveIPC", OK, NULL,
		      "logind takes away files of ordinary users at logout, not those of system users (uid %u)",
		      (unsigned int)geteuid());
		return;
	}
	user = getpwuid(geteuid());
	snprintf(path, sizeof(path), "%s/var/lib/systemd/linger/%s", root, user ? user->pw_name : "?");
	if (user && !stat(path, &st)) {
		found("RemoveIPC", OK, NULL, "this user lingers: its files stay at logout");
		return;
	}
	found("RemoveIPC", WARN,
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
		found("fsize", FAIL, "ulimit -f unlimited (the file is sparse: 148 KiB are real)",
		      "files may have %s; an exporter's is %" PRIu64 " MiB long", text,
		      (uint64_t)CL_FILE_SIZE >> 20);
	else
		found("fsize", OK, NULL, "files may be as long as an exporter's");
	getrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_cur < 256)
		found("nofile", WARN, "ulimit -n 1024",
		      "%llu descriptors: the library needs one for each exporter it imports from",
		      (unsigned long long)limit.rlim_cur);
	else if (limit.rlim_cur == RLIM_INFINITY)
		found("nofile", OK, NULL, "descriptors without limit");
	else
		found("nofile", OK, NULL, "%llu descriptors", (unsigned long long)limit.rlim_cur);
	getrlimit(RLIMIT_AS, &limit);
	cu_bytes_long(text, limit.rlim_cur);
	if (limit.rlim_cur != RLIM_INFINITY)
		found("address space", WARN, "ulimit -v unlimited (CUDA itself reserves far more)",
		      "limited to %s; each exporter's file takes %" PRIu64 " MiB of addresses", text,
		      (uint64_t)CL_FILE_SIZE >> 20);
}

/* Whether the maps of another process of this user can be read: 0 or -errno. */
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
	struct cl_witness self;
	int error;

	cl_witness_self(&self);
	if (!self.start_time)
		found("/proc", WARN,
		      "mount /proc of this PID namespace (unshare --mount-proc, docker does): else who has died is known only after CULIMBO_SETTLE",
		      "it is not mounted, or is another PID namespace's");
	else if ((error = look_at_child()) != 0)
		found("/proc", WARN,
		      "a security module or seccomp forbids it; then who has died is known only after CULIMBO_SETTLE",
		      "/proc/PID/maps of our own processes cannot be read: %s", strerror(-error));
	else
		found("/proc", OK, NULL, "our own processes can be looked at");
	slurp("/proc/self/mounts", text, sizeof(text));
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char where[64], kind[32], flags[512];

		if (sscanf(line, "%*s %63s %31s %511s", where, kind, flags) == 3 &&
		    !strcmp(where, "/proc") && !strcmp(kind, "proc"))
			options = strcpy(text, flags);
	}
	if (options && (strstr(options, "hidepid=4") || strstr(options, "hidepid=ptraceable")))
		found("hidepid", WARN, "mount -o remount,hidepid=0 /proc (or run as one that may ptrace)",
		      "/proc shows only what may be traced: processes of ours may look dead");
	else if (options && strstr(options, "hidepid=") && !strstr(options, "hidepid=0") &&
		 !strstr(options, "hidepid=off"))
		found("hidepid", OK, NULL,
		      "/proc hides other users' processes; those do not share with this user's anyway");
	else
		found("hidepid", OK, NULL, "/proc hides no process");
	if (options && strstr(options, "subset=pid"))
		found("hidepid", WARN, "mount /proc without subset=pid",
		      "/proc lacks the boot id: files of an earlier boot are not told from new ones");
	if (slurp("/proc/sys/kernel/yama/ptrace_scope", text, sizeof(text)) && atoi(text) >= 2)
		found("ptrace", WARN, "sysctl kernel.yama.ptrace_scope=1, to debug a process that hangs",
		      "kernel.yama.ptrace_scope=%d: debuggers cannot look at a process (culimbo itself needs no ptrace)",
		      atoi(text));
	else
		found("ptrace", OK, NULL, "%s%.*s: debuggers can look at our processes",
		      *text && isdigit((unsigned char)*text) ? "kernel.yama.ptrace_scope=" :
							       "not restricted",
		      isdigit((unsigned char)*text) ? 1 : 0, text);
}

/* -------------------------------------------------------------------------- all */
static void fill(struct cu_cell *cell, unsigned int column, const void *row)
{
	const struct check *check = row;

	cu_cell_text(cell, column == STATUS ? verdict_word[check->verdict] :
			   column == CHECK  ? check->name :
			   column == WHAT   ? check->what :
					      check->advice);
}

static void print_for_people(void)
{
	static const char *const colour[] = { "32", "33", "31" };
	bool colours = isatty(STDOUT_FILENO) && getenv("TERM") && strcmp(getenv("TERM"), "dumb") != 0 &&
		       !getenv("NO_COLOR");
	unsigned int n[3] = { 0 };

	for (unsigned int i = 0; i < checks_n; i++) {
		const struct check *c = &checks[i];

		n[c->verdict]++;
		if (colours)
			printf("\033[%sm%-4s\033[0m", colour[c->verdict], verdict_word[c->verdict]);
		else
			printf("%-4s", verdict_word[c->verdict]);
		printf("  %-13s %s\n", c->name, c->what);
		if (*c->advice)
			printf("      %-13s -> %s\n", "", c->advice);
	}
	printf("\n%u ok, %u warning%s, %u failed\n", n[OK], n[WARN], n[WARN] == 1 ? "" : "s", n[FAIL]);
}

static int doctor(const struct cu_command *command, int argc, char **argv)
{
	struct cu_format format = { 0 };
	struct cu_table *table = NULL;
	int got, status = CU_OK, patience_ms = 30000;
	bool simulate = false;
	uint64_t ns;

	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		switch (got) {
		case OPTION_SIMULATE:
			simulate = true;
			break;
		case OPTION_PROBE:
			return cu_probe();
		case OPTION_ROOT:
			root = optarg;
			break;
		case OPTION_PATIENCE:
			if (!cu_read_wait(optarg, &ns))
				return cu_usage_error(command, "'%s' is no time: 500ms, 2s, 1m, up to 1 hour",
						      optarg);
			patience_ms = (int)(ns / 1000000);
			break;
		case CU_OPTION_DIR:
			if (setenv("CULIMBO_DIR", optarg, 1))
				return CU_FAILED;
			break;
		default:
			if (!cu_format_option(&format, got))
				return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
		}
	if (format.json || format.raw || format.output) {
		table = cu_table_new(command, "checks", &format, &status);
		if (!table)
			return status;
		status = CU_OK;
	}
	check_options();
	check_driver(simulate, patience_ms);
	check_directory();
	check_files();
	check_remove_ipc();
	check_limits();
	check_proc();
	for (unsigned int i = 0; i < checks_n; i++) {
		if (checks[i].verdict == FAIL)
			status = CU_FAILED;
		if (table)
			cu_table_line(table, fill, &checks[i]);
	}
	if (!table)
		print_for_people();
	else if (cu_table_end(table))
		status = CU_FAILED;
	return status;
}

static const struct cu_option options[] = {
	{ "simulate", OPTION_SIMULATE, NULL, "ask the simulated driver: no GPU is needed" },
	{ "patience", OPTION_PATIENCE, "DURATION", "how long to wait for the driver (default 30s)" },
	{ "root", OPTION_ROOT, "DIR", "read the settings of the system below DIR (/etc, /proc, /run)" },
	CU_TABLE_OPTIONS,
	CU_DIR_OPTION,
	{ "probe", OPTION_PROBE, NULL, NULL },
	{ .name = NULL },
};

static const struct cu_exit exits[] = {
	{ CU_OK, "nothing failed; there may be warnings" },
	{ CU_FAILED, "something failed: the library cannot do its work here" },
	{ CU_USAGE, "the command line is wrong" },
	{ 0, NULL },
};

static const struct cu_example examples[] = {
	{ "culimbo doctor", "is all in place on this machine, or in this container?" },
	{ "culimbo doctor --simulate", "the same with the simulated driver" },
	{ "culimbo doctor --json | jq '.checks[] | select(.status != \"ok\")'", "only what is wrong" },
	{ .line = NULL },
};

const struct cu_command cu_doctor = {
	.name = "doctor",
	.arguments = "",
	.summary = "check that the library can do its work here, and say what to do",
	.help = "Looks at the driver (in a process of its own), its handles, how its calls are routed\n"
		"to the library, the directory of exporter files, logind, limits and /proc.  Each check\n"
		"is ok, a warning or a failure, with what to do.  Nothing is changed.",
	.options = options,
	.columns = columns,
	.exits = exits,
	.examples = examples,
	.run = doctor,
};
