/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same driver calls with and without culimbo, answer by answer.
 *
 *	differential compare [--gpu] [--ops N] [--seconds N] [--from SEED] [SEED...]
 *	differential play SEED OPS [KEEP]	one side; KEEP: a 1 or a 0 for each operation
 *
 * (run.sh calls the first.)  For each seed a random sequence of calls is played twice, by one
 * process or by two in lock step: as it is, and under culimbo.  Each call is a line: its
 * number, who, what, with which operands (by their numbers, never by addresses), and what came
 * of it.  What is not the same is a defect: of culimbo, of the simulated driver, or of what
 * model.c knows of the few things that may differ.  Then the sequence is made as short as
 * the difference allows, and printed.
 *
 * What must hold: a seed is the same sequence on each machine; nothing sleeps; a play that does
 * not end within PLAY_MS is killed, with all that it started, and that is a difference.
 *
 * That it finds what is wrong was tried: each of these was put into the library by hand, and is
 * found within the first 2,200 seeds, all but two within 250:
 *   a free of what waits in the limbo is good; one in a capture is; so is a stream-ordered one
 *   a freed block can be exported; without a context that is said otherwise than by the driver
 *   closes of one's own blocks are not counted; of several opens the second close fails
 *   the first of several closes gives the hold back; an importer's hold is not noted; a stale
 *   handle goes to the driver; what an ended context had is opened again by who has it
 *   blocks of an ended context stay known; the mark of a free in another context's stream is asked
 *   about after that context's end; each release of a primary context counts as its end
 *   an allocation that fails is not tried again
 *   a stream-ordered free leaves a context pushed
 * That the collector's frees spoil captures is found by one seed in thousands: when it is that
 * the collector frees, the seed does not say.
 * (Where two guards stand behind each other, one that is taken away is not seen: a held block
 * that is not kept when it is freed, a handle of one's own whose generation is not looked at.)
 *
 * From run.sh: CULIMBO (the command), and DIFFERENTIAL_DIR, a folder to write in.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/differential/play.h"

enum { PLAY_MS = 20000, SHRINK_MS = 90000, LINES_MAX = 4 * OPS_MAX, OPS = 160, SHOWN = 40 };

static const char *self, *culimbo, *dir;
static bool gpu;
static uint64_t calls_played;

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ------------------------------------------------------------------ one side */
struct side {
	const char *name;
	pid_t pid;
	int status;
	char *text, *line[LINES_MAX];
	unsigned int lines;
};

static void set_environment(const struct settings *s, const char *name)
{
	static const char *const grace[] = { "0", "3ms", NULL, "1h" };
	char path[4096];

	setenv("DIFFERENTIAL_SIDE", name, 1);
	if (gpu)
		setenv("DIFFERENTIAL_GPU", "1", 1);
	snprintf(path, sizeof(path), "%s/%s.sim", dir, name);
	setenv("CULIMBO_SIM_DIR", path, 1);
	snprintf(path, sizeof(path), "%s/limbo", dir);
	setenv("CULIMBO_DIR", path, 1);
	setenv("CULIMBO_SIM_MEMORY", "128MiB", 1);
	setenv("CULIMBO_SIM_DEVICES", s->devices > 1 ? "2" : "1", 1);
	setenv("CULIMBO_SIM_PROC_ADDRESS", s->thunk ? "thunk" : "same", 1);
	setenv("TEST_DOOR", s->getproc || s->thunk ? "getproc" : "dlsym", 1);
	if (grace[s->grace])
		setenv("CULIMBO_GRACE", grace[s->grace], 1);
	/* the model knows no budget: nothing that it frees is to lose its grace for want of room */
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
	/* (on a busy machine the other process may take its time) */
	setenv("CULIMBO_PRESSURE_WAIT", "8s", 1);
}

static void start(struct side *side, const struct settings *s, unsigned int ops, const char *keep)
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
	argv[i++] = keep; /* (or the end) */
	argv[i] = NULL;
	fflush(stdout);
	side->pid = fork();
	if (side->pid < 0)
		die("fork: %s", strerror(errno));
	if (side->pid)
		return;
	setpgid(0, 0);
	if (!freopen(out, "w", stdout) || !freopen(err, "w", stderr))
		_exit(96);
	set_environment(s, side->name);
	execv(culimbo, (char *const *)argv);
	_exit(96);
}

