/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Killed at every instruction: whatever operation on the exporter file a process
 * is in when it dies, nothing is lost, released early or held for ever.
 *
 * Each operation of ops.c runs in a child that is stepped by ptrace, one
 * instruction (or system call) at a time, libc's included.  Three things are
 * done with that:
 *
 *  1. Judged at every boundary.  What a kill leaves to others is the file and the
 *     locks, nothing else of the process is theirs to see.  So at a boundary,
 *     where the file and its name are as they were at the boundary before, a kill
 *     leaves what was judged there (the killed one's locks are free at both).  At
 *     each boundary they are compared; where they differ, the judge gets a copy of
 *     the file, with locks of its own that say who lives: A does, the victim does
 *     not.  The judge also reads what the victim noted for reports, as `culimbo report`
 *     does; and of the file itself it is asked whether it has memory for all that it
 *     counts.  At the end of an operation all that the file has is compared once
 *     more, so that no change lay where we did not look.
 *  2. A neighbour at every boundary: another living importer takes or drops its
 *     hold of the same record, in the same holder word, and must find its bit
 *     as it left it at the next.
 *  3. Killed for good, by SIGKILL at some boundaries: the judge gets the real file
 *     with the kernel's locks.
 *
 * What it does not show: memory order between processors (a step is complete
 * before the next one begins, so a missing fence can't be seen here; the model
 * and tests/unit/test_handshake.c find that), and processes that run between
 * two of the judge's own steps (the model).  Where the processor has no atomic
 * instructions but pairs of load and conditional store, such a pair never
 * succeeds while it is stepped: then this test does not come to its end.
 *
 * Built five times: as it is, and with a planted fault that must be found:
 * CL_PLANT_TWO_STEP_RELEASE (by the neighbour), CL_PLANT_SLOT_BEFORE_BITS, a note
 * that comes late and a size that is told early (by the judge; late_note.c, early_count.c).
 *
 *	kill [all] [NAME]	all: judged at every boundary, changed or not, and killed at
 *				many more (make check-kill-full); only the operations
 *				whose name has NAME in it
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim/base/options.h"
#include "tests/kill/world.h"

static struct stage *stage;
static bool all;
static const char *only;
static unsigned long long states, flips;

#define MUST(what)                                                                      \
	do {                                                                            \
		if (!(what)) {                                                          \
			printf("Bail out! %s:%d: %s (errno %d)\n", __FILE__, __LINE__,  \
			       #what, errno);                                           \
			fflush(stdout);                                                 \
			_exit(99);                                                      \
		}                                                                       \
	} while (0)

/*
 * The vDSO's begin again when the kernel's clock has ticked meanwhile, which
 * while it is stepped slowly it always has.  In the kernel it is one step.
 */
int clock_gettime(clockid_t clock, struct timespec *now)
{
	return (int)syscall(SYS_clock_gettime, clock, now);
}
time_t time(time_t *now)
{
	struct timespec precise;

	clock_gettime(CLOCK_REALTIME, &precise);
	if (now)
		*now = precise.tv_sec;
	return precise.tv_sec;
}

/* ------------------------------------------------------------ the judge's locks */
/* Who has which byte of the copy: whoever lives.  The judge plays those and itself. */
static bool lives[1 + CL_SLOTS];

static int copy_try_lock(struct cl_region *region, off_t byte)
{
	return lives[byte] ? -EAGAIN : 0;
}
static int copy_unlock(struct cl_region *region, off_t byte)
{
	return 0;
}
static int copy_is_locked(struct cl_region *region, off_t byte)
{
	return lives[byte];
}
static const struct cl_lock_ops copy_locks = { copy_try_lock, copy_unlock, copy_is_locked };

/* --------------------------------------------------------------- what is watched */
/* All that operations write in a world like ours. */
static const struct range {
	uint64_t at;
	size_t length;
} watched[] = {
	{ CL_AT_HEADER, CL_PAGE },
	{ CL_AT_WORD_PAGES, CL_PAGE },
	{ CL_AT_READY_TOP, CL_PAGE },
	{ CL_AT_SLOTS, CL_PAGE },
	{ CL_AT_LOCK_FREE, CL_PAGE },
	{ CL_AT_READY, CL_PAGE },
	{ CL_AT_RECORDS, R_END * sizeof(struct cl_record) },
	{ CL_AT_HOLDERS, CL_PAGE },
	{ CL_AT_HOLDERS + CL_RECORDS * 8ull, CL_PAGE },
};
enum { WATCHED = sizeof watched / sizeof *watched };
static unsigned char seen[WATCHED][16384];
/* What is written for reports: looked at where an operation does that, by reading, as reports do. */
static const uint64_t notes_at[] = { CL_AT_MODULES, CL_AT_STACKS, CL_AT_IMPORTS, CL_AT_FINDINGS };
enum { NOTES = sizeof notes_at / sizeof *notes_at, NOTES_PAGES = 2 };
static unsigned char seen_notes[NOTES][NOTES_PAGES * CL_PAGE];
static uint64_t seen_index; /* of the buckets, which are many, and our records' chains: a sum */
enum { CHAINS = R_END * sizeof(struct cl_chain) };
static bool seen_name;

static uint64_t sum_of(const unsigned char *from, size_t length, uint64_t sum)
{
	uint64_t word;

	for (size_t i = 0; i + 8 <= length; i += 8) {
		memcpy(&word, from + i, 8);
		if (word)
			sum = (sum ^ word ^ i) * 0x9e3779b97f4a7c15u;
	}
	return sum;
}

/* A page that is not there yet must not come into being by our looking. */
static bool is_there(const struct cl_region *region, unsigned int i)
{
	return i < WATCHED - 1 || cl_region_has_word(region, 1, 0);
}

static bool has_name(const struct world *w)
{
	char name[16], unfinished[16];

	cl_region_name(name, w->file_id);
	snprintf(unfinished, sizeof unfinished, "new-%06x", w->file_id);
	return faccessat(w->dir, name, F_OK, 0) == 0 || faccessat(w->dir, unfinished, F_OK, 0) == 0;
}

/* Whether the file or its name has changed since the last call. */
static bool has_changed(const struct world *w, const struct cl_region *region)
{
	const unsigned char *file = (const unsigned char *)region->header;
	bool changed = false, name = has_name(w);
	uint64_t index = 0;

	for (unsigned int i = 0; i < WATCHED; i++)
		if (is_there(region, i) && memcmp(seen[i], file + watched[i].at, watched[i].length)) {
			memcpy(seen[i], file + watched[i].at, watched[i].length);
			changed = true;
		}
	for (unsigned int i = 0; w->notes && i < NOTES; i++) {
		unsigned char now[sizeof seen_notes[0]];

		MUST(pread(region->fd, now, sizeof now, (off_t)notes_at[i]) == sizeof now);
		if (memcmp(seen_notes[i], now, sizeof now)) {
			memcpy(seen_notes[i], now, sizeof now);
			changed = true;
		}
	}
	if (atomic_load(&region->header->by_handle)) {
		index = sum_of(file + CL_AT_BY_HANDLE, CL_BUCKETS * 4u, 1);
		index = sum_of(file + CL_AT_CHAINS, CHAINS, index);
	}
	changed |= index != seen_index || name != seen_name;
	seen_index = index;
	seen_name = name;
	return changed;
}

/* All that the file has and that has_changed() does not look at. */
static uint64_t sum_of_the_rest(const struct world *w, const struct cl_region *region)
{
	const unsigned char *file = (const unsigned char *)region->header;
	off_t at = 0, end;
	uint64_t sum = 1;

	while ((at = lseek(region->fd, at, SEEK_DATA)) >= 0) {
		end = lseek(region->fd, at, SEEK_HOLE);
		for (; at < end; at += 8) {
			bool looked_at = false;

			for (unsigned int i = 0; i < WATCHED; i++)
				looked_at |= (uint64_t)at >= watched[i].at &&
					     (uint64_t)at < watched[i].at + watched[i].length;
			for (unsigned int i = 0; w->notes && i < NOTES; i++)
				looked_at |= (uint64_t)at >= notes_at[i] &&
					     (uint64_t)at < notes_at[i] + sizeof seen_notes[0];
			looked_at |= (uint64_t)at >= CL_AT_BY_HANDLE && (uint64_t)at < CL_AT_MODULES;
			if (!looked_at)
				sum = sum_of(file + at, 8, sum);
		}
	}
	return sum;
}

/* What the judge can't see in a copy. */
static const char *look_at_memory(const struct world *w, const struct cl_region *region)
{
	return w->role == EXPORTER && spare_bytes(region) < w->spare ?
		       "something is counted that the file has no memory for" :
		       NULL;
}

/* Copies what is there into the other folder, and lets the judge at it. */
static const char *judge_copy(struct world *w, const struct cl_region *region)
{
	const unsigned char *file = (const unsigned char *)region->header;
	uint32_t chunks = atomic_load(&region->header->record_chunks);
	struct cl_region copy;
	const char *wrong, *why;
	struct stat st;
	char name[16];
	uint64_t inode;
	int fd;

	cl_region_name(name, w->file_id);
	unlinkat(w->copies_dir, name, 0);
	fd = openat(w->copies_dir, name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
	MUST(fd >= 0 && ftruncate(fd, CL_FILE_SIZE) == 0);
	MUST(fallocate(fd, 0, 0, CL_AT_READY + CL_PAGE) == 0);
	MUST(fallocate(fd, 0, CL_AT_RECORDS, (off_t)(chunks * CL_CHUNK * sizeof(struct cl_record))) == 0);
	for (unsigned int i = 0; i < WATCHED; i++)
		if (is_there(region, i))
			MUST(pwrite(fd, file + watched[i].at, watched[i].length,
				    (off_t)watched[i].at) == (ssize_t)watched[i].length);
	if (atomic_load(&region->header->by_handle)) {
		MUST(pwrite(fd, file + CL_AT_BY_HANDLE, CL_BUCKETS * 4u, CL_AT_BY_HANDLE) ==
		     (ssize_t)(CL_BUCKETS * 4u));
		MUST(pwrite(fd, file + CL_AT_CHAINS, CHAINS, CL_AT_CHAINS) == (ssize_t)CHAINS);
	}
	for (unsigned int i = 0; w->notes && i < NOTES; i++)
		for (unsigned int at = 0; at < sizeof seen_notes[0]; at += CL_PAGE)
			if (sum_of(seen_notes[i] + at, CL_PAGE, 0)) /* (a hole stays one) */
				MUST(pwrite(fd, seen_notes[i] + at, CL_PAGE, (off_t)(notes_at[i] + at)) ==
				     CL_PAGE);
	/* which would tell the copy from the file */
	MUST(fstat(fd, &st) == 0);
	inode = region->header->inode ? st.st_ino : 0;
	MUST(pwrite(fd, &inode, sizeof inode, offsetof(struct cl_header, inode)) == sizeof inode);
	close(fd);
	if (cl_region_open(&copy, w->copies_dir, w->file_id, &why))
		return why;
	copy.locks = &copy_locks;
	wrong = look_at_memory(w, region);
	if (!wrong)
		wrong = judge(w, &copy, w->copies_dir);
	cl_region_close(&copy);
	return wrong;
}

/* ------------------------------------------------------------------- the world */
static const uint32_t published[] = { R_EXPORTED, R_HELD, R_OPENED, R_LAST,  R_BOTH, R_DEAD,
				      R_DUE,	  R_READY, R_SHARED, R_NOTED, R_FAR };
static const uint32_t freed[] = { R_HELD, R_LAST, R_BOTH, R_DEAD, R_DUE, R_READY, R_NOTED, R_FAR };
#define EACH(list, record)                                                              \
	for (uint32_t i_ = 0, record; i_ < sizeof(list) / sizeof *(list) &&             \
				      (record = (list)[i_], true); i_++)

static void publish_all(struct cl_region *region)
{
	EACH(published, record) {
		struct cl_export what = { CL_MEMORY, 4096ull * record, 4096, 0, handle, 1 };

		cl_record_publish(region, record, &what);
	}
}
static void grow(struct cl_region *region, const struct op *op)
{
	for (uint32_t chunk = 1; chunk < op->chunks; chunk++)
		MUST(cl_region_grow(region) == 0 &&
		     cl_region_need_word(region, 0, chunk * CL_CHUNK) == 0);
}
static void free_all(struct cl_region *region)
{
	EACH(freed, record)
		cl_record_to_limbo(region, record, 2);
	cl_record_set_ready(region, R_READY);
}

static void hold(struct cl_region *region, unsigned int slot, uint32_t record)
{
	MUST(cl_record_hold(region, slot, record, 0, handle) == 0);
}

static int claim(struct cl_region *region)
{
	struct cl_witness self;

	cl_witness_self(&self);
	return cl_holder_claim(region, &self, cl_now(), UINT64_MAX / 2);
}

/* A is in the file, and D was. */
static void others_come(struct world *w)
{
	struct cl_region region;
	pid_t dead;

	MUST(claim(&w->region) == SLOT_A);
	w->claim_of_a = atomic_load(&w->region.slot[SLOT_A].claim);
	w->has_region = true;
	EACH(((uint32_t[]){ R_HELD, R_BOTH, R_SHARED }), record) {
		hold(&w->region, SLOT_A, record);
		w->held_by_a[record] = true;
	}
	dead = fork();
	MUST(dead >= 0);
	if (!dead) {
		MUST(cl_region_open(&region, w->dir, w->file_id, NULL) == 0);
		MUST(claim(&region) == SLOT_D);
		hold(&region, SLOT_D, R_DEAD);
		hold(&region, SLOT_D, R_FAR);
		/* killed in the middle of a close */
		hold(&region, SLOT_D, R_NOTED);
		atomic_store(&region.slot[SLOT_D].closing, R_NOTED + 1);
		atomic_fetch_and(cl_region_word(&region, 0, R_NOTED), ~(1ull << SLOT_D));
		atomic_fetch_or(&region.ready[R_NOTED / 64], 1ull << R_NOTED % 64);
		_exit(0);
	}
	MUST(waitpid(dead, NULL, 0) == dead);
}

static void stop_here(void)
{
	raise(SIGSTOP);
}

/* The child, up to the operation and through it.  Stops: 1, others' turn; 2, begins; 3, is over. */
static void victim(struct world *w, const struct op *op)
{
	struct cl_region region = { .fd = -1 };

	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
		_exit(77);
	alarm(500);
	cl_witness_self(&w->self);
	if (op->role == EXPORTER) {
		MUST(cl_region_create(&region, w->dir, &w->self) == 0);
		grow(&region, op);
		publish_all(&region);
		if (op->notes)
			op->notes->prepare(&region);
		stage->file_id = region.file_id;
	} else if (op->role != MAKER) {
		MUST(cl_region_open(&region, w->dir, w->file_id, NULL) == 0);
		if (!op->no_slot) {
			MUST(claim(&region) == SLOT_VICTIM);
			hold(&region, SLOT_VICTIM, R_OPENED);
			hold(&region, SLOT_VICTIM, R_LAST);
			hold(&region, SLOT_VICTIM, R_BOTH);
		}
	}
	stop_here();
	if (op->role == EXPORTER)
		free_all(&region);
	stop_here();
	op->run(w, &region);
	stop_here();
	_exit(0);
}

static void make_folder(char *path, size_t size, int *dir)
{
	snprintf(path, size, "/dev/shm/culimbo-kill-XXXXXX");
	if (!mkdtemp(path)) {
		snprintf(path, size, "/tmp/culimbo-kill-XXXXXX");
		MUST(mkdtemp(path));
	}
	*dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	MUST(*dir >= 0);
}

static void empty_folder(int dir)
{
	int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = fdopendir(fd);

	MUST(list);
	for (struct dirent *entry; (entry = readdir(list)) != NULL;)
		if (entry->d_name[0] != '.')
			unlinkat(dir, entry->d_name, 0);
	closedir(list);
}

/* True unless the child may not be traced. */
static bool at_stop(pid_t child)
{
	int status;

	MUST(waitpid(child, &status, 0) == child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		return false;
	MUST(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
	return true;
}

/* Builds the world of @op around a new victim, which is about to begin.  0: no ptrace. */
static pid_t begin(struct world *w, const struct op *op)
{
	pid_t child, dead;

	w->role = op->role;
	w->file_id = 0;
	w->has_region = false;
	w->victim_held = op->role == IMPORTER && !op->no_slot;
	w->notes = op->notes;
	w->region = (struct cl_region){ .fd = -1 };
	memset(w->held_by_a, 0, sizeof w->held_by_a);
	cl_witness_self(&w->self);
	if (op->role == IMPORTER) {
		MUST(cl_region_create(&w->region, w->dir, &w->self) == 0);
		w->file_id = w->region.file_id;
		cl_region_close(&w->region);
		/* by its name, as importers have it */
		MUST(cl_region_open(&w->region, w->dir, w->file_id, NULL) == 0);
		MUST(w->region.locks->try_lock(&w->region, CL_LOCK_EXPORTER) == 0);
		grow(&w->region, op);
		publish_all(&w->region);
		others_come(w);
	} else if (op->role == SWEEPER) {
		dead = fork();
		MUST(dead >= 0);
		if (!dead) {
			cl_witness_self(&w->self);
			MUST(cl_region_create(&w->region, w->dir, &w->self) == 0);
			publish_all(&w->region);
			stage->file_id = w->region.file_id;
			_exit(0);
		}
		MUST(waitpid(dead, NULL, 0) == dead);
		w->file_id = stage->file_id;
	}
	fflush(stdout);
	child = fork();
	MUST(child >= 0);
	if (!child)
		victim(w, op);
	if (!at_stop(child))
		return 0;
	if (op->role == EXPORTER) {
		w->file_id = stage->file_id;
		MUST(cl_region_open(&w->region, w->dir, w->file_id, NULL) == 0);
		others_come(w);
		w->spare = spare_bytes(&w->region);
	} else if (op->role == IMPORTER) {
		free_all(&w->region);
	} else if (op->role == SWEEPER) {
		MUST(cl_region_open(&w->region, w->dir, w->file_id, NULL) == 0);
	}
	memset(lives, 0, sizeof lives);
	lives[CL_LOCK_SLOT(SLOT_A)] = w->has_region;
	MUST(ptrace(PTRACE_CONT, child, NULL, NULL) == 0);
	MUST(at_stop(child));
	return child;
}

static void finish(struct world *w, pid_t child)
{
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	cl_region_close(&w->region);
	empty_folder(w->dir);
	empty_folder(w->copies_dir);
}

/* One instruction, or system call, on.  False: the operation is over. */
static bool step(pid_t child)
{
	int status;

	MUST(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0);
	MUST(waitpid(child, &status, 0) == child);
	MUST(WIFSTOPPED(status));
	MUST(WSTOPSIG(status) == SIGTRAP || WSTOPSIG(status) == SIGSTOP);
	return WSTOPSIG(status) == SIGTRAP;
}

/* ------------------------------------------------------------ 1: judged, stepped */
/* The file that a maker has made by now, or NULL. */
static struct cl_region *made(struct world *w, struct cl_region *region, const char **wrong)
{
	DIR *list = fdopendir(openat(w->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	struct cl_region *found = NULL;

	MUST(list);
	for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
		uint32_t id = cl_region_name_id(entry->d_name);
		uint32_t unfinished = cl_region_unfinished_id(entry->d_name);

		if (entry->d_name[0] == '.')
			continue;
		if (unfinished && cl_region_open_unfinished(region, w->dir, unfinished))
			*wrong = "a maker left a file that is not whole";
		else if (!id && !unfinished)
			*wrong = "a maker left a file that nobody looks for";
		else if (unfinished || cl_region_open(region, w->dir, id, wrong) == 0)
			found = region;
		w->file_id = id | unfinished;
	}
	closedir(list);
	return found;
}

/* *changed: and whether anything had. */
static const char *judge_now(struct world *w, bool *judged, bool *changed)
{
	struct cl_region region, *r = w->role == MAKER ? NULL : &w->region;
	const char *wrong = NULL;

	if (w->role == MAKER) {
		r = made(w, &region, &wrong);
		if (wrong)
			return wrong;
		if (!r) /* nothing that anybody could see: as before it began */
			return NULL;
	}
	*changed = has_changed(w, r);
	if (*changed || all) {
		*judged = true;
		wrong = has_name(w) ? judge_copy(w, r) : judge(w, NULL, w->copies_dir);
	}
	if (w->role == MAKER)
		cl_region_close(&region);
	return wrong;
}

/* At which boundaries something had changed. */
static unsigned int changes[256], changes_n;

static const char *step_and_judge(struct world *w, const struct op *op, unsigned int *steps)
{
	const char *wrong = NULL;
	uint64_t rest = 0;
	pid_t child = begin(w, op);

	*steps = changes_n = 0;
	memset(seen, 0, sizeof seen);
	memset(seen_notes, 0, sizeof seen_notes);
	if (op->role != MAKER)
		rest = sum_of_the_rest(w, &w->region);
	do {
		bool judged = false, changed = false;

		wrong = judge_now(w, &judged, &changed);
		states += judged;
		if (changed && changes_n < sizeof changes / sizeof *changes)
			changes[changes_n++] = *steps;
		if (!wrong)
			++*steps;
	} while (!wrong && step(child));
	if (!wrong && op->role != MAKER && rest != sum_of_the_rest(w, &w->region))
		wrong = "it wrote where we do not look";
	finish(w, child);
	return wrong;
}

/* --------------------------------------------------------------- 2: a neighbour */
static const char *flip(struct world *w, uint32_t record, bool *gone)
{
	bool held = atomic_load(cl_region_word(&w->region, 0, record)) >> SLOT_A & 1;
	int err;

	if (held != w->held_by_a[record])
		return held ? "a hold that its owner had dropped came back" :
			      "a living importer's hold went away";
	if (held && cl_life_generation(cl_record_life(&w->region, record)) != 0)
		return "a record was released with a live hold";
	if (*gone)
		return NULL;
	if (held) {
		cl_record_unhold(&w->region, SLOT_A, record);
	} else {
		err = cl_record_hold(&w->region, SLOT_A, record, 0, handle);
		/* freed meanwhile, as it may be */
		*gone = err == -ESTALE;
		if (err && !*gone)
			return "a neighbour's open fails";
	}
	if (!*gone)
		w->held_by_a[record] = !held;
	flips++;
	return NULL;
}

static const char *step_with_neighbour(struct world *w, const struct op *op)
{
	uint32_t record = (uint32_t)op->neighbour_of;
	pid_t child = begin(w, op);
	const char *wrong;
	bool gone = false;

	do {
		wrong = flip(w, record, &gone);
	} while (!wrong && step(child));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	if (!wrong)
		wrong = flip(w, record, &gone);
	/* what the neighbour has is A's; the exporter must find the rest */
	if (!wrong && !gone)
		wrong = judge(w, &w->region, w->dir);
	cl_region_close(&w->region);
	empty_folder(w->dir);
	return wrong;
}

#ifndef PLANTED
/* --------------------------------------------------------------- 3: killed dead */
static unsigned long long kills;

static const char *kill_after(struct world *w, const struct op *op, unsigned int n)
{
	struct cl_region region, *r = &w->region;
	const char *wrong = NULL;
	pid_t child = begin(w, op);

	while (n-- && step(child))
		;
	kill(child, SIGKILL);
	MUST(waitpid(child, NULL, 0) == child);
	kills++;
	if (w->role == MAKER)
		r = made(w, &region, &wrong);
	else
		wrong = look_at_memory(w, r);
	if (!wrong)
		wrong = judge(w, r && has_name(w) ? r : NULL, w->dir);
	if (w->role == MAKER && r)
		cl_region_close(r);
	cl_region_close(&w->region);
	empty_folder(w->dir);
	return wrong;
}

static const char *kill_some(struct world *w, const struct op *op, unsigned int steps)
{
	unsigned long long times = all ? 200 : 8;
	const char *wrong = NULL;

	for (unsigned int i = 0; !wrong && i < changes_n; i++)
		wrong = kill_after(w, op, changes[i]);
	/* and spread evenly, but nowhere twice */
	for (unsigned int i = 0; !wrong && i < times && i < steps; i++)
		wrong = kill_after(w, op, times < steps ? (unsigned int)(steps * i / times) : i);
	return wrong;
}
#endif

/* ------------------------------------------------------------------------ all */
#ifdef PLANTED
/* The operations that have the fault; it is found when one of them is faulted. */
static bool is_planted_in(const struct op *op)
{
#ifdef PLANTED_IN_NOTES
	return op->notes != NULL;
#else
	return op->role == IMPORTER || strstr(op->name, "reap");
#endif
}
#endif

#ifndef PLANTED
static struct {
	unsigned long long boundaries, states, flips, kills;
} sum;

static double seconds(void)
{
	return (double)cl_now() / 1e9;
}
#endif

int main(int argc, char **argv)
{
	struct world w;
	const char *found = NULL;
	unsigned int lost = 0;
	pid_t child;

	all = argc > 1 && strcmp(argv[1], "all") == 0;
	only = argc > 1 + all ? argv[1 + all] : "";
	cl_options.settle.number = 0; /* a free lock is a dead process: we say who is */
	stage = mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(stage != MAP_FAILED);
	memset(&w, 0, sizeof w);
	make_folder(w.folder, sizeof w.folder, &w.dir);
	make_folder(w.copies, sizeof w.copies, &w.copies_dir);
	child = begin(&w, &ops[0]);
	if (!child) {
		cl_region_close(&w.region);
		empty_folder(w.dir);
		printf("1..0 # SKIP ptrace is forbidden here\n");
		goto out;
	}
	finish(&w, child);
#ifdef PLANTED
	printf("1..1\n");
	for (unsigned int i = 1; !found && i < op_count; i++) {
		unsigned int steps = 0;

		if (!is_planted_in(&ops[i]) || !strstr(ops[i].name, only))
			continue;
		found = step_and_judge(&w, &ops[i], &steps);
		if (!found && ops[i].neighbour_of >= 0)
			found = step_with_neighbour(&w, &ops[i]);
		if (found)
			printf("# %s, step %u: %s\n", ops[i].name, steps, found);
	}
	printf("%s 1 - planted: %s is found\n", found ? "ok" : "not ok", PLANTED);
	lost = !found;
#else
	unsigned int marks = 0, n = 0;

	for (unsigned int i = 0; i < op_count; i++) {
		const struct op *op = &ops[i];
		unsigned int steps;
		double begun = seconds();

		/* (the first one says what the others' marks cost) */
		if (i && !strstr(op->name, only))
			continue;
		states = flips = kills = 0;
		found = step_and_judge(&w, op, &steps);
		if (!found && op->neighbour_of >= 0)
			found = step_with_neighbour(&w, op);
		if (!found)
			found = kill_some(&w, op, steps);
		if (i == 0)
			marks = steps;
		printf("%s %u - %s\n", found ? "not ok" : "ok", ++n, op->name);
		printf("# %u boundaries, %llu states judged, %llu neighbour's steps, %llu kills, %.1f s\n",
		       steps - (i ? marks : 0), states, flips, kills, seconds() - begun);
		if (found)
			printf("# at boundary %u: %s\n", steps, found);
		fflush(stdout);
		lost += found != NULL;
		sum.boundaries += steps > marks ? steps - marks : 0;
		sum.states += states;
		sum.kills += kills;
		sum.flips += flips;
	}
	printf("1..%u\n", n);
	printf("# kill: operations=%u boundaries=%llu states=%llu neighbour=%llu kills=%llu lost=%u\n",
	       n - 1, sum.boundaries, sum.states, sum.flips, sum.kills, lost);
#endif
out:
	rmdir(w.folder);
	rmdir(w.copies);
	return lost != 0;
}
