/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a command in namespaces of its own: into [OPTION...] -- COMMAND...
 *
 *   --uid=N         first becomes user N of the outer namespace
 *   --user=N        in a user namespace, where its user is N (none: is not mapped)
 *   --pid           in a PID namespace, where it is process 1
 *   --pid=2         in a PID namespace, where it is process 2
 *   --proc=own|none with a /proc of that PID namespace, or without any
 *   --ipc           in an IPC namespace
 *   --net           in a network namespace
 *   --time          in a time namespace, whose clock is 1,000,000 s ahead
 *   --bind=FROM:TO  mounts FROM at TO as well
 *   --boot=FILE     gives it another boot id, as systemd-nspawn does
 *   --same-addresses  gives each such process its memory at the same addresses, as device memory has
 *
 * INTO_PID, if set, names a file; it gets the command's pid in the outer namespace.
 * It exits with the command's status, and the command ends with it.  Status 77: the
 * kernel or its settings forbid the namespace.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

enum { FORBIDDEN = 77 };

static void must(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "into: %s: %s\n", what, strerror(errno));
	exit(FORBIDDEN);
}

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), path);
	close(fd);
}

static const char *value(const char *argument, const char *name)
{
	size_t n = strlen(name);

	return strncmp(argument, name, n) ? NULL : argument + n;
}

static const char *user, *proc, *from_to, *boot;

static void new_user(void)
{
	unsigned int uid = geteuid(), gid = getegid();
	char text[64];

	must(!unshare(CLONE_NEWUSER), "unshare(CLONE_NEWUSER)");
	if (!strcmp(user, "none"))
		return;
	snprintf(text, sizeof text, "%s %u 1\n", user, uid);
	put("/proc/self/uid_map", text);
	put("/proc/self/setgroups", "deny");
	snprintf(text, sizeof text, "%s %u 1\n", user, gid);
	put("/proc/self/gid_map", text);
}

static void mounts(void)
{
	if (!proc && !from_to && !boot)
		return;
	must(!mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "private mounts");
	if (proc && !strcmp(proc, "own"))
		must(!mount("proc", "/proc", "proc", 0, NULL), "mount /proc");
	if (proc && !strcmp(proc, "none"))
		must(!mount("tmpfs", "/proc", "tmpfs", 0, "size=4k"), "a tmpfs at /proc");
	if (from_to) {
		char *from = strdup(from_to), *to = strchr(from, ':');

		must(to != NULL, "--bind=FROM:TO");
		*to++ = 0;
		must((!mkdir(to, 0700) || errno == EEXIST) && !mount(from, to, NULL, MS_BIND, NULL), "bind");
	}
	if (boot)
		must(!mount(boot, "/proc/sys/kernel/random/boot_id", NULL, MS_BIND, NULL), "another boot id");
}

/* Forks process 1 of the new namespace.  It does nothing, and ends with us. */
static void first_process(void)
{
	pid_t first = fork();

	must(first >= 0, "fork");
	if (first)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(STDIN_FILENO);
	close(STDOUT_FILENO);
	close(STDERR_FILENO);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	bool pid = false, second = false, timens = false;
	int at, status, others = 0, go[2];
	pid_t child;
	char byte;

	for (at = 1; at < argc && strcmp(argv[at], "--"); at++) {
		const char *a = argv[at], *v;

		if ((v = value(a, "--uid=")) != NULL) {
			must(!setgid((gid_t)atoi(v)) && !setuid((uid_t)atoi(v)), a);
			prctl(PR_SET_DUMPABLE, 1); /* else /proc/self is root's */
		} else if ((v = value(a, "--user=")) != NULL) {
			user = v;
		} else if ((v = value(a, "--proc=")) != NULL) {
			proc = v;
		} else if ((v = value(a, "--bind=")) != NULL) {
			from_to = v;
		} else if ((v = value(a, "--boot=")) != NULL) {
			boot = v;
		} else if (!strcmp(a, "--pid") || !strcmp(a, "--pid=2")) {
			pid = true;
			second = a[5] != 0;
		} else if (!strcmp(a, "--ipc")) {
			others |= CLONE_NEWIPC;
		} else if (!strcmp(a, "--net")) {
			others |= CLONE_NEWNET;
		} else if (!strcmp(a, "--time")) {
			timens = true;
		} else if (!strcmp(a, "--same-addresses")) {
			must(personality(ADDR_NO_RANDOMIZE) >= 0, a);
		} else {
			fprintf(stderr, "into: what is %s?\n", a);
			return 2;
		}
	}
	if (at + 1 >= argc)
		return 2;
	if (user)
		new_user();
	must(!unshare((pid ? CLONE_NEWPID : 0) | (proc || from_to || boot ? CLONE_NEWNS : 0) | others), "unshare");
	if (timens) {
		must(!unshare(CLONE_NEWTIME), "unshare(CLONE_NEWTIME)");
		put("/proc/self/timens_offsets", "monotonic 1000000 0\nboottime 1000000 0\n");
	}
	if (second)
		first_process();
	must(!pipe2(go, O_CLOEXEC), "pipe2");
	child = fork();
	must(child >= 0, "fork");
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		mounts();
		/* a test that hears from the command reads INTO_PID then: so it starts after that is written */
		close(go[1]);
		must(read(go[0], &byte, 1) == 1, "read");
		execvp(argv[at + 1], argv + at + 1);
		must(false, argv[at + 1]);
	}
	if (getenv("INTO_PID")) {
		char text[16];

		snprintf(text, sizeof text, "%d\n", (int)child);
		put(getenv("INTO_PID"), text);
	}
	must(write(go[1], "", 1) == 1, "write");
	close(go[0]);
	close(go[1]);
	/* only the command should read this */
	close(STDIN_FILENO);
	while (waitpid(child, &status, 0) < 0)
		must(errno == EINTR, "waitpid");
	if (WIFSIGNALED(status)) {
		signal(WTERMSIG(status), SIG_DFL);
		raise(WTERMSIG(status));
	}
	return WEXITSTATUS(status);
}
