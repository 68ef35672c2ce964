/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors in flight (descriptors/flight.h), in the service and in its importers: the program's numbers stay its own,
 * some are left to it, and a forked child has none of them.
 */
#include "tests/unit/serve.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include "shim/life.h"

/* Counts the descriptors of this process whose names begin with @name. */
static unsigned int count_of(const char *name)
{
	char path[64], target[64];
	unsigned int n = 0;

	for (int fd = 0; fd < 1200; fd++) {
		ssize_t length;

		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		length = readlink(path, target, sizeof target - 1);
		n += length >= (ssize_t)strlen(name) && !memcmp(target, name, strlen(name));
	}
	return n;
}

static int lowest_free(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	close(fd);
	return fd;
}

/* --------------------------------------------------------------------- numbers */
static int lowest;
static int opens_files(struct taken *taken)
{
	CHECK_EQUAL(lowest_free(), lowest);
	return 0;
}
static void look_at_lowest(struct exporter *mine)
{
	mine->kept = lowest_free();
}
static void has_the_same_lowest(struct exporter *mine, const struct cl_request *request)
{
	CHECK_EQUAL(lowest_free(), mine->kept);
}
IN_A_CHILD(the_program_gets_the_numbers_that_it_would_get_without_us)
{
	struct exporter *its = start_serving(0);
	struct taken taken = { .then = opens_files };
	struct cl_region region;
	struct cl_asking asking = { .region = &region, .wait.until = cl_now() + SOON * MS, .take = take_piece, .arg = &taken };

	have(its, look_at_lowest);
	its->amid = has_the_same_lowest;
	its->pieces = 150;
	cl_identity_self(&cl_self.identity);
	CHECK_EQUAL(cl_region_open(&region, folder_fd, its->file_id, NULL), 0);
	lowest = lowest_free();
	CHECK_EQUAL(cl_ask(&asking), 150);
	CHECK_EQUAL(lowest_free(), lowest);
}

/* The program puts a file of its own in the place of each descriptor in flight. */
static unsigned int take_their_places(void)
{
	char path[64], target[64];
	unsigned int n = 0;
	int mine = open("/dev/zero", O_RDONLY | O_CLOEXEC);

	for (int fd = 0; fd < 1200; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		if (readlink(path, target, sizeof target) > 12 && !memcmp(target, "/memfd:piece", 12)) {
			CHECK(dup2(mine, fd) == fd);
			n++;
		}
	}
	return n;
}
static void takes_their_places(struct exporter *mine, const struct cl_request *request)
{
	mine->kept = (int)take_their_places();
	mine->amid = NULL;
}
static void count_its_own(struct exporter *mine)
{
	mine->result = (int)count_of("/dev/zero");
}
IN_A_CHILD(what_the_program_has_put_in_their_places_is_not_closed)
{
	struct exporter *its = start_serving(0);
	struct cl_request request = request_of(its);
	struct cl_answer answer;
	int fd = connect_raw(its, 0);

	its->pieces = 10;
	its->amid = takes_their_places;
	CHECK(fd >= 0 && send(fd, &request, sizeof request, 0) == sizeof request);
	CHECK_EQUAL(read_answer(fd, &answer), sizeof answer);
	CHECK(COUNTS(its, answers, 1));
	CHECK_EQUAL(its->kept, 10);
	its->pieces = 1;
	CHECK_SERVES(its);
	CHECK_EQUAL(have(its, count_its_own), 11);
}
static int replaces_the_rest(struct taken *taken)
{
	if (taken->n == 1)
		CHECK_EQUAL(take_their_places(), 10);
	return -ECANCELED;
}
IN_A_CHILD(what_an_importer_has_put_in_their_places_is_not_closed)
{
	struct exporter *its = start_serving(0);
	struct taken taken = { .then = replaces_the_rest };
	struct cl_region region;
	struct cl_asking asking = { .region = &region, .wait.until = cl_now() + SOON * MS, .take = take_piece, .arg = &taken };

	its->pieces = 10;
	cl_identity_self(&cl_self.identity);
	CHECK_EQUAL(cl_region_open(&region, folder_fd, its->file_id, NULL), 0);
	CHECK_EQUAL(cl_ask(&asking), -ECANCELED);
	CHECK_EQUAL(count_of("/dev/zero"), 11);
}

