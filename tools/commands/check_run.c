/* SPDX-License-Identifier: Apache-2.0 */
/* How `culimbo check` runs CMD and watches what it starts: see check_run.h. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim/base/clock.h"
#include "tools/commands/check_ends.h"
#include "tools/commands/check_run.h"
#include "tools/common/procs.h"
#include "tools/common/start.h"

enum {
	FIRST_PAUSE = 2, LONGEST_PAUSE = 50, /* ms, between two looks */
	SHARE = 20,			     /* looks take at most 1 / SHARE of the time */
	PIDFDS = 200,			     /* at most this many are open at once */
	EVENT_SHARE = 10, EVENT_START = 500, /* looks because of events: 1 / EVENT_SHARE of the time, and ms more */
	DRIVERS = 16,			     /* as many processes are asked for the path of their driver */
};

/* ------------------------------------------------------------- how others ended */
/*
 * Since Linux 6.15 a pidfd tells how a process ended that is not our child, even when its parent
 * has collected its status.  The C library does not declare this yet.
 */
struct pidfd_exit {
	uint64_t mask, cgroup;
	uint32_t ids[11];
	int32_t status;
};
_Static_assert(sizeof(struct pidfd_exit) == 64, "the kernel's struct pidfd_info of version 0");
#define PIDFD_ASK _IOWR(0xff, 11, struct pidfd_exit)
#define PIDFD_ASK_EXIT (1u << 3)

static int ask_status(int pidfd)
{
	struct pidfd_exit ask = { .mask = PIDFD_ASK_EXIT };

	if (pidfd < 0 || ioctl(pidfd, PIDFD_ASK, &ask) || !(ask.mask & PIDFD_ASK_EXIT))
		return -1;
	return ask.status;
}

static int open_pidfd(pid_t pid)
{
#ifdef SYS_pidfd_open
	return (int)syscall(SYS_pidfd_open, pid, 0);
#else
	errno = ENOSYS;
	return -(pid > 0);
#endif
}

/* --------------------------------------------------------------------- events */
/*
 * A process may live for a shorter time than a pause between two looks.  So a look follows at once
 * when a file appears in CULIMBO_DIR, as at a process's first export or open, and when a process
 * opens or closes the driver's library, as the dynamic linker does before and after it maps it.
 * See also watch_library().
 */
static void watch_directory(struct cu_watch *watch)
{
	const char *dir = getenv("CULIMBO_DIR");

	/* the first process that shares may have to make it */
	if (!watch->directory && dir)
		watch->directory = inotify_add_watch(watch->events, dir, IN_CREATE | IN_MOVED_TO | IN_ONLYDIR) >= 0;
}

static void watch_driver(struct cu_watch *watch, pid_t pid)
{
	char path[4200];

	if (watch->events >= 0 && watch->drivers++ < DRIVERS && cu_proc_driver(pid, path, sizeof(path)))
		inotify_add_watch(watch->events, path, IN_OPEN | IN_CLOSE_NOWRITE);
}

/*
 * Each program that starts under the library opens it, so a look follows the start of one that may end at once.
 * Where the kernel tells of the end of each process this is not needed.
 */
static void watch_library(struct cu_watch *watch)
{
	const char *preload = getenv("LD_PRELOAD");
	char path[4200];

	if (preload && watch->events >= 0 && !watch->ends) {
		snprintf(path, sizeof(path), "%.*s", (int)strcspn(preload, ": "), preload);
		inotify_add_watch(watch->events, path, IN_OPEN);
	}
}

/* Returns true if there were events; they are over with that. */
static bool take_events(const struct cu_watch *watch)
{
	char buffer[4096];
	bool any = false;

	while (watch->events >= 0 && read(watch->events, buffer, sizeof(buffer)) > 0)
		any = true;
	return any;
}

