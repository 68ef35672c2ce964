/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which driver calls fail for lack of device memory?
 *
 *     no_memory [-v] [NAME...]       all calls, or those with one of these words in their name
 *
 * A process called the filler takes the whole device with plain cuMemAlloc, in ever smaller chunks,
 * until less than 512 bytes are left.  A second process, the prober, is new for each call.  It makes
 * the call three times:
 *   "full"      the filler has all memory
 *   "all full"  the prober has also filled the rest of its own chunks
 *   "free"      all memory is free
 * In the last case the program also prints how much device memory the call takes ("takes", from
 * cuMemGetInfo in the filler).
 *
 * Rules: This process makes no CUDA call.  Every wait has a deadline.  Nothing stays allocated,
 * because each process that allocates ends before this one.  The exit status is 1 when a call that
 * failed for lack of memory also fails with all memory free, and 77 without a driver.
 *
 * Without the build tree: cc -std=gnu11 -D_GNU_SOURCE -I/usr/local/cuda/include no_memory*.c -ldl
 *
 * Types of the driver that old headers lack are void pointers here, so that CUDA 11.3 builds it.
 */
#include "no_memory.h"

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda.h>

#define CALL_DEADLINE_MS 60000
#define RUN_DEADLINE_S 540

struct answer {
	int result;
	size_t bytes;
};

/* Sends @answer; exits when the other process has ended. */
static void say(int to, int result, size_t bytes)
{
	struct answer answer = { result, bytes };

	if (write(to, &answer, sizeof answer) != (ssize_t)sizeof answer)
		_exit(1);
}

/* The filler's commands: 'f' fill, 'e' empty, 'i' report free memory. */
static void be_filler(int with)
{
	struct pieces pieces = { 0 };
	struct shared shared;
	size_t available, total;
	CUcontext ctx;
	char asked;
	int result = 1;

	memset(&shared, 0, sizeof shared);
	if (!load_driver() && !cu.cuInit(0)) {
		result = (int)cu.cuDevicePrimaryCtxRetain(&ctx, 0);
		if (!result)
			result = (int)cu.cuCtxSetCurrent(ctx);
		if (!result)
			result = share(&shared);
	}
	say(with, result, shared.bytes);
	send_shared(with, &shared);
	while (read(with, &asked, 1) == 1) {
		if (asked == 'f')
			result = fill(&pieces, 1024 * MIB);
		else if (asked == 'e')
			result = empty(&pieces);
		available = 0;
		if (asked == 'i')
			result = (int)cu.cuMemGetInfo_v2(&available, &total);
		say(with, result, asked == 'i' ? available : pieces.bytes);
	}
	empty(&pieces);
	_exit(0);
}

/* The prober's commands: 't' try the call and keep the result, 'u' undo it, 'f' fill its own chunks, 'e' empty them. */
static void be_prober(int with, const struct call *call)
{
	struct pieces pieces = { 0 };
	int result = NO_ANSWER;
	char asked;

	if (!load_driver())
		result = (int)cu.cuInit(0);
	say(with, result ? result : call->setup(), 0);
	while (read(with, &asked, 1) == 1) {
		result = 0;
		if (asked == 't')
			result = call->try();
		if (asked == 't' && result && my.n) /* a part of the objects was created */
			call->undo();
		else if (asked == 'u')
			call->undo();
		else if (asked == 'f')
			result = fill(&pieces, 64 * MIB);
		else if (asked == 'e')
			result = empty(&pieces);
		say(with, result, pieces.bytes);
	}
	_exit(0);
}

struct process {
	pid_t pid;
	int link;
};
static struct process filler;
static bool verbose;

static struct answer hear(const struct process *p)
{
	struct pollfd wait = { .fd = p->link, .events = POLLIN };
	struct answer answer = { NO_ANSWER, 0 };

	if (poll(&wait, 1, CALL_DEADLINE_MS) == 1 && read(p->link, &answer, sizeof answer) == sizeof answer)
		return answer;
	return (struct answer){ NO_ANSWER, 0 };
}

static struct answer ask(const struct process *p, char what)
{
	if (send(p->link, &what, 1, MSG_NOSIGNAL) != 1)
		return (struct answer){ NO_ANSWER, 0 };
	return hear(p);
}

