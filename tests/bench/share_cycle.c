/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The share cycle of a program that shares in a loop: the exporter allocates, fills, exports
 * and sends a block; the consumer opens, reads, closes and answers; the exporter frees.
 * share_cycle.py starts the processes and compares the results.  Each process has a role:
 *
 *   share_cycle exporter links=FD,... size=BYTES seconds=S [work=MS] [late=MS] [early=1]
 *                        [cycles=N] [ends=1]
 *   share_cycle consumer link=FD
 *   share_cycle watcher [every=MS]     looks at the driver's free memory
 *   share_cycle bystander              allocates and frees most of what is free
 *   share_cycle keeper                 allocates memory and keeps it, as a limbo that is full
 *
 * The exporter gives each consumer a block in turn, so each consumer has one at a time.
 * A consumer works for work= ms while it has the block open.  With early=1 the exporter
 * frees a block as soon as its handle is sent; the consumer opens it late= ms after that.
 * With ends=1 it fills only a block's ends, which consumers read: a simulated device takes real
 * memory for what is touched.
 * The exporter runs for seconds= seconds, and for at least cycles= cycles.
 *
 * A role prints "ready" when it has a context.  Then it reads commands, one a line:
 * exporter: "go"; watcher: "reset", "least"; bystander: "leave BYTES" (free), "go", "stop";
 * keeper: "keep BYTES".  It prints its result as one line of JSON.  Times there are ns of CLOCK_MONOTONIC.
 *
 * What must hold: every wait has a bound; a role ends with the process that started it; the
 * watcher, the bystander and the keeper run without culimbo, with or without it in the others.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/harness.h"
#include "tests/bench/share_cycle.h"
#include "tests/bench/times.h"

#define MS 1000000u
#define CONSUMERS_MAX 64
#define ANSWER_S 30   /* longer than any consumer works */
#define SAMPLE_EACH 16 /* cycles; the watcher cannot be quick enough to see each */
#define WORD 8u	      /* bytes that a consumer reads */
#define GRANULE (2u << 20) /* bytes to which the driver rounds an allocation up: a page */

/* ------------------------------------------------------------------- arguments */
static int arguments_n;
static char **arguments;

/* Returns the value of NAME= among the arguments, or @otherwise. */
static const char *argument(const char *name, const char *otherwise)
{
	size_t length = strlen(name);

	for (int i = 0; i < arguments_n; i++)
		if (!strncmp(arguments[i], name, length) && arguments[i][length] == '=')
			return arguments[i] + length + 1;
	if (!otherwise)
		DIE("%s= is missing", name);
	return otherwise;
}

static uint64_t argument_ns(const char *name, const char *otherwise, double unit)
{
	return (uint64_t)(strtod(argument(name, otherwise), NULL) * unit);
}

/* ----------------------------------------------------- what the director is told */
static void ready(void)
{
	puts("ready");
	fflush(stdout);
}

/* Reads the next line from stdin, without its end.  False: stdin has ended. */
static bool told(char *line, int size)
{
	if (!fgets(line, size, stdin))
		return false;
	line[strcspn(line, "\n")] = '\0';
	return true;
}

/* Returns whether a line from share_cycle.py arrives within so many ms. */
static bool is_told(int ms)
{
	struct pollfd fd = { .fd = 0, .events = POLLIN };

	return poll(&fd, 1, ms) > 0;
}

