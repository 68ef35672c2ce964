/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the same driver calls with and without culimbo, and compares each result.
 *
 * differential compare [--gpu | --as-on-gpu] [--brief] [--ops N] [--seconds N] [--from SEED] [SEED...]
 * differential play SEED OPS [KEEP] one side; KEEP: a 1 or a 0 for each operation
 *
 * run.sh calls the first form.  For each seed a random sequence of calls runs twice, without and with
 * culimbo, in one process or in two that take turns.  Each run is a "play".  Each call prints a line: its
 * number, the player, the call, its operands (as numbers, never as addresses) and its results.  A line that
 * differs is a defect of culimbo, of the simulated driver, or of the model (model.c) of the few differences
 * that doc/differences.md allows.  The runner then shortens the sequence as far as the difference allows, and
 * prints it.  With --brief it does not, and the first difference ends the run.
 *
 * Rules: A seed gives the same sequence on each machine.  Nothing sleeps.  Whatever ends a play or this
 * program, the output has the seed and the current call.  A play without progress for 20 s, or longer than
 * two minutes, is killed with all its processes.  That is a failure, as is each end by a signal, on one
 * side or on both.  When the driver gives a process no context, the play starts again, twice at
 * most; this is printed and counted.
 *
 * Exit status: 0 no difference, 1 a difference, 2 wrong arguments or a wrong list of allowed differences,
 * 99 an internal error, 128 + number: ended by that signal.
 *
 * The test itself was tested: each of these faults was put into the library by hand.  Each is found within
 * the first 2,200 seeds, all but two within 250:
 *   a second free of a block in the limbo succeeds; one during a capture does; a stream-ordered one does
 *   a freed block can be exported; without a context the error is not the driver's
 *   closes of one's own blocks are not counted; the second close of several opens fails
 *   the first of several closes ends the hold; an importer's hold is not recorded; a stale
 *   handle goes to the driver; a holder can open a block of an ended context again
 *   blocks of an ended context stay known; the fence of a free in another context's stream is
 *   queried after that context's end; each release of a primary context counts as its end
 *   a failed allocation is not retried
 *   a stream-ordered free leaves a context pushed
 * Only one seed in thousands finds that the collector's frees invalidate captures, because the seed does not
 * decide when the collector frees.
 * Where two checks protect the same thing, the loss of one is not found: a held block that is not kept when it
 * is freed, or one's own handle whose generation is not checked.
 *
 * run.sh sets CULIMBO (the command), DIFFERENTIAL_DIR (a folder to write in), and DIFFERENTIAL_LIST (the
 * list).  DIFFERENTIAL_STALL_MS and DIFFERENTIAL_PLANT are for ends.sh.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "tests/differential/rules.h"
#include "tests/differential/side.h"

enum { SHRINK_MS = 90000, OPS = 160, BEGINNINGS = 3 };

static bool gpu, brief;
static uint64_t calls_played, playing;
static unsigned int failures, begun_again;

/* Handles a signal that ends the program while plays run. */
__attribute__((noreturn)) static void interrupted(void)
{
	int signal = stopped;

	sides_abandon();
	printf("not ok %u - seed %llu: ended by signal %d (%s) while it was played\n", failures + 1,
	       (unsigned long long)playing, signal, strsignal(signal));
	printf("#   bare was at %.*s\n", (int)sizeof(bare.at->what), bare.at->what);
	printf("#   culimbo was at %.*s\n", (int)sizeof(preloaded.at->what), preloaded.at->what);
	printf("1..%u\n", failures + 1);
	fflush(stdout);
	_exit(128 + signal);
}

/* ------------------------------------------------------------------ the comparison */
/* The rule by which a line says that it may differ; "" when it says nothing. */
static const char *rule_of(const char *line)
{
	const char *mark = strstr(line, " ~");

	return mark ? mark + 2 : "";
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
	return *rule_of(a) && !strcmp(rule_of(a), rule_of(b)) && call_length(b) == n && !strncmp(a, b, n) &&
	       rules_allow(rule_of(a));
}

/* Runs both sides; returns -1 when only allowed lines differ, else the number of the first other line. */
static int compare(const struct settings *s, unsigned int ops, const char *keep)
{
	unsigned int i;

	sides_clean();
	side_start(&bare, s, ops, keep);
	side_start(&preloaded, s, ops, keep);
	sides_collect();
	if (stopped)
		interrupted();
	for (i = 0; i < bare.lines && i < preloaded.lines; i++)
		if (!may_be(bare.line[i], preloaded.line[i]))
			return (int)i;
	calls_played += i;
	return bare.lines == preloaded.lines && bare.status == preloaded.status && side_is_orderly(&bare) ? -1 : (int)i;
}

/*
 * The same, but starts again when the driver gave a process no context.  A GPU's driver now and then refuses
 * first calls, even bare, when many processes start and end.
 */
static int compare_from_the_start(const struct settings *s, unsigned int ops)
{
	int at = compare(s, ops, NULL);

	for (unsigned int again = 1; at >= 0 && (side_had_no_context(&bare) || side_had_no_context(&preloaded)); again++) {
		printf("# seed %llu: the driver gave a process no context, %s\n", (unsigned long long)s->seed,
		       again < BEGINNINGS ? "so it is played again" : "and that is the last time");
		side_show(side_had_no_context(&bare) ? &bare : &preloaded);
		if (again == BEGINNINGS)
			break;
		begun_again++;
		at = compare(s, ops, NULL);
	}
	return at;
}

