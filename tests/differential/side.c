/* SPDX-License-Identifier: Apache-2.0 */
/* The two sides of a play: see side.h. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/differential/side.h"

enum { STALL_MS = 20000, PLAY_MS = 120000, KILLED_MS = 15000, SHOWN = 40 };

struct side bare = { .name = "bare" }, preloaded = { .name = "culimbo" };
volatile sig_atomic_t stopped;
static sigset_t not_blocked;
static const char *self, *culimbo, *dir;
static unsigned int stall_ms = STALL_MS;
static bool gpu;

/* -------------------------------------------------------------------- signals */
static void stop(int signal)
{
	stopped = signal;
}
void sides_catch_signals(void)
{
	static const int caught[] = { SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGALRM };
	struct sigaction action = { .sa_handler = stop };
	sigset_t blocked;

	sigemptyset(&blocked);
	for (unsigned int i = 0; i < sizeof(caught) / sizeof(caught[0]); i++) {
		sigaction(caught[i], &action, NULL);
		sigaddset(&blocked, caught[i]);
	}
	sigprocmask(SIG_BLOCK, &blocked, &not_blocked);
	for (unsigned int i = 0; i < sizeof(caught) / sizeof(caught[0]); i++)
		sigdelset(&not_blocked, caught[i]);
}

/* ----------------------------------------------------------------------- start */
static void set_environment(const struct settings *s, const char *name)
{
	static const char *const grace[] = { "0", "3ms", NULL, "1h" };
	char path[4096];

	setenv("DIFFERENTIAL_SIDE", name, 1);
	if (s->gpu)
		setenv("DIFFERENTIAL_GPU", "1", 1);
	snprintf(path, sizeof(path), "%s/%s.sim", dir, name);
	setenv("CULIMBO_SIM_DIR", path, 1);
	snprintf(path, sizeof(path), "%s/%s.at", dir, name);
	setenv("DIFFERENTIAL_UNDERWAY", path, 1);
	snprintf(path, sizeof(path), "%s/limbo", dir);
	setenv("CULIMBO_DIR", path, 1);
	setenv("CULIMBO_SIM_MEMORY", "128MiB", 1);
	setenv("CULIMBO_SIM_DEVICES", s->devices > 1 ? "2" : "1", 1);
	setenv("CULIMBO_SIM_PROC_ADDRESS", s->thunk ? "thunk" : "same", 1);
	setenv("TEST_DOOR", s->getproc || s->thunk ? "getproc" : "dlsym", 1);
	if (grace[s->grace])
		setenv("CULIMBO_GRACE", grace[s->grace], 1);
	/* the model has no budget: no freed block may lose its grace period for lack of room */
	setenv("CULIMBO_GRACE_BYTES", "1TiB", 1);
	if (s->inline_collector)
		setenv("CULIMBO_COLLECTOR", "inline", 1);
	if (s->no_stacks)
		setenv("CULIMBO_STACK", "0", 1);
	if (s->few_events)
		setenv("CULIMBO_MAX_EVENTS", "1", 1);
	setenv("CULIMBO_SIM_TAIL", s->tail ? "random" : "zero", 1);
	snprintf(path, sizeof(path), "%s/trace.%%p", dir);
	if (s->trace)
		setenv("CULIMBO_TRACE", path, 1);
	setenv("CULIMBO_TRACE_SIZE", "64KiB", 1);
	/* on a busy machine the other process may be slow */
	setenv("CULIMBO_PRESSURE_WAIT", "8s", 1);
}

/* Makes a new file for the side's current call. */
static void make_underway(struct side *side, uint64_t seed)
{
	char path[4096];
	int fd;

	if (side->at)
		munmap(side->at, sizeof(*side->at));
	snprintf(path, sizeof(path), "%s/%s.at", dir, side->name);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(*side->at)))
		die("%s: %s", path, strerror(errno));
	side->at = mmap(NULL, sizeof(*side->at), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (side->at == MAP_FAILED)
		die("mmap: %s", strerror(errno));
	close(fd);
	snprintf(side->at->what, sizeof(side->at->what), "seed %llu, the start of the program",
		 (unsigned long long)seed);
}

void side_start(struct side *side, const struct settings *s, unsigned int ops, const char *keep)
{
	char out[4096], err[4096], seed[32], n[16];
	const char *argv[12];
	unsigned int i = 0;

	snprintf(out, sizeof(out), "%s/%s.out", dir, side->name);
	snprintf(err, sizeof(err), "%s/%s.err", dir, side->name);
	snprintf(seed, sizeof(seed), "%llu", (unsigned long long)s->seed);
	snprintf(n, sizeof(n), "%u", ops);
	argv[i++] = culimbo;
	argv[i++] = "run";
	if (!gpu)
		argv[i++] = "--simulate";
	if (!strcmp(side->name, "bare"))
		argv[i++] = "--no-preload";
	argv[i++] = "--";
	argv[i++] = self;
	argv[i++] = "play";
	argv[i++] = seed;
	argv[i++] = n;
	argv[i++] = keep; /* or the end */
	argv[i] = NULL;
	make_underway(side, s->seed);
	fflush(stdout);
	side->pid = fork();
	if (side->pid < 0)
		die("fork: %s", strerror(errno));
	if (side->pid) {
		side->pidfd = (int)syscall(SYS_pidfd_open, side->pid, 0);
		if (side->pidfd < 0)
			die("pidfd_open: %s", strerror(errno));
		side->moves = 0;
		side->moved = now_ms();
		side->killed = NULL;
		return;
	}
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigprocmask(SIG_SETMASK, &not_blocked, NULL);
	signal(SIGPIPE, SIG_DFL);
	if (!freopen(out, "w", stdout) || !freopen(err, "w", stderr))
		_exit(96);
	set_environment(s, side->name);
	execv(culimbo, (char *const *)argv);
	_exit(96);
}

