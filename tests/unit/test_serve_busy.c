/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptor service of an exporter that many ask at once: whoever waits for its turn waits as long as the exporter
 * gives others something, and no longer than its own time once the exporter gives nobody anything.  Time in which it
 * stands still amid a wait does not count.
 */
#include <sys/time.h>

#include "tests/unit/serve.h"

enum { OTHERS = 16, EACH = 3 /* requests */, SLOW = 100 /* ms for one */, WAIT = 12 * SLOW };

/* As a driver on a busy host. */
static void be_slow(struct exporter *mine, const struct cl_request *request)
{
	(void)mine;
	(void)request;
	nanosleep(&(struct timespec){ .tv_nsec = SLOW * MS }, NULL);
}

/* Works on a few requests, and stops amid the next one. */
static void work_and_stop(struct exporter *mine, const struct cl_request *request)
{
	be_slow(mine, request);
	if (++mine->kept == OTHERS / 2)
		raise(SIGSTOP);
}

/*
 * So many others ask @its, each by a connection in @fds, and for EACH answers at once.  The service gives each connection one
 * answer in turn.
 */
static void others_ask(const struct exporter *its, int *fds)
{
	struct cl_request request = request_of(its);

	request.most = 1; /* few descriptors wait in the answers, which nobody reads */
	for (int i = 0; i < OTHERS; i++) {
		fds[i] = connect_raw(its, 0);
		CHECK(fds[i] >= 0);
		for (int n = 0; n < EACH; n++)
			CHECK_EQUAL(send(fds[i], &request, sizeof request, 0), sizeof request);
	}
}

/*
 * Asks @its for two batches beside the others, with WAIT ms from what puts the deadline off.  Returns what cl_ask() does,
 * and how long it took.
 */
static int ask_beside_others(struct exporter *its, bool queues, uint64_t *ms)
{
	struct cl_region region;
	struct taken taken = { .of = its };
	struct cl_asking asking = { .region = &region, .take = take_piece, .arg = &taken, .wait.more = WAIT * MS, .queues = queues };
	int fds[OTHERS], got;

	cl_identity_self(&cl_self.identity);
	CHECK_EQUAL(cl_region_open(&region, folder_fd, its->file_id, NULL), 0);
	its->pieces = 2 * CL_SERVE_BATCH;
	others_ask(its, fds);
	*ms = test_now();
	asking.wait.until = cl_now() + WAIT * MS;
	asking.wait.latest = cl_now() + SOON * MS;
	got = cl_ask(&asking);
	*ms = (test_now() - *ms) / MS;
	for (int i = 0; i < OTHERS; i++)
		close(fds[i]);
	cl_region_close(&region);
	return got;
}

IN_A_CHILD(an_exporter_that_works_for_others_is_waited_for)
{
	struct exporter *its = start_serving(0);
	uint64_t ms;

	its->amid = be_slow;
	CHECK_EQUAL(ask_beside_others(its, true, &ms), 2 * (int)CL_SERVE_BATCH);
	CHECK(ms >= WAIT); /* else it has shown nothing */
	CHECK_SERVES(its);
}

/* @amid is what the exporter does amid each request.  It is waited for in vain. */
static void is_given_up(void (*amid)(struct exporter *mine, const struct cl_request *request), bool queues, uint64_t least)
{
	struct exporter *its = start_serving(0);
	uint64_t ms;

	its->amid = amid;
	CHECK_EQUAL(ask_beside_others(its, queues, &ms), -ETIMEDOUT);
	CHECK(ms >= least && ms < SOON);
	kill_exporter(its);
}

/* As an open does that has begun anew too often: else those whose exporter changes all the time would keep each other waiting. */
IN_A_CHILD(who_does_not_queue_has_its_own_time_alone)
{
	is_given_up(be_slow, false, 0);
}

IN_A_CHILD(one_that_stops_amid_others_requests_is_not)
{
	is_given_up(work_and_stop, true, WAIT);
}

/*
 * Starts a process that asks @its, and waits as an open does, for @wait ms.  It exits with 0 if it gets all, 1 if its
 * deadline comes while it is told that nothing can be sent, and 2 else.
 */
