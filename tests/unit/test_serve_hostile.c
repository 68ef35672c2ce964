/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptor service among processes that do what they should not, or cannot go on: other users,
 * made-up requests, floods, slow readers, others in the socket's place, no descriptors left.  After each an
 * honest importer gets all that it asks for.
 */
#include "shim/importer/peers.h"
#include "shim/importer/virtual.h"
#include "tests/unit/serve.h"

/* ------------------------------------------------------------------- other users */
IN_A_CHILD(another_user_gets_nothing)
{
	struct exporter *its = start_serving(0);
	struct cl_request request = request_of(its);
	struct cl_answer answer;
	char path[108];
	pid_t child;

	socket_path(its, path);
	child = fork();
	if (!child) {
		alarm(CHILD_SECONDS);
		if (!become_other())
			CHILD_SKIP("only root can be two users");
		/* the file's mode says no */
		CHECK_EQUAL(connect_raw(its, 0), -EACCES);
		_exit(0);
	}
	child_judge(child);
	/* and were they allowed to connect, the service would say no */
	CHECK(!chmod(folder, 0755) && !chmod(path, 0666));
	child = fork();
	if (!child) {
		unsigned int before;
		int fd;

		alarm(CHILD_SECONDS);
		CHECK(become_other());
		before = descriptors(getpid());
		fd = connect_raw(its, 0);
		CHECK(fd >= 0);
		send(fd, &request, sizeof request, MSG_NOSIGNAL);
		CHECK_EQUAL(read_answer(fd, &answer), sizeof answer);
		CHECK_EQUAL(answer.error, -EPERM);
		CHECK_EQUAL(read_answer(fd, &answer), 0);
		CHECK_EQUAL(descriptors(getpid()), before + 1);
		_exit(0);
	}
	child_judge(child);
	CHECK(COUNTS(its, strangers, 1));
	CHECK_SERVES(its);
}

/* ------------------------------------------------------------- made-up requests */
/* Sends @size bytes on a connection of its own, and returns the answer's error; 0: none came. */
static int answer_to(const struct exporter *its, const void *bytes, size_t size)
{
	struct cl_answer answer = { .error = 0 };
	int fd = connect_raw(its, 0);
	ssize_t n;

	CHECK(fd >= 0);
	CHECK(send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size);
	n = read_answer(fd, &answer);
	CHECK(n == 0 || n == sizeof answer);
	if (n) {
		CHECK_EQUAL(cl_serve_head_check(&answer.head, (size_t)n, sizeof answer), 0);
		CHECK(answer.error < 0 && !answer.count);
	}
	close(fd);
	return answer.error;
}

IN_A_CHILD(made_up_requests_get_an_error)
{
	struct exporter *its = start_serving(0);
	struct cl_request right = request_of(its), wrong;
	unsigned int before = descriptors(its->pid);
	static char many[100000];

	for (size_t size = 1; size < 2 * sizeof right; size++) {
		memset(many, (int)size, sizeof many);
		CHECK_EQUAL(answer_to(its, many, size), -EBADMSG);
		memcpy(many, &right, sizeof right);
		if (size != sizeof right)
			CHECK_EQUAL(answer_to(its, many, size), -EBADMSG);
	}
	CHECK_EQUAL(answer_to(its, many, sizeof many), -EBADMSG);
#define WITH(field, value, error)                                               \
	do {                                                                    \
		wrong = right;                                                  \
		wrong.field = value;                                            \
		CHECK_EQUAL(answer_to(its, &wrong, sizeof wrong), error);       \
	} while (0)
	WITH(head.magic[7], 1, -EBADMSG);
	WITH(head.version, 0, -EPROTO);
	WITH(head.version, CL_SERVE_VERSION + 1, -EPROTO);
	WITH(head.size, sizeof right + 1, -EBADMSG);
	WITH(file_id, its->file_id ^ 1, -ESTALE);
	WITH(record, RECORDS, -ESTALE);
	WITH(record, UINT32_MAX, -ESTALE);
	WITH(generation, 1, -ESTALE);
	WITH(generation, UINT32_MAX, -ESTALE);
	WITH(most, 0, -EBADMSG);
	WITH(runs, CL_SERVE_RUNS + 1, -EBADMSG);
	WITH(runs, UINT32_MAX, -EBADMSG);
	WITH(runs, 1, -EBADMSG); /* an empty one */
	right.run[0] = (struct cl_serve_run){ 5, 7 };
	right.run[1] = (struct cl_serve_run){ 6, 8 };
	WITH(runs, 2, -EBADMSG); /* they overlap */
	/* another version's request may be longer or shorter, and gets the same error */
	memcpy(many, &right, sizeof right);
	((struct cl_request *)many)->head.version = 7;
	CHECK_EQUAL(answer_to(its, many, 200), -EPROTO);
	CHECK_EQUAL(answer_to(its, many, sizeof right.head), -EPROTO);
	CHECK_SERVES(its);
	CHECK(COMES_TRUE(descriptors(its->pid) == before, SOON));
}

