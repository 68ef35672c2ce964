/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends commands to workers: the conformance program's side of the pipes, its TAP lines, and
 * short forms of common commands.
 */
#include "conformance_worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CALL_DEADLINE_MS 15000

#define NO_REPLY (-2)

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void nap(uint64_t ns)
{
	struct timespec t = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };

	nanosleep(&t, NULL);
}

#define WORKERS 64
static struct worker *workers[WORKERS];

unsigned int tests, failed;

__attribute__((format(printf, 2, 3))) bool ok(bool good, const char *format, ...)
{
	va_list args;

	printf("%s %u - ", good ? "ok" : "not ok", ++tests);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
	failed += !good;
	return good;
}

__attribute__((format(printf, 1, 2))) void note(const char *format, ...)
{
	va_list args;

	printf("# ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
}

void too_late(int signal_number)
{
	static const char line[] = "Bail out! the whole run exceeded its time limit\n";

	if (write(STDOUT_FILENO, line, sizeof(line) - 1) < 0)
		_exit(1);
	for (int i = 0; i < WORKERS; i++)
		if (workers[i] && workers[i]->pid)
			kill(workers[i]->pid, SIGKILL);
	_exit(1);
}

/* Waits for the worker's end with a deadline, then kills it. */
void bury(struct worker *w)
{
	int status = 0;

	if (!w->pid)
		return;
	for (int i = 0; i < 500; i++) {
		if (waitpid(w->pid, &status, WNOHANG) == w->pid)
			goto dead;
		nap(10 * MS);
	}
	kill(w->pid, SIGKILL);
	waitpid(w->pid, &status, 0);
dead:
	w->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	w->pid = 0;
	close(w->to);
	close(w->from);
}

static struct answer ask_full(struct worker *w, const struct question *q)
{
	struct answer r = { .result = NO_REPLY };
	struct pollfd poll_fd = { .fd = w->from, .events = POLLIN };
	int n;

	if (!w->pid) {
		r.result = CRASHED;
		return r;
	}
	if (write(w->to, q, sizeof(*q)) != (ssize_t)sizeof(*q)) {
		bury(w);
		r.result = CRASHED;
		return r;
	}
	do
		n = poll(&poll_fd, 1, CALL_DEADLINE_MS);
	while (n < 0 && errno == EINTR);
	if (n == 0) {
		note("a worker gave no answer to call %d within %d s: killed", (int)q->verb,
		     CALL_DEADLINE_MS / 1000);
		kill(w->pid, SIGKILL);
		bury(w);
		return r;
	}
	if (read(w->from, &r, sizeof(r)) != (ssize_t)sizeof(r)) {
		bury(w);
		if (q->verb != LEAVE && w->signal)
			note("a worker died of signal %d at call %d", w->signal, (int)q->verb);
		memset(&r, 0, sizeof(r));
		r.result = CRASHED;
	}
	return r;
}

struct answer ask(struct worker *w, enum verb verb, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	struct question q = { .verb = verb, .a = { a, b, c, d } };

	return ask_full(w, &q);
}

struct answer ask_handle(struct worker *w, enum verb verb, const unsigned char *handle)
{
	struct question q = { .verb = verb };

	memcpy(q.handle, handle, 64);
	return ask_full(w, &q);
}

int between_workers[2] = { -1, -1 };

bool connect_workers(void)
{
	return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, between_workers) == 0;
}

static bool put_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return good;
}

/* Enters a user namespace: without root's rights that is needed to create other namespaces. */
static bool new_user(void)
{
	unsigned int uid = geteuid(), gid = getegid();
	char users[64], groups[64];

	snprintf(users, sizeof(users), "%u %u 1", uid, uid);
	snprintf(groups, sizeof(groups), "%u %u 1", gid, gid);
	return !unshare(CLONE_NEWUSER) && put_text("/proc/self/uid_map", users) &&
	       put_text("/proc/self/setgroups", "deny") && put_text("/proc/self/gid_map", groups);
}

/*
 * Returns in a child that is process 1 of a PID namespace; the child has a /proc of that namespace
 * where it can mount one.  The calling process closes its descriptors, waits, and ends with the
 * child's status.
 */
