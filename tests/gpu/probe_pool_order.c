/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool-order-soak: does the order in which exporter and importer free a pool's block harm the driver?
 *
 * In some runs of the conformance program the driver ended the exporter when the importer freed first:
 * by a double free of host memory, or by a call that did not return.  Here each order, each call on
 * each side and each release threshold is a case of its own.  Two new processes (a pair) play it, for
 * one round or for many.  Each output line has the number of pairs of a case and how their processes
 * ended.
 *
 *	PROBE_ROUNDS	rounds of the one long pair of each case (20)
 *	PROBE_FRESH	further pairs of one round each (4)
 *	PROBE_JOBS	pairs at the same time (4; at most 16)
 *	PROBE_MIB	size of the block (256)
 *
 * Rules: This process calls no CUDA.  A pair without progress for STUCK_MS is killed.  No new pair
 * starts after SOAK_MS.
 */
#include "probe_pools.h"

#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	STUCK_MS = 5000,
	START_MS = 20000, /* many processes run cuInit at once */
	SOAK_MS = 48000,
	POOL_ROUNDS = 4, /* a pool is destroyed after this many rounds */
	JOBS_MAX = 16,
	CASES = 16,
	GONE = 4, /* exit status: the other process has ended */
};
enum side { EXPORTER, IMPORTER, SIDES };
enum step { IMPORT_POOL, IMPORT_BLOCK, FREE_BLOCK, LEAVE };

/* A case is a combination of these bits. */
enum { EXPORTER_FIRST = 1, IMPORTER_ASYNC = 2, EXPORTER_ASYNC = 4, KEEPS_ALL = 8 };

/* What a pair shows to the watching process, in shared memory. */
struct shown {
	atomic_uint progress, rounds;
	atomic_bool leaving[SIDES]; /* the process is exiting */
	char at[SIDES][128];
};

struct pair {
	pid_t pid[SIDES]; /* 0: has ended */
	unsigned int of, planned, seen;
	double since; /* time of the last progress */
	bool stuck, fresh;
	struct shown *shown;
};

struct tally {
	unsigned int pairs, rounds, planned;
	unsigned int hung[SIDES], hung_at_exit[SIDES], killed[SIDES], killed_at_exit[SIDES], refused[SIDES], late;
	char first[160]; /* the first harm: which process, what, in which call */
};

struct message {
	enum step step;
	CUmemPoolPtrExportData data;
};

static size_t block_bytes;
static struct shown *mine;

static void progress(void)
{
	atomic_fetch_add(&mine->progress, 1);
}

static void gone(void)
{
	_exit(GONE);
}

static void free_by(bool asynchronous, CUdeviceptr pointer)
{
	if (!asynchronous) {
		MUST(cu.cuMemFree_v2(pointer));
		return;
	}
	MUST(cu.cuMemFreeAsync(pointer, stream));
	MUST(cu.cuStreamSynchronize(stream));
}

/* At exit the driver frees everything, and that may crash too. */
static void leave(enum side side)
{
	snprintf(at, 128, "exit");
	atomic_store(&mine->leaving[side], true);
	exit(0);
}

static void import_blocks(int socket, bool asynchronous)
{
	CUmemoryPool pool = NULL;
	CUdeviceptr pointer = 0;
	struct message got;
	int fd = -1;

	begin_pools();
	progress();
	for (;;) {
		snprintf(at, 128, "nothing: it waits for the exporter");
		if (receive_with(socket, &got, sizeof(got), &fd))
			gone();
		switch (got.step) {
		case IMPORT_POOL:
			if (pool)
				MUST(p.cuMemPoolDestroy(pool));
			MUST(p.cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, POSIX_FD, 0));
			close(fd);
			break;
		case IMPORT_BLOCK:
			MUST(p.cuMemPoolImportPointer(&pointer, pool, &got.data));
			if (byte_at(pointer) != OURS)
				must(-1, "reading its bytes");
			break;
		case FREE_BLOCK:
			free_by(asynchronous, pointer);
			break;
		case LEAVE:
			leave(IMPORTER);
		}
		if (send_with(socket, "", 1, -1))
			gone();
	}
}

static void have_importer(int socket, enum step step, const CUmemPoolPtrExportData *data, int fd)
{
	struct message said = { .step = step };
	char done;

	snprintf(at, 128, "nothing: it waits for the importer");
	if (data)
		said.data = *data;
	if (send_with(socket, &said, sizeof(said), fd))
		gone();
	if (step != LEAVE && receive_with(socket, &done, 1, NULL))
		gone();
	progress();
}

