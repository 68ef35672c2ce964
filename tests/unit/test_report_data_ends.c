/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records for reports (diag/): they survive a kill, and are removed when they are not wanted.  The end of a
 * process and a fork need nothing that may be missing.
 */
#include "tests/unit/report_data.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include "shim/importer/peers.h"
#include "shim/shm/gc.h"
#include "shim/self/self.h"
#include "shim/shm/view.h"

enum { SOON = 5000 };

static bool is_open_here(uint32_t file_id)
{
	bool is_own;

	return cl_peer_has_open(file_id, &is_own) != NULL;
}

static unsigned int reclaimed(const struct cl_view *view)
{
	struct cl_finding found;

	cl_limbo_reap(&cl_exporter);
	return findings_of(view, CL_FINDING_HOLD_RECLAIMED, &found);
}

IN_A_CHILD(the_dead_are_found_and_left_a_file_that_says_what_they_had)
{
	CUipcMemHandle handle;
	struct cl_identity dead = { 0 };
	struct cl_finding found;
	struct cl_view view, his;
	struct cl_view_import import;
	CUdeviceptr p;
	int line[2], dir, status;
	pid_t other;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	p = fake_alloc(4096, CONTEXT_A);
	CHECK_EQUAL(export_here(&handle, p), CUDA_SUCCESS);
	view = own();
	CHECK(!pipe(line));
	other = fork();
	if (!other) {
		start_with(HOUR, CL_COLLECTOR_INLINE);
		CHECK_EQUAL(open_here(&p, &handle), CUDA_SUCCESS);
		CHECK_EQUAL(write(line[1], &cl_self.identity, sizeof dead), sizeof dead);
		for (;;)
			pause();
	}
	CHECK_EQUAL(read(line[0], &dead, sizeof dead), sizeof dead);
	CHECK_EQUAL(dead.pid, other);
	kill(other, SIGKILL);
	CHECK_EQUAL(waitpid(other, &status, 0), other);
	CHECK(COMES_TRUE(reclaimed(&view) == 1, SOON));
	findings_of(&view, CL_FINDING_HOLD_RECLAIMED, &found);
	CHECK_EQUAL(found.pid, other);
	CHECK_EQUAL(found.key, p);
	CHECK_EQUAL(found.size, 4096);
	CHECK(found.name[0]);
	/* its own entries are still there */
	dir = open(folder, O_RDONLY | O_DIRECTORY);
	CHECK_EQUAL(cl_view_open_process(&his, dir, &dead, cl_peer_has_open), 0);
	CHECK_EQUAL(his.state, CL_DEAD);
	CHECK(cl_view_import_of(&his, cl_own.file_id, 0, 0, &import));
	CHECK_EQUAL(import.exporter_pid, getpid());
	CHECK_EQUAL(import.size, 4096);
	CHECK(LEADS_THROUGH(&his, import.stack, open_here));
	cl_view_close(&his);
	/* kept when wanted, and removed on request */
	cl_options.keep_dead.number = HOUR;
	CHECK_EQUAL(cl_gc_directory(dir, is_open_here), 0);
	CHECK_EQUAL(cl_view_open_process(&his, dir, &dead, cl_peer_has_open), 0);
	cl_view_close(&his);
	cl_options.keep_dead.number = 1;
	CHECK_EQUAL(cl_gc_directory(dir, is_open_here), 1);
	CHECK_EQUAL(cl_view_open_process(&his, dir, &dead, cl_peer_has_open), -ENOENT);
	cl_process_end(0);
}

IN_A_CHILD(an_explicit_gc_takes_what_is_kept)
{
	int dir, status, line;
	CUipcMemHandle handle;
	pid_t other = start_exporter(&handle, &line);

	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_options.keep_dead.number = HOUR;
	kill(other, SIGKILL);
	CHECK_EQUAL(waitpid(other, &status, 0), other);
	dir = open(folder, O_RDONLY | O_DIRECTORY);
	CHECK_EQUAL(cl_gc_directory(dir, is_open_here), 0);
	CHECK_EQUAL(cl_gc_directory(dir, NULL), 1);
	close(line);
}

static void end_in_handler(int signal)
{
	(void)signal;
	_exit(cl_process_end(7));
}

