/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the trace's file.  Many threads write it, it wraps around, and writers are killed.
 * The reader returns each record as it was written, or not at all.  It also reads damaged
 * files: TRACE_SEED (default 1) seeds the damage.
 */
#include "tests/unit/child.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "shim/base/log.h"
#include "shim/base/options.h"
#include "shim/diag/trace.h"
#include "tools/trace/trace.h"

static char folder[64], name[96];
/* an eighth of the ring is for call stacks */
enum { RING = (65536 - 65536 / 8 - CL_TRACE_HEADER_SIZE) / 64, THREADS = 4, EACH = 20000 };

static void trace_on(void)
{
	cl_options.trace.text = name;
	cl_options.trace_size.number = 65536;
	cl_options.log.number = CL_LOG_ERROR;
	cl_trace_begin();
	CHECK(cl_tracing());
}

static int set_up(void **state)
{
	strcpy(folder, access("/dev/shm", W_OK) ? "/tmp/culimbo-ring.XXXXXX" :
						   "/dev/shm/culimbo-ring.XXXXXX");
	if (!mkdtemp(folder))
		return -1;
	snprintf(name, sizeof name, "%s/t", folder);
	return 0;
}

static int tear_down(void **state)
{
	return remove_folder_at(folder);
}

/* ------------------------------------------------------------------- reading */
static unsigned int warnings;
static void warn(const char *path, const char *text)
{
	warnings++;
}

static struct cu_trace trace;
static const struct cu_trace_process *read_path(const char *path)
{
	const char *why = NULL;
	int err;

	cu_trace_free(&trace);
	warnings = 0;
	err = cu_trace_add(&trace, path, &why, warn);
	if (err)
		fail_msg("%s: %s (%d)", path, why ? why : strerror(-err), err);
	assert_int_equal(cu_trace_join(&trace), 0);
	return trace.process;
}

static const struct cu_trace_process *read_of(pid_t pid, const char *more)
{
	char path[128];

	snprintf(path, sizeof path, "%s.%d%s", name, (int)pid, more);
	return read_path(path);
}

/* All fields of record @i follow from it, so that a mixture of two records is noticed. */
static uint64_t mix(uint64_t i)
{
	return i * 0x9e3779b97f4a7c15u ^ 0x5555;
}
static void write_one(uint64_t i)
{
	cl_trace(CL_TRACE_WAITED, .key = i, .size = mix(i), .value = mix(i + 1), .pid = (uint32_t)i);
}
static void check_whole(const struct cl_trace_event *e)
{
	assert_int_equal(e->what, CL_TRACE_WAITED);
	assert_true(e->size == mix(e->key) && e->value == mix(e->key + 1) && e->pid == (uint32_t)e->key);
	assert_true(e->when && e->tid);
}

/* --------------------------------------------------------------------- tests */
static void *writer(void *first)
{
	for (uint64_t i = 0; i < EACH; i++)
		write_one((uintptr_t)first + i);
	return NULL;
}
static pid_t fork_child(void (*body)(void))
{
	pid_t pid = fork();

	if (!pid) {
		child_begins();
		body();
		_exit(0);
	}
	return pid;
}
static void write_by_threads(void)
{
	pthread_t thread[THREADS];

	trace_on();
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&thread[i], NULL, writer, (void *)(i * 10000000)));
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
}

static void test_threads(void **state)
{
	uint64_t last[THREADS] = { 0 }, missing;
	pid_t pid = fork_child(write_by_threads);
	const struct cu_trace_process *p;

	child_judge(pid);
	p = read_of(pid, "");
	assert_int_equal(p->state, CU_TRACE_KILLED); /* the killed process wrote no end */
	assert_int_equal(p->records + p->damaged, RING);
	assert_int_equal(p->lost, THREADS * EACH - RING);
	/* each thread may lose one record, when the others write a whole ring meanwhile */
	missing = p->damaged;
	assert_true(missing <= THREADS);
	for (size_t i = 0; i < p->events; i++) {
		uint64_t who = p->event[i].key / 10000000;

		check_whole(&p->event[i]);
		assert_true(who < THREADS && p->event[i].key >= last[who]);
		last[who] = p->event[i].key;
	}
}

static void write_for_ever(void)
{
	pthread_t thread;

	trace_on();
	pthread_create(&thread, NULL, writer, (void *)50000000);
	for (;;)
		writer(NULL);
}

