/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptor service between processes that do what they should: what comes, who serves, and how it
 * lives through fork, exec, the end, stops and kills, and a program that closes all descriptors.
 */
#include "tests/unit/serve.h"

#include <pthread.h>

/* An orphaned socket is removed when it is a minute old. */
static time_t wall_clock_ahead;
int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
	int err = __real_clock_gettime(clock, now);

	if (clock == CLOCK_REALTIME)
		now->tv_sec += wall_clock_ahead;
	return err;
}

/* No thread is to be had. */
static bool no_thread;
static void (*in_create)(void); /* under the service's lock */
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg)
{
	if (in_create)
		in_create();
	return no_thread ? EAGAIN : __real_pthread_create(thread, how, run, arg);
}

/* ------------------------------------------------------------------- what comes */
IN_A_CHILD(all_pieces_come_in_order_byte_by_byte)
{
	static const uint32_t numbers[] = { 0, 1, 63, 64, 65, 128, 1000 };
	struct exporter *its = start_serving(0);
	unsigned int before = descriptors(its->pid);

	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		struct taken taken = { 0 };

		its->pieces = numbers[i];
		CHECK_EQUAL(ask_of(its, 7, SOON, &taken), numbers[i]);
		CHECK_EQUAL(taken.n, numbers[i]);
	}
	/* the thread may be closing the last connection */
	CHECK(COMES_TRUE(descriptors(its->pid) == before, SOON));
	CHECK(COUNTS(its, answers, 1 + 1 + 1 + 1 + 2 + 2 + 16));
	CHECK_EQUAL(its->served.malformed + its->served.dropped + its->served.shortages, 0);
}

IN_A_CHILD(a_thousand_descriptors_of_one_answer_are_kept)
{
	static int keep[1000];
	struct rlimit most = { 4096, 4096 };
	struct exporter *its = start_serving(0);
	struct taken taken = { .keep = keep };

	if (setrlimit(RLIMIT_NOFILE, &most))
		CHILD_SKIP("no more than 1,000 descriptors may be open");
	its->pieces = 1000;
	CHECK_EQUAL(ask_of(its, 0, SOON, &taken), 1000);
	for (uint32_t i = 0; i < 1000; i++) {
		unsigned char bytes[PIECE];

		CHECK_EQUAL(pread(keep[i], bytes, PIECE, 0), PIECE);
		for (unsigned int at = 0; at < PIECE; at++)
			CHECK_EQUAL(bytes[at], byte_of(i, at));
	}
}

static int enough(struct taken *taken)
{
	return taken->n == 70 ? -ECANCELED : 0;
}
IN_A_CHILD(what_take_returns_ends_the_asking)
{
	struct exporter *its = start_serving(0);
	struct taken taken = { .then = enough };

	its->pieces = 200;
	CHECK_EQUAL(ask_of(its, 0, SOON, &taken), -ECANCELED);
	CHECK_EQUAL(taken.n, 70);
}

static _Atomic int *ready_to_ask;
IN_A_CHILD(sixty_four_ask_at_once)
{
	struct exporter *its = start_serving(0);
	pid_t child[64];

	ready_to_ask = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(ready_to_ask != MAP_FAILED);
	its->pieces = 200;
	for (int i = 0; i < 64; i++) {
		child[i] = fork();
		CHECK(child[i] >= 0);
		if (!child[i]) {
			alarm(CHILD_SECONDS);
			atomic_fetch_add(ready_to_ask, 1);
			CHECK(COMES_TRUE(*ready_to_ask == 65, SOON));
			CHECK_SERVES(its);
			_exit(0);
		}
	}
	CHECK(COMES_TRUE(*ready_to_ask == 64, SOON));
	atomic_fetch_add(ready_to_ask, 1);
	for (int i = 0; i < 64; i++)
		child_judge(child[i]);
	CHECK_EQUAL(its->served.dropped, 0);
}

static void ask_the_other(struct exporter *mine)
{
	struct exporter *other = &exporters[mine == exporters];

	mine->result = 0;
	for (int i = 0; i < 100 && mine->result >= 0; i++)
		mine->result = ask_simply(other, SOON);
}
IN_A_CHILD(two_ask_each_other_at_once)
{
	struct exporter *a = start_serving(0), *b = start_serving(1);

	a->pieces = b->pieces = 3;
	begin_job(a, ask_the_other);
	begin_job(b, ask_the_other);
	CHECK_EQUAL(has_done(a), 3);
	CHECK_EQUAL(has_done(b), 3);
}

