/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The actor: operations on its process: exits, forks, exec, other users.
 */
#include "actor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noreturn)) static void become_new(void)
{
	execv("/proc/self/exe", arguments);
	_exit(126);
}

/* Ends the process as requested; main() handles END_RETURN. */
void finish(enum ending how, int status)
{
	switch (how) {
	case END_EXIT:
		exit(status);
	case END__EXIT:
		_exit(status);
	case END__Exit:
		_Exit(status);
	case END_QUICK_EXIT:
		quick_exit(status);
	case END_EXEC:
		become_new();
	case END_RETURN:
		break;
	}
}

void do_fork(const struct wire_request *q)
{
	int status = -1, null;
	/* so that no fork handler runs */
	pid_t child = q->a[1] ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, NULL, NULL, 0) : fork();

	if (child == 0) {
		/* an exec'ed image finds no request and exits at once */
		null = open("/dev/null", O_RDONLY);
		if (null >= 0)
			dup2(null, STDIN_FILENO);
		finish((enum ending)q->a[0], 5);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		complain("fork: %s", strerror(errno));
	reply.v[0] = (uint64_t)(unsigned int)status;
}

/* The child does not exec, and makes no call. */
void do_fork_stays(const struct wire_request *q)
{
	static pid_t child;

	if (q->a[0]) {
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		return;
	}
	child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	if (child < 0)
		complain("fork: %s", strerror(errno));
}

/* The child does not exec, and makes no call.  It ends with the process that started us. */
void do_fork_outlives(const struct wire_request *q)
{
	struct pollfd stage = { .fd = (int)syscall(SYS_pidfd_open, getppid(), 0), .events = POLLIN };
	pid_t child = fork();

	if (child == 0) {
		while (poll(&stage, 1, -1) < 0 && errno == EINTR)
			;
		_exit(0);
	}
	close(stage.fd);
	if (child < 0)
		complain("fork: %s", strerror(errno));
	reply.v[0] = (uint64_t)child;
}

/* A child has none of its parent's contexts: how does the driver answer its calls? */
void do_fork_calls(const struct wire_request *q)
{
	CUipcMemHandle handle;
	CUdeviceptr address;
	uint64_t said[4];
	int status, to[2];
	pid_t child;

	if (pipe(to)) {
		complain("pipe: %s", strerror(errno));
		return;
	}
	child = fork();
	if (child == 0) {
		said[0] = cu.cuMemFree_v2(q->a[0]);
		said[1] = cu.cuIpcGetMemHandle(&handle, q->a[0]);
		said[2] = cu.cuIpcCloseMemHandle(q->a[1]);
		said[3] = cu.cuMemAlloc_v2(&address, 1024);
		_exit(write(to[1], said, sizeof(said)) != sizeof(said));
	}
	close(to[1]);
	if (child < 0 || waitpid(child, &status, 0) != child || status ||
	    read(to[0], reply.v, sizeof(reply.v)) != sizeof(reply.v))
		complain("the child did not exit normally");
	close(to[0]);
}

/* Takes all descriptors that there are, or gives them back. */
void do_descriptors(const struct wire_request *q)
{
	static int taken[1024];
	static size_t n;
	struct rlimit few = { 0, 0 };

	getrlimit(RLIMIT_NOFILE, &few);
	if (few.rlim_cur > 256)
		few.rlim_cur = 256;
	setrlimit(RLIMIT_NOFILE, &few);
	while (q->a[0] && n < 1024 && (taken[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
		n++;
	while (!q->a[0] && n)
		close(taken[--n]);
	reply.v[0] = n;
}

void do_exec(const struct wire_request *q)
{
	(void)q;
	become_new();
}

/* Is it a socket that is bound to a name in the folder? */
static bool is_bound_in(int fd, const char *folder)
{
	struct sockaddr_un name = { .sun_path = "" };
	socklen_t length = sizeof(name) - 1;

	return !getsockname(fd, (struct sockaddr *)&name, &length) && name.sun_family == AF_UNIX &&
	       strstr(name.sun_path, folder);
}

/*
 * Closes descriptors above 2, as daemons do: all of them, or only those that refer to
 * CULIMBO_DIR.  A real driver does not survive the loss of its own.
 */
void do_close_fds(const struct wire_request *q)
{
	const char *ours = getenv("CULIMBO_DIR");
	char link[64], target[512];
	int last = 0, fds[4096];
	struct dirent *entry;
	DIR *directory = opendir("/proc/self/fd");

	if (!directory) {
		complain("/proc/self/fd: %s", strerror(errno));
		return;
	}
	while ((entry = readdir(directory)) && last < 4096) {
		int fd = atoi(entry->d_name);
		ssize_t n;

		if (*entry->d_name == '.' || fd <= 2 || fd == dirfd(directory))
			continue;
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		n = readlink(link, target, sizeof(target) - 1);
		target[n > 0 ? n : 0] = 0;
		if (q->a[0] == CLOSE_ALL || (ours && (strstr(target, ours) || is_bound_in(fd, ours))))
			fds[last++] = fd;
	}
	closedir(directory);
	for (int i = 0; i < last; i++)
		close(fds[i]);
	reply.v[0] = (uint64_t)last;
}

void do_jail(const struct wire_request *q)
{
	char folder[512];

	(void)q;
	snprintf(folder, sizeof(folder), "%s/../jail.%d", getenv("CULIMBO_DIR"), (int)getpid());
	if (mkdir(folder, 0755) || chroot(folder) || chdir("/"))
		complain("chroot(%s): %s", folder, strerror(errno));
}

void do_user(const struct wire_request *q)
{
	uid_t user = (uid_t)q->a[0];

	if (q->a[1] ? setresuid(user, user, user) : seteuid(user))
		complain("user %u: %s", (unsigned int)user, strerror(errno));
}
