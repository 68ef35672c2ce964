/* SPDX-License-Identifier: Apache-2.0 */
/* The importer's side of the descriptor service: see ask.h. */
#include <poll.h>
#include <sys/time.h>
#include <unistd.h>

#include "shim/base/clock.h"
#include "shim/self/self.h"
#include "shim/descriptors/ask.h"
#include "shim/descriptors/flight.h"
#include "shim/descriptors/address.h"
#include "shim/shm/gc.h"
#include "shim/shm/live.h"

#define MILLISECOND 1000000ull
#define LIFE_EVERY (50 * MILLISECOND) /* how often a waiting importer looks whether the exporter lives, and works */
#define CONNECT_EVERY (1000 * MILLISECOND) /* and while it waits for a place in the queue, which it then loses */
/* How long it waits before it asks again what the exporter could not send: at first, and at most. */
#define PAUSE_FIRST MILLISECOND
#define PAUSE_MOST (50 * MILLISECOND)
#define SILENT (1000 * MILLISECOND) /* an exporter that has not answered for so long counts as stopped */

/* A connection, and what came of the answers so far. */
struct asked {
	int socket;
	uint32_t total, first;
	uint64_t from; /* where the last piece ends */
	uint64_t until; /* of the last request */
	uint64_t runs;	/* of the caller's ranges so many end before .from */
	bool answered; /* on this connection */
	uint64_t served; /* the exporter's CL_LIVE_SERVED that the last look found, and that our own requests since make */
	struct cl_answer answer;
	int fds[CL_SERVE_BATCH];
	unsigned int n;
};

/* ---------------------------------------------------------------- the deadline */
/* While this process waits the exporter may work for others, and does not if it is stopped. */
static void look_at_others(struct cl_asking *asking, struct asked *asked)
{
	uint64_t served = cl_live_get(asking->region, CL_LIVE_SERVED);

	if (served <= asked->served)
		return;
	asked->served = served;
	if (asking->queues)
		cl_patience_put_off(&asking->wait);
}

/* --------------------------------------------------------------- the connection */
static bool is_exporter(const struct cl_region *region, const struct ucred *peer)
{
	const struct cl_identity *made = &region->header->exporter;

	if (peer->uid != geteuid())
		return false;
	if (cl_self.identity.pid_ns && cl_self.identity.pid_ns == made->pid_ns)
		return (uint32_t)peer->pid == made->pid;
	return !peer->pid || cl_region_is_locked_by(region, CL_LOCK_EXPORTER, (uint32_t)peer->pid);
}

/* connect() and send() wait for @ns at most. */
static int set_deadline(int fd, uint64_t ns)
{
	uint64_t us = ns / 1000 + 1;
	struct timeval wait = { (time_t)(us / 1000000), (suseconds_t)(us % 1000000) };

	return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait) ? -errno : 0;
}

/* Connects @fd.  Where many wait for the service, this one waits for a place in their queue. */
static int connect_in_time(struct cl_asking *asking, struct asked *asked, int fd, const struct sockaddr_un *address)
{
	for (;;) {
		int err = set_deadline(fd, cl_patience_wait(&asking->wait, CONNECT_EVERY));

		if (err)
			return err;
		err = connect(fd, (const struct sockaddr *)address, sizeof *address) ? -errno : 0;
		cl_patience_woke(&asking->wait);
		if (!err)
			return 0;
		if (err != -EINTR && err != -EAGAIN)
			return err;
		look_at_others(asking, asked);
		if (cl_gc_judge(asking->region) == CL_DEAD)
			return -ESRCH;
		/* the program may have closed our socket, and have another one there */
		if (!cl_flight_is_ours(fd))
			return -ECONNRESET;
		if (cl_patience_is_over(&asking->wait))
			return -ETIMEDOUT;
	}
}

/* Connects to the service of the exporter.  *@to is the socket, also if that fails, or -1. */
static int connect_to(struct cl_asking *asking, struct asked *asked, int *to)
{
	struct sockaddr_un address;
	struct ucred peer;
	socklen_t size = sizeof peer;
	int dirfd, fd, err = cl_serve_address(&address, asking->region->file_id, &dirfd);

	if (err)
		return err;
	cl_flight_begin();
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	fd = fd < 0 ? -errno : cl_flight_enter(fd);
	cl_flight_end();
	if (fd < 0) {
		err = fd;
	} else {
		*to = fd;
		err = connect_in_time(asking, asked, fd, &address);
		if (!err && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size))
			err = -errno;
		if (!err && !is_exporter(asking->region, &peer))
			err = -EPERM;
	}
	if (dirfd >= 0)
		close(dirfd);
	return err == -EACCES ? -EPERM : err;
}

