/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo doctor` checks the driver.  A separate process asks it (probe.c), once
 * without and once under the library.
 *
 * Whatever the driver does, the check ends within the given time, and removes what
 * the probe leaves behind.
 */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/common/scan.h"
#include "tools/common/where.h"
#include "tools/doctor/checks.h"

struct probe {
	char text[4096], step[64], log[2048];
	int status; /* waitpid()'s; -1: it was killed because it took too long */
};

/* Copies the value of @name in the probe's output to @to.  Returns false if there is none. */
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
 * Makes a directory beside the real one for the probe.  A process that begins to share
 * removes files of dead processes in its directory, and the doctor must change nothing
 * in the real one.  "": there is no place for it.
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
		/* left by a killed probe */
		snprintf(file, sizeof(file), "%s/%s", path, names[i]->d_name);
		unlink(file);
		free(names[i]);
	}
	if (n >= 0)
		free(names);
	rmdir(path);
}

/* Reads the library's messages from the log @path of the probe. */
static void read_log(const char *path, char *to, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, to, size - 1);

	if (fd >= 0)
		close(fd);
	to[n > 0 ? n : 0] = 0;
}

/* Runs this program with --probe, without or under the library.  Returns 0 or -errno. */
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
			/* the pipe is closed: the probe has ended, or is about to */
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

/* Returns true if the probe reached its end; otherwise adds a check that says what happened. */
static bool probe_ended(const struct probe *probe, const char *name, const char *how, int patience_ms)
{
	if (probe->status == -1)
		cu_found(name, FAIL,
			 "look at `nvidia-smi` and `dmesg`; --patience=1m waits longer (a GPU without persistence mode takes long to wake: nvidia-smi -pm 1)",
			 "the driver did not answer within %g s %s, at: %s", patience_ms / 1000.0,
			 how,
			 probe->step[0] ? probe->step : "the start of the process that asks it");
	else if (WIFSIGNALED(probe->status))
		cu_found(name, FAIL,
			 "look at `dmesg`; reinstall the driver, or report it with this line",
			 "a process that asked the driver %s was killed by signal %d (%s), at: %s", how,
			 WTERMSIG(probe->status), strsignal(WTERMSIG(probe->status)), probe->step);
	else if (WEXITSTATUS(probe->status))
		cu_found(name, FAIL, "run `culimbo run -- true`: it says why",
			 "a process that was to ask the driver %s could not be started (status %d)", how,
			 WEXITSTATUS(probe->status));
	else
		return true;
	return false;
}

bool cu_doctor_require_gpu;

static void say_driver(const struct probe *probe, bool simulate)
{
	enum cu_verdict without_gpu = cu_doctor_require_gpu ? FAIL : WARN;
	char path[512], version[32], kernel[64], error[256], devices[16];

	if (said(probe, "missing", error, sizeof(error))) {
		cu_found("driver", simulate ? FAIL : without_gpu,
			 simulate ? "build or install culimbo completely" :
				    "install NVIDIA's driver, or (in a container) start it with the GPUs (docker run --gpus all); to try culimbo without: culimbo run --simulate -- CMD",
			 "no libcuda.so.1: %s", error);
		return;
	}
	said(probe, "driver", path, sizeof(path));
	said(probe, "version", version, sizeof(version));
	cu_slurp("/sys/module/nvidia/version", kernel, sizeof(kernel));
	kernel[strcspn(kernel, "\n")] = 0;
	cu_found("driver", OK, NULL, "%s, CUDA %d.%d%s%s%s", path, atoi(version) / 1000,
		 atoi(version) % 1000 / 10, *kernel && !simulate ? ", kernel module " : "",
		 simulate ? "" : kernel, simulate ? " (simulated)" : "");
	if (said(probe, "devices", devices, sizeof(devices)))
		cu_found("devices", atoi(devices) ? OK : without_gpu,
			 atoi(devices) ? NULL : "CUDA_VISIBLE_DEVICES may hide them: unset it",
			 "%s",
			 atoi(devices) ? devices : "the driver has none");
	else if (said(probe, "error", error, sizeof(error)))
		cu_found("devices", without_gpu,
			 "a driver without a GPU: see `nvidia-smi`; the module and the library must be of one version",
			 "%s", error);
}

static void say_handles(const struct probe *probe)
{
	char memory[16], event[16], error[256];

	if (!said(probe, "memory_used", memory, sizeof(memory)) ||
	    !said(probe, "event_used", event, sizeof(event))) {
		if (said(probe, "devices", memory, sizeof(memory)) && atoi(memory) &&
		    said(probe, "error", error, sizeof(error)))
			cu_found("handles", WARN,
				 "CUDA IPC does not work here (WSL, vGPU, MIG or Jetson may lack it): nothing can be shared",
				 "%s", error);
		return;
	}
	if (!atoi(memory) && !atoi(event))
		cu_found("handles", OK, NULL,
			 "memory and event handles have room for our stamp");
	else
		cu_found("handles", WARN,
			 "importers cannot say then what they hold: blocks of 2 MiB and more that a process frees go back as without culimbo, and smaller ones are kept until it ends. Tell us the driver's version; CULIMBO_HELD_BYTES limits what is kept",
			 "the driver uses bytes of handles where our stamp has its place (memory %s of 5, event %s of 8 are not zero)",
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
		cu_found("hooks", OK, NULL,
			 "all %u calls that were tried lead to culimbo by dlsym, all %u by cuGetProcAddress",
			 present, got);
	else
		cu_found("hooks", FAIL,
			 "programs may free what others hold. Another preloaded library may be why (see messages); if there is none, report it, with the driver's version and this line",
			 "of the calls that were tried, %u of %u lead to culimbo by dlsym, %u of %u by cuGetProcAddress",
			 ours, present, got_ours, got);
	if (said(probe, "shared", error, sizeof(error))) {
		bool stamped = said(probe, "memory_used", tail, sizeof(tail)) && atoi(tail);

		if (stamps && !stamped)
			cu_found("sharing", WARN, "see what is said of the directory and its room",
				 "a block and an event were exported under the library, but it has no file in which "
				 "importers could say what they hold");
		else
			cu_found("sharing", OK, NULL,
				 "a block and an event were exported under the library%s",
				 stamps ? ", their handles stamped" : " (without a stamp)");
	} else if (said(probe, "error", error, sizeof(error)) && said(probe, "devices", tail, sizeof(tail)) &&
		   atoi(tail)) {
		cu_found("sharing", FAIL,
			 simulate ? "see the messages of `culimbo run --simulate`" :
				    "compare with `culimbo doctor --simulate`",
			 "under the library: %s", error);
	}
}

/*
 * Adds a check for each message of the library to the probe; check_options() reports those about
 * options.
 */
static void say_messages(struct probe *probe)
{
	char *line, *rest;

	for (line = strtok_r(probe->log, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *said = strstr(line, "]: ");

		said = said ? said + 3 : line;
		if (strncmp(said, "warning: CULIMBO_", 17))
			cu_found("messages", WARN,
				 "doc/troubleshooting.md explains each message of the library",
				 "%s",
				 said);
	}
}

void cu_check_driver(bool simulate, int patience_ms)
{
	struct probe probe;
	char text[256], path[PATH_MAX];
	bool stamps;
	int error;

	if (cu_where(CU_LIBRARY, path, sizeof(path))) {
		cu_found("library", FAIL, "build or install culimbo completely", "there is no %s",
			 path);
		return;
	}
	cu_found("library", OK, NULL, "%s", path);
	error = run_probe(&probe, false, simulate, patience_ms);
	if (error) {
		cu_found("driver", FAIL, "free some processes or memory",
			 "cannot start a process: %s",
			 strerror(-error));
		return;
	}
	if (!probe_ended(&probe, "driver", "(without the library)", patience_ms))
		return;
	say_driver(&probe, simulate);
	if (said(&probe, "missing", text, sizeof(text)))
		return;
	say_handles(&probe);
	stamps = said(&probe, "memory_used", text, sizeof(text)) && !atoi(text);
	if (!run_probe(&probe, true, simulate, patience_ms) &&
	    probe_ended(&probe, "hooks", "under the library", patience_ms)) {
		say_hooks(&probe, stamps, simulate);
		say_messages(&probe);
	}
}