static pid_t start_asker(struct exporter *its, unsigned int wait)
{
	struct taken taken = { .of = its };
	struct cl_region region;
	struct cl_asking asking = { .region = &region, .take = take_piece, .arg = &taken, .queues = true };
	pid_t pid = fork();
	int got;

	CHECK(pid >= 0);
	if (pid)
		return pid;
	child_begins();
	cl_identity_self(&cl_self.identity);
	CHECK_EQUAL(cl_region_open(&region, folder_fd, its->file_id, NULL), 0);
	asking.wait = (struct cl_patience){ .until = cl_now() + wait * MS, .more = wait * MS, .latest = cl_now() + SOON * MS };
	got = cl_ask(&asking);
	_exit(got == (int)its->pieces ? 0 : got == -ETOOMANYREFS ? 1 : 2);
}

/* As where so many descriptors are under way that none can be sent: each asks again and again, and nobody gets anything. */
IN_A_CHILD(an_answer_without_pieces_is_no_work_for_others)
{
	struct exporter *its = start_serving(0);
	uint64_t began = test_now();
	pid_t asker[3];
	int status;

	its->error = -EAGAIN;
	for (int i = 0; i < 3; i++)
		asker[i] = start_asker(its, WAIT);
	for (int i = 0; i < 3; i++) {
		CHECK(waitpid(asker[i], &status, 0) == asker[i]);
		CHECK(WIFEXITED(status));
		CHECK_EQUAL(WEXITSTATUS(status), 1);
	}
	CHECK(test_now() - began >= WAIT * MS && test_now() - began < SOON * MS / 2);
	its->error = 0;
	CHECK_SERVES(its);
}

static void stop_amid_the_second(struct exporter *mine, const struct cl_request *request)
{
	(void)request;
	if (mine->kept++)
		raise(SIGSTOP);
}

/* What an asker exits with after @wait ms, if its exporter says that it can send nothing, and stops amid the next answer. */
static int told_after(unsigned int wait)
{
	struct exporter *its = start_serving(0);
	pid_t asker;
	int status;

	its->error = -EAGAIN;
	its->amid = stop_amid_the_second;
	asker = start_asker(its, wait);
	CHECK(waitpid(asker, &status, 0) == asker);
	CHECK(WIFEXITED(status));
	CHECK_EQUAL(its->kept, 2);
	its->error = 0;
	its->amid = NULL;
	kill(its->pid, SIGCONT);
	CHECK_SERVES(its);
	return WEXITSTATUS(status);
}

/* The error says what the last answer said, unless that is long ago. */
IN_A_CHILD(a_deadline_that_comes_amid_the_next_answer_is_told_as_the_last_one)
{
	CHECK_EQUAL(told_after(4 * SLOW), 1);
}

IN_A_CHILD(an_exporter_that_stops_after_it_could_send_nothing_does_not_answer)
{
	CHECK_EQUAL(told_after(WAIT), 2);
}

static void stop_amid_the_first(struct exporter *mine, const struct cl_request *request)
{
	if (!mine->kept++)
		raise(SIGSTOP);
	be_slow(mine, request);
}

/* All processes of a job are stopped together for longer than the asker would wait, and the exporter goes on last. */
IN_A_CHILD(time_in_which_the_asker_itself_stands_still_does_not_count)
{
	struct exporter *its = start_serving(0);
	pid_t asker;
	int status;

	its->amid = stop_amid_the_first;
	asker = start_asker(its, WAIT);
	CHECK(COMES_TRUE(waitpid(its->pid, &status, WUNTRACED | WNOHANG) == its->pid && WIFSTOPPED(status), SOON));
	kill(asker, SIGSTOP);
	CHECK(COMES_TRUE(waitpid(asker, &status, WUNTRACED | WNOHANG) == asker && WIFSTOPPED(status), SOON));
	/* this time is what the test is about */
	nanosleep(&(struct timespec){ .tv_sec = 2 * WAIT / 1000 }, NULL);
	kill(asker, SIGCONT);
	CHECK(!COMES_TRUE(waitpid(asker, &status, WNOHANG) == asker, 3 * SLOW));
	kill(its->pid, SIGCONT);
	CHECK(waitpid(asker, &status, 0) == asker);
	CHECK(WIFEXITED(status));
	CHECK_EQUAL(WEXITSTATUS(status), 0);
	CHECK_SERVES(its);
}

static void answer_slowly(struct exporter *mine, const struct cl_request *request)
{
	mine->kept = 1;
	be_slow(mine, request);
	mine->kept = 2;
}

