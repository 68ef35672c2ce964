/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same driver calls with and without culimbo, answer by answer.
 *
 *	differential compare [--gpu] [--brief] [--ops N] [--seconds N] [--from SEED] [SEED...]
 *	differential play SEED OPS [KEEP]	one side; KEEP: a 1 or a 0 for each operation
 *
 * (run.sh calls the first.)  For each seed a random sequence of calls is played twice, by one
 * process or by two in lock step: as it is, and under culimbo.  Each call is a line: its
 * number, who, what, with which operands (by their numbers, never by addresses), and what came
 * of it.  What is not the same is a defect: of culimbo, of the simulated driver, or of what
 * model.c knows of the few things that may differ, and doc/differences.md lists.  Then the
 * sequence is made as short as the difference allows, and printed; with --brief it is not, and
 * the first difference ends the run.
 *
 * What must hold: a seed is the same sequence on each machine; nothing sleeps.  Whatever ends a
 * play, or this program, is said, with the seed and the call that was under way.  A play in which
 * nothing moves for 20 s, or that takes two minutes, is killed, with all that it started.  That is a
 * difference, as each end by a signal is, on one side or on both.  Where the driver gives a process
 * no context, there is no play: it begins again, twice at most, and that is said and counted.
 *
 * The exit status: 0 nothing differs, 1 something does, 2 it was called wrongly or the list of
 * what may differ is wrong, 99 this program could not go on, 128 and a number: that signal ended it.
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
 * From run.sh: CULIMBO (the command), DIFFERENTIAL_DIR, a folder to write in, and
 * DIFFERENTIAL_LIST, the list.  DIFFERENTIAL_STALL_MS and DIFFERENTIAL_PLANT are for ends.sh.
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

/* By a signal, while plays run. */
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
/* The rule by which a line says that it may differ; "" where it says nothing. */
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

/* Plays both; -1: nothing differs but what may, or the number of the first line that does. */
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
 * The same.  Where the driver gave a process no context there was no play, and it begins again: a
 * GPU's driver refuses first calls now and then, bare, too, when many processes come and go.
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

/* How many of the operations there are to play for the line @i to be there. */
static unsigned int needed(int i, unsigned int ops)
{
	unsigned int number = ops;

	if ((unsigned int)i < preloaded.lines)
		number = (unsigned int)strtoul(preloaded.line[i], NULL, 10) + 1;
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

/* Why the line @at, or the end, is a failure. */
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

/* Says only what differs. */
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

/* What was played, and the plan. */
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
	bool on = true;
	int i;

	setvbuf(stdout, NULL, _IOLBF, 0);
	die_said_as = "Bail out! ";
	read_list();
	sides_catch_signals();
	prctl(PR_SET_PDEATHSIG, SIGTERM); /* (run.sh is gone) */
	for (i = 0; i < argc && !strncmp(argv[i], "--", 2); i++) {
		if (!strcmp(argv[i], "--gpu"))
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
	sides_set_up(program, gpu);
	if (ops > OPS_MAX)
		die("at most %u operations", OPS_MAX);
	for (; on && i < argc; i++, played++)
		on = play_one(strtoull(argv[i], NULL, 10), ops);
	/* (a few failures say enough) */
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