static void wait_until(uint64_t ns)
{
	struct timespec at = { .tv_sec = (time_t)(ns / 1000000000u),
			       .tv_nsec = (long)(ns % 1000000000u) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
		;
}

/* ----------------------------------------------------- between the two of a cycle */
struct gift {
	uint64_t number, bytes, late_ns, work_ns;
	CUipcMemHandle handle;
};

struct answer {
	uint64_t number, open_ns, read_ns, close_ns;
	int32_t opened; /* the driver's result */
	uint32_t wrong; /* bytes of those read */
};

/* The value of each byte of a block; and where a consumer reads: its first or last bytes. */
static unsigned char value_of(uint64_t number)
{
	return (unsigned char)(1 + number % 251);
}

static uint64_t place_of(const struct gift *gift)
{
	return gift->number & 1 ? gift->bytes - WORD : 0;
}

static void limit_waits(int link)
{
	struct timeval limit = { .tv_sec = ANSWER_S };

	MUST(!setsockopt(link, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
}

static struct answer take(const struct gift *gift)
{
	struct answer answer = { .number = gift->number };
	unsigned char bytes[WORD];
	uint64_t began, ended;
	CUdeviceptr at = 0;

	if (gift->late_ns)
		wait_until(bench_now() + gift->late_ns);
	began = bench_now();
	answer.opened = (int32_t)cu.open(&at, gift->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	ended = bench_now();
	answer.open_ns = ended - began;
	if (answer.opened)
		return answer;
	if (gift->work_ns)
		wait_until(ended + gift->work_ns);
	began = bench_now();
	CHECKED(cu.read(bytes, at + place_of(gift), WORD));
	ended = bench_now();
	answer.read_ns = ended - began;
	for (unsigned int i = 0; i < WORD; i++)
		answer.wrong += bytes[i] != value_of(gift->number);
	began = bench_now();
	CHECKED(cu.close(at));
	answer.close_ns = bench_now() - began;
	return answer;
}

static int consumer(void)
{
	int link = atoi(argument("link", NULL));

	driver_start();
	ready();
	for (;;) {
		struct gift gift;
		struct answer answer;
		ssize_t got = recv(link, &gift, sizeof gift, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return 0;
		MUST(got == sizeof gift);
		answer = take(&gift);
		MUST(send(link, &answer, sizeof answer, MSG_NOSIGNAL) == sizeof answer);
	}
}

/* -------------------------------------------------------------------- the exporter */
#define CALLS(X) X(alloc) X(fill) X(sync) X(export) X(wait) X(free) X(open) X(read) X(close)
enum call {
#define X(name) CALL_##name,
	CALLS(X)
#undef X
	CALLS_N
};
static const char *const call_names[] = {
#define X(name) #name,
	CALLS(X)
#undef X
};

static struct {
	size_t bytes;
	uint64_t work_ns, late_ns;
	bool early, ends;
	unsigned int consumers;
	struct slot {
		int link;
		bool waits; /* an answer is due */
		uint64_t number;
		CUdeviceptr block;
	} slots[CONSUMERS_MAX];
} what;

static struct {
	bool counts; /* the warm-up is over */
	uint64_t number, cycles, spent_ns;
	uint64_t least_free, failed_allocs, opens, refused, wrong;
	int first_failure, first_refusal;
	struct times calls[CALLS_N], cycle;
	uint64_t now[CALLS_N], worst_ns, worst[CALLS_N]; /* of this cycle, of the longest */
} found = { .least_free = UINT64_MAX };

static void spent(enum call call, uint64_t ns)
{
	found.now[call] += ns;
	if (found.counts)
		times_add(&found.calls[call], ns);
}

#define TIMED(call, does)                                                         \
	do {                                                                      \
		uint64_t began_ = bench_now();                                    \
		does;                                                             \
		spent(CALL_##call, bench_now() - began_);                         \
	} while (0)

static void give_back(struct slot *slot)
{
	CUresult result;

	TIMED(free, result = cu.free(slot->block));
	CHECKED(result);
	slot->block = 0;
}

/* Waits for the answer of @slot's consumer, if one is due; then frees the block. */
static void finish(struct slot *slot)
{
	struct answer answer;
	ssize_t got;

	if (slot->waits) {
		TIMED(wait, got = recv(slot->link, &answer, sizeof answer, 0));
		if (got != sizeof answer || answer.number != slot->number)
			DIE("no answer from a consumer: %s", got ? strerror(errno) : "it has gone");
		slot->waits = false;
		spent(CALL_open, answer.open_ns);
		found.opens++;
		if (answer.opened) {
			if (!found.refused++)
				found.first_refusal = answer.opened;
		} else {
			spent(CALL_read, answer.read_ns);
			spent(CALL_close, answer.close_ns);
		}
		found.wrong += answer.wrong;
	}
	if (slot->block)
		give_back(slot);
}

static CUresult fill(CUdeviceptr block, unsigned char value)
{
	CUresult result = cu.fill(block, value, what.ends ? WORD : what.bytes);

	if (result || !what.ends)
		return result;
	return cu.fill(block + what.bytes - WORD, value, WORD);
}

static void share(struct slot *slot)
{
	struct gift gift = { .number = found.number,
			     .bytes = what.bytes,
			     .late_ns = what.late_ns,
			     .work_ns = what.work_ns };
	CUresult result;

	TIMED(alloc, result = cu.alloc(&slot->block, what.bytes));
	if (result) {
		if (!found.failed_allocs++)
			found.first_failure = (int)result;
		slot->block = 0;
		wait_until(bench_now() + MS);
		return;
	}
	TIMED(fill, result = fill(slot->block, value_of(gift.number)));
	CHECKED(result);
	TIMED(sync, result = cu.synchronize());
	CHECKED(result);
	TIMED(export, result = cu.handle(&gift.handle, slot->block));
	CHECKED(result);
	MUST(send(slot->link, &gift, sizeof gift, MSG_NOSIGNAL) == sizeof gift);
	slot->number = gift.number;
	slot->waits = true;
	if (what.early)
		give_back(slot);
}

/*
 * Reads how much memory is free: by turns just after a free and just after a send.
 * Returns how long that took; it is not part of the cycle.
 */
static uint64_t sample(unsigned int turn)
{
	uint64_t began = bench_now(), available;

	if (found.number % SAMPLE_EACH != turn)
		return 0;
	available = free_memory();
	if (available < found.least_free)
		found.least_free = available;
	return bench_now() - began;
}

static void cycle(void)
{
	struct slot *slot = &what.slots[found.number % what.consumers];
	uint64_t began = bench_now(), took;

	memset(found.now, 0, sizeof found.now);
	finish(slot);
	began += sample(0);
	share(slot);
	began += sample(SAMPLE_EACH / 2);
	found.number++;
	if (!found.counts)
		return;
	took = bench_now() - began;
	found.cycles++;
	found.spent_ns += took;
	times_add(&found.cycle, took);
	if (took > found.worst_ns) {
		found.worst_ns = took;
		memcpy(found.worst, found.now, sizeof found.worst);
	}
}

static double cpu_ns(const struct timeval *from, const struct timeval *to)
{
	return 1e9 * (double)(to->tv_sec - from->tv_sec) + 1e3 * (double)(to->tv_usec - from->tv_usec);
}

static void say_found(const struct rusage *from, const struct rusage *to)
{
	double n = found.cycles ? (double)found.cycles : 1;

	printf("{\"cycles\": %ju, \"short\": %ju, \"per_second\": %.2f, ",
	       (uintmax_t)found.cycles, (uintmax_t)calls_short(),
	       found.spent_ns ? 1e9 * (double)found.cycles / (double)found.spent_ns : 0);
	printf("\"least_free\": %ju, \"failed_allocs\": %ju, \"first_failure\": %d, "
	       "\"opens\": %ju, \"refused\": %ju, \"first_refusal\": %d, \"wrong\": %ju, ",
	       (uintmax_t)found.least_free, (uintmax_t)found.failed_allocs, found.first_failure,
	       (uintmax_t)found.opens, (uintmax_t)found.refused, found.first_refusal, (uintmax_t)found.wrong);
	printf("\"user\": %.0f, \"system\": %.0f, \"switches\": %.2f, ",
	       cpu_ns(&from->ru_utime, &to->ru_utime) / n, cpu_ns(&from->ru_stime, &to->ru_stime) / n,
	       (double)(to->ru_nvcsw + to->ru_nivcsw - from->ru_nvcsw - from->ru_nivcsw) / n);
	times_say("cycle", &found.cycle);
	printf(", \"calls\": {");
	for (unsigned int i = 0; i < CALLS_N; i++) {
		times_say(call_names[i], &found.calls[i]);
		printf(i + 1 < CALLS_N ? ", " : "}, \"worst\": {");
	}
	for (unsigned int i = 0; i < CALLS_N; i++)
		printf("\"%s\": %ju%s", call_names[i], (uintmax_t)found.worst[i],
		       i + 1 < CALLS_N ? ", " : "}}\n");
	fflush(stdout);
}

static void read_links(void)
{
	const char *links = argument("links", NULL);
	char *end;

	for (; *links; links = *end == ',' ? end + 1 : end) {
		MUST(what.consumers < CONSUMERS_MAX);
		what.slots[what.consumers].link = (int)strtol(links, &end, 10);
		MUST(end != links && (*end == ',' || !*end));
		limit_waits(what.slots[what.consumers++].link);
	}
	MUST(what.consumers);
}

/* Makes a first call of each kind, since the driver loads some parts late; shares nothing. */
static void first_calls(void)
{
	CUdeviceptr block;

	CHECKED(cu.alloc(&block, 1024));
	CHECKED(cu.fill(block, 0, 1024));
	CHECKED(cu.synchronize());
	CHECKED(cu.free(block));
}

static int exporter(void)
{
	uint64_t run_ns = argument_ns("seconds", NULL, 1e9), began, now;
	uint64_t cycles = strtoull(argument("cycles", "1"), NULL, 0);
	struct rusage from, to;
	char line[64];

	what.bytes = strtoull(argument("size", NULL), NULL, 0);
	what.work_ns = argument_ns("work", "0", MS);
	what.late_ns = argument_ns("late", "0", MS);
	what.early = *argument("early", "0") == '1';
	what.ends = *argument("ends", "0") == '1';
	MUST(what.bytes >= WORD);
	read_links();
	driver_start();
	first_calls();
	ready();
	if (!told(line, sizeof line))
		return 0;

	/* the warm-up: a tenth of the time, and at least two rounds */
	began = bench_now();
	do {
		cycle();
		now = bench_now();
	} while (now < began + run_ns / 10 || found.number < 2 * what.consumers);
	found.counts = true;
	getrusage(RUSAGE_SELF, &from);
	/*
	 * Whole turns of the consumers: the first cycle of a turn waits for a slow consumer, the others
	 * hardly do.  A run that ended within a turn would have a wait too many for its cycles.
	 */
	do
		cycle();
	while (bench_now() < now + run_ns || found.cycles < cycles || found.cycles % what.consumers != 0);
	getrusage(RUSAGE_SELF, &to);
	found.counts = false;
	for (unsigned int i = 0; i < what.consumers; i++)
		finish(&what.slots[(found.number + i) % what.consumers]);
	say_found(&from, &to);
	return 0;
}

/* ------------------------------------------------------ those who only look, or allocate */
static int watcher(void)
{
	int every = atoi(argument("every", "5"));
	uint64_t least = UINT64_MAX, samples = 0;
	size_t available, all;
	char line[64];

	driver_start();
	ready();
	for (;;) {
		CHECKED(cu.info(&available, &all));
		samples++;
		if (available < least)
			least = available;
		if (!is_told(every))
			continue;
		if (!told(line, sizeof line))
			return 0;
		if (!strcmp(line, "reset")) {
			samples = 0;
			least = UINT64_MAX;
			printf("{\"free\": %zu, \"all\": %zu}\n", available, all);
		} else {
			printf("{\"least\": %ju, \"samples\": %ju}\n", (uintmax_t)least,
			       (uintmax_t)samples);
		}
		fflush(stdout);
	}
}

static int bystander(void)
{
	uint64_t available, leaves, bytes = 0, attempts = 0, failures = 0, least = UINT64_MAX;
	int first = 0;
	char line[64];

	driver_start();
	ready();
	if (!told(line, sizeof line))
		return 0;
	MUST(!strncmp(line, "leave ", 6));
	leaves = strtoull(line + 6, NULL, 0);
	available = free_memory();
	if (available > leaves)
		bytes = (available - leaves) / GRANULE * GRANULE;
	MUST(bytes);
	ready();
	if (!told(line, sizeof line))
		return 0;
	do {
		CUdeviceptr block;
		CUresult result = cu.alloc(&block, bytes);

		attempts++;
		if (result) {
			available = free_memory();
			if (available < least)
				least = available;
			if (!failures++)
				first = (int)result;
			continue;
		}
		if (is_told(2)) {
			CHECKED(cu.free(block));
			break;
		}
		CHECKED(cu.free(block));
	} while (!is_told(2));
	printf("{\"bytes\": %ju, \"attempts\": %ju, \"failures\": %ju, \"first_failure\": %d, "
	       "\"free_then\": %ju}\n",
	       (uintmax_t)bytes, (uintmax_t)attempts, (uintmax_t)failures, first,
	       (uintmax_t)(failures ? least : 0));
	fflush(stdout);
	return 0;
}

/* Answers with the driver's result. */
static int keeper(void)
{
	CUdeviceptr block;
	char line[64];

	driver_start();
	ready();
	while (told(line, sizeof line)) {
		MUST(!strncmp(line, "keep ", 5));
		printf("{\"result\": %d}\n", (int)cu.alloc(&block, strtoull(line + 5, NULL, 0)));
		fflush(stdout);
	}
	return 0;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*does)(void);
	} roles[] = {
		{ "exporter", exporter },
		{ "consumer", consumer },
		{ "watcher", watcher },
		{ "bystander", bystander },
		{ "keeper", keeper },
	};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	arguments_n = argc;
	arguments = argv;
	for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
		if (argc > 1 && !strcmp(argv[1], roles[i].name))
			return roles[i].does();
	fprintf(stderr, "usage: share_cycle exporter|consumer|watcher|bystander|keeper NAME=VALUE...\n");
	return 2;
}