/* After the end the driver may be torn down: the thread must be in none of its calls then. */
IN_A_CHILD(the_end_waits_for_an_answer_that_is_being_made)
{
	struct exporter *its = start_serving(0);
	struct cl_request request = request_of(its);

	its->amid = answer_slowly;
	CHECK(send(connect_raw(its, 0), &request, sizeof request, 0) == sizeof request);
	CHECK(COMES_TRUE(its->kept, SOON));
	CHECK_EQUAL(have(its, end), true);
	CHECK_EQUAL(its->kept, 2);
}

/* Once, and not again when something has come meanwhile; the deadline counts from the next wait on. */
static void what_stood_still_is_excused_once(void **state)
{
	const uint64_t second = 1000 * MS;
	struct cl_patience wait = { .until = cl_now() + second, .more = second, .latest = cl_now() + 100 * second };
	uint64_t until;

	CHECK(cl_patience_wait(&wait, second / 2) <= second / 2);
	wait.due = cl_now() - 10 * second;
	until = wait.until;
	cl_patience_woke(&wait);
	CHECK(wait.until >= until + 10 * second && wait.until < until + 11 * second);
	until = wait.until = cl_now();
	CHECK(cl_patience_is_over(&wait) && !cl_patience_wait(&wait, second));
	cl_patience_put_off(&wait);
	CHECK(!cl_patience_is_over(&wait));
	CHECK(cl_patience_wait(&wait, 5 * second) > second / 2);
	CHECK(wait.until >= until + second && wait.until < until + 2 * second);
	cl_patience_woke(&wait);
	CHECK(wait.until < until + 2 * second);
	/* past the latest moment nothing puts it off */
	wait.until = wait.latest = cl_now();
	cl_patience_put_off(&wait);
	CHECK(cl_patience_is_over(&wait) && !cl_patience_wait(&wait, second));
	(void)state;
}

/* Connections wait in a queue until the service takes them; beyond it connect() waits. */
static void dont_accept(struct exporter *mine)
{
	mine->result = kill(getpid(), SIGSTOP);
}
static void nothing(int signal)
{
	(void)signal;
}
/* Signals come every half millisecond, as a profiler's: each ends connect(). */
static void be_signalled(bool on)
{
	const struct itimerval every = { { 0, on ? 500 : 0 }, { 0, on ? 500 : 0 } };
	const struct sigaction act = { .sa_handler = nothing };

	CHECK_EQUAL(sigaction(SIGALRM, &act, NULL), 0);
	CHECK_EQUAL(setitimer(ITIMER_REAL, &every, NULL), 0);
}
static void full_queue(bool signals)
{
	struct exporter *its = start_serving(0);
	int fds[2 * CL_SERVE_CLIENTS], n = 0;
	uint64_t began;

	begin_job(its, dont_accept);
	CHECK(COMES_TRUE(waitpid(its->pid, NULL, WUNTRACED | WNOHANG) == its->pid, SOON));
	while (n < 2 * (int)CL_SERVE_CLIENTS && (fds[n] = connect_raw(its, SOCK_NONBLOCK)) >= 0)
		n++;
	CHECK(n < 2 * (int)CL_SERVE_CLIENTS);
	began = test_now();
	be_signalled(signals);
	CHECK_EQUAL(ask_simply(its, 1500), -ETIMEDOUT);
	be_signalled(false);
	CHECK(test_now() - began >= 1500 * MS && test_now() - began < SOON * MS);
	while (n > 0)
		close(fds[--n]);
	kill(its->pid, SIGCONT);
	CHECK_SERVES(its);
}

IN_A_CHILD(a_place_in_a_full_queue_is_waited_for_until_the_deadline)
{
	full_queue(false);
}
IN_A_CHILD(until_the_deadline_also_under_signals)
{
	full_queue(true);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, clear_stage)
	const struct CMUnitTest tests[] = {
		TEST(an_exporter_that_works_for_others_is_waited_for),
		TEST(one_that_stops_amid_others_requests_is_not),
		TEST(who_does_not_queue_has_its_own_time_alone),
		TEST(an_answer_without_pieces_is_no_work_for_others),
		TEST(a_deadline_that_comes_amid_the_next_answer_is_told_as_the_last_one),
		TEST(an_exporter_that_stops_after_it_could_send_nothing_does_not_answer),
		TEST(time_in_which_the_asker_itself_stands_still_does_not_count),
		TEST(the_end_waits_for_an_answer_that_is_being_made),
		TEST(what_stood_still_is_excused_once),
		TEST(a_place_in_a_full_queue_is_waited_for_until_the_deadline),
		TEST(until_the_deadline_also_under_signals),
	};

	return cmocka_run_group_tests(tests, make_stage, remove_folder);
}