/* _exit() in a handler on a stack of 8 KiB, with guarded memory below it. */
IN_A_CHILD(an_end_in_a_signal_handler_needs_no_large_stack)
{
	enum { SMALL_STACK = 8192 };
	struct sigaction action = { .sa_handler = end_in_handler, .sa_flags = SA_ONSTACK };
	CUipcMemHandle handle, other;
	CUdeviceptr p;
	int line, status;
	pid_t exporter = start_exporter(&other, &line), child = fork();
	char *area;

	CHECK(child >= 0);
	if (!child) {
		start_with(HOUR, CL_COLLECTOR_INLINE);
		cl_options.report.number = CL_REPORT_ALWAYS;
		CHECK_EQUAL(export_here(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
		CHECK_EQUAL(open_here(&p, &other), CUDA_SUCCESS);
		area = mmap(NULL, 32 * SMALL_STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(area != MAP_FAILED);
		area += 31 * SMALL_STACK;
		CHECK(!mprotect(area, SMALL_STACK, PROT_READ | PROT_WRITE));
		CHECK(!sigaltstack(&(stack_t){ .ss_sp = area, .ss_size = SMALL_STACK }, NULL));
		CHECK(!sigaction(SIGUSR1, &action, NULL));
		raise(SIGUSR1);
		_exit(1);
	}
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK_EQUAL(status, 7 << 8);
	end_exporter(exporter, line);
}

static void fails(enum cl_retry_want want)
{
	struct cl_retry retry;

	cl_retry_begin(&retry, want, (struct cl_need){ .bytes = 1 });
	cl_retry_again(&retry);
	cl_retry_end(&retry);
}

/* A fork without handlers (_Fork(), clone()) leaves a child without its parent's files. */
IN_A_CHILD(a_child_that_was_forked_unseen_begins_anew)
{
	enum { EXPORT, FREE, IMPORT, CLOSE, ALLOCATE, CONTEXT_ENDS, NO_MEMORY, NO_EVENT, WAYS };
	CUipcMemHandle handle, other;
	int line, status;
	pid_t exporter = start_exporter(&other, &line);
	CUdeviceptr p, open;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	p = fake_alloc(1024, CONTEXT_A);
	CHECK_EQUAL(export_here(&handle, p), CUDA_SUCCESS);
	CHECK_EQUAL(open_here(&open, &other), CUDA_SUCCESS);
	for (int way = 0; way < WAYS; way++) {
		pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, NULL, NULL, 0);

		CHECK(child >= 0);
		if (!child) {
			if (way == EXPORT)
				cl_memory_export(&handle, p);
			else if (way == FREE)
				cl_memory_free(p);
			else if (way == IMPORT)
				open_here(&open, &other);
			else if (way == CLOSE)
				cl_memory_close(open);
			else if (way == ALLOCATE)
				cl_memory_allocates();
			else if (way == NO_MEMORY)
				fails(CL_RETRY_MEMORY);
			else if (way == NO_EVENT)
				fails(CL_RETRY_EVENT);
			if (way == CONTEXT_ENDS) {
				context_ends(CONTEXT_A, 0);
				context_ended(CONTEXT_A, 0, false);
			}
			_exit(0);
		}
		CHECK_EQUAL(waitpid(child, &status, 0), child);
		CHECK_EQUAL(status, 0);
	}
	/* and the parent still has its entries */
	CHECK(cl_own.header && cl_region_fd_intact(&cl_own));
	CHECK_EQUAL(cl_own.header->live_blocks, 1);
	CHECK_EQUAL(cl_memory_close(open), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	cl_process_end(0);
	end_exporter(exporter, line);
}

static bool none_is_open(uint32_t file_id)
{
	(void)file_id;
	return false;
}

/* Thousands of files of other processes make neither a start nor an end slow. */
IN_A_CHILD(of_many_dead_files_a_few_hundred_are_judged_at_once)
{
	enum { DEAD = 600, AT_ONCE = 256 };
	unsigned int gone = 0, some;
	int dir, status;
	pid_t maker;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK((dir = cl_self_open_dir(true)) >= 0);
	cl_gc_directory(dir, none_is_open); /* what the tests before have left */
	maker = fork();
	CHECK(maker >= 0);
	if (!maker) {
		struct cl_identity self;
		struct cl_region r;

		cl_identity_self(&self);
		for (int i = 0; i < DEAD; i++) {
			CHECK_EQUAL(cl_region_create(&r, dir, &self), 0);
			cl_region_close(&r);
		}
		_exit(0);
	}
	CHECK_EQUAL(waitpid(maker, &status, 0), maker);
	CHECK_EQUAL(status, 0);
	/* after one look the kept files cost so little that they delay nothing */
	cl_options.keep_dead.number = HOUR;
	cl_options.keep_dead_bytes.number = 0;
	for (int i = 0; i <= DEAD / AT_ONCE; i++)
		CHECK_EQUAL(cl_gc_directory(dir, none_is_open), 0);
	cl_options.keep_dead.number = 0;
	while (gone < DEAD) {
		some = cl_gc_directory(dir, none_is_open);
		CHECK(some > 0 && some <= AT_ONCE);
		gone += some;
	}
	CHECK_EQUAL(gone, DEAD);
}

/* A process that dies with a file.  Returns the file's id. */
static uint32_t leave_a_file(int dir)
{
	uint32_t id = 0;
	int line[2], status;
	pid_t maker;

	CHECK(!pipe(line));
	maker = fork();
	CHECK(maker >= 0);
	if (!maker) {
		struct cl_identity self;
		struct cl_region r;

		cl_identity_self(&self);
		CHECK_EQUAL(cl_region_create(&r, dir, &self), 0);
		CHECK_EQUAL(write(line[1], &r.file_id, sizeof r.file_id), sizeof r.file_id);
		_exit(0);
	}
	CHECK_EQUAL(read(line[0], &id, sizeof id), sizeof id);
	CHECK_EQUAL(waitpid(maker, &status, 0), maker);
	close(line[0]);
	close(line[1]);
	return id;
}

static bool is_there(int dir, uint32_t id)
{
	char name[16];

	cl_region_name(name, id);
	return !faccessat(dir, name, F_OK, 0);
}

/* A program that crashes again and again must not fill the directory. */
IN_A_CHILD(of_those_that_crash_again_and_again_the_last_ones_are_kept)
{
	enum { CRASHES = 20, MOST = 16 };
	uint32_t id[CRASHES];
	struct stat st;
	char name[16];
	int dir;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK((dir = cl_self_open_dir(true)) >= 0);
	cl_gc_directory(dir, none_is_open);
	cl_options.keep_dead.number = HOUR;
	for (int i = 0; i < CRASHES; i++) {
		id[i] = leave_a_file(dir);
		CHECK_EQUAL(cl_gc_directory(dir, none_is_open), i >= MOST);
	}
	for (int i = 0; i < CRASHES; i++)
		CHECK_EQUAL(is_there(dir, id[i]), i >= CRASHES - MOST);
	/* the same limited by size */
	cl_region_name(name, id[CRASHES - 1]);
	CHECK(!fstatat(dir, name, &st, 0));
	cl_options.keep_dead_bytes.number = (uint64_t)st.st_blocks * 512 * 5 / 2;
	CHECK_EQUAL(cl_gc_directory(dir, none_is_open), MOST - 2);
	CHECK(is_there(dir, id[CRASHES - 1]) && is_there(dir, id[CRASHES - 2]));
	cl_options.keep_dead.number = 0;
	CHECK_EQUAL(cl_gc_directory(dir, none_is_open), 2);
}

/* What the file system says of its room; 0: the truth. */
static uint64_t free_bytes, all_bytes;
int __real_fstatfs(int fd, struct statfs *fs);
int __wrap_fstatfs(int fd, struct statfs *fs);
int __wrap_fstatfs(int fd, struct statfs *fs)
{
	int err = __real_fstatfs(fd, fs);

	if (free_bytes) {
		fs->f_bsize = 4096;
		fs->f_bavail = free_bytes / 4096;
		fs->f_blocks = all_bytes / 4096;
	}
	return err;
}

/* Docker's /dev/shm has 64 MiB, and the program's own data may have taken nearly all of them. */
IN_A_CHILD(where_room_is_short_the_dead_leave_it_to_the_living)
{
	enum { CRASHES = 6 };
	uint32_t id[CRASHES];
	struct stat st;
	char name[16];
	int dir;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK((dir = cl_self_open_dir(true)) >= 0);
	cl_gc_directory(dir, none_is_open);
	cl_options.keep_dead.number = HOUR;
	for (int i = 0; i < CRASHES; i++) {
		id[i] = leave_a_file(dir);
		CHECK_EQUAL(cl_gc_directory(dir, none_is_open), 0);
	}
	cl_region_name(name, id[0]);
	CHECK(!fstatat(dir, name, &st, 0));
	/* a tmpfs may have no limit */
	free_bytes = 4096;
	all_bytes = 0;
	CHECK_EQUAL(cl_gc_directory(dir, none_is_open), 0);
	/* room for two of them is a quarter of what is free */
	all_bytes = 64 << 20;
	free_bytes = (uint64_t)st.st_blocks * 512 * 4 * 5 / 2;
	CHECK_EQUAL(cl_gc_directory(dir, none_is_open), CRASHES - 2);
	CHECK(is_there(dir, id[CRASHES - 1]) && is_there(dir, id[CRASHES - 2]));
	/* as somebody wants who says 0 */
	free_bytes = 4096;
	cl_options.keep_dead_bytes.number = 0;
	CHECK_EQUAL(cl_gc_directory(dir, none_is_open), 0);
	cl_options.keep_dead_bytes.number = 8 << 20;
	CHECK_EQUAL(cl_gc_directory(dir, none_is_open), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_dead_are_found_and_left_a_file_that_says_what_they_had),
		cmocka_unit_test(an_explicit_gc_takes_what_is_kept),
		cmocka_unit_test(an_end_in_a_signal_handler_needs_no_large_stack),
		cmocka_unit_test(a_child_that_was_forked_unseen_begins_anew),
		cmocka_unit_test(of_many_dead_files_a_few_hundred_are_judged_at_once),
		cmocka_unit_test(of_those_that_crash_again_and_again_the_last_ones_are_kept),
		cmocka_unit_test(where_room_is_short_the_dead_leave_it_to_the_living),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