/* The number of records is what the exporter knows, not what its file says: no memory is taken for others. */
static void lie_about_records(struct exporter *mine)
{
	atomic_store(&own.header->record_chunks, CL_CHUNKS);
}
IN_A_CHILD(records_that_the_file_does_not_have_are_not_looked_at)
{
	struct exporter *its = start_serving(0);
	struct cl_request request = request_of(its);
	struct stat before, after;
	char name[16];

	have(its, lie_about_records);
	cl_region_name(name, its->file_id);
	CHECK(!fstatat(folder_fd, name, &before, 0));
	for (request.record = 10 * CL_CHUNK; request.record < CL_RECORDS; request.record += 100 * CL_CHUNK)
		CHECK_EQUAL(answer_to(its, &request, sizeof request), -ESTALE);
	CHECK(!fstatat(folder_fd, name, &after, 0));
	CHECK_EQUAL(after.st_blocks, before.st_blocks);
	CHECK_SERVES(its);
}

/* The kernel closes descriptors that come with a request. */
IN_A_CHILD(descriptors_that_come_with_a_request_are_not_kept)
{
	struct exporter *its = start_serving(0);
	struct cl_request request = request_of(its);
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(200 * sizeof(int))] = { 0 };
	struct iovec bytes = { &request, sizeof request };
	struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof control };
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	unsigned int before = descriptors(its->pid);
	struct cl_answer answer;
	int fd = connect_raw(its, 0);

	CHECK(fd >= 0);
	*rights = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(200 * sizeof(int)) };
	for (int i = 0; i < 200; i++)
		memcpy(CMSG_DATA(rights) + (size_t)i * sizeof fd, &fd, sizeof fd);
	CHECK(sendmsg(fd, &message, 0) == sizeof request);
	CHECK_EQUAL(read_answer(fd, &answer), sizeof answer);
	CHECK_EQUAL(answer.count, 1);
	CHECK(COMES_TRUE(descriptors(its->pid) <= before + 1, SOON));
	close(fd);
	CHECK_SERVES(its);
}