static void go_apart(void)
{
	int status = 0;
	pid_t pid;

	if (unshare(CLONE_NEWPID | CLONE_NEWNS) && (!new_user() || unshare(CLONE_NEWPID | CLONE_NEWNS)))
		_exit(77);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (mount("none", "/", "none", MS_REC | MS_PRIVATE, "") ||
		    mount("proc", "/proc", "proc", 0, NULL))
			return; /* the outer namespace's /proc stays */
		return;
	}
	if (pid < 0)
		_exit(77);
	for (int fd = 3; fd < 256; fd++)
		close(fd);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFSIGNALED(status)) {
		signal(WTERMSIG(status), SIG_DFL);
		raise(WTERMSIG(status));
	}
	_exit(WEXITSTATUS(status));
}

static bool start_worker(struct worker *w, bool apart)
{
	int down[2], up[2], slot;
	struct answer r;

	memset(w, 0, sizeof(*w));
	if (pipe2(down, O_CLOEXEC) || pipe2(up, O_CLOEXEC)) {
		printf("Bail out! pipe: %s\n", strerror(errno));
		exit(1);
	}
	fflush(stdout);
	w->pid = fork();
	if (w->pid < 0) {
		printf("Bail out! fork: %s\n", strerror(errno));
		exit(1);
	}
	if (w->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* for pidfd_getfd under Yama */
		signal(SIGALRM, SIG_DFL);
		/* Close the other workers' pipes: a pipe must break when its process ends. */
		for (int i = 0; i < WORKERS; i++)
			if (workers[i] && workers[i] != w && workers[i]->pid) {
				close(workers[i]->to);
				close(workers[i]->from);
			}
		close(down[1]);
		close(up[0]);
		if (apart)
			go_apart();
		if (load_driver())
			_exit(2);
		serve(down[0], up[1]);
	}
	close(down[0]);
	close(up[1]);
	w->to = down[1];
	w->from = up[0];
	for (slot = 0; slot < WORKERS; slot++)
		if (!workers[slot] || workers[slot] == w)
			break;
	if (slot < WORKERS)
		workers[slot] = w;
	r = ask(w, START, 0, 0, 0, 0);
	if (r.result && !apart) {
		printf("Bail out! a worker could not start: %d\n", r.result);
		exit(1);
	}
	return !r.result;
}

void spawn(struct worker *w)
{
	start_worker(w, false);
}

bool spawn_apart(struct worker *w)
{
	return start_worker(w, true);
}

void dismiss(struct worker *w)
{
	if (w->pid)
		ask(w, LEAVE, 0, 0, 0, 0);
	bury(w);
	for (int i = 0; i < WORKERS; i++)
		if (workers[i] == w)
			workers[i] = NULL;
}

uint64_t alloc(struct worker *w, uint64_t bytes)
{
	struct answer r = ask(w, ALLOC, bytes, 0, 0, 0);

	if (r.result)
		note("allocating %llu bytes gave %d", (unsigned long long)bytes, r.result);
	return r.v[0];
}

int release(struct worker *w, uint64_t pointer)
{
	return ask(w, FREE, pointer, 0, 0, 0).result;
}

void set(struct worker *w, uint64_t pointer, uint32_t value, uint64_t bytes)
{
	struct answer r = ask(w, SET, pointer, value, bytes / 4, 0);

	if (r.result)
		note("setting memory gave %d", r.result);
}

/* Returns the first word, or all ones after noting the error. */
uint32_t get(struct worker *w, uint64_t pointer)
{
	struct answer r = ask(w, READ, pointer, 0, 0, 0);

	if (r.result) {
		note("reading gave %d", r.result);
		return UINT32_MAX;
	}
	return (uint32_t)r.v[0];
}

int export(struct worker *w, uint64_t pointer, unsigned char *handle)
{
	struct answer r = ask(w, HANDLE, pointer, 0, 0, 0);

	memcpy(handle, r.handle, 64);
	return r.result;
}

int import(struct worker *w, const unsigned char *handle, uint64_t *pointer)
{
	struct answer r = ask_handle(w, OPEN, handle);

	*pointer = r.v[0];
	return r.result;
}

int drop(struct worker *w, uint64_t pointer)
{
	return ask(w, CLOSE, pointer, 0, 0, 0).result;
}

void close_descriptor(struct worker *w, uint64_t descriptor)
{
	ask(w, CLOSE_DESCRIPTOR, descriptor, 0, 0, 0);
}

uint64_t free_memory(struct worker *w)
{
	return ask(w, FREE_MEMORY, 0, 0, 0, 0).v[0];
}

unsigned int differing(const unsigned char *a, const unsigned char *b, int *first, int *last)
{
	unsigned int n = 0;

	*first = *last = -1;
	for (int i = 0; i < 64; i++) {
		if (a[i] == b[i])
			continue;
		if (*first < 0)
			*first = i;
		*last = i;
		n++;
	}
	return n;
}