/* How many operations must run so that line @i is printed. */
static unsigned int needed(int i, unsigned int ops)
{
	unsigned int number = ops;

	if ((unsigned int)i < preloaded.lines)
		number = (unsigned int)strtoul(preloaded.line[i], NULL, 10) + 1;
	else if ((unsigned int)i < bare.lines)
		number = (unsigned int)strtoul(bare.line[i], NULL, 10) + 1;
	return number < ops ? number : ops;
}

/* Leaves out every operation that the difference does not need. */
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

/* Prints why the line @at, or the end, is a failure. */
static void say_why(unsigned int at)
{
	const char *a = at < bare.lines ? bare.line[at] : "(no line)", *b = at < preloaded.lines ? preloaded.line[at] : "(no line)";
	const char *rule = rule_of(a);

	printf("# they differ from here on:\n#   %s\n#   %s\n", a, b);
	if (*rule && !strcmp(rule, rule_of(b)) && !rules_allow(rule))
		printf("# the rule '%s' is not on the list (doc/differences.md)\n", rule);
	if (side_is_orderly(&bare) && side_is_orderly(&preloaded) && bare.status == preloaded.status)
		return;
	if (!side_is_orderly(&bare) && !side_is_orderly(&preloaded))
		printf("# neither came to the end of the play, and that is no difference: but nothing can be said then\n");
	side_say_end(&bare);
	side_say_end(&preloaded);
}

/* Prints only the lines that differ. */
static bool judge(uint64_t seed, unsigned int ops, unsigned int number)
{
	static const char *const grace[] = { "0", "3ms", "2s", "1h" };
	struct settings s = settings_of(seed, gpu);
	int at = compare_from_the_start(&s, ops);
	char keep[OPS_MAX + 1];
	unsigned int n;

	if (at < 0)
		return true;
	printf("not ok %u - seed %llu: %u process%s, grace %s, %s collector%s%s%s%s%s\n", number,
	       (unsigned long long)seed, s.players, s.players > 1 ? "es" : "", grace[s.grace],
	       s.inline_collector ? "inline" : "thread", s.large ? ", large blocks" : "",
	       s.no_stacks ? ", no stacks" : "", s.tail ? ", no stamps" : "", s.trace ? ", traced" : "",
	       s.few_events ? ", few events" : "");
	say_why((unsigned int)at);
	if (brief) {
		side_show(&bare);
		side_show(&preloaded);
		return false;
	}
	n = shrink(&s, keep, ops, at);
	at = compare(&s, n, keep);
	printf("# the least of it that differs%s: differential play %llu %u %s\n",
	       at < 0 ? " (not always)" : "", (unsigned long long)seed, n, keep);
	if (at >= 0)
		say_why((unsigned int)at);
	side_show(&bare);
	side_show(&preloaded);
	fflush(stdout);
	return false;
}

/* Prints how much was run, and the plan. */
static void sum_up(unsigned int played)
{
	printf("%sok %u - %u sequences are the same with and without culimbo, call by call, but for %u\n",
	       played > failures ? "" : "not ", failures + 1, played, failures);
	printf("# %llu calls; %u times the driver gave a process no context\n1..%u\n", (unsigned long long)calls_played,
	       begun_again, failures + 1);
	fflush(stdout);
}

static bool play_one(uint64_t seed, unsigned int ops)
{
	playing = seed;
	if (!judge(seed, ops, failures + 1))
		failures++;
	return !(brief && failures);
}

static void read_list(void)
{
	const char *path = getenv("DIFFERENTIAL_LIST");
	char error[600];

	if (path && rules_read(path, error, sizeof(error)))
		return;
	printf("Bail out! %s\n", path ? error : "DIFFERENTIAL_LIST is not set");
	exit(2);
}

static int compare_all(const char *program, int argc, char **argv)
{
	uint64_t from = (uint64_t)time(NULL) * 1000, until = 0;
	unsigned int ops = OPS, played = 0, more = 20;
	bool on = true, simulated = true;
	int i;

	setvbuf(stdout, NULL, _IOLBF, 0);
	die_said_as = "Bail out! ";
	read_list();
	sides_catch_signals();
	prctl(PR_SET_PDEATHSIG, SIGTERM); /* when run.sh has ended */
	for (i = 0; i < argc && !strncmp(argv[i], "--", 2); i++) {
		if (!strcmp(argv[i], "--gpu"))
			simulated = !(gpu = true);
		else if (!strcmp(argv[i], "--as-on-gpu"))
			gpu = true;
		else if (!strcmp(argv[i], "--brief"))
			brief = true;
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
	sides_set_up(program, !simulated);
	if (ops > OPS_MAX)
		die("at most %u operations", OPS_MAX);
	for (; on && i < argc; i++, played++)
		on = play_one(strtoull(argv[i], NULL, 10), ops);
	/* a few failures are enough */
	if (until)
		printf("# seeds from %llu on\n", (unsigned long long)from);
	for (; on && until && now_ms() < until && failures < more; from++, played++)
		on = play_one(from, ops);
	sum_up(played);
	return failures || !played;
}

int main(int argc, char **argv)
{
	const char *self = realpath("/proc/self/exe", NULL);
	struct settings s;

	if (argc == 3 && !strcmp(argv[1], "player"))
		return player_serve(atoi(argv[2]));
	if (argc > 3 && !strcmp(argv[1], "play")) {
		s = settings_of(strtoull(argv[2], NULL, 10), getenv("DIFFERENTIAL_GPU") != NULL);
		return direct(&s, (unsigned int)strtoul(argv[3], NULL, 10), argc > 4 ? argv[4] : NULL, self);
	}
	if (argc > 1 && !strcmp(argv[1], "compare"))
		return compare_all(self, argc - 2, argv + 2);
	fprintf(stderr, "usage: see the head of runner.c\n");
	return 2;
}