/* The program closes our descriptor of a connection, or the listening one, and has a socket of its own with that number. */
static int its_own[2];
static void take_the_number(struct exporter *mine)
{
	struct sockaddr_un nowhere = { .sun_family = AF_UNIX }; /* the kernel finds a name */
	socklen_t length = sizeof nowhere;
	int taken = 0;

	if (mine->kept) {
		its_own[0] = socket(AF_UNIX, SOCK_SEQPACKET, 0);
		its_own[1] = socket(AF_UNIX, SOCK_SEQPACKET, 0);
		CHECK(!bind(its_own[0], (struct sockaddr *)&nowhere, sizeof nowhere.sun_family) && !listen(its_own[0], 1));
		CHECK(!getsockname(its_own[0], (struct sockaddr *)&nowhere, &length));
		CHECK(!connect(its_own[1], (struct sockaddr *)&nowhere, length));
	} else {
		CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, its_own) && write(its_own[1], "mine", 4) == 4);
	}
	for (int fd = 0; fd < 1100; fd++) {
		int listens;
		socklen_t size = sizeof listens;

		if (fd != its_own[0] && fd != its_own[1] &&
		    !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) && listens == mine->kept) {
			CHECK(dup2(its_own[0], fd) == fd);
			taken++;
		}
	}
	mine->result = taken;
}
static void read_own(struct exporter *mine)
{
	char bytes[8];

	mine->result = (int)recv(its_own[0], bytes, sizeof bytes, MSG_DONTWAIT);
	CHECK(send(its_own[0], "more", 4, MSG_NOSIGNAL) == 4);
}
IN_A_CHILD(a_number_that_the_program_has_taken_is_left_alone)
{
	struct exporter *its = start_serving(0);
	struct cl_request request = request_of(its);
	unsigned int before = descriptors(its->pid);
	int fd = connect_raw(its, 0);

	CHECK(fd >= 0 && COMES_TRUE(descriptors(its->pid) == before + 1, SOON));
	CHECK_EQUAL(have(its, take_the_number), 1);
	send(fd, &request, sizeof request, MSG_NOSIGNAL);
	CHECK_SERVES(its);
	CHECK_EQUAL(have(its, read_own), 4);
	CHECK(COMES_TRUE(descriptors(its->pid) == before + 3, SOON));
}

static void accept_own(struct exporter *mine)
{
	fcntl(its_own[0], F_SETFL, O_NONBLOCK);
	mine->result = accept(its_own[0], NULL, NULL) >= 0;
}
IN_A_CHILD(no_connection_of_the_programs_is_accepted)
{
	struct exporter *its = start_serving(0);

	CHECK_SERVES(its);
	its->kept = 1;
	CHECK_EQUAL(have(its, take_the_number), 1);
	CHECK(ask_simply(its, SOON) < 0); /* the thread sees it */
	CHECK_EQUAL(have(its, accept_own), true);
	CHECK_EQUAL(have(its, need), 0);
	CHECK_SERVES(its);
}

/* -------------------------------------------------------- floods and slow readers */
IN_A_CHILD(a_flood_of_connections_keeps_nobody_out)
{
	struct exporter *its = start_serving(0);
	unsigned int n = 0, before = descriptors(its->pid);
	uint64_t began;
	static int fds[1000];

	set_limit(0, 2000);
	its->pieces = 100;
	/* as many as the service and the kernel take */
	for (uint64_t until = test_now() + 100 * MS; n < 1000 && test_now() < until;) {
		fds[n] = connect_raw(its, SOCK_NONBLOCK);
		if (fds[n] >= 0)
			n++;
		else
			CHECK_EQUAL(fds[n], -EAGAIN);
	}
	CHECK(n > CL_SERVE_CLIENTS);
	CHECK(descriptors(its->pid) <= before + CL_SERVE_CLIENTS + 1); /* it may be turning one away */
	began = test_now();
	for (int i = 0; i < 5; i++)
		CHECK_SERVES(its);
	CHECK(test_now() - began < CL_SERVE_IDLE);
	CHECK(COMES_TRUE(its->served.dropped >= CL_SERVE_CLIENTS, SOON));
	while (n)
		close(fds[--n]);
	CHECK(COMES_TRUE(descriptors(its->pid) == before, SOON));
}