/* Names longer than an address has room for. */
IN_A_CHILD(a_long_path_leads_to_the_socket)
{
	static char long_path[512];
	struct exporter *its;

	snprintf(long_path, sizeof long_path, "%s/%0120d", folder, 0);
	CHECK(!mkdir(long_path, 0700));
	folder_fd = open(long_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cl_options.dir.text = long_path;
	its = start_serving(0);
	CHECK_SERVES(its);
	CHECK_EQUAL(count_entries(long_path), 2);
	CHECK_EQUAL(have(its, end), true);
	CHECK_EQUAL(count_entries(long_path), 1);
	kill_exporter(its);
	CHECK(!remove_folder_at(long_path));
}

/* ------------------------------------------------------------ only what lives */
static void end_asked(struct exporter *mine, const struct cl_request *request)
{
	if (request->first)
		cl_record_try_release(&own, request->record);
}
static void end_fifth(struct exporter *mine, const struct cl_request *request)
{
	cl_record_try_release(&own, request->record + 5);
}
static void freed(struct exporter *mine)
{
	cl_record_to_limbo(&own, 0, 1);
}
static void released(struct exporter *mine)
{
	mine->result = cl_record_try_release(&own, 0);
}
IN_A_CHILD(only_live_generations_are_served)
{
	struct exporter *its = start_serving(0);
	struct taken taken = { 0 }, none = { 0 };
	unsigned int before = descriptors(its->pid);

	/* it ends while its pieces are under way: no descriptor of the second batch comes */
	its->pieces = 100;
	its->amid = end_asked;
	CHECK_EQUAL(ask_of(its, 300, SOON, &taken), -ESTALE);
	CHECK_EQUAL(taken.n, 64);
	/* one piece has ended, when its descriptor was made: none comes */
	its->amid = end_fifth;
	CHECK_EQUAL(ask_of(its, 500, SOON, &none), -ESTALE);
	CHECK_EQUAL(none.n, 0);
	CHECK(COMES_TRUE(descriptors(its->pid) == before, SOON));
	its->amid = NULL;
	its->pieces = 1;
	have(its, freed); /* in the limbo a handle may still be opened */
	CHECK_SERVES(its);
	CHECK_EQUAL(have(its, released), true);
	CHECK_EQUAL(ask_simply(its, SOON), -ESTALE);
	CHECK_EQUAL(ask_of(its, RECORDS, SOON, &none), -ESTALE); /* never published */
	CHECK_EQUAL(ask_of(its, CL_RECORDS - 1, SOON, &none), -ESTALE);
	CHECK_EQUAL(ask_of(its, UINT32_MAX, SOON, &none), -ESTALE);
	CHECK_EQUAL(none.n, 0);
}

/* --------------------------------------------------------------- its life */
static void need_without_thread(struct exporter *mine)
{
	no_thread = true;
	mine->result = cl_server_need(&server, RECORDS - 1);
	no_thread = false;
}
IN_A_CHILD(without_a_thread_need_says_so_and_leaves_nothing)
{
	struct exporter *its = start_exporter(0);
	unsigned int before;

	CHECK_EQUAL(have(its, need_without_thread), -EAGAIN);
	before = descriptors(its->pid); /* the spare one is there now */
	CHECK_EQUAL(have(its, need_without_thread), -EAGAIN);
	CHECK_EQUAL(descriptors(its->pid), before);
	CHECK(!has_socket(its));
	CHECK_EQUAL(ask_simply(its, SOON), -ENOENT);
	CHECK_EQUAL(have(its, need), 0);
	CHECK_SERVES(its);
}

/* A signal handler ends the process in the thread that has the service's lock. */
static void end_within(void)
{
	CHECK(!cl_server_end(&server, 100 * MS));
}
static void need_and_end_within(struct exporter *mine)
{
	in_create = end_within;
	cl_server_need(&server, RECORDS - 1);
	in_create = NULL;
}
IN_A_CHILD(an_end_within_a_need_waits_for_itself_no_longer_than_it_may)
{
	struct exporter *its = start_exporter(0);

	have(its, need_and_end_within);
	CHECK_EQUAL(have(its, need), -ESHUTDOWN);
}

static void need_under_a_umask(struct exporter *mine)
{
	umask(0777);
	mine->result = cl_server_need(&server, RECORDS - 1);
}
IN_A_CHILD(its_socket_is_its_users_alone_and_goes_at_the_end)
{
	struct exporter *its = start_exporter(0);
	unsigned int before = descriptors(its->pid);
	char path[108];
	struct stat st;

	CHECK_EQUAL(have(its, need_under_a_umask), 0);
	socket_path(its, path);
	CHECK(!lstat(path, &st));
	CHECK_EQUAL(st.st_mode, S_IFSOCK | 0600);
	CHECK_EQUAL(st.st_uid, geteuid());
	CHECK_SERVES(its);
	CHECK_EQUAL(threads(its), 1);
	CHECK_EQUAL(have(its, end), true);
	CHECK(!has_socket(its));
	/* pthread_join() returns a moment before the kernel has taken the thread away */
	CHECK(COMES_TRUE(threads(its) == 0, 1000));
	CHECK_EQUAL(descriptors(its->pid), before + 1); /* the spare one */
	CHECK_EQUAL(have(its, need), -ESHUTDOWN);
	CHECK_EQUAL(ask_simply(its, SOON), -ENOENT);
}

static void call_often(struct exporter *mine)
{
	for (int i = 0; i < 1000; i++)
		CHECK_EQUAL(cl_server_need(&server, RECORDS - 1), 0);
}
IN_A_CHILD(there_is_one_thread_however_often_it_is_needed)
{
	struct exporter *its = start_serving(0);
	unsigned int before = descriptors(its->pid);

	have(its, call_often);
	CHECK_SERVES(its);
	CHECK_EQUAL(threads(its), 1);
	CHECK(COMES_TRUE(descriptors(its->pid) == before, SOON));
}

/* The kernel may take a connection while it closes the socket. */
static bool is_gone(int result)
{
	return result == -ECONNREFUSED || result == -ECONNRESET;
}

/* --------------------------------------------------------------- fork and exec */
static bool has_sockets(pid_t pid)
{
	char path[64], target[64];
	bool any = false;

	for (int fd = 0; fd < 1100; fd++) {
		ssize_t n;

		snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
		n = readlink(path, target, sizeof target - 1);
		any |= n > 7 && !memcmp(target, "socket:", 7);
	}
	return any;
}

static void fork_as_libraries_see_it(struct exporter *mine)
{
	pid_t child = fork();

	if (!child) {
		alarm(CHILD_SECONDS);
		cl_server_forget(&server);
		CHECK(cl_server_end(&server, SOON * MS));
		for (;;)
			pause();
	}
	mine->kept = child;
}
IN_A_CHILD(a_forked_child_has_no_service_and_leaves_its_parents)
{
	struct exporter *its = start_serving(0);

	have(its, fork_as_libraries_see_it);
	CHECK(COMES_TRUE(!has_sockets(its->kept), SOON));
	CHECK(has_sockets(its->pid));
	CHECK_SERVES(its);
	kill_exporter(its);
	/* at once, although the child lives */
	CHECK(is_gone(ask_simply(its, SOON)));
	kill(its->kept, SIGKILL);
}

static void fork_without_handlers(struct exporter *mine)
{
	pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);

	if (!child) {
		alarm(CHILD_SECONDS);
		CHECK(cl_server_end(&server, 0));
		for (;;)
			pause();
	}
	mine->kept = child;
}
IN_A_CHILD(a_child_that_keeps_the_socket_keeps_nobody_waiting)
{
	struct exporter *its = start_serving(0);
	uint64_t before;

	have(its, fork_without_handlers);
	CHECK(has_sockets(its->kept));
	CHECK_SERVES(its);
	kill_exporter(its);
	before = test_now();
	CHECK_EQUAL(ask_simply(its, SOON), -ESRCH);
	CHECK(test_now() - before < SOON / 2 * MS);
	kill(its->kept, SIGKILL);
}