/* ----------------------------------------------------------------------- ends */
/* True when the side must be killed now; side->killed has the reason. */
static bool must_be_killed(struct side *side, uint64_t began)
{
	uint64_t now = now_ms();

	if (side->at->moves != side->moves) {
		side->moves = side->at->moves;
		side->moved = now;
	}
	side->still_ms = now - side->moved;
	if (side->still_ms >= stall_ms)
		side->killed = "nothing moved any more";
	else if (now - began >= PLAY_MS)
		side->killed = "it took too long";
	return side->killed != NULL;
}

static void take_output(struct side *side)
{
	char path[4096];
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/%s.out", dir, side->name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st))
		die("%s: %s", path, strerror(errno));
	free(side->text);
	side->text = malloc((size_t)st.st_size + 1);
	if (!side->text || read(fd, side->text, (size_t)st.st_size) != st.st_size)
		die("cannot read %s", path);
	close(fd);
	side->text[st.st_size] = 0;
	side->lines = 0;
	for (char *line = strtok(side->text, "\n"); line && side->lines < LINES_MAX; line = strtok(NULL, "\n"))
		side->line[side->lines++] = line;
}

/* Kills the side's whole group if needed, so that no player outlives its director, and reaps it. */
static void reap(struct side *side)
{
	struct timespec t = { KILLED_MS / 1000, 0 };
	struct pollfd end = { .fd = side->pidfd, .events = POLLIN };

	kill(-side->pid, SIGKILL);
	if (ppoll(&end, 1, &t, NULL) != 1)
		die("%s can't be killed, at %.*s", side->name, (int)sizeof(side->at->what), side->at->what);
	close(side->pidfd);
	if (waitpid(side->pid, &side->status, 0) != side->pid)
		die("waitpid: %s", strerror(errno));
	side->pid = 0;
}

void sides_collect(void)
{
	static const struct timespec moment = { 0, 100000000 };
	struct side *both[] = { &bare, &preloaded };
	uint64_t began = now_ms();

	while (bare.pid || preloaded.pid) {
		struct pollfd end[2] = { { .fd = -1 }, { .fd = -1 } };

		for (unsigned int i = 0; i < 2; i++)
			if (both[i]->pid)
				end[i] = (struct pollfd){ .fd = both[i]->pidfd, .events = POLLIN };
		if (ppoll(end, 2, &moment, &not_blocked) < 0)
			end[0].revents = end[1].revents = 0;
		if (stopped)
			return;
		for (unsigned int i = 0; i < 2; i++)
			if (both[i]->pid && (end[i].revents || must_be_killed(both[i], began)))
				reap(both[i]);
	}
	take_output(&bare);
	take_output(&preloaded);
}

void sides_abandon(void)
{
	if (bare.pid)
		kill(-bare.pid, SIGKILL);
	if (preloaded.pid)
		kill(-preloaded.pid, SIGKILL);
}

bool side_is_orderly(const struct side *side)
{
	return !side->killed && WIFEXITED(side->status) && WEXITSTATUS(side->status) < NO_CONTEXT;
}

bool side_had_no_context(const struct side *side)
{
	return !side->killed && WIFEXITED(side->status) && WEXITSTATUS(side->status) == NO_CONTEXT;
}

/* Removes what a play left, even of killed processes, so that the next starts clean. */
static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)type;
	return at->level ? remove(path) : 0;
}
void sides_clean(void)
{
	nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---------------------------------------------------------------------- messages */
/* Prints how the side ended, when the play did not end, and its current call. */
void side_say_end(const struct side *side)
{
	int what = (int)sizeof(side->at->what);

	if (side->killed)
		printf("#   %s: killed, for %s (for %.1f s), at %.*s\n", side->name, side->killed,
		       (double)side->still_ms / 1000, what, side->at->what);
	else if (WIFSIGNALED(side->status))
		printf("#   %s: ended by signal %d (%s), at %.*s\n", side->name, WTERMSIG(side->status),
		       strsignal(WTERMSIG(side->status)), what, side->at->what);
	else if (WEXITSTATUS(side->status) != 99 && WEXITSTATUS(side->status) != NO_CONTEXT)
		printf("#   %s: ended with exit status %d, at %.*s\n", side->name, WEXITSTATUS(side->status), what,
		       side->at->what);
	else
		printf("#   %s: gave up, which its stderr explains, at %.*s\n", side->name, what, side->at->what);
}

void side_show(const struct side *side)
{
	char path[4096], line[512];
	unsigned int n = 0;
	FILE *file;

	printf("# %s (status %x):\n", side->name, (unsigned int)side->status);
	for (unsigned int i = side->lines > SHOWN ? side->lines - SHOWN : 0; i < side->lines; i++)
		printf("#   %s\n", side->line[i]);
	snprintf(path, sizeof(path), "%s/%s.err", dir, side->name);
	file = fopen(path, "r");
	while (file && n++ < 12 && fgets(line, sizeof(line), file))
		printf("#   stderr: %s", line);
	if (file)
		fclose(file);
}

void sides_set_up(const char *program, bool on_gpu)
{
	const char *stall = getenv("DIFFERENTIAL_STALL_MS");

	self = program;
	gpu = on_gpu;
	culimbo = getenv("CULIMBO");
	dir = getenv("DIFFERENTIAL_DIR");
	if (!culimbo || !dir)
		die("started by run.sh only");
	if (stall)
		stall_ms = (unsigned int)strtoul(stall, NULL, 10);
}