/* -------------------------------------------------------- few descriptors left */
/* The program opens files while a batch is made. */
static void opens_thirty(struct exporter *mine, const struct cl_request *request)
{
	int fds[30], n = 0;

	while (n < 30 && (fds[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
		n++;
	if (n < mine->result)
		mine->result = n;
	while (n)
		close(fds[--n]);
}
IN_A_CHILD(a_batch_leaves_the_program_most_of_its_descriptors)
{
	struct exporter *its;

	set_limit(0, 200);
	its = start_serving(0);
	its->pieces = 100;
	its->kept = 41;
	have(its, use_up);
	its->result = 30;
	its->amid = opens_thirty;
	CHECK_SERVES(its);
	CHECK_EQUAL(its->result, 30);
}

IN_A_CHILD(peers_leave_the_program_most_of_its_descriptors)
{
	struct exporter *its;
	unsigned int before, places = 0;
	int fds[40];

	set_limit(0, 200);
	its = start_serving(0);
	its->kept = 40;
	have(its, use_up);
	before = descriptors(its->pid);
	for (int i = 0; i < 40; i++)
		CHECK((fds[i] = connect_raw(its, 0)) >= 0);
	CHECK(COMES_TRUE(descriptors(its->pid) > before, SOON));
	/* an importer waits for a place, and those who are silent lose theirs */
	for (int i = 0; i < 3; i++) {
		CHECK_SERVES(its);
		places = descriptors(its->pid) - before;
		CHECK(places <= 10);
	}
	CHECK(its->served.dropped >= 30);
	/* the program has room again, and so have its peers */
	set_limit(its->pid, 400);
	CHECK_SERVES(its);
	for (int i = 0; i < 40; i++)
		close(fds[i]);
}

/* How many descriptors the kernel's table of this process has room for. */
static unsigned int room_of_the_table(void)
{
	char text[2048];
	int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
	ssize_t n = read(fd, text, sizeof text - 1);

	close(fd);
	CHECK(n > 0);
	text[n] = 0;
	return (unsigned int)strtoul(strstr(text, "FDSize:") + 7, NULL, 10);
}
/* To enlarge the table the kernel waits for all processors. */
static int takes_a_batch_in_a_small_table(void)
{
	int fds[CL_SERVE_BATCH];
	unsigned int room;

	CHECK_EQUAL(fcntl(0, F_DUPFD_CLOEXEC, 100), 100);
	room = room_of_the_table();
	cl_flight_begin();
	for (unsigned int i = 0; i < CL_SERVE_BATCH; i++) {
		fds[i] = cl_flight_enter(open("/dev/null", O_RDONLY | O_CLOEXEC));
		CHECK(fds[i] >= 0);
	}
	cl_flight_end();
	CHECK_EQUAL(room_of_the_table(), room);
	return room == 128 ? 0 : CHILD_SKIPS;
}
IN_A_CHILD(a_batch_stays_within_the_table)
{
	pid_t child;
	int status;

	/* the kernel gives a child a table that is no larger than it needs */
	CHECK(!syscall(SYS_close_range, 64, ~0u, 0));
	child = fork();
	if (!child)
		_exit(takes_a_batch_in_a_small_table());
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
	if (WEXITSTATUS(status) == CHILD_SKIPS)
		CHILD_SKIP("this kernel has no table of 128 descriptors");
	CHECK_EQUAL(WEXITSTATUS(status), 0);
}

/* ----------------------------------------------------------------------- forks */
/* Forks as a program does.  Returns the number of pieces and sockets that the child has. */
static int fork_and_count(void)
{
	pid_t child = fork();
	int status;

	CHECK(child >= 0);
	if (!child)
		_exit((int)(count_of("/memfd:piece") + count_of("socket:")));
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
	return WEXITSTATUS(status);
}

static int forks_amid(struct taken *taken)
{
	unsigned int left = 10 - taken->n + 1;

	CHECK_EQUAL(count_of("/memfd:piece"), left);
	CHECK_EQUAL(fork_and_count(), 0);
	CHECK_EQUAL(count_of("/memfd:piece"), left);
	return 0;
}
IN_A_CHILD(a_child_of_an_importer_has_none_of_them)
{
	struct exporter *its = start_serving(0);
	struct taken taken = { .then = forks_amid };
	struct cl_region region;
	struct cl_asking asking = { .region = &region, .wait.until = cl_now() + SOON * MS, .take = take_piece, .arg = &taken };

	cl_self_prepare();
	its->pieces = 10;
	CHECK_EQUAL(cl_region_open(&region, folder_fd, its->file_id, NULL), 0);
	CHECK_EQUAL(cl_ask(&asking), 10);
	CHECK_EQUAL(taken.n, 10);
}

static atomic_int amid, forked;
static void waits_for_a_fork(struct exporter *mine, const struct cl_request *request)
{
	amid = 1;
	CHECK(COMES_TRUE(forked, SOON));
}
static void forks_while_it_serves(struct exporter *mine)
{
	cl_self_prepare();
	CHECK(COMES_TRUE(amid, SOON));
	CHECK_EQUAL(count_of("/memfd:piece"), CL_SERVE_BATCH);
	/* the service's own sockets are closed by cl_server_forget(), which the library calls */
	mine->result = fork_and_count() - (int)count_of("socket:");
	forked = 1;
}
IN_A_CHILD(a_child_of_an_exporter_has_none_of_them)
{
	struct exporter *its = start_serving(0);

	its->pieces = 100;
	its->amid = waits_for_a_fork;
	begin_job(its, forks_while_it_serves);
	CHECK_SERVES(its);
	CHECK_EQUAL(has_done(its), 0);
}

/* A thread makes descriptors as a driver does, and closes them, while another forks. */
static atomic_bool over;
static void *makes_and_closes(void *arg)
{
	while (!over) {
		int fds[8];

		for (int i = 0; i < 8; i++) {
			cl_flight_begin();
			fds[i] = cl_flight_enter(make_piece(0));
			cl_flight_end();
			CHECK(fds[i] >= 0);
		}
		cl_flight_close_all(fds, 8);
	}
	return NULL;
}
IN_A_CHILD(a_child_has_none_at_whatever_moment_it_is_forked)
{
	pthread_t thread[2];

	cl_self_prepare();
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&thread[i], NULL, makes_and_closes, NULL));
	for (int i = 0; i < 100; i++)
		CHECK_EQUAL(fork_and_count(), 0);
	over = true;
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	CHECK_EQUAL(count_of("/memfd:piece"), 0);
}

/* A driver that takes long, or a fork by a signal handler in the thread that makes one: the fork goes on. */
IN_A_CHILD(a_fork_does_not_wait_for_ever)
{
	uint64_t began = test_now();

	cl_self_prepare();
	cl_flight_begin();
	CHECK_EQUAL(fork_and_count(), 0);
	CHECK(test_now() - began >= CL_END_WAIT && test_now() - began < SOON * MS);
	cl_flight_end();
	began = test_now();
	CHECK_EQUAL(fork_and_count(), 0);
	cl_flight_begin();
	cl_flight_end();
}

/* Waits until the process @pid waits, having set @ready, and sends it a signal. */
static void signal_when_it_waits(pid_t pid, const atomic_bool *ready)
{
	char path[64], text[512];

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	for (uint64_t until = test_now() + SOON * MS; test_now() < until; sched_yield()) {
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		ssize_t n = read(fd, text, sizeof text - 1);

		close(fd);
		text[n < 0 ? 0 : n] = 0;
		if (*ready && strstr(text, ") S "))
			_exit(kill(pid, SIGUSR1) != 0);
	}
	_exit(1);
}
static volatile sig_atomic_t nested;
static void forks_too(int number)
{
	nested += fork_and_count() == 0;
}
/* A signal handler that forks while a fork waits. */
IN_A_CHILD(a_fork_within_a_fork_leaves_no_lock)
{
	atomic_bool *ready = mmap(NULL, sizeof *ready, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t other, parent = getpid();
	uint64_t began;
	int status;

	CHECK(ready != MAP_FAILED);
	cl_self_prepare();
	signal(SIGUSR1, forks_too);
	other = fork();
	if (!other)
		signal_when_it_waits(parent, ready);
	cl_flight_begin();
	*ready = true;
	CHECK_EQUAL(fork_and_count(), 0);
	cl_flight_end();
	CHECK(waitpid(other, &status, 0) == other && status == 0);
	CHECK_EQUAL(nested, 1);
	CHECK(cl_lock_until(&cl_imports_lock, &(struct timespec){ 0 }));
	CHECK(cl_lock_until(&cl_exports_lock, &(struct timespec){ 0 }));
	cl_unlock(&cl_exports_lock);
	cl_unlock(&cl_imports_lock);
	/* and the third lock: a fork that must wait for it takes this long */
	began = test_now();
	CHECK_EQUAL(fork_and_count(), 0);
	CHECK(test_now() - began < CL_END_WAIT);
}

IN_A_CHILD(without_room_in_the_list_a_descriptor_is_closed)
{
	static int fds[CL_FLIGHTS];
	unsigned int before = descriptors(getpid()), n = 0;
	int last;

	set_limit(0, 8192);
	cl_flight_begin();
	while (n < CL_FLIGHTS && (fds[n] = cl_flight_enter(open("/dev/null", O_RDONLY))) >= 0) {
		CHECK_EQUAL(fcntl(fds[n], F_GETFD), FD_CLOEXEC);
		n++;
	}
	last = cl_flight_enter(open("/dev/null", O_RDONLY));
	cl_flight_end();
	if (n < CL_FLIGHTS)
		CHILD_SKIP("so many descriptors may not be open");
	CHECK_EQUAL(last, -EMFILE);
	CHECK_EQUAL(descriptors(getpid()), before + n);
	/* and nobody asks for a batch that would not find a place */
	CHECK_EQUAL(cl_flight_most(64), 1);
	cl_flight_close_all(fds, n);
	CHECK_EQUAL(descriptors(getpid()), before);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, clear_stage)
	const struct CMUnitTest tests[] = {
		TEST(the_program_gets_the_numbers_that_it_would_get_without_us),
		TEST(what_the_program_has_put_in_their_places_is_not_closed),
		TEST(what_an_importer_has_put_in_their_places_is_not_closed),
		TEST(a_batch_leaves_the_program_most_of_its_descriptors),
		TEST(peers_leave_the_program_most_of_its_descriptors),
		TEST(a_batch_stays_within_the_table),
		TEST(a_child_of_an_importer_has_none_of_them),
		TEST(a_child_of_an_exporter_has_none_of_them),
		TEST(a_child_has_none_at_whatever_moment_it_is_forked),
		TEST(a_fork_does_not_wait_for_ever),
		TEST(a_fork_within_a_fork_leaves_no_lock),
		TEST(without_room_in_the_list_a_descriptor_is_closed),
	};

	return cmocka_run_group_tests(tests, make_stage, remove_folder);
}