static CUmemoryPool shared_pool(int socket, bool keeps_all)
{
	uint64_t threshold = keeps_all ? UINT64_MAX : 0;
	CUmemoryPool pool = new_pool(0, true);
	int fd = -1;

	MUST(p.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	MUST(p.cuMemPoolExportToShareableHandle(&fd, pool, POSIX_FD, 0));
	have_importer(socket, IMPORT_POOL, NULL, fd);
	close(fd);
	return pool;
}

static void one_round(int socket, unsigned int of, CUmemoryPool pool)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr block = new_block(pool, block_bytes, OURS);

	progress();
	MUST(p.cuMemPoolExportPointer(&data, block));
	have_importer(socket, IMPORT_BLOCK, &data, -1);
	if (of & EXPORTER_FIRST)
		free_by(of & EXPORTER_ASYNC, block);
	have_importer(socket, FREE_BLOCK, NULL, -1);
	if (!(of & EXPORTER_FIRST))
		free_by(of & EXPORTER_ASYNC, block);
	if (!(of & KEEPS_ALL))
		MUST(p.cuMemPoolTrimTo(pool, 0));
	progress();
	/* the next block of that size, which nobody imports */
	block = new_block(pool, block_bytes, NEXT);
	free_by(of & EXPORTER_ASYNC, block);
	progress();
	atomic_fetch_add(&mine->rounds, 1);
}

static void export_blocks(int socket, unsigned int of, unsigned int rounds)
{
	CUmemoryPool pool = NULL;

	begin_pools();
	progress();
	for (unsigned int i = 0; i < rounds; i++) {
		if (i % POOL_ROUNDS == 0) {
			if (pool)
				MUST(p.cuMemPoolDestroy(pool));
			pool = shared_pool(socket, of & KEEPS_ALL);
		}
		one_round(socket, of, pool);
	}
	have_importer(socket, LEAVE, NULL, -1);
	leave(EXPORTER);
}

static pid_t fork_side(enum side side, const int *ends, struct pair *pair)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(ends[!side]);
	mine = pair->shown;
	at = mine->at[side];
	if (side == EXPORTER)
		export_blocks(ends[side], pair->of, pair->planned);
	else
		import_blocks(ends[side], pair->of & IMPORTER_ASYNC);
	_exit(0);
}

static void start(struct pair *pair, unsigned int of, unsigned int rounds, bool fresh)
{
	int ends[2];

	memset(pair->shown, 0, sizeof(*pair->shown));
	pair->of = of;
	pair->planned = rounds;
	pair->fresh = fresh;
	pair->seen = 0;
	pair->stuck = false;
	pair->since = now_ms();
	must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), "socketpair");
	fflush(stdout);
	for (enum side side = EXPORTER; side < SIDES; side++)
		pair->pid[side] = fork_side(side, ends, pair);
	close(ends[0]);
	close(ends[1]);
}

static bool runs(const struct pair *pair)
{
	return pair->pid[EXPORTER] > 0 || pair->pid[IMPORTER] > 0;
}

static const char *const side_names[] = { "the exporter", "the importer" };

__attribute__((format(printf, 2, 3)))
static void first_harm(struct tally *tally, const char *format, ...)
{
	va_list args;

	if (tally->first[0])
		return;
	va_start(args, format);
	vsnprintf(tally->first, sizeof(tally->first), format, args);
	va_end(args);
}

static void end_of(struct pair *pair, enum side side, int status, struct tally *tally)
{
	bool at_exit = atomic_load(&pair->shown->leaving[side]);
	const char *where = pair->shown->at[side];

	pair->pid[side] = 0;
	if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) {
		(at_exit ? tally->killed_at_exit : tally->killed)[side]++;
		first_harm(tally, "%s ends by signal %d (%s) in %s", side_names[side], WTERMSIG(status),
			   strsignal(WTERMSIG(status)), where);
	} else if (WIFEXITED(status) && WEXITSTATUS(status) && WEXITSTATUS(status) != GONE) {
		tally->refused[side]++;
		first_harm(tally, "%s ends with status %d in %s", side_names[side], WEXITSTATUS(status), where);
	}
}

/* No progress: a process in a driver call or in its exit hangs. */
static void kill_stuck(struct pair *pair, struct tally *tally)
{
	if (!pair->seen)
		tally->late++;
	for (enum side side = EXPORTER; side < SIDES; side++) {
		const char *where = pair->shown->at[side];
		bool at_exit = atomic_load(&pair->shown->leaving[side]);

		if (pair->pid[side] <= 0)
			continue;
		if (pair->seen && strncmp(where, "nothing", 7)) {
			(at_exit ? tally->hung_at_exit : tally->hung)[side]++;
			first_harm(tally, "%s hangs in %s", side_names[side], where);
		}
		kill(pair->pid[side], SIGKILL);
	}
	pair->stuck = true;
}