static void turn_the_clock(struct exporter *mine)
{
	atomic_fetch_add(&cl_clock_ahead, CL_SERVE_IDLE);
}
IN_A_CHILD(a_slow_reader_delays_nobody_and_loses_its_place)
{
	struct exporter *its = start_serving(0);
	struct cl_request request = request_of(its);
	unsigned int before = descriptors(its->pid);
	int silent = connect_raw(its, 0), slow = connect_raw(its, 0), greedy = connect_raw(its, SOCK_NONBLOCK);
	struct cl_answer answer;

	its->pieces = 64;
	CHECK(silent >= 0 && slow >= 0 && greedy >= 0);
	CHECK(send(slow, &request, sizeof request, 0) == sizeof request);
	CHECK(COUNTS(its, answers, 1));
	/* this one asks and asks, and reads nothing: no send waits for it, and it goes at once */
	while (send(greedy, &request, sizeof request, MSG_NOSIGNAL) > 0 || errno == EAGAIN)
		test_moment();
	CHECK(errno == EPIPE || errno == ECONNRESET);
	CHECK(COUNTS(its, dropped, 1));
	CHECK_SERVES(its);
	CHECK_EQUAL(its->served.dropped, 1);
	/* the other two go when their time is over */
	CHECK(COMES_TRUE(descriptors(its->pid) == before + 2, SOON));
	have(its, turn_the_clock);
	CHECK_SERVES(its);
	CHECK(COUNTS(its, dropped, 3));
	CHECK_EQUAL(read_answer(silent, &answer), 0);
	CHECK_EQUAL(read_answer(slow, &answer), sizeof answer);
	CHECK_EQUAL(read_answer(slow, &answer), 0);
}

/* take() is slow, and loses its place twice: the asking goes on where it was. */
static int is_slow(struct taken *taken)
{
	int fd;

	if (taken->n % 64)
		return 0;
	have(taken->of, turn_the_clock);
	fd = connect_raw(taken->of, 0); /* wakes it */
	CHECK(fd >= 0);
	CHECK(COUNTS(taken->of, dropped, taken->n / 64));
	close(fd);
	return 0;
}
IN_A_CHILD(an_importer_that_lost_its_place_goes_on_where_it_was)
{
	struct exporter *its = start_serving(0);
	struct taken taken = { .then = is_slow };
	struct cl_region region;
	struct cl_asking asking = { .region = &region, .wait.until = cl_now() + SOON * MS, .take = take_piece, .arg = &taken };

	its->pieces = 150;
	taken.of = its;
	cl_identity_self(&cl_self.identity);
	CHECK_EQUAL(cl_region_open(&region, folder_fd, its->file_id, NULL), 0);
	CHECK_EQUAL(cl_ask(&asking), 150);
	CHECK_EQUAL(taken.n, 150);
}

/*
 * As a user, who may have no more descriptors under way than it may have open.  Those of all its processes
 * count: so this test's user is one that has no other, also if the test runs twice at once.
 */
IN_A_CHILD(too_much_under_way_is_waited_for)
{
	const uid_t alone = 1u << 23 | (uid_t)getpid(), nobody = 65534;
	struct exporter *its;
	struct cl_request request;
	struct cl_answer answer = { .error = 0 };
	struct taken taken = { 0 };
	struct cl_peer peer = { .slot = -1 };
	struct cl_asking asking = { .take = take_piece, .arg = &taken };
	int slow[20], n = 0;
	uint64_t begin;
	pid_t child;

	/* root may have as many as it likes */
	CHECK(geteuid() || (!chown(folder, alone, alone) && become(alone)) ||
	      /* a user namespace may have no such user */
	      (!chown(folder, nobody, nobody) && become_other()));
	its = start_serving(0);
	its->pieces = 64;
	request = request_of(its);
	set_limit(its->pid, 100);
	/* each has a quarter of what is left at most; the last one gets none */
	while (n < 20 && answer.error != -EAGAIN) {
		slow[n] = connect_raw(its, 0);
		CHECK(slow[n] >= 0 && send(slow[n], &request, sizeof request, 0) == sizeof request);
		CHECK_EQUAL(recv(slow[n++], &answer, sizeof answer, MSG_PEEK), sizeof answer);
	}
	CHECK_EQUAL(answer.error, -EAGAIN);
	CHECK_EQUAL(ask_simply(its, 1000), -ETOOMANYREFS);
	/* who has waited for a turn meanwhile has waited for that exporter, as if it did not answer */
	CHECK_EQUAL(cl_region_open(&peer.region, folder_fd, its->file_id, NULL), 0);
	begin = cl_now();
	atomic_store(&peer.in_vain, begin);
	CHECK_EQUAL(cl_virtual_ask(&asking, &peer, 1, begin - CL_VIRTUAL_WAIT + 100 * MS), CUDA_ERROR_OPERATING_SYSTEM);
	CHECK(atomic_load(&peer.in_vain) > begin);
	cl_region_close(&peer.region);
	child = fork();
	if (!child) {
		alarm(CHILD_SECONDS);
		for (int i = 0; i < n; i++)
			close(slow[i]);
		CHECK_SERVES(its);
		_exit(0);
	}
	for (int i = 0; i < n; i++)
		close(slow[i]);
	child_judge(child);
}