static void become_cat(struct exporter *mine)
{
	int ends[2];

	CHECK(!pipe(ends) && dup2(ends[0], 0) == 0);
	mine->done = 1;
	execlp("cat", "cat", (char *)NULL);
	_exit(127);
}
static int removed(void)
{
	cl_gc_directory(folder_fd, NULL);
	return count_entries(folder) == 0;
}
IN_A_CHILD(an_exec_ends_the_service_and_gc_removes_its_socket)
{
	struct exporter *its = start_serving(0);

	have(its, become_cat);
	CHECK(COMES_TRUE(!has_sockets(its->pid), SOON));
	CHECK(is_gone(ask_simply(its, SOON)));
	CHECK(has_socket(its));
	CHECK(COMES_TRUE(removed(), SOON));
}

IN_A_CHILD(gc_removes_a_dead_exporters_socket_and_no_other)
{
	struct exporter *its = start_serving(0), *dead = start_serving(1);
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	kill_exporter(dead);
	CHECK(has_socket(dead));
	/* a culimbo that knows no sockets has left this one */
	snprintf(to.sun_path, sizeof to.sun_path, "%s/serve-01bcde", folder);
	CHECK(!bind(fd, (struct sockaddr *)&to, sizeof to));
	CHECK_EQUAL(count_entries(folder), 5);
	cl_gc_directory(folder_fd, NULL);
	CHECK(!has_socket(dead) && has_socket(its));
	CHECK_EQUAL(count_entries(folder), 3); /* it is young */
	wall_clock_ahead = 61;
	cl_gc_directory(folder_fd, NULL);
	CHECK_EQUAL(count_entries(folder), 2);
	CHECK_SERVES(its);
}

