/* SPDX-License-Identifier: Apache-2.0 */
/* What an importer makes of the answers to its requests for descriptors: made-up ones, and more than it has room for. */
#include "tests/unit/serve.h"

#include "shim/importer/virtual.h"
#include "shim/life.h"
#include "shim/shm/virtual_handle.h"

static struct {
	struct cl_answer answer;
	size_t size;
	int fds; /* so many come with it */
} *lie;

static void answer_with_lie(struct exporter *mine)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(250 * sizeof(int))] = { 0 };
	struct iovec bytes = { &lie->answer, lie->size };
	struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1 };
	char request[sizeof(struct cl_request)];
	int fd = accept(mine->kept, NULL, NULL), piece = make_piece(0);

	CHECK(fd >= 0 && recv(fd, request, sizeof request, 0) == sizeof request);
	if (lie->fds) {
		struct cmsghdr *rights = (struct cmsghdr *)control;

		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE((size_t)lie->fds * sizeof piece);
		*rights = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
					    .cmsg_len = CMSG_LEN((size_t)lie->fds * sizeof piece) };
		for (int i = 0; i < lie->fds; i++)
			memcpy(CMSG_DATA(rights) + (size_t)i * sizeof piece, &piece, sizeof piece);
	}
	CHECK(sendmsg(fd, &message, 0) == (ssize_t)lie->size);
	close(piece);
	/* until the importer hangs up, or takes the answer for one and asks again */
	CHECK(recv(fd, request, sizeof request, 0) <= 0);
	close(fd);
}
static void listen_itself(struct exporter *mine)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };

	mine->kept = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	socket_path(mine, to.sun_path);
	CHECK(!bind(mine->kept, (struct sockaddr *)&to, sizeof to) && !listen(mine->kept, 5));
}
/* Returns what an importer makes of it; it gets one piece at most. */
static int believes(struct exporter *its, int fds)
{
	struct taken taken = { 0 };
	int result;

	lie->fds = fds;
	begin_job(its, answer_with_lie);
	result = ask_of(its, 0, SOON, &taken);
	has_done(its);
	CHECK_EQUAL(taken.n, result > 0 ? result : 0);
	return result;
}
static struct cl_answer right = { .total = 1, .count = 1, .piece = { { 0, PIECE, 0, 0 } } };
static struct exporter *start_lying(void)
{
	struct exporter *its;