static int send_request(const struct cl_asking *asking, struct asked *asked)
{
	struct cl_request request = { .file_id = asking->region->file_id, .record = asking->record,
				      .generation = asking->generation, .first = asked->first,
				      .offset = asking->offset, .from = asked->from, .until = UINT64_MAX };
	int err;

	request.most = cl_flight_most(CL_SERVE_BATCH);
	while (asked->runs < asking->runs && asking->run[asked->runs].end <= asked->from)
		asked->runs++;
	for (uint64_t i = asked->runs; i < asking->runs && request.runs < CL_SERVE_RUNS; i++)
		request.run[request.runs++] = asking->run[i];
	if (asking->runs - asked->runs > CL_SERVE_RUNS)
		request.until = request.run[CL_SERVE_RUNS - 1].end;
	asked->until = request.until;
	cl_serve_head_set(&request.head, sizeof request);
	do
		err = send(asked->socket, &request, sizeof request, MSG_NOSIGNAL) < 0 ? -errno : 0;
	while (err == -EINTR);
	return err == -EAGAIN ? -ETIMEDOUT : err;
}

/* Waits for a message.  A process that inherited the socket can keep it open after the exporter's death. */
static int wait_for_answer(struct cl_asking *asking, struct asked *asked)
{
	for (;;) {
		struct pollfd ready = { asked->socket, POLLIN, 0 };
		uint64_t ns = cl_patience_wait(&asking->wait, LIFE_EVERY);
		int n = poll(&ready, 1, (int)((ns + MILLISECOND - 1) / MILLISECOND)), err = n < 0 ? -errno : 0;

		cl_patience_woke(&asking->wait);
		if (n > 0)
			return 0;
		if (err && err != -EINTR)
			return err;
		if (cl_gc_judge(asking->region) == CL_DEAD)
			return -ESRCH;
		look_at_others(asking, asked);
		if (cl_patience_is_over(&asking->wait))
			return -ETIMEDOUT;
	}
}

/* ------------------------------------------------------------------ the answers */
static void close_rest(struct asked *asked, unsigned int from)
{
	cl_flight_close_all(asked->fds + from, asked->n - from);
	asked->n = 0;
}

/* Keeps the descriptors that came with @message.  Returns false if one of them could not be kept. */
static bool keep_descriptors(struct asked *asked, struct msghdr *message)
{
	unsigned int kept = 0;

	asked->n = 0;
	for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at; at = CMSG_NXTHDR(message, at)) {
		size_t bytes = at->cmsg_len - CMSG_LEN(0);

		if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS ||
		    asked->n + bytes / sizeof(int) > CL_SERVE_BATCH)
			continue;
		memcpy(asked->fds + asked->n, CMSG_DATA(at), bytes);
		asked->n += (unsigned int)(bytes / sizeof(int));
	}
	for (unsigned int i = 0; i < asked->n; i++) {
		int fd = cl_flight_enter(asked->fds[i]);

		if (fd >= 0)
			asked->fds[kept++] = fd;
	}
	if (kept == asked->n)
		return true;
	asked->n = kept;
	return false;
}

/* Returns 0 if the pieces come in order, and none lies where another one does. */
static int check_pieces(const struct asked *asked)
{
	uint64_t from = asked->from;

	for (uint32_t i = 0; i < asked->answer.count; i++) {
		const struct cl_piece *piece = &asked->answer.piece[i];

		if (!piece->size || piece->offset + piece->size < piece->offset)
			return -EBADMSG;
		/* mapped since the last batch, over the end of a piece of that */
		if (piece->offset < from)
			return i ? -EBADMSG : -ESTALE;
		from = piece->offset + piece->size;
	}
	return 0;
}

static int check_answer(const struct asked *asked, size_t got, int flags)
{
	const struct cl_answer *answer = &asked->answer;
	int err = cl_serve_head_check(&answer->head, got, sizeof *answer);

	if (err)
		return err;
	if (answer->error)
		return answer->error < 0 && answer->error > -4096 ? answer->error : -EBADMSG;
	/* the kernel could not give us all of them */
	if (flags & MSG_CTRUNC)
		return -EMFILE;
	if (answer->count != asked->n || answer->first != asked->first ||
	    answer->total > CL_SERVE_PIECES || answer->total < answer->first ||
	    answer->count > answer->total - answer->first || (!answer->count && answer->total != answer->first && asked->until == UINT64_MAX))
		return -EBADMSG;
	return check_pieces(asked);
}