/* ---------------------------------------------------- all descriptors closed */
/* Then the program opens files of its own, which get all the numbers. */
static void close_all_descriptors(struct exporter *mine)
{
	syscall(SYS_close_range, 0u, ~0u, 0u);
	for (int i = 0; i < 1024; i++) {
		int ends[2];

		if (i % 2 == 0 && pipe(ends) == 0)
			CHECK(write(ends[1], "mine", 4) == 4);
	}
}
static void look_at_own(struct exporter *mine)
{
	int pipes = 0;

	for (int fd = 0; fd < 1024; fd++) {
		char bytes[8];
		struct stat st;

		if (!fstat(fd, &st) && S_ISFIFO(st.st_mode) && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) {
			CHECK(read(fd, bytes, sizeof bytes) == 4 && !memcmp(bytes, "mine", 4));
			pipes++;
		}
	}
	mine->result = pipes;
}
IN_A_CHILD(after_all_descriptors_were_closed_the_next_need_begins_anew)
{
	struct rlimit limit = { 1024, 4096 };
	struct exporter *its;
	int raw;

	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	its = start_serving(0);
	raw = connect_raw(its, 0);
	CHECK(raw >= 0);
	have(its, close_all_descriptors);
	limit.rlim_cur = 4096;
	CHECK(!prlimit(its->pid, RLIMIT_NOFILE, &limit, NULL));
	/* an error, by the deadline at the latest: the kernel takes connections until the thread sees it */
	CHECK(ask_simply(its, SOON) < 0);
	CHECK_EQUAL(have(its, need), 0);
	CHECK_SERVES(its);
	CHECK(COMES_TRUE(threads(its) == 1, SOON));
	CHECK(have(its, look_at_own) > 400);
	CHECK_EQUAL(have(its, end), true);
	CHECK(!has_socket(its));
}

IN_A_CHILD(a_thread_whose_descriptors_are_closed_is_woken)
{
	struct exporter *its = start_serving(0);
	unsigned int before = descriptors(its->pid);

	CHECK_SERVES(its);
	CHECK(COMES_TRUE(descriptors(its->pid) == before, SOON)); /* it sleeps again */
	have(its, close_all_descriptors);
	/* nobody has asked meanwhile */
	CHECK_EQUAL(have(its, need), 0);
	CHECK(COMES_TRUE(threads(its) == 1, SOON));
	CHECK_SERVES(its);
}