/* ------------------------------------------------------------------- the tree */
/* Finds the process that began at @start; with 0, the last one with an unknown status. */
static struct cu_descendant *find(struct cu_watch *watch, pid_t pid, uint64_t start)
{
	for (size_t i = watch->n; i-- > 0;)
		if (watch->list[i].pid == pid && (start ? watch->list[i].start == start : watch->list[i].status == -1))
			return &watch->list[i];
	return NULL;
}

/* @status is waitpid()'s; -1: only its parent can get it, and may not have done so yet. */
static void has_ended(struct cu_watch *watch, struct cu_descendant *d, int status)
{
	d->runs = false;
	d->status = status != -1 ? status : ask_status(d->pidfd);
	if (d->pidfd < 0 || d->status == -1)
		return;
	close(d->pidfd);
	d->pidfd = -1;
	watch->pidfds--;
}

static void note_command(struct cu_descendant *d)
{
	if (!cu_proc_cmdline(d->pid, d->command, sizeof(d->command)) && !*d->command)
		cu_proc_command(d->pid, d->command, sizeof(d->command));
}

/* Returns NULL without memory. */
static struct cu_descendant *add(struct cu_watch *watch, pid_t pid, uint64_t start)
{
	if (watch->n == watch->room) {
		size_t room = watch->room ? 2 * watch->room : 64;
		struct cu_descendant *list = realloc(watch->list, room * sizeof(*list));

		if (!list)
			return NULL;
		watch->list = list;
		watch->room = room;
	}
	watch->list[watch->n] = (struct cu_descendant){ .pid = pid, .start = start, .runs = true, .status = -1, .pidfd = -1 };
	return &watch->list[watch->n++];
}

static void look_at_tree(struct cu_watch *watch, pid_t pid);

/*
 * Notes @pid and all below it.  This is quick, for a pidfd must be open before a process's parent
 * has taken its status.
 */
static void look_at(void *data, pid_t pid)
{
	struct cu_watch *watch = data;
	uint64_t start = cu_proc_start(pid);
	struct cu_descendant *d;

	if (!start)
		return;
	d = find(watch, pid, start);
	if (!d && !(d = add(watch, pid, start)))
		return;
	d->seen = true;
	if (d->pidfd < 0 && watch->pidfds < PIDFDS) {
		d->pidfd = open_pidfd(pid);
		watch->pidfds += d->pidfd >= 0;
	}
	look_at_tree(watch, pid);
}

static void look_at_tree(struct cu_watch *watch, pid_t pid)
{
	cu_proc_children(pid, look_at, watch);
}

/* Finds out what @d is, and what it has mapped. */
static void look_inside(struct cu_watch *watch, struct cu_descendant *d)
{
	int maps = cu_proc_maps(d->pid);

	if (maps > 0 && maps & CU_MAPS_CUDA) {
		/* an exec may have lost the library, or brought it */
		if (!d->cuda || (!d->unprotected && !(maps & CU_MAPS_CULIMBO)))
			note_command(d);
		d->unprotected |= !(maps & CU_MAPS_CULIMBO);
		if (!d->cuda)
			watch_driver(watch, d->pid);
		d->cuda = true;
	} else if (maps >= 0 && !d->cuda) {
		note_command(d);
	}
}

/* Looks at all processes below this one.  Returns their number. */
static size_t look_around(struct cu_watch *watch)
{
	size_t running = 0;

	for (size_t i = 0; i < watch->n; i++)
		watch->list[i].seen = false;
	look_at_tree(watch, getpid());
	/* the newest first, which may be the first to end */
	for (size_t i = watch->n; i-- > 0;)
		if (watch->list[i].seen)
			look_inside(watch, &watch->list[i]);
	for (size_t i = 0; i < watch->n; i++) {
		struct cu_descendant *d = &watch->list[i];

		/* the tree changes while it is read: a process that was not found may still live */
		if (d->runs ? !d->seen && cu_proc_start(d->pid) != d->start : d->status == -1)
			has_ended(watch, d, -1);
		running += d->runs;
	}
	return running;
}

/* ------------------------------------------------------------------ running CMD */
static volatile pid_t child;

