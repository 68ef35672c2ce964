/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kill test: the world around a victim.  It is built, the victim is stepped in it, and it is
 * removed.
 */
#include "tests/kill/kill.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

struct stage *stage;

static const uint32_t published[] = { R_EXPORTED, R_HELD, R_OPENED, R_LAST,  R_BOTH, R_DEAD,
				      R_DUE,	  R_READY, R_SHARED, R_CLOSING, R_FAR };
static const uint32_t freed[] = { R_HELD, R_LAST, R_BOTH, R_DEAD, R_DUE, R_READY, R_CLOSING, R_FAR };
#define EACH(list, record)                                                              \
	for (uint32_t i_ = 0, record; i_ < sizeof(list) / sizeof *(list) &&             \
				      (record = (list)[i_], true); i_++)

static void publish_all(struct cl_region *region)
{
	EACH(published, record) {
		struct cl_export what = { .kind = CL_MEMORY, .base = 4096ull * record, .size = 4096, .handle = handle, .now = 1 };

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
	struct cl_identity self;

	cl_identity_self(&self);
	return cl_holder_claim(region, &self, cl_now(), UINT64_MAX / 2);
}

/* A is an importer of the file, and D was one. */
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
		hold(&region, SLOT_D, R_CLOSING);
		atomic_store(&region.slot[SLOT_D].closing, R_CLOSING + 1);
		atomic_fetch_and(cl_region_word(&region, 0, R_CLOSING), ~(1ull << SLOT_D));
		atomic_fetch_or(&region.ready[R_CLOSING / 64], 1ull << R_CLOSING % 64);
		_exit(0);
	}
	MUST(waitpid(dead, NULL, 0) == dead);
}

/* A name beside the file is enough: nobody connects to it. */
static void make_socket(int dir, uint32_t file_id)
{
	char name[16];

	cl_region_socket_name(name, file_id);
	MUST(mknodat(dir, name, S_IFSOCK | 0600, 0) == 0);
}

static void stop_here(void)
{
	raise(SIGSTOP);
}

/* The child, up to the operation and through it.  Stops: 1, others' turn; 2, the operation begins; 3, it is over. */
static void victim(struct world *w, const struct op *op)
{
	struct cl_region region = { .fd = -1 };

	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
		_exit(77);
	alarm(500);
	cl_identity_self(&w->self);
	if (op->role == EXPORTER) {
		MUST(cl_region_create(&region, w->dir, &w->self) == 0);
		grow(&region, op);
		publish_all(&region);
		if (op->report_data)
			op->report_data->prepare(&region);
		make_socket(w->dir, region.file_id);
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

void make_folder(char *path, size_t size, int *dir)
{
	snprintf(path, size, "/dev/shm/culimbo-kill-XXXXXX");
	if (!mkdtemp(path)) {
		snprintf(path, size, "/tmp/culimbo-kill-XXXXXX");
		MUST(mkdtemp(path));
	}
	*dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	MUST(*dir >= 0);
}

void empty_folder(int dir)
{
	int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = fdopendir(fd);

	MUST(list);
	for (struct dirent *entry; (entry = readdir(list)) != NULL;)
		if (entry->d_name[0] != '.')
			unlinkat(dir, entry->d_name, 0);
	closedir(list);
}

/* False when the child may not be traced. */
static bool at_stop(pid_t child)
{
	int status;

	MUST(waitpid(child, &status, 0) == child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		return false;
	MUST(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
	return true;
}

/* Builds the world of @op around a new victim, which is about to begin.  0: ptrace is forbidden. */
pid_t begin(struct world *w, const struct op *op)
{
	pid_t child, dead;

	w->role = op->role;
	w->file_id = 0;
	w->has_region = false;
	w->victim_held = op->role == IMPORTER && !op->no_slot;
	w->report_data = op->report_data;
	w->region = (struct cl_region){ .fd = -1 };
	memset(w->held_by_a, 0, sizeof w->held_by_a);
	memset(w->counted, 0, sizeof w->counted);
	cl_identity_self(&w->self);
	if (op->role == IMPORTER) {
		MUST(cl_region_create(&w->region, w->dir, &w->self) == 0);
		w->file_id = w->region.file_id;
		cl_region_close(&w->region);
		/* opens it by its name, as importers do */
		MUST(cl_region_open(&w->region, w->dir, w->file_id, NULL) == 0);
		MUST(w->region.locks->try_lock(&w->region, CL_LOCK_EXPORTER) == 0);
		grow(&w->region, op);
		publish_all(&w->region);
		others_come(w);
	} else if (op->role == SWEEPER) {
		dead = fork();
		MUST(dead >= 0);
		if (!dead) {
			cl_identity_self(&w->self);
			MUST(cl_region_create(&w->region, w->dir, &w->self) == 0);
			publish_all(&w->region);
			make_socket(w->dir, w->region.file_id);
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

void finish(struct world *w, pid_t child)
{
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	cl_region_close(&w->region);
	empty_folder(w->dir);
	empty_folder(w->copies_dir);
}

/* Steps one instruction or system call.  False: the operation is over. */
bool step(pid_t child)
{
	int status;

	MUST(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0);
	MUST(waitpid(child, &status, 0) == child);
	MUST(WIFSTOPPED(status));
	MUST(WSTOPSIG(status) == SIGTRAP || WSTOPSIG(status) == SIGSTOP);
	return WSTOPSIG(status) == SIGTRAP;
}