	cl_serve_head_set(&right.head, sizeof right);
	lie = mmap(NULL, sizeof *lie, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(lie != MAP_FAILED);
	its = start_exporter(0);
	have(its, listen_itself);
	return its;
}
IN_A_CHILD(made_up_answers_are_refused_and_leave_no_descriptor)
{
	struct exporter *its = start_lying();

#define LIE(field, value, fds, error)                                           \
	do {                                                                    \
		lie->answer = right;                                            \
		lie->size = sizeof right;                                       \
		lie->field = value;                                             \
		CHECK_EQUAL(believes(its, fds), error);                         \
	} while (0)
	LIE(size, sizeof right, 1, 1); /* the right one */
	LIE(size, sizeof right - 1, 1, -EBADMSG);
	LIE(size, sizeof right.head, 1, -EBADMSG);
	LIE(size, 3, 1, -EBADMSG);
	LIE(answer.head.magic[0], 'X', 1, -EBADMSG);
	LIE(answer.head.size, 0, 1, -EBADMSG);
	LIE(answer.head.version, CL_SERVE_VERSION + 1, 1, -EPROTO);
	LIE(answer.error, 5, 1, -EBADMSG);
	LIE(answer.error, INT32_MIN, 1, -EBADMSG);
	LIE(answer.error, -EIO, 1, -EIO);
	LIE(answer.total, 0, 1, -EBADMSG);
	LIE(answer.total, UINT32_MAX, 1, -EBADMSG);
	LIE(answer.first, 1, 1, -EBADMSG);
	LIE(answer.count, 0, 0, -EBADMSG);
	LIE(answer.count, 2, 1, -EBADMSG);
	LIE(answer.count, CL_SERVE_BATCH + 1, 1, -EBADMSG);
	LIE(answer.count, UINT32_MAX, 1, -EBADMSG);
	LIE(answer.total, 1, 0, -EBADMSG);
	LIE(answer.total, 1, 2, -EBADMSG);
	LIE(answer.piece[0].size, 0, 1, -EBADMSG);
	LIE(answer.piece[0].offset, UINT64_MAX, 1, -EBADMSG);
	LIE(answer.total, 1, 64, -EBADMSG);
	right.total = 2; /* the second piece comes first */
	LIE(answer.first, 1, 1, -EBADMSG);
}
IN_A_CHILD(more_descriptors_than_there_is_room_for_are_closed)
{
	struct exporter *its = start_lying();

	LIE(answer.total, 1, 65, -EMFILE);
	LIE(answer.total, 1, 250, -EMFILE);
	LIE(answer.head.version, CL_SERVE_VERSION + 1, 250, -EPROTO);
}

IN_A_CHILD(an_importer_without_descriptors_gets_an_error)
{
	struct exporter *its = start_serving(0);
	struct taken taken = { 0 };
	struct cl_region region;
	struct cl_asking asking = { .region = &region, .wait.until = cl_now() + SOON * MS, .take = take_piece, .arg = &taken };
	int fd, last = -1;
	unsigned int open_now;

	its->pieces = 64;
	set_limit(0, 200);
	cl_identity_self(&cl_self.identity);
	CHECK_EQUAL(cl_region_open(&region, folder_fd, its->file_id, NULL), 0);
	while ((fd = open("/dev/null", O_RDONLY)) >= 0)
		last = fd;
	/* none for the socket; one for that, and none for a piece */
	CHECK_EQUAL(cl_ask(&asking), -EMFILE);
	close(last--);
	open_now = descriptors(getpid());
	CHECK_EQUAL(cl_ask(&asking), -EMFILE);
	CHECK_EQUAL(descriptors(getpid()), open_now);
	CHECK_EQUAL(taken.n, 0);
	/* one piece at a time */
	close(last--);
	CHECK_EQUAL(cl_ask(&asking), 64);
	CHECK_EQUAL(descriptors(getpid()), open_now - 1);
}

/* The program opens files while a batch is here. */
static int opens_some(struct taken *taken)
{
	int fds[28], n = 0;

	while (n < 28 && (fds[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
		n++;
	CHECK_EQUAL(n, 28);
	while (n)
		close(fds[--n]);
	return 0;
}
IN_A_CHILD(a_batch_leaves_an_importer_most_of_its_descriptors)
{
	struct exporter *its = start_serving(0);
	struct taken taken = { .then = opens_some };
	struct cl_region region;
	struct cl_asking asking = { .region = &region, .wait.until = cl_now() + SOON * MS, .take = take_piece, .arg = &taken };
	int left = 41;

	its->pieces = 64;
	set_limit(0, 200);
	cl_identity_self(&cl_self.identity);
	CHECK_EQUAL(cl_region_open(&region, folder_fd, its->file_id, NULL), 0);
	while (open("/dev/null", O_RDONLY) >= 0)
		;
	for (int fd = 199; left; fd--)
		left -= fd != region.fd && fd != folder_fd && !close(fd);
	CHECK_EQUAL(cl_ask(&asking), 64);
}

/* What lies there changes each time: the handle lives, and what else was asked for has ended. */
static void end_second(struct exporter *mine, const struct cl_request *request)
{
	mine->kept++;
	cl_record_try_release(&own, request->record + 1);
}
IN_A_CHILD(a_live_handle_that_cannot_be_opened_in_time_is_not_called_stale)
{
	struct exporter *its = start_serving(0);
	struct cl_virtual_handle handle = { .size = PIECE };
	struct cl_peer peer = { .slot = -1 };
	struct cl_hold hold = { .peer = &peer };
	struct cl_resolved resolved = { .handle = (uint8_t *)&handle, .hold = &hold };
	void (*never)(void) = abort;
	CUdeviceptr address;
	uint64_t began;

#define NEVER(name) memcpy(&cl_driver.name, &never, sizeof never)
	NEVER(cuMemAddressReserve);
	NEVER(cuMemAddressFree);
	NEVER(cuMemMap);
	NEVER(cuMemUnmap);
	NEVER(cuMemSetAccess);
	NEVER(cuMemRelease);
	NEVER(cuMemImportFromShareableHandle);
	its->pieces = 2;
	its->amid = end_second;
	cl_identity_self(&cl_self.identity);
	CHECK_EQUAL(cl_region_open(&peer.region, folder_fd, its->file_id, NULL), 0);
	resolved.stamp.file_id = its->file_id;
	began = test_now();
	CHECK_EQUAL(cl_virtual_map(&resolved, 0, &address), CUDA_ERROR_OPERATING_SYSTEM);
	CHECK(test_now() - began >= CL_VIRTUAL_WAIT);
	/* it has tried again and again, and not without a pause */
	CHECK(its->kept > 1 && its->kept <= (int)(CL_VIRTUAL_WAIT / MS) + 1);
	cl_region_close(&peer.region);
}

/* Its process goes on, and its file goes: at the end of what it shared, or because somebody else removes it. */
static void end_file(struct exporter *mine)
{
	mine->result = cl_region_end(&own, folder_fd);
}
static void lose_file(struct exporter *mine)
{
	char path[96], name[16];

	cl_region_name(name, mine->file_id);
	snprintf(path, sizeof path, "%s/%s", folder, name);
	mine->result = unlink(path);
}
static void exporter_goes(bool ends)
{
	struct exporter *its = start_serving(0);
	CUresult expected = ends ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_OPERATING_SYSTEM;
	struct taken taken = { 0 };
	struct cl_peer peer = { .slot = -1 };
	struct cl_asking asking = { .take = take_piece, .arg = &taken };
	int listener;

	cl_identity_self(&cl_self.identity);
	CHECK_EQUAL(cl_region_open(&peer.region, folder_fd, its->file_id, NULL), 0);
	CHECK_EQUAL(cl_virtual_ask(&asking, &peer, 1, 0), CUDA_SUCCESS);
	CHECK_EQUAL(have(its, end), true);
	/* it lives, and may make another service */
	CHECK_EQUAL(cl_virtual_ask(&asking, &peer, 1, 0), CUDA_ERROR_OPERATING_SYSTEM);
	CHECK_EQUAL(have(its, ends ? end_file : lose_file), 0);
	CHECK_EQUAL(cl_virtual_ask(&asking, &peer, 1, 0), expected);
	/* another process has its number, and listens there */
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	{
		struct sockaddr_un to = { .sun_family = AF_UNIX };

		socket_path(its, to.sun_path);
		CHECK(!bind(listener, (struct sockaddr *)&to, sizeof to) && !listen(listener, 5));
	}
	CHECK_EQUAL(cl_virtual_ask(&asking, &peer, 1, 0), expected);
	CHECK_EQUAL(taken.n, 1);
	close(listener);
	cl_region_close(&peer.region);
	kill_exporter(its);
}
IN_A_CHILD(a_handle_is_stale_when_its_exporter_has_removed_its_file)
{
	exporter_goes(true);
}
IN_A_CHILD(a_handle_is_not_stale_when_somebody_else_has_removed_that_file)
{
	exporter_goes(false);
}

/* ---------------------------------------------------------------------- deadlines */
/* A thread has waited for its turn for longer than an exporter may take, which stood still for a part of that. */
IN_A_CHILD(who_has_waited_long_still_asks_an_exporter_that_answers_again)
{
	struct exporter *its = start_serving(0);
	struct taken taken = { 0 };
	struct cl_peer peer = { .slot = -1 };
	struct cl_asking asking = { .take = take_piece, .arg = &taken };
	uint64_t since = cl_now() - CL_VIRTUAL_WAIT;

	cl_identity_self(&cl_self.identity);
	CHECK_EQUAL(cl_region_open(&peer.region, folder_fd, its->file_id, NULL), 0);
	atomic_store(&peer.in_vain, cl_now());
	CHECK_EQUAL(cl_virtual_ask(&asking, &peer, 1, since), CUDA_ERROR_OPERATING_SYSTEM);
	CHECK_EQUAL(taken.n, 0);
	/* another thread has begun to wait later, and is answered */
	CHECK_EQUAL(cl_virtual_ask(&asking, &peer, 1, cl_now()), CUDA_SUCCESS);
	CHECK_EQUAL(taken.n, 1);
	taken.n = 0;
	CHECK_EQUAL(cl_virtual_ask(&asking, &peer, 1, since), CUDA_SUCCESS);
	CHECK_EQUAL(taken.n, 1);
	cl_region_close(&peer.region);
	kill_exporter(its);
}

/* Returns what an asking of eight batches gives.  Its deadline is in a second, and goes @more ms past each batch. */
static int ask_eight(struct exporter *its, uint64_t more, uint64_t latest, unsigned int *n)
{
	struct cl_region region;
	struct taken taken = { .of = its };
	struct cl_asking asking = { .region = &region, .take = take_piece, .arg = &taken };
	int got;

	its->pieces = 8 * CL_SERVE_BATCH;
	cl_identity_self(&cl_self.identity);
	CHECK_EQUAL(cl_region_open(&region, folder_fd, its->file_id, NULL), 0);
	asking.wait.until = cl_now() + 1000 * MS;
	asking.wait.more = more * MS;
	asking.wait.latest = cl_now() + latest * MS;
	got = cl_ask(&asking);
	cl_region_close(&region);
	*n = taken.n;
	return got;
}
/* As a driver on a slow host. */
static void be_slow(struct exporter *mine, const struct cl_request *request)
{
	nanosleep(&(struct timespec){ .tv_nsec = 200 * MS }, NULL);
}
IN_A_CHILD(an_exporter_that_is_slow_and_works_is_waited_for)
{
	struct exporter *its = start_serving(0);
	unsigned int n;

	its->amid = be_slow;
	CHECK_EQUAL(ask_eight(its, SOON, SOON, &n), 8 * (int)CL_SERVE_BATCH);
	CHECK_EQUAL(n, 8 * CL_SERVE_BATCH);
}
IN_A_CHILD(however_much_comes_there_is_a_last_moment)
{
	struct exporter *its = start_serving(0);
	uint64_t began = test_now();
	unsigned int n;

	its->amid = be_slow;
	CHECK_EQUAL(ask_eight(its, SOON, 500, &n), -ETIMEDOUT);
	CHECK(n && n < 8 * CL_SERVE_BATCH);
	CHECK(test_now() - began >= 1000 * MS); /* the first deadline is never brought forward */
}
static void stop_after_one(struct exporter *mine, const struct cl_request *request)
{
	if (request->first)
		raise(SIGSTOP);
}
IN_A_CHILD(one_that_stops_between_two_batches_is_not_waited_for_longer_than_for_one)
{
	struct exporter *its = start_serving(0);
	uint64_t began = test_now();
	unsigned int n;

	its->amid = stop_after_one;
	CHECK_EQUAL(ask_eight(its, 1500, SOON, &n), -ETIMEDOUT);
	CHECK_EQUAL(n, CL_SERVE_BATCH);
	CHECK(test_now() - began >= 1500 * MS && test_now() - began < SOON * MS);
	kill_exporter(its);
}

/* Something is mapped or unmapped there all the time: the first batch comes, and the second is of another state. */
static void change_after_one(struct exporter *mine, const struct cl_request *request)
{
	if (!request->first)
		return;
	CHECK(cl_record_try_release(&own, CL_SERVE_BATCH));
	publish(&own, CL_SERVE_BATCH, 1);
}
IN_A_CHILD(only_what_gets_further_than_before_puts_the_deadline_off)
{
	struct exporter *its = start_serving(0);
	struct cl_region region;
	struct taken taken = { 0 };
	struct cl_asking asking = { .region = &region, .take = take_piece, .arg = &taken, .wait.more = SOON * MS };
	uint64_t until;

	its->pieces = 2 * CL_SERVE_BATCH;
	its->amid = change_after_one;
	cl_identity_self(&cl_self.identity);
	CHECK_EQUAL(cl_region_open(&region, folder_fd, its->file_id, NULL), 0);
	asking.wait.until = cl_now() + SOON * MS / 2;
	asking.wait.latest = cl_now() + 100 * SOON * MS;
	until = asking.wait.until;
	CHECK_EQUAL(cl_ask(&asking), -ESTALE);
	CHECK_EQUAL(taken.n, CL_SERVE_BATCH);
	CHECK(asking.wait.until > until);
	until = asking.wait.until;
	taken.n = 0;
	CHECK_EQUAL(cl_ask(&asking), -ESTALE);
	CHECK_EQUAL(taken.n, CL_SERVE_BATCH);
	CHECK_EQUAL(asking.wait.until, until);
	CHECK(!asking.wait.put_off);
	taken.n = 0;
	its->amid = NULL;
	CHECK_EQUAL(cl_ask(&asking), 2 * (int)CL_SERVE_BATCH);
	CHECK(asking.wait.put_off);
	cl_region_close(&region);
}

/* As a driver on a slow host: 64 pieces take more than the time of an open. */
/* The last record that an open wants is DYING when it has the first, until the open waits for that. */
static bool to_die, dying;
static struct cl_record *last_record;
int __real_sched_yield(void);
int __wrap_sched_yield(void);
int __wrap_sched_yield(void)
{
	if (dying) {
		CHECK(cl_try_lock(&cl_imports_lock));
		cl_unlock(&cl_imports_lock);
		dying = false;
		atomic_store(&last_record->life, cl_life(0, CL_EXPORTED));
	}
	return __real_sched_yield();
}

static CUresult import_slowly(CUmemGenericAllocationHandle *memory, void *fd, CUmemAllocationHandleType type)
{
	*memory = (CUmemGenericAllocationHandle)(uintptr_t)fd;
	atomic_fetch_add(&cl_clock_ahead, CL_VIRTUAL_WAIT / 60);
	if (to_die) {
		to_die = false;
		dying = true;
		atomic_store(&last_record->life, cl_life(0, CL_DYING));
	}
	return CUDA_SUCCESS;
}
static CUresult release(CUmemGenericAllocationHandle memory)
{
	return CUDA_SUCCESS;
}
static CUresult reserve_nothing(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr near, unsigned long long flags)
{
	return CUDA_ERROR_OUT_OF_MEMORY;
}
static void change_at_first(struct exporter *mine, const struct cl_request *request)
{
	if (request->first && mine->kept++ < (int)CL_VIRTUAL_STARTS - 1)
		change_after_one(mine, request);
}
/* Opens a handle of record 0 of @its, whose address cannot be had: the last of what an open asks for. */
static void take_all_but_an_address(struct exporter *its, uint64_t pieces)
{
	struct cl_virtual_handle handle = { .size = pieces * PIECE };
	struct cl_resolved resolved = { .handle = (uint8_t *)&handle };
	void (*never)(void) = abort;
	uint8_t bytes[64];
	CUdeviceptr address;
	struct cl_hold *hold;
	struct cl_peer *peer;
	int err;

	cl_driver.cuMemImportFromShareableHandle = import_slowly;
	cl_driver.cuMemRelease = release;
	cl_driver.cuMemAddressReserve = reserve_nothing;
	memcpy(&cl_driver.cuMemAddressFree, &never, sizeof never);
	memcpy(&cl_driver.cuMemMap, &never, sizeof never);
	memcpy(&cl_driver.cuMemUnmap, &never, sizeof never);
	memcpy(&cl_driver.cuMemSetAccess, &never, sizeof never);
	its->pieces = (uint32_t)pieces;
	CHECK(cl_self_start());
	cl_lock(&cl_imports_lock);
	peer = cl_peer_get(its->file_id, &err);
	CHECK(peer);
	resolved.stamp.file_id = its->file_id;
	cl_record_handle(&peer->region, 0, bytes);
	CHECK_EQUAL(cl_hold_get_locked(peer, &resolved.stamp, bytes, &hold), 0);
	last_record = &peer->region.record[pieces - 1];
	cl_unlock(&cl_imports_lock);
	resolved.hold = hold;
	/* it has got all of it, and wants to map it */
	CHECK_EQUAL(cl_virtual_map(&resolved, 0, &address), CUDA_ERROR_OUT_OF_MEMORY);
}

IN_A_CHILD(what_is_asked_for_anew_takes_its_time_anew)
{
	struct exporter *its = start_serving(0);

	its->amid = change_at_first;
	take_all_but_an_address(its, 2 * CL_SERVE_BATCH);
	CHECK_EQUAL(its->kept, CL_VIRTUAL_STARTS);
}

/* While the open waits, other threads open and close. */
IN_A_CHILD(what_its_exporter_may_just_be_freeing_is_waited_for_without_a_lock)
{
	struct exporter *its = start_serving(0);

	to_die = true;
	take_all_but_an_address(its, 2);
	CHECK(!to_die && !dying);
}

/* ---------------------------------------------------------------------- a full house */
/* One round of answers takes longer than a peer may be silent where all places are taken. */
static void take_time(struct exporter *mine, const struct cl_request *request)
{
	nanosleep(&(struct timespec){ .tv_nsec = (long)(2 * CL_SERVE_CROWDED / CL_SERVE_CLIENTS) }, NULL);
}
/*
 * Returns false if this process itself was too slow to ask again, on a busy machine: then it has lost places as it
 * should.
 */
static bool asks_for_all(struct exporter *its)
{
	struct cl_request request = request_of(its);
	int fds[CL_SERVE_CLIENTS];
	struct cl_answer answer;
	uint64_t last = test_now(), now;
	bool slow = false, lost = false;

	for (unsigned int i = 0; i < CL_SERVE_CLIENTS; i++) {
		fds[i] = connect_raw(its, 0);
		CHECK(fds[i] >= 0);
	}
	for (unsigned int i = 0; i < CL_SERVE_CLIENTS; i++)
		CHECK(send(fds[i], &request, sizeof request, 0) == sizeof request);
	/* each one asks again as soon as it has its answer; the service begins with the last one */
	for (unsigned int round = 0; round < 3 && !lost; round++)
		for (unsigned int i = CL_SERVE_CLIENTS; i-- > 0 && !lost;) {
			lost = read_answer(fds[i], &answer) != sizeof answer ||
			       (round < 2 && send(fds[i], &request, sizeof request, MSG_NOSIGNAL) != sizeof request);
			now = test_now();
			slow |= now - last > CL_SERVE_CROWDED / 4;
			last = now;
		}
	CHECK(slow || !lost);
	for (unsigned int i = 0; i < CL_SERVE_CLIENTS; i++)
		close(fds[i]);
	return !lost;
}
IN_A_CHILD(nobody_loses_a_place_while_others_are_answered)
{
	struct exporter *its = start_serving(0);

	set_limit(0, 1000);
	set_limit(its->pid, 1000);
	its->amid = take_time;
	CHECK(COMES_TRUE(asks_for_all(its), 60000));
}

/* Returns whether the last look counts @after ns later, for @record. */
static bool was_up(uint64_t after, uint32_t record)
{
	return cl_server_was_up(&server, record, server.looked + after);
}
static void look_and_ask(struct exporter *mine)
{
	CHECK(!cl_server_was_up(&server, 0, cl_now()));
	CHECK_EQUAL(cl_server_need(&server, 5), 0);
	CHECK(was_up(0, 5) && was_up(cl_serve_look - 1, 0));
	CHECK(!was_up(cl_serve_look, 0) && !was_up((uint64_t)-1, 0));
	CHECK(!was_up(0, 6)); /* for that record the service does not answer yet */
	CHECK(cl_serve_look <= 10 * MS);
	mine->result = cl_server_end(&server, SOON * MS);
	CHECK(!cl_server_was_up(&server, 0, cl_now()) && !was_up(0, 0));
	cl_server_forget(&server);
	CHECK(!was_up(0, 0));
}
IN_A_CHILD(a_look_counts_for_a_moment_and_for_the_records_that_it_was_for)
{
	struct exporter *its = start_exporter(0);

	CHECK_EQUAL(have(its, look_and_ask), true);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, clear_stage)
	const struct CMUnitTest tests[] = {
		TEST(a_look_counts_for_a_moment_and_for_the_records_that_it_was_for),
		TEST(made_up_answers_are_refused_and_leave_no_descriptor),
		TEST(more_descriptors_than_there_is_room_for_are_closed),
		TEST(a_live_handle_that_cannot_be_opened_in_time_is_not_called_stale),
		TEST(who_has_waited_long_still_asks_an_exporter_that_answers_again),
		TEST(an_exporter_that_is_slow_and_works_is_waited_for),
		TEST(however_much_comes_there_is_a_last_moment),
		TEST(only_what_gets_further_than_before_puts_the_deadline_off),
		TEST(what_is_asked_for_anew_takes_its_time_anew),
		TEST(what_its_exporter_may_just_be_freeing_is_waited_for_without_a_lock),
		TEST(nobody_loses_a_place_while_others_are_answered),
		TEST(a_handle_is_stale_when_its_exporter_has_removed_its_file),
		TEST(a_handle_is_not_stale_when_somebody_else_has_removed_that_file),
		TEST(one_that_stops_between_two_batches_is_not_waited_for_longer_than_for_one),
		TEST(an_importer_without_descriptors_gets_an_error),
		TEST(a_batch_leaves_an_importer_most_of_its_descriptors),
	};

	return cmocka_run_group_tests(tests, make_stage, remove_folder);
}