static int receive(struct cl_asking *asking, struct asked *asked)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(CL_SERVE_BATCH * sizeof(int))];
	struct iovec bytes = { &asked->answer, sizeof asked->answer };
	struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof control };
	ssize_t got;
	int err = wait_for_answer(asking, asked);
	bool kept = false;

	if (err)
		return err;
	cl_flight_begin();
	do
		got = recvmsg(asked->socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT | MSG_TRUNC);
	while (got < 0 && errno == EINTR);
	err = got < 0 ? -errno : 0;
	/* a message without bytes may have descriptors */
	if (!err)
		kept = keep_descriptors(asked, &message);
	cl_flight_end();
	if (err)
		return err;
	err = !got ? -ECONNRESET : check_answer(asked, (size_t)got, message.msg_flags | (kept ? 0 : MSG_CTRUNC));
	if (err)
		close_rest(asked, 0);
	return err;
}

/* Asks for the next batch, and gives it to the caller.  Returns 0, or what ends the asking. */
static int next_batch(struct cl_asking *asking, struct asked *asked)
{
	int err = -ECONNRESET;

	look_at_others(asking, asked);
	asked->served++; /* what our own request gets counts, too */
	/* the program may have closed our socket, and have another one there */
	if (cl_flight_is_ours(asked->socket))
		err = send_request(asking, asked);
	/* a service that refuses us says why, and may not wait for our request */
	if (!err || err == -EPIPE)
		err = receive(asking, asked);
	if (err) {
		asked->served--;
		return err;
	}
	if (!asked->n)
		asked->served--;
	asked->answered = true;
	asked->total = asked->answer.total;
	if (!asked->n)
		asked->from = asked->until;
	for (unsigned int i = 0; i < asked->n; i++) {
		err = asking->take(asking->arg, &asked->answer.piece[i], asked->fds[i]);
		cl_flight_close(asked->fds[i]);
		if (err) {
			close_rest(asked, i + 1);
			return err;
		}
		asked->first++;
		asked->from = asked->answer.piece[i].offset + asked->answer.piece[i].size;
	}
	return 0;
}

/* @pieces have come.  If that is more than ever before, the exporter works for us. */
static void have_come(struct cl_asking *asking, uint32_t pieces)
{
	if (pieces <= asking->most)
		return;
	asking->most = pieces;
	cl_patience_put_off(&asking->wait);
}

/* Each attempt has the exporter make descriptors in vain: so they become rarer. */
static void wait_a_while(struct cl_asking *asking, uint64_t *pause)
{
	const struct timespec time = { 0, (long)cl_patience_wait(&asking->wait, *pause) };

	nanosleep(&time, NULL);
	cl_patience_woke(&asking->wait);
	*pause = *pause < PAUSE_MOST / 2 ? *pause * 2 : PAUSE_MOST;
}

int cl_ask(struct cl_asking *asking)
{
	struct asked asked = { .socket = -1, .total = 1, .served = cl_live_get(asking->region, CL_LIVE_SERVED) };
	uint64_t pause = PAUSE_FIRST;
	/* if the last answer said that no descriptors can be sent now: when the pause after it was over, cl_now(); else 0 */
	uint64_t none_sent = 0;
	int err = 0;

	cl_rank_none();
	while (!err && asked.first < asked.total) {
		if (cl_patience_is_over(&asking->wait))
			err = -ETIMEDOUT;
		else if (asked.socket < 0)
			err = connect_to(asking, &asked, &asked.socket);
		if (!err)
			err = next_batch(asking, &asked);
		if (!err) {
			have_come(asking, asked.first);
			pause = PAUSE_FIRST;
			none_sent = 0;
		}
		/* too much is under way to others */
		if (err == -EAGAIN) {
			wait_a_while(asking, &pause);
			none_sent = cl_now();
			err = 0;
		} else if (err == -ECONNRESET && asked.answered) {
			/* take() took so long that another peer got our place */
			cl_flight_hang_up(asked.socket);
			asked.socket = -1;
			asked.answered = false;
			err = 0;
		}
	}
	cl_flight_hang_up(asked.socket);
	/* also if the time was over while the next answer was under way; an exporter that is silent for longer has stopped */
	if (err == -ETIMEDOUT && none_sent && cl_now() - none_sent < SILENT)
		err = -ETOOMANYREFS;
	return err ? err : (int)asked.total;
}