static void pass_on(int sig)
{
	int error = errno;

	if (child > 0)
		kill(child, sig);
	errno = error;
}

/* Collects the status of all children that have ended.  Returns true if CMD is among them. */
static bool take_children(struct cu_watch *watch, pid_t cmd, int *status)
{
	bool ended = false;
	int one;
	pid_t pid;

	while ((pid = waitpid(-1, &one, WNOHANG)) > 0) {
		struct cu_descendant *d = find(watch, pid, 0);

		if (d)
			has_ended(watch, d, one);
		if (pid != cmd)
			continue;
		*status = one;
		child = 0;
		ended = true;
	}
	return ended;
}

static void watch_them(struct cu_watch *watch, pid_t cmd, uint64_t wait, int *status)
{
	struct pollfd wake[2] = { { .fd = open_pidfd(cmd), .events = POLLIN }, { .fd = watch->events, .events = POLLIN } };
	uint64_t pause = FIRST_PAUSE, until = 0, spent = 0, first = cl_now();
	bool event = false, take;

	for (;;) {
		uint64_t begun = cl_now(), took;
		size_t running;

		watch_directory(watch);
		cu_ends_read(watch->ends);
		running = look_around(watch);
		took = cl_now() - begun;
		spent += event ? took : 0;
		took /= 1000000;
		if (take_children(watch, cmd, status)) {
			until = cl_now() + wait;
			pause = FIRST_PAUSE;
			continue; /* its children have a new parent: look again */
		}
		if (until && (!running || cl_now() >= until))
			break;
		if (pause < SHARE * took)
			pause = SHARE * took;
		/* the end of CMD, a signal, or an event ends the pause; poll() ignores a negative descriptor */
		if (until && wake[0].fd >= 0) {
			close(wake[0].fd);
			wake[0].fd = -1;
		}
		take = EVENT_SHARE * spent < cl_now() - first + EVENT_START * 1000000ull;
		poll(wake, take ? 2 : 1, (int)pause);
		event = take_events(watch) && take;
		pause = event ? FIRST_PAUSE : 2 * pause < LONGEST_PAUSE ? 2 * pause : LONGEST_PAUSE;
	}
	if (wake[0].fd >= 0)
		close(wake[0].fd);
}

static void note_killed(void *data, pid_t pid, int status)
{
	struct cu_watch *watch = data;
	struct cu_descendant *d;

	if (WTERMSIG(status) == SIGPIPE) /* as usual in a shell's pipes */
		return;
	for (size_t i = 0; i < watch->n; i++)
		if (watch->list[i].pid == pid)
			return;
	d = add(watch, pid, 0);
	if (d) {
		d->runs = false;
		d->status = status;
	}
}

/* Adds what the kernel has told of processes that were not seen in time. */
static void take_ends(struct cu_watch *watch)
{
	cu_ends_read(watch->ends);
	for (size_t i = 0; i < watch->n; i++)
		if (!watch->list[i].runs && watch->list[i].status == -1)
			watch->list[i].status = cu_ends_status(watch->ends, watch->list[i].pid);
	cu_ends_killed(watch->ends, note_killed, watch);
}

void cu_check_command(char *to, size_t size, char **argv)
{
	size_t used = 0;

	*to = 0;
	for (; *argv && used < size; argv++)
		used += (size_t)snprintf(to + used, size - used, "%s%s", used ? " " : "", *argv);
}

/* Waits for CMD without looking at anything.  Returns its status. */
static int wait_for(pid_t cmd)
{
	siginfo_t info;
	int status;

	/* a signal that comes when its status is taken must not reach another process with its number */
	while (waitid(P_PID, (id_t)cmd, &info, WEXITED | WNOWAIT) && errno == EINTR)
		;
	child = 0;
	return waitpid(cmd, &status, 0) == cmd ? status : -1;
}