static void test_killed_in_the_middle(void **state)
{
	unsigned int seed = 7, records = 0;

	for (int round = 0; round < 40; round++) {
		pid_t pid = fork_child(write_for_ever);
		const char *why;
		char path[128];

		snprintf(path, sizeof path, "%s.%d", name, (int)pid);
		assert_true(COMES_TRUE(access(path, F_OK) == 0, 20000));
		for (unsigned int spin = rand_r(&seed) % 1500; spin; spin--)
			sched_yield();
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		cu_trace_free(&trace);
		/* a process was killed before the header was complete: the reader says so, and no more */
		if (cu_trace_add(&trace, path, &why, warn)) {
			assert_non_null(why);
		} else {
			const struct cu_trace_process *p = trace.process;

			for (size_t i = 0; i < p->events; i++)
				check_whole(&p->event[i]);
			assert_true(p->damaged <= 2); /* one a thread */
			records += p->records != 0;
		}
		unlink(path);
	}
	assert_true(records > 20);
}

static void write_in_a_child_too(void)
{
	pid_t pid;

	trace_on();
	write_one(1);
	pid = fork();
	if (!pid) {
		write_one(2);
		write_one(3);
		_exit(0);
	}
	CHECK_EQUAL(waitpid(pid, NULL, 0), pid);
	write_one(4);
}

static void test_a_forked_child_has_its_own(void **state)
{
	pid_t pid = fork_child(write_in_a_child_too);
	const struct cu_trace_process *p;

	child_judge(pid);
	assert_int_equal(count_entries(folder), 2);
	p = read_of(pid, "");
	assert_int_equal(p->events, 2);
	assert_int_equal(p->event[1].key, 4);
	assert_int_equal(p->event[1].tid, pid);
}

static void write_as_two_images(void)
{
	trace_on();
	write_one(1);
	cl_trace_forget(); /* as after an exec: the same process, which knows nothing */
	write_one(2);
}

static void test_exec_has_its_own(void **state)
{
	pid_t pid = fork_child(write_as_two_images);

	child_judge(pid);
	assert_int_equal(read_of(pid, "")->event[0].key, 1);
	assert_int_equal(read_of(pid, ".2")->event[0].key, 2);
	assert_int_equal(trace.process[0].events, 1);
}

static const char *old_contents;
static void write_where_something_is(void)
{
	char path[128];
	int fd;

	snprintf(path, sizeof path, "%s.%d", name, (int)getpid());
	if (old_contents) {
		fd = open(path, O_WRONLY | O_CREAT, 0644);
		CHECK(fd >= 0 && write(fd, old_contents, strlen(old_contents)) > 0);
		close(fd);
	} else {
		CHECK(!symlink("/dev/null", path));
	}
	trace_on();
	write_one(1);
	CHECK(!cl_tracing()); /* the file is not opened again */
	write_one(2);
}

static void test_what_is_no_trace_is_left_alone(void **state)
{
	char path[128];
	struct stat st;
	pid_t pid;

	old_contents = "somebody's letter";
	pid = fork_child(write_where_something_is);
	child_judge(pid);
	snprintf(path, sizeof path, "%s.%d", name, (int)pid);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, strlen(old_contents));
	old_contents = NULL;
	pid = fork_child(write_where_something_is);
	child_judge(pid);
	snprintf(path, sizeof path, "%s.%d", name, (int)pid);
	assert_int_equal(lstat(path, &st), 0);
	assert_true(S_ISLNK(st.st_mode));
}

static void write_into_no_room(void)
{
	struct rlimit none = { 4096, 4096 };

	CHECK(!setrlimit(RLIMIT_FSIZE, &none));
	trace_on();
	write_one(1);
	CHECK(!cl_tracing());
}

static void test_no_room(void **state)
{
	in_a_child(write_into_no_room); /* SIGXFSZ would kill it */
	assert_int_equal(count_entries(folder), 0);
}

static void write_some(void)
{
	trace_on();
	for (uint64_t i = 0; i < 40; i++) {
		cl_trace(CL_TRACE_ALLOCATED, .kind = CL_MEMORY, .key = i << 21, .size = 1 << 21);
		cl_trace(CL_TRACE_EXPORTED, .kind = CL_MEMORY, .key = i << 21, .size = 1 << 21,
			 .file_id = 7, .record = (uint32_t)i % 4, .generation = (uint32_t)i);
		cl_trace(CL_TRACE_OPENED, .kind = CL_MEMORY, .key = i << 30, .file_id = 7,
			 .record = (uint32_t)i % 4, .generation = (uint32_t)i);
		cl_trace(CL_TRACE_LIMBO, .kind = CL_MEMORY, .key = i << 21, .file_id = 7,
			 .record = (uint32_t)i % 4, .value = 1 << 21);
		cl_trace(CL_TRACE_RECLAIMED, .kind = CL_MEMORY, .key = i << 21, .file_id = 7,
			 .record = (uint32_t)i % 4, .pid = (uint32_t)getpid());
		cl_trace(CL_TRACE_RELEASED, .kind = CL_MEMORY, .key = i << 21, .file_id = 7,
			 .record = (uint32_t)i % 4);
	}
	cl_trace(CL_TRACE_ENDED);
}