/* ------------------------------------------------- stopped and killed exporters */
IN_A_CHILD(a_stopped_exporter_is_waited_for_until_the_deadline)
{
	struct exporter *its = start_serving(0);
	uint64_t began = test_now();
	int fds[2 * CL_SERVE_CLIENTS];
	unsigned int n = 0;

	kill(its->pid, SIGSTOP);
	CHECK(waitpid(its->pid, NULL, WUNTRACED) == its->pid);
	CHECK_EQUAL(ask_simply(its, 1000), -ETIMEDOUT);
	CHECK(test_now() - began >= 1000 * MS && test_now() - began < 5000 * MS);
	/* also when the kernel takes no more connections: then connect() waits */
	while (n < 2 * CL_SERVE_CLIENTS && (fds[n] = connect_raw(its, SOCK_NONBLOCK)) >= 0)
		n++;
	CHECK(n < 2 * CL_SERVE_CLIENTS && fds[n] == -EAGAIN);
	began = test_now();
	CHECK_EQUAL(ask_simply(its, 1000), -ETIMEDOUT);
	CHECK(test_now() - began >= 1000 * MS && test_now() - began < 5000 * MS);
	/* and a deadline that is over */
	CHECK_EQUAL(ask_simply(its, 0), -ETIMEDOUT);
	while (n)
		close(fds[--n]);
	kill(its->pid, SIGCONT);
	CHECK_SERVES(its);
}

static int kill_its(struct taken *taken)
{
	if (taken->n == 10)
		kill_exporter(taken->of);
	return 0;
}
static void die_amid(struct exporter *mine, const struct cl_request *request)
{
	if (request->first)
		raise(SIGKILL);
}
IN_A_CHILD(an_exporter_killed_amid_an_answer_is_an_error_at_once)
{
	struct taken after = { .then = kill_its }, amid = { 0 };
	struct exporter *its = start_serving(0);
	uint64_t began = test_now();
	int result;

	/* after the first batch left */
	its->pieces = 1000;
	result = ask_of(its, 0, SOON, &after);
	CHECK(is_gone(result));
	CHECK_EQUAL(after.n, 64);
	/* with the descriptors of the second one in its hands */
	its = start_serving(0);
	its->pieces = 1000;
	its->amid = die_amid;
	result = ask_of(its, 0, SOON, &amid);
	CHECK(is_gone(result));
	CHECK_EQUAL(amid.n, 64);
	CHECK(test_now() - began < SOON / 2 * MS);
}

static int give_up(struct taken *taken)
{
	_exit(0);
}
IN_A_CHILD(importers_killed_amid_an_answer_leave_nothing)
{
	struct exporter *its = start_serving(0);
	unsigned int before = descriptors(its->pid);

	its->pieces = 1000;
	for (int i = 0; i < 20; i++) {
		pid_t child = fork();

		if (!child) {
			struct taken taken = { .then = give_up };

			ask_of(its, 0, SOON, &taken);
			_exit(1);
		}
		child_judge(child);
	}
	CHECK(COMES_TRUE(descriptors(its->pid) == before, SOON));
	CHECK_SERVES(its);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, clear_stage)
	const struct CMUnitTest tests[] = {
		TEST(all_pieces_come_in_order_byte_by_byte),
		TEST(a_thousand_descriptors_of_one_answer_are_kept),
		TEST(what_take_returns_ends_the_asking),
		TEST(sixty_four_ask_at_once),
		TEST(two_ask_each_other_at_once),
		TEST(a_long_path_leads_to_the_socket),
		TEST(only_live_generations_are_served),
		TEST(without_a_thread_need_says_so_and_leaves_nothing),
		TEST(an_end_within_a_need_waits_for_itself_no_longer_than_it_may),
		TEST(its_socket_is_its_users_alone_and_goes_at_the_end),
		TEST(there_is_one_thread_however_often_it_is_needed),
		TEST(a_forked_child_has_no_service_and_leaves_its_parents),
		TEST(a_child_that_keeps_the_socket_keeps_nobody_waiting),
		TEST(an_exec_ends_the_service_and_gc_removes_its_socket),
		TEST(gc_removes_a_dead_exporters_socket_and_no_other),
		TEST(after_all_descriptors_were_closed_the_next_need_begins_anew),
		TEST(a_thread_whose_descriptors_are_closed_is_woken),
		TEST(a_stopped_exporter_is_waited_for_until_the_deadline),
		TEST(an_exporter_killed_amid_an_answer_is_an_error_at_once),
		TEST(importers_killed_amid_an_answer_leave_nothing),
	};

	return cmocka_run_group_tests(tests, make_stage, remove_folder);
}