int cu_check_run(const struct cu_command *command, const char *path, char **argv, uint64_t wait,
		 struct cu_watch *watch)
{
	static const int passed[] = { SIGHUP, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGALRM };
	static const int from_terminal[] = { SIGINT, SIGQUIT };
	struct sigaction pass = { .sa_handler = pass_on, .sa_flags = SA_RESTART }, before[8];
	struct sigaction ignore = { .sa_handler = SIG_IGN };
	sigset_t all, mask;
	uint64_t oom_kills = watch ? cu_proc_oom_kills() : 0;
	int status = -1;
	struct cu_descendant *d;
	unsigned int n = 0;
	int is_itself[2];
	char byte;
	pid_t cmd;

	if (watch) {
		*watch = (struct cu_watch){ .events = inotify_init1(IN_CLOEXEC | IN_NONBLOCK), .ends = cu_ends_begin() };
		watch_directory(watch);
		watch_library(watch);
		/* if this fails, we lose processes whose parent ends; everything else works */
		prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	}
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &mask);
	/* the terminal's signals reach CMD directly: it is in the foreground, too */
	for (unsigned int i = 0; i < 2; i++)
		sigaction(from_terminal[i], &ignore, &before[n++]);
	for (unsigned int i = 0; i < sizeof(passed) / sizeof(passed[0]); i++) {
		sigaction(passed[i], NULL, &before[n]);
		/* signals that the caller ignores (nohup), CMD ignores too */
		if (before[n++].sa_handler != SIG_IGN)
			sigaction(passed[i], &pass, NULL);
	}
	/* until CMD is itself, it looks as if it were this command: its exec closes the pipe */
	if (pipe2(is_itself, O_CLOEXEC))
		is_itself[0] = is_itself[1] = -1;
	child = cmd = fork();
	if (cmd == 0) {
		n = 0;
		for (unsigned int i = 0; i < 2; i++)
			sigaction(from_terminal[i], &before[n++], NULL);
		for (unsigned int i = 0; i < sizeof(passed) / sizeof(passed[0]); i++)
			sigaction(passed[i], &before[n++], NULL);
		sigprocmask(SIG_SETMASK, &mask, NULL);
		_exit(cu_start_become(command, path, argv));
	}
	sigprocmask(SIG_SETMASK, &mask, NULL);
	if (is_itself[0] >= 0) {
		close(is_itself[1]);
		while (cmd > 0 && read(is_itself[0], &byte, 1) < 0 && errno == EINTR)
			;
		close(is_itself[0]);
	}
	if (cmd < 0) {
		cu_error(command, "cannot start a process: %s", strerror(errno));
		return -1;
	}
	if (!watch)
		return wait_for(cmd);
	look_at(watch, cmd);
	d = find(watch, cmd, 0);
	if (d)
		look_inside(watch, d);
	/* it may have ended before this look, or amid it; then /proc has its name at most */
	if (!d)
		d = add(watch, cmd, 0);
	if (d && !strchr(d->command, ' '))
		cu_check_command(d->command, sizeof(d->command), argv);
	watch_them(watch, cmd, wait, &status);
	take_ends(watch);
	watch->oom_kills = cu_proc_oom_kills() - oom_kills;
	return status;
}

void cu_check_free(struct cu_watch *watch)
{
	for (size_t i = 0; i < watch->n; i++)
		if (watch->list[i].pidfd >= 0)
			close(watch->list[i].pidfd);
	if (watch->events >= 0)
		close(watch->events);
	cu_ends_free(watch->ends);
	free(watch->list);
	*watch = (struct cu_watch){ .events = -1 };
}

int cu_check_end_as(int status)
{
	struct rlimit none = { 0, 0 };

	if (!WIFSIGNALED(status))
		return WEXITSTATUS(status);
	setrlimit(RLIMIT_CORE, &none); /* CMD itself left a core file, if one is wanted */
	signal(WTERMSIG(status), SIG_DFL);
	fflush(NULL);
	raise(WTERMSIG(status));
	return 128 + WTERMSIG(status);
}