/* ---------------------------------------------- others in the socket's place */
static void listen_in_place(struct exporter *mine)
{
	struct exporter *other = &exporters[mine == exporters];
	struct sockaddr_un to = { .sun_family = AF_UNIX };

	mine->kept = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	socket_path(other, to.sun_path);
	unlink(to.sun_path);
	CHECK(!bind(mine->kept, (struct sockaddr *)&to, sizeof to) && !chmod(to.sun_path, 0666) && !listen(mine->kept, 5));
}
static void got_no_request(struct exporter *mine)
{
	char bytes[sizeof(struct cl_request)];
	int fd = accept(mine->kept, NULL, NULL);

	CHECK(fd >= 0);
	mine->result = (int)recv(fd, bytes, sizeof bytes, 0);
	close(fd);
}
IN_A_CHILD(a_removed_or_replaced_socket_is_an_error_and_made_again)
{
	struct exporter *its = start_serving(0), *stranger = start_exporter(1);
	char path[108], other[108];
	int fd;

	socket_path(its, path);
	CHECK(!unlink(path));
	CHECK_EQUAL(ask_simply(its, SOON), -ENOENT);
	CHECK_EQUAL(have(its, need), 0);
	CHECK_SERVES(its);
	/* a file, which is nobody's to remove */
	CHECK(!unlink(path) && (fd = open(path, O_CREAT | O_WRONLY, 0600)) >= 0);
	CHECK_EQUAL(ask_simply(its, SOON), -ECONNREFUSED);
	CHECK_EQUAL(have(its, need), -EADDRINUSE);
	CHECK(!unlink(path));
	CHECK_EQUAL(have(its, need), 0);
	CHECK_SERVES(its);
	/* another process of this user: it does not even get the request */
	have(stranger, listen_in_place);
	CHECK_EQUAL(ask_simply(its, SOON), -EPERM);
	CHECK_EQUAL(have(stranger, got_no_request), 0);
	/* the same behind a link */
	snprintf(other, sizeof other, "%s/elsewhere", folder);
	CHECK(!rename(path, other) && !symlink("elsewhere", path));
	CHECK_EQUAL(ask_simply(its, SOON), -EPERM);
	CHECK(!unlink(path) && !rename(other, path));
	CHECK_EQUAL(have(its, need), 0);
	CHECK_SERVES(its);
	/* one thread is there, whatever was */
	CHECK(COMES_TRUE(threads(its) == 1, SOON));
}

static void become_other_user(struct exporter *mine)
{
	mine->result = become_other();
}
IN_A_CHILD(another_users_socket_is_not_asked)
{
	struct exporter *its = start_exporter(0), *stranger = start_exporter(1);

	CHECK(!chmod(folder, 0777));
	if (!have(stranger, become_other_user))
		CHILD_SKIP("only root can be two users");
	have(stranger, listen_in_place);
	CHECK_EQUAL(ask_simply(its, SOON), -EPERM);
	CHECK_EQUAL(have(stranger, got_no_request), 0);
	/* it is not ours to remove */
	CHECK_EQUAL(have(its, need), -EADDRINUSE);
}