/* Truncates the file and overwrites parts at random: the reader reads whole records and does no harm. */
static void test_damaged_files(void **state)
{
	static uint8_t good[65536], bad[65536];
	const char *seed_text = getenv("TRACE_SEED"), *why;
	unsigned int seed = seed_text ? (unsigned int)atoi(seed_text) : 1, refused = 0, read_some = 0;
	pid_t pid = fork_child(write_some);
	char path[128];
	int fd;

	child_judge(pid);
	assert_int_equal(read_of(pid, "")->records, 241);
	assert_int_equal(warnings, 0);
	assert_int_equal(trace.blocks, 40);
	assert_int_equal(trace.opens, 40);
	assert_int_equal(trace.process[0].state, CU_TRACE_ENDED_WELL);
	snprintf(path, sizeof path, "%s.%d", name, (int)pid);
	fd = open(path, O_RDWR);
	assert_int_equal(read(fd, good, sizeof good), sizeof good);
	for (int round = 0; round < 3000; round++) {
		size_t length = rand_r(&seed) % 8 ? sizeof good : (size_t)rand_r(&seed) % sizeof good;
		unsigned int hits = 1 + rand_r(&seed) % 8;

		memcpy(bad, good, sizeof bad);
		for (; hits; hits--) {
			/* half of the damages hit the header, on which most depends */
			size_t at = (size_t)rand_r(&seed) % 512;
			size_t n = 1 + (size_t)rand_r(&seed) % 8;

			if (rand_r(&seed) % 2)
				at = CL_TRACE_HEADER_SIZE + (size_t)rand_r(&seed) % 16000;
			for (size_t i = 0; i < n; i++)
				bad[at + i] = rand_r(&seed) % 4 ? (uint8_t)rand_r(&seed) :
								  (uint8_t)(rand_r(&seed) % 2 ? 0 : 0xff);
		}
		assert_int_equal(ftruncate(fd, 0), 0);
		assert_int_equal(pwrite(fd, bad, length, 0), length);
		cu_trace_free(&trace);
		if (cu_trace_add(&trace, path, &why, warn)) {
			assert_non_null(why);
			refused++;
			continue;
		}
		/* every record is one that was written */
		assert_true(trace.process[0].records <= 241);
		assert_int_equal(cu_trace_join(&trace), 0);
		assert_true(trace.blocks <= 241 && trace.opens <= 241);
		read_some += trace.process[0].records > 100;
	}
	close(fd);
	cu_trace_free(&trace);
	print_message("# 3000 damaged files (seed %s): %u refused, %u read in part or whole\n",
		      seed_text ? seed_text : "1", refused, read_some);
	assert_true(refused && read_some > 1000);
}

static void measure(void)
{
	enum { N = 20000 };
	uint64_t best = UINT64_MAX, without = UINT64_MAX;

	/* the best of many: other programs of the machine don't count */
	for (int batch = 0; batch < 30; batch++) {
		uint64_t begin = test_now(), took;

		for (uint64_t i = 0; i < N; i++) {
			cl_trace(CL_TRACE_SERVED, .key = i);
			__asm__ volatile("" ::: "memory");
		}
		took = (test_now() - begin) * 100 / N;
		if (took < without)
			without = took;
	}
	trace_on();
	write_one(0);
	for (int batch = 0; batch < 30; batch++) {
		uint64_t begin = test_now(), took;

		for (uint64_t i = 0; i < N; i++)
			write_one(i);
		took = (test_now() - begin) / N;
		if (took < best)
			best = took;
	}
	dprintf(2, "# a record takes %llu ns; with no trace, its place takes %llu.%02llu ns\n",
		(unsigned long long)best, (unsigned long long)(without / 100),
		(unsigned long long)(without % 100));
	CHECK(best < 1000);
	CHECK(without < 2000);
}

static void test_cost(void **state)
{
	in_a_child(measure);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_threads),
		TEST(test_killed_in_the_middle),
		TEST(test_a_forked_child_has_its_own),
		TEST(test_exec_has_its_own),
		TEST(test_what_is_no_trace_is_left_alone),
		TEST(test_no_room),
		TEST(test_damaged_files),
		TEST(test_cost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