static void collect(struct side *side, uint64_t deadline)
{
	struct pollfd end = { .fd = (int)syscall(SYS_pidfd_open, side->pid, 0), .events = POLLIN };
	uint64_t now = now_ms();
	char path[4096];
	struct stat st;
	int fd;

	if (end.fd < 0)
		die("pidfd_open: %s", strerror(errno));
	poll(&end, 1, now < deadline ? (int)(deadline - now) : 0);
	close(end.fd);
	/* the whole group: no player outlives its director */
	kill(-side->pid, SIGKILL);
	if (waitpid(side->pid, &side->status, 0) != side->pid)
		die("waitpid: %s", strerror(errno));
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

/* What a play has left, that of killed processes included: the next begins with nothing. */
static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)type;
	return at->level ? remove(path) : 0;
}
static void clean(void)
{
	nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ------------------------------------------------------------------ the comparison */
static struct side bare = { .name = "bare" }, with = { .name = "culimbo" };

/* The reason that a line gives for differing; "" where it has none. */
static const char *reason(const char *line)
{
	const char *mark = strstr(line, " ~");

	return mark ? mark : "";
}
static size_t call_length(const char *line)
{
	const char *end = strstr(line, ") = ");

	return end ? (size_t)(end - line) : strlen(line);
}

static bool may_be(const char *a, const char *b)
{
	size_t n = call_length(a);

	if (strstr(b, " !"))
		return false;
	if (!strcmp(a, b))
		return true;
	return *reason(a) && !strcmp(reason(a), reason(b)) && call_length(b) == n && !strncmp(a, b, n);
}

/* Plays both; -1: nothing differs but what may, or the number of the first line that does. */
static int compare(const struct settings *s, unsigned int ops, const char *keep)
{
	uint64_t deadline;
	unsigned int i;

	clean();
	start(&bare, s, ops, keep);
	start(&with, s, ops, keep);
	deadline = now_ms() + PLAY_MS;
	collect(&bare, deadline);
	collect(&with, deadline);
	for (i = 0; i < bare.lines && i < with.lines; i++)
		if (!may_be(bare.line[i], with.line[i]))
			return (int)i;
	calls_played += i;
	return bare.lines == with.lines && bare.status == with.status && bare.status >> 8 < 96 &&
			       !(bare.status & 0x7f) ?
		       -1 :
		       (int)i;
}

/* How many of the operations there are to play for the line @i to be there. */
static unsigned int needed(int i, unsigned int ops)
{
	unsigned int number = ops;

	if ((unsigned int)i < with.lines)
		number = (unsigned int)strtoul(with.line[i], NULL, 10) + 1;
	else if ((unsigned int)i < bare.lines)
		number = (unsigned int)strtoul(bare.line[i], NULL, 10) + 1;
	return number < ops ? number : ops;
}

/* Leaves out all that the difference does not need. */
static unsigned int shrink(const struct settings *s, char *keep, unsigned int ops, int at)
{
	uint64_t until = now_ms() + SHRINK_MS;
	unsigned int n = needed(at, ops);
	char less[OPS_MAX + 1];

	memset(keep, '1', n);
	keep[n] = 0;
	for (unsigned int size = n / 2 ? n / 2 : 1; size; size /= 2)
		for (unsigned int from = n; from && now_ms() < until;) {
			unsigned int begin = from > size ? from - size : 0;

			strcpy(less, keep);
			memset(less + begin, '0', from - begin);
			if (strcmp(less, keep) && compare(s, n, less) >= 0)
				strcpy(keep, less);
			from = begin;
		}
	return n;
}

static void show(const struct side *side)
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

/* Says only what differs. */
static bool judge(uint64_t seed, unsigned int ops, unsigned int number)
{
	static const char *const grace[] = { "0", "3ms", "2s", "1h" };
	struct settings s = settings_of(seed, gpu);
	int at = compare(&s, ops, NULL);
	char keep[OPS_MAX + 1];
	unsigned int n;

	if (at < 0)
		return true;
	printf("not ok %u - seed %llu: %u process%s, grace %s, %s collector%s%s%s%s%s\n", number,
	       (unsigned long long)seed, s.players, s.players > 1 ? "es" : "", grace[s.grace],
	       s.inline_collector ? "inline" : "thread", s.large ? ", large blocks" : "",
	       s.no_stacks ? ", no stacks" : "", s.tail ? ", no stamps" : "", s.trace ? ", traced" : "",
	       s.few_events ? ", few events" : "");
	printf("# they differ from here on:\n#   %s\n#   %s\n",
	       (unsigned int)at < bare.lines ? bare.line[at] : "(no line)",
	       (unsigned int)at < with.lines ? with.line[at] : "(no line)");
	n = shrink(&s, keep, ops, at);
	at = compare(&s, n, keep);
	printf("# the least of it that differs%s: differential play %llu %u %s\n",
	       at < 0 ? " (not always)" : "", (unsigned long long)seed, n, keep);
	show(&bare);
	show(&with);
	fflush(stdout);
	return false;
}

static int compare_all(int argc, char **argv)
{
	uint64_t from = (uint64_t)time(NULL) * 1000, until = 0;
	unsigned int ops = OPS, played = 0, failures = 0, more = 20;
	int i;

	culimbo = getenv("CULIMBO");
	dir = getenv("DIFFERENTIAL_DIR");
	if (!culimbo || !dir)
		die("started by run.sh only");
	for (i = 0; i < argc && !strncmp(argv[i], "--", 2); i++) {
		if (!strcmp(argv[i], "--gpu"))
			gpu = true;
		else if (i + 1 == argc)
			die("what is %s?", argv[i]);
		else if (!strcmp(argv[i], "--ops"))
			ops = (unsigned int)strtoul(argv[++i], NULL, 10);
		else if (!strcmp(argv[i], "--seconds"))
			until = now_ms() + 1000 * strtoull(argv[++i], NULL, 10);
		else if (!strcmp(argv[i], "--from"))
			from = strtoull(argv[++i], NULL, 10);
		else
			die("what is %s?", argv[i]);
	}
	if (ops > OPS_MAX)
		die("at most %u operations", OPS_MAX);
	for (; i < argc; i++, played++)
		failures += !judge(strtoull(argv[i], NULL, 10), ops, failures + 1);
	/* (a few failures say enough) */
	if (until)
		printf("# seeds from %llu on\n", (unsigned long long)from);
	for (; until && now_ms() < until && failures < more; from++, played++)
		failures += !judge(from, ops, failures + 1);
	printf("%sok %u - %u sequences are the same with and without culimbo, call by call, but for %u\n",
	       played > failures ? "" : "not ", failures + 1, played, failures);
	printf("# %llu calls\n1..%u\n", (unsigned long long)calls_played, failures + 1);
	return failures || !played;
}

int main(int argc, char **argv)
{
	char *path = realpath("/proc/self/exe", NULL);
	struct settings s;

	self = path;
	if (argc == 3 && !strcmp(argv[1], "player"))
		return player_serve(atoi(argv[2]));
	if (argc > 3 && !strcmp(argv[1], "play")) {
		s = settings_of(strtoull(argv[2], NULL, 10), getenv("DIFFERENTIAL_GPU") != NULL);
		return direct(&s, (unsigned int)strtoul(argv[3], NULL, 10), argc > 4 ? argv[4] : NULL, self);
	}
	if (argc > 1 && !strcmp(argv[1], "compare"))
		return compare_all(argc - 2, argv + 2);
	fprintf(stderr, "usage: see the head of runner.c\n");
	return 2;
}