/* From elsewhere the pid in the exporter's file says nothing: who has the file's lock is known. */
IN_A_CHILD(in_another_pid_namespace_the_lock_tells_who_it_is)
{
	struct exporter *its, *stranger;

	if (unshare(CLONE_NEWPID))
		CHILD_SKIP("no PID namespace may be made");
	/* these are inside, and this process is not */
	its = start_serving(0);
	stranger = start_exporter(1);
	CHECK_SERVES(its);
	have(stranger, listen_in_place);
	CHECK_EQUAL(ask_simply(its, SOON), -EPERM);
	CHECK_EQUAL(have(stranger, got_no_request), 0);
}
/* Runs @body in a PID namespace of its own. */
static void inside(void (*body)(void))
{
	pid_t child = fork();

	if (!child) {
		pid_t inner;

		alarm(CHILD_SECONDS);
		if (unshare(CLONE_NEWPID))
			CHILD_SKIP("no PID namespace may be made");
		inner = fork();
		if (!inner) {
			alarm(CHILD_SECONDS);
			body();
			_exit(0);
		}
		child_judge(inner);
		_exit(0);
	}
	child_judge(child);
}
static void asks(void)
{
	CHECK_SERVES(&exporters[0]);
}
static void is_refused(void)
{
	CHECK_EQUAL(ask_simply(&exporters[0], SOON), -EPERM);
}
IN_A_CHILD(an_exporter_outside_is_known_by_its_user)
{
	struct exporter *stranger;

	start_serving(0);
	stranger = start_exporter(1);
	inside(asks);
	CHECK(!chmod(folder, 0777));
	if (!have(stranger, become_other_user))
		CHILD_SKIP("only root can be two users");
	have(stranger, listen_in_place);
	inside(is_refused);
}

/* -------------------------------------------------------- no descriptors left */
IN_A_CHILD(without_descriptors_the_importer_gets_an_error_and_the_service_goes_on)
{
	/* none to accept the connection with; none for the pieces; one, and no number to move it to; two */
	static const int left[] = { 0, 1, 2, 3 };

	for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
		struct exporter *its;
		unsigned int before;

		set_limit(0, 200);
		its = start_serving(0);
		before = descriptors(its->pid);
		its->pieces = 100;
		its->kept = left[i];
		CHECK_SERVES(its);
		CHECK(COMES_TRUE(descriptors(its->pid) == before, SOON));
		have(its, use_up);
		for (int again = 0; again < 3; again++) {
			CHECK_EQUAL(ask_simply(its, SOON), left[i] < 2 ? -EMFILE : 100);
			CHECK(COUNTS(its, shortages, left[i] < 2 ? again + 1u : 0));
		}
		set_limit(its->pid, 400);
		CHECK_SERVES(its);
		kill_exporter(its);
	}
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, clear_stage)
	const struct CMUnitTest tests[] = {
		TEST(another_user_gets_nothing),
		TEST(made_up_requests_get_an_error),
		TEST(records_that_the_file_does_not_have_are_not_looked_at),
		TEST(descriptors_that_come_with_a_request_are_not_kept),
		TEST(a_number_that_the_program_has_taken_is_left_alone),
		TEST(no_connection_of_the_programs_is_accepted),
		TEST(a_flood_of_connections_keeps_nobody_out),
		TEST(a_slow_reader_delays_nobody_and_loses_its_place),
		TEST(an_importer_that_lost_its_place_goes_on_where_it_was),
		TEST(too_much_under_way_is_waited_for),
		TEST(a_removed_or_replaced_socket_is_an_error_and_made_again),
		TEST(another_users_socket_is_not_asked),
		TEST(in_another_pid_namespace_the_lock_tells_who_it_is),
		TEST(an_exporter_outside_is_known_by_its_user),
		TEST(without_descriptors_the_importer_gets_an_error_and_the_service_goes_on),
	};

	return cmocka_run_group_tests(tests, make_stage, remove_folder);
}