static void watch(struct pair *pair, struct tally *tally)
{
	unsigned int now = atomic_load(&pair->shown->progress);
	int status;

	for (enum side side = EXPORTER; side < SIDES; side++)
		if (pair->pid[side] > 0 && waitpid(pair->pid[side], &status, WNOHANG) == pair->pid[side]) {
			end_of(pair, side, status, tally);
			pair->since = now_ms();
		}
	if (now != pair->seen) {
		pair->seen = now;
		pair->since = now_ms();
	}
	/* the first two steps are the starts of both processes */
	if (runs(pair) && !pair->stuck && now_ms() - pair->since > (now < 2 ? START_MS : STUCK_MS))
		kill_stuck(pair, tally);
	if (runs(pair))
		return;
	tally->pairs++;
	tally->planned += pair->planned;
	tally->rounds += atomic_load(&pair->shown->rounds);
}

/* Appends "; the exporter hung 2" when the count is not 0. */
static size_t add_count(char *text, size_t at_byte, size_t size, const char *who, const char *what, unsigned int n)
{
	int more = n && at_byte < size ? snprintf(text + at_byte, size - at_byte, "; %s %s %u", who, what, n) : 0;

	return at_byte + (size_t)more;
}

static void say(unsigned int of, const char *kind, const struct tally *t)
{
	char harm[256] = "";
	size_t n = 0;

	for (enum side s = EXPORTER; s < SIDES; s++) {
		n = add_count(harm, n, sizeof(harm), side_names[s], "hung", t->hung[s]);
		n = add_count(harm, n, sizeof(harm), side_names[s], "hung at exit", t->hung_at_exit[s]);
		n = add_count(harm, n, sizeof(harm), side_names[s], "died", t->killed[s]);
		n = add_count(harm, n, sizeof(harm), side_names[s], "died at exit", t->killed_at_exit[s]);
		n = add_count(harm, n, sizeof(harm), side_names[s], "had an error", t->refused[s]);
	}
	n = add_count(harm, n, sizeof(harm), "pairs", "not ready in time", t->late);
	measured("%s first, importer %s, exporter %s, threshold %s, %s: %u pairs, %u of %u rounds%s%s%s",
		 of & EXPORTER_FIRST ? "exporter" : "importer", of & IMPORTER_ASYNC ? "cuMemFreeAsync" : "cuMemFree",
		 of & EXPORTER_ASYNC ? "cuMemFreeAsync" : "cuMemFree", of & KEEPS_ALL ? "greatest" : "0", kind, t->pairs,
		 t->rounds, t->planned, n ? harm : "; no harm", t->first[0] ? "; first: " : "", t->first);
}

static unsigned int from_environment(const char *name, unsigned int otherwise)
{
	const char *value = getenv(name);

	return value && *value ? (unsigned int)strtoul(value, NULL, 10) : otherwise;
}

/* One pair of many rounds for each case, then @fresh pairs of one round; the cases alternate. */
void pool_order_soak(void)
{
	unsigned int rounds = from_environment("PROBE_ROUNDS", 20), fresh = from_environment("PROBE_FRESH", 4);
	unsigned int jobs = from_environment("PROBE_JOBS", 4), next = 0, all = CASES * (1 + fresh), running;
	static struct tally tallies[2][CASES];
	static struct pair pairs[JOBS_MAX];
	struct rlimit none = { 0 };
	double from = now_ms();
	struct shown *shown;

	block_bytes = (size_t)from_environment("PROBE_MIB", 256) << 20;
	jobs = jobs < 1 ? 1 : jobs > JOBS_MAX ? JOBS_MAX : jobs;
	shown = mmap(NULL, JOBS_MAX * sizeof(*shown), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(shown == MAP_FAILED ? -1 : 0, "shared memory");
	setrlimit(RLIMIT_CORE, &none);
	for (unsigned int i = 0; i < jobs; i++)
		pairs[i].shown = &shown[i];
	do {
		running = 0;
		for (unsigned int i = 0; i < jobs; i++) {
			if (!runs(&pairs[i]) && next < all && now_ms() - from < SOAK_MS) {
				start(&pairs[i], next % CASES, next < CASES ? rounds : 1, next >= CASES);
				next++;
			} else if (runs(&pairs[i])) {
				watch(&pairs[i], &tallies[pairs[i].fresh][pairs[i].of]);
			}
			running += runs(&pairs[i]);
		}
		usleep(1000);
	} while (running || (next < all && now_ms() - from < SOAK_MS));
	for (unsigned int of = 0; of < CASES; of++) {
		say(of, "one pair", &tallies[0][of]);
		say(of, "fresh pairs", &tallies[1][of]);
	}
	measured("blocks of %zu MiB, %u pairs of processes at once; %u of %u pairs began, %.1f s", block_bytes >> 20, jobs, next, all,
		 (now_ms() - from) / 1e3);
}