static struct process start(const struct call *call)
{
	struct process p;
	int link[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link))
		abort();
	fflush(NULL);
	p.pid = fork();
	if (p.pid < 0)
		abort();
	if (p.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(link[0]);
		if (filler.pid && filler.link >= 0)
			close(filler.link);
		if (call)
			be_prober(link[1], call);
		be_filler(link[1]);
	}
	close(link[1]);
	p.link = link[0];
	return p;
}

static void end(struct process *p, bool kill_it)
{
	close(p->link);
	if (kill_it)
		kill(p->pid, SIGKILL);
	for (int waited = 0; waitpid(p->pid, NULL, WNOHANG) == 0; waited++) {
		if (waited == 10000)
			kill(p->pid, SIGKILL);
		poll(NULL, 0, 1);
	}
	p->link = -1;
}

static const char *word(int result, char room[16])
{
	if (result == 0)
		return "ok";
	if (result == OOM)
		return "MEMORY";
	if (result == NOT_THERE)
		return "-";
	if (result == NO_ANSWER)
		return "no answer";
	snprintf(room, 16, "error %d", result);
	return room;
}

static bool wanted(const char *name, char **words)
{
	for (char **w = words; *w; w++)
		if (strstr(name, *w))
			return true;
	return !*words;
}

/* Tries one call with the device full; @own: and the prober's own chunks.  Returns that result; *@later: with all free. */
static int probe(const struct call *call, bool own, int *later, long long *takes)
{
	struct process p = start(call);
	struct answer set_up = hear(&p), full, mine, got = set_up, again, before, after;

	*later = set_up.result;
	*takes = 0;
	if (set_up.result) {
		end(&p, set_up.result == NO_ANSWER);
		return set_up.result;
	}
	full = ask(&filler, 'f');
	mine = own ? ask(&p, 'f') : full;
	got = ask(&p, 't');
	if (verbose)
		printf("#   %s: filled %zu KiB%s, rest %zu KiB\n", call->name, full.bytes >> 10,
		       own ? ", and by itself as well" : "", own ? mine.bytes >> 10 : 0);
	if (got.result == 0)
		ask(&p, 'u');
	if (own)
		ask(&p, 'e');
	ask(&filler, 'e');
	before = ask(&filler, 'i');
	again = ask(&p, 't');
	after = ask(&filler, 'i');
	*later = again.result;
	*takes = (long long)before.bytes - (long long)after.bytes;
	if (again.result == 0)
		ask(&p, 'u');
	end(&p, again.result == NO_ANSWER);
	return got.result;
}

/* Tries @call and prints the results.  Returns true when it fails for lack of memory even with all memory free. */
static bool try_and_tell(const struct call *call)
{
	bool has_context = call->setup != no_context;
	int full, all, later, later2;
	long long takes, ignored;
	char room[3][16];

	full = probe(call, false, &later, &takes);
	all = has_context ? probe(call, true, &later2, &ignored) : full;
	if (!has_context)
		later2 = later;
	if (later == 0)
		later = later2;
	printf("%-38s %-10s %-10s %-10s %lld\n", call->name, word(full, room[0]),
	       has_context ? word(all, room[1]) : "", word(later, room[2]),
	       later == 0 ? takes >> 10 : 0);
	return (full == OOM || all == OOM) && later != 0;
}

int main(int argc, char **argv)
{
	static const struct call *const tables[] = { context_calls, code_calls, memory_calls };
	const char *missing;
	struct answer ready;
	bool wrong = false;
	char **words = argv + 1;

	if (argc > 1 && !strcmp(argv[1], "-v")) {
		verbose = true;
		words++;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(RUN_DEADLINE_S);
	filler.link = -1;
	filler = start(NULL);
	ready = hear(&filler);
	if (ready.result || !receive_shared(filler.link, &my.shared)) {
		missing = "no driver, or no device that can be filled";
		printf("1..0 # SKIP %s (%d)\n", missing, ready.result);
		end(&filler, true);
		return 77;
	}
	printf("# the filler has %zu MiB free, and shares %zu MiB\n", ask(&filler, 'i').bytes >> 20,
	       my.shared.bytes >> 20);
	printf("%-38s %-10s %-10s %-10s %s\n", "call", "full", "all full", "free", "takes (KiB)");
	for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
		for (const struct call *call = tables[i]; call->name; call++)
			if (wanted(call->name, words))
				wrong |= try_and_tell(call);
	end(&filler, false);
	printf("# %s\n", wrong ? "a call that failed for lack of memory also fails with all memory free" :
				 "each call that failed for lack of memory works with all memory free");
	return wrong;
}
