/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: sends requests for descriptors, which any process of the user may send, to the service of
 * this process.
 *
 * The input is a list of connections, each of requests made of a right one and of bytes from the input.
 *
 * Promised: no crash and no hang.  Each request gets an answer or the end of its connection.  Only what
 * names a live record of this exporter gets descriptors, as many as the answer says.  No
 * descriptor is left, and afterwards a right request gets all.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shim/base/log.h"
#include "shim/descriptors/flight.h"
#include "shim/descriptors/server.h"
#include "shim/descriptors/address.h"
#include "shim/self/self.h"
#include "shim/shm/record.h"
#include "tests/fuzz/fuzz.h"

enum { RECORDS = 8, PIECES = 70, REQUESTS = 16, HIGHEST = 1024 };

static struct cl_region own;

static int export_some(void *arg, const struct cl_request *request, struct cl_piece *piece, int *fds, uint32_t *total)
{
	int n = 0;

	(void)arg;
	PROMISE(request->record < RECORDS && request->file_id == own.file_id);
	*total = PIECES;
	for (uint32_t i = request->first; i < PIECES && n < (int)CL_SERVE_BATCH; i++, n++) {
		cl_flight_begin();
		fds[n] = cl_flight_enter(open("/dev/null", O_RDONLY | O_CLOEXEC));
		cl_flight_end();
		PROMISE(fds[n] >= 0);
		piece[n] = (struct cl_piece){ .record = request->record, .generation = request->generation };
	}
	return n;
}
static struct cl_server server = CL_SERVER_INIT(&own, export_some, NULL);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	char *none[] = { NULL };
	int folder;

	(void)argc, (void)argv;
	cl_options_read(&cl_options, none, NULL);
	cl_options.dir.text = fuzz_folder();
	cl_options.log.number = CL_LOG_OFF;
	cl_identity_self(&cl_self.identity);
	folder = open(fuzz_folder(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	PROMISE(folder >= 0 && cl_region_create(&own, folder, &cl_self.identity) == 0);
	close(folder);
	/* every second one is free */
	for (uint32_t i = 0; i < RECORDS; i += 2) {
		uint8_t handle[64] = { 0 };
		struct cl_export what = { .kind = CL_MEMORY, .base = 4096ull * (i + 1), .size = 1024, .handle = handle, .now = 1 };

		cl_record_publish(&own, i, &what);
	}
	PROMISE(cl_server_need(&server, RECORDS - 1) == 0);
	return 0;
}

static int connect_here(void)
{
	struct sockaddr_un to;
	int dirfd, fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	PROMISE(fd >= 0 && cl_serve_address(&to, own.file_id, &dirfd) == 0);
	PROMISE(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
	if (dirfd >= 0)
		close(dirfd);
	return fd;
}

static bool is_right(const struct cl_request *request, size_t size)
{
	return size == sizeof *request && !memcmp(request->head.magic, CL_SERVE_MAGIC, 8) &&
	       request->head.version == CL_SERVE_VERSION && request->head.size == sizeof *request &&
	       request->file_id == own.file_id && request->record < RECORDS && request->record % 2 == 0 &&
	       request->generation == 0 && cl_serve_request_check(request);
}

/* Sends one request made from @in.  Returns false at the end of the connection. */
static bool send_one(struct input *in, int to)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(250 * sizeof(int))];
	union {
		struct cl_request request;
		uint8_t byte[256];
	} sent = { .request = { .file_id = own.file_id, .record = (uint32_t)eat(in, 1), .most = CL_SERVE_BATCH } };
	struct cl_answer answer;
	struct iovec bytes = { &answer, sizeof answer };
	struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	size_t size = sizeof sent.request, fds = 0;
	ssize_t n;

	cl_serve_head_set(&sent.request.head, sizeof sent.request);
	sent.request.first = (uint32_t)eat(in, 1);
	for (uint64_t changes = eat(in, 1) % 8; changes; changes--)
		sent.byte[eat(in, 1)] = (uint8_t)eat(in, 1);
	if (eat(in, 1) % 4 == 3)
		size = eat(in, 1);
	/* never waits: one message is under way */
	PROMISE(send(to, &sent, size, MSG_NOSIGNAL) == (ssize_t)size);
	do
		n = recvmsg(to, &message, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR); /* libFuzzer has a timer */
	if (n <= 0) {
		PROMISE(!n && !size);
		return false;
	}
	PROMISE(n == sizeof answer && cl_serve_head_check(&answer.head, (size_t)n, sizeof answer) == 0);
	PROMISE(!(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)));
	for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
		fds = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < fds; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(at) + i * sizeof fd, sizeof fd);
			PROMISE(close(fd) == 0);
		}
	}
	PROMISE(fds == answer.count && fds <= CL_SERVE_BATCH);
	if (is_right(&sent.request, size))
		PROMISE(!answer.error && answer.total == PIECES && answer.first == sent.request.first &&
			(fds || answer.first >= PIECES));
	else
		PROMISE(answer.error < 0 && !fds);
	/* who sends what is no request is hung up on */
	return answer.error != -EBADMSG && answer.error != -EPROTO;
}

/* New numbers would grow. */
static bool has_left_some(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	bool many = fd > HIGHEST / 2;

	PROMISE(fd >= 0);
	close(fd);
	return many;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint8_t all[] = { 0, 0, 0, 0, 0, CL_SERVE_BATCH, 0, 0 }; /* two right requests */
	struct input in = { data, size }, right = { all, sizeof all };
	int last;

	if (!own.file_id)
		LLVMFuzzerInitialize(NULL, NULL);
	while (in.left) {
		int to = connect_here();

		for (int i = 0; i < REQUESTS && in.left && send_one(&in, to); i++)
			;
		close(to);
	}
	last = connect_here();
	PROMISE(send_one(&right, last) && send_one(&right, last) && !right.left);
	close(last);
	PROMISE(!has_left_some());
	return 0;
}
