/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor service's thread, its start and its end: see server.h. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/base/clock.h"
#include "shim/base/descriptor.h"
#include "shim/base/own_fd.h"
#include "shim/base/thread.h"
#include "shim/self/self.h"
#include "shim/descriptors/flight.h"
#include "shim/descriptors/server.h"
#include "shim/descriptors/address.h"
#include "shim/shm/live.h"
#include "shim/shm/record.h"

#define MILLISECOND 1000000ull
/* The thread looks this often whether the program has closed its descriptors, because nothing wakes it then. */
#define LOOK_EVERY (10000 * MILLISECOND)
/* If there is no descriptor for a new peer, the thread accepts none for this long. */
#define SHORT_PAUSE (10 * MILLISECOND)

uint64_t cl_serve_look = MILLISECOND;

struct client {
	struct cl_own_fd socket;
	uint64_t since; /* when it came, or asked last */
};

/* A thread and its sockets.  The thread alone has .client, .n, .pause and .full. */
struct cl_session {
	struct cl_server *server;
	atomic_uint users; /* the server and the thread: the last one frees it */
	atomic_bool stop;
	pthread_t thread;
	struct cl_own_fd listener; /* the last user closes it */
	dev_t dev; /* of the socket's name */
	ino_t ino;
	struct sockaddr_un address; /* no path: it is too long, and found anew each time */
	uint64_t pause; /* until then new peers wait */
	bool full;	/* new peers wait for a place */
	unsigned int n;
	struct client client[CL_SERVE_CLIENTS];
	struct cl_answer answer;
};

static void put(struct cl_session *session)
{
	if (atomic_fetch_sub(&session->users, 1) != 1)
		return;
	cl_own_fd_close(&session->listener);
	free(session);
}

/* --------------------------------------------------------------------- answers */
bool cl_serve_is_live(const struct cl_region *region, uint32_t record, uint32_t generation)
{
	uint64_t life = cl_record_life(region, record);

	return cl_life_generation(life) == generation &&
	       (cl_life_state(life) == CL_EXPORTED || cl_life_state(life) == CL_LIMBO);
}

static int check(const struct cl_server *server, const struct cl_request *request, size_t got)
{
	int err = cl_serve_head_check(&request->head, got, sizeof *request);

	if (err)
		return err;
	if (!cl_serve_request_check(request))
		return -EBADMSG;
	return request->file_id == server->region->file_id && request->record < server->records &&
			       cl_serve_is_live(server->region, request->record, request->generation) ?
		       0 :
		       -ESTALE;
}

/* Sends the answer with @n descriptors.  Returns 0 or -errno; never waits. */
static int send_answer(int to, const struct cl_answer *answer, const int *fds, unsigned int n)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(CL_SERVE_BATCH * sizeof *fds)] = { 0 };
	struct iovec bytes = { (void *)answer, sizeof *answer };
	struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1 };
	ssize_t sent;

	if (n) {
		struct cmsghdr *rights;

		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(n * sizeof *fds);
		rights = CMSG_FIRSTHDR(&message);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(n * sizeof *fds);
		memcpy(CMSG_DATA(rights), fds, n * sizeof *fds);
	}
	do
		sent = sendmsg(to, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -errno : 0;
}

/* Sends @error and no piece. */
static int send_error(struct cl_session *session, int to, int error)
{
	memset(&session->answer, 0, sizeof session->answer);
	cl_serve_head_set(&session->answer.head, sizeof session->answer);
	session->answer.error = error;
	return send_answer(to, &session->answer, NULL, 0);
}

/* Fills in the answer and @fds.  Returns how many, or -errno with none left open. */
static int get_pieces(struct cl_session *session, const struct cl_request *request, int *fds)
{
	struct cl_server *server = session->server;
	struct cl_answer *answer = &session->answer;
	int n, live;

	memset(answer, 0, sizeof *answer);
	cl_serve_head_set(&answer->head, sizeof *answer);
	n = server->export(server->arg, request, answer->piece, fds, &answer->total);
	if (n < 0)
		return n;
	answer->first = request->first;
	answer->count = (uint32_t)n;
	/*
	 * The exporter ends a generation before it frees the memory.  So if the generation still lives here,
	 * the descriptors above are of it.
	 */
	atomic_thread_fence(memory_order_seq_cst);
	live = cl_serve_is_live(server->region, request->record, request->generation);
	for (int i = 0; i < n; i++)
		live &= cl_serve_is_live(server->region, answer->piece[i].record, answer->piece[i].generation);
	if (live)
		return n;
	cl_flight_close_all(fds, (unsigned int)n);
	return -ESTALE;
}

/* An answer with @n descriptors was sent. */
static void count_answer(struct cl_server *server, int n)
{
	server->served.answers++;
	if (n)
		cl_live_add(server->region, CL_LIVE_SERVED, 1); /* for those whose turn has not come */
}

/* Answers one request.  Returns false if the peer is to lose its place. */
static bool answer(struct cl_session *session, struct client *client)
{
	struct cl_served *served = &session->server->served;
	int fds[CL_SERVE_BATCH], to = client->socket.fd, n, err;
	struct cl_request request;
	ssize_t got = recv(to, &request, sizeof request, MSG_DONTWAIT | MSG_TRUNC);

	if (got <= 0)
		return got < 0 && (errno == EAGAIN || errno == EINTR);
	client->since = cl_now();
	n = check(session->server, &request, (size_t)got);
	if (n == -EBADMSG || n == -EPROTO) {
		served->malformed++;
		send_error(session, to, n);
		return false;
	}
	if (!n)
		n = get_pieces(session, &request, fds);
	if (n >= 0) {
		err = send_answer(to, &session->answer, fds, (unsigned int)n);
		cl_flight_close_all(fds, (unsigned int)n);
		/* too many descriptors of this user are under way to others: the peer asks again */
		if (err == -ETOOMANYREFS)
			err = send_error(session, to, -EAGAIN);
		else if (!err)
			count_answer(session->server, n);
	} else {
		served->shortages += n == -EMFILE || n == -ENFILE;
		err = send_error(session, to, n);
	}
	served->dropped += err == -EAGAIN;
	return !err;
}

/* ----------------------------------------------------------------------- peers */
/* Ends the connection by shutdown(): a forked child may have the socket open, too, and the peer must see the end. */
static void hang_up(struct cl_own_fd *own)
{
	if (cl_own_fd_is_ours(own))
		shutdown(own->fd, SHUT_RDWR);
	cl_own_fd_close(own);
}

static void drop(struct cl_session *session, unsigned int i)
{
	cl_flight_begin();
	hang_up(&session->client[i].socket);
	session->client[i] = session->client[--session->n];
	session->client[session->n].socket = (struct cl_own_fd){ .fd = -1 };
	cl_flight_end();
}

/*
 * Tells a new peer why it gets no place.  The peer cannot send from the shutdown() on: a request that
 * we close the socket without having read would hide our answer.
 */
static void refuse(struct cl_session *session, int fd, int error)
{
	char any;

	shutdown(fd, SHUT_RD);
	while (recv(fd, &any, sizeof any, MSG_DONTWAIT) > 0)
		;
	send_error(session, fd, error);
	close(fd);
}

/* Accepts a peer with the one descriptor that was kept for such a moment, and tells it. */
static bool turn_away(struct cl_session *session)
{
	int fd = -1;

	if (cl_self_spare_release()) {
		fd = accept4(session->listener.fd, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0) {
			session->server->served.shortages++;
			refuse(session, fd, -EMFILE);
		}
		cl_self_spare_restore();
	}
	return fd >= 0;
}

/* Accepts one peer.  Returns false if there is none, or no descriptor for it. */
static bool take_one(struct cl_session *session)
{
	int fd = accept4(session->listener.fd, NULL, NULL, SOCK_CLOEXEC);
	struct ucred peer = { .uid = (uid_t)-1 };
	socklen_t size = sizeof peer;
	struct cl_own_fd own;

	if (fd < 0) {
		if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
			return false;
		if (turn_away(session))
			return true;
		session->pause = cl_now() + SHORT_PAUSE;
		return false;
	}
	own = cl_own_fd_of(cl_fd_move_high(fd, &cl_self_known.room));
	if (own.fd < 0)
		return true;
	if (getsockopt(own.fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) || peer.uid != geteuid()) {
		session->server->served.strangers++;
		refuse(session, own.fd, -EPERM);
		return true;
	}
	session->client[session->n++] = (struct client){ own, cl_now() };
	return true;
}

/* The places that are taken are a quarter of the descriptors that the program has left at most, or one. */
static bool is_full(const struct cl_session *session)
{
	unsigned int enough = 4 * (session->n + 1);

	return session->n == CL_SERVE_CLIENTS || (session->n && cl_fd_count_free(enough) < enough);
}

static void take_new(struct cl_session *session)
{
	bool more = true;

	/* bounded, so that a flood of new peers keeps no old one waiting */
	for (unsigned int i = 0; more && i < CL_SERVE_CLIENTS; i++) {
		session->full = is_full(session);
		if (session->full)
			return;
		cl_flight_begin();
		more = take_one(session);
		cl_flight_end();
	}
}

static uint64_t patience(const struct cl_session *session)
{
	return session->full ? CL_SERVE_CROWDED : CL_SERVE_IDLE;
}

/* Drops the peers that had not asked in time at @now, which is before the last answers: these take time of their own. */
static void drop_late(struct cl_session *session, uint64_t now)
{
	uint64_t wait = patience(session);

	for (unsigned int i = session->n; i-- > 0;)
		if (now > session->client[i].since && now - session->client[i].since >= wait) {
			session->server->served.dropped++;
			drop(session, i);
		}
}

/* ------------------------------------------------------------------ the thread */
/* Waits for peers.  @ready gets the listener's events, then each client's. */
static void wait_for_peers(struct cl_session *session, struct pollfd *ready)
{
	const struct timespec pause = { 0, SHORT_PAUSE };
	uint64_t now = cl_now(), until = now + LOOK_EVERY;
	bool paused = session->pause > now;

	/* the program may have closed files of its own since */
	if (session->full)
		session->full = is_full(session);
	/* without POLLIN it still says that it was shut down */
	ready[0] = (struct pollfd){ session->listener.fd, paused || session->full ? 0 : POLLIN, 0 };
	if (paused && session->pause < until)
		until = session->pause;
	for (unsigned int i = 0; i < session->n; i++) {
		uint64_t late = session->client[i].since + patience(session);

		ready[1 + i] = (struct pollfd){ session->client[i].socket.fd, POLLIN, 0 };
		if (late < until)
			until = late;
	}
	if (poll(ready, 1 + session->n, until > now ? (int)((until - now) / MILLISECOND) + 1 : 0) < 0) {
		/* without memory for poll() the thread must not spin */
		if (errno != EINTR)
			nanosleep(&pause, NULL);
		for (unsigned int i = 0; i < 1 + session->n; i++)
			ready[i].revents = 0;
	}
}

static void *server_main(void *of)
{
	struct cl_session *session = of;
	struct pollfd ready[1 + CL_SERVE_CLIENTS];
	uint64_t woken;

	cl_thread_begin();
	for (;;) {
		wait_for_peers(session, ready);
		woken = cl_now();
		if (atomic_load(&session->stop) || (ready[0].revents & ~POLLIN) || !cl_own_fd_is_ours(&session->listener))
			break;
		/* from the last one on: whoever takes a lost place has had its turn */
		for (unsigned int i = session->n; i-- > 0;)
			if (ready[1 + i].revents && (!cl_own_fd_is_ours(&session->client[i].socket) ||
						     !answer(session, &session->client[i])))
				drop(session, i);
		drop_late(session, woken);
		if (ready[0].revents)
			take_new(session);
	}
	while (session->n)
		drop(session, session->n - 1);
	/* not closed: another thread may look at it */
	if (cl_own_fd_is_ours(&session->listener))
		shutdown(session->listener.fd, SHUT_RDWR);
	put(session);
	return NULL;
}

/* --------------------------------------------------------------- start and end */
/* Returns true if the name is still that of the session's socket. */
static __attribute__((noinline)) bool has_name(const struct cl_session *session, const char *path)
{
	struct stat st;

	return !fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) && st.st_dev == session->dev &&
	       st.st_ino == session->ino;
}

static bool is_up(const struct cl_session *session)
{
	struct sockaddr_un address;
	int dirfd;
	bool up;

	if (!cl_own_fd_is_ours(&session->listener))
		return false;
	if (*session->address.sun_path)
		return has_name(session, session->address.sun_path);
	if (cl_serve_address(&address, session->server->region->file_id, &dirfd))
		return false;
	up = has_name(session, address.sun_path);
	if (dirfd >= 0)
		close(dirfd);
	return up;
}

/* Binds @fd to @address, and listens.  Returns 0, or -errno and leaves no name. */
static int bind_to(struct cl_session *session, int fd, const struct sockaddr_un *address)
{
	const char *path = address->sun_path;
	struct stat st;
	int err;

	/* the file's id is ours, so a socket of ours with this name is a lost one */
	if (!fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) && S_ISSOCK(st.st_mode) && st.st_uid == geteuid())
		unlinkat(AT_FDCWD, path, 0);
	if (bind(fd, (const struct sockaddr *)address, sizeof *address))
		return -errno;
	err = fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
	session->dev = st.st_dev;
	session->ino = st.st_ino;
	/* nobody can connect before listen(); a umask may deny its owner to */
	if (!err && fchmodat(AT_FDCWD, path, 0600, 0))
		err = -errno;
	if (!err && listen(fd, CL_SERVE_CLIENTS))
		err = -errno;
	if (err)
		unlinkat(AT_FDCWD, path, 0);
	return err;
}

static int open_socket(struct cl_session *session)
{
	struct sockaddr_un address;
	int dirfd, err = cl_serve_address(&address, session->server->region->file_id, &dirfd);
	int fd;

	if (err)
		return err;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		err = -errno;
	} else {
		session->listener = cl_own_fd_of(cl_fd_move_high(fd, &cl_self_known.room));
		err = bind_to(session, session->listener.fd, &address);
		if (err)
			cl_own_fd_close(&session->listener);
		else if (dirfd < 0)
			session->address = address;
	}
	if (dirfd >= 0)
		close(dirfd);
	return err;
}

static void remove_name(const struct cl_session *session)
{
	struct sockaddr_un address;
	int dirfd;

	if (cl_serve_address(&address, session->server->region->file_id, &dirfd))
		return;
	if (has_name(session, address.sun_path))
		unlinkat(AT_FDCWD, address.sun_path, 0);
	if (dirfd >= 0)
		close(dirfd);
}

static int begin_locked(struct cl_server *server)
{
	struct cl_session *session = calloc(1, sizeof *session);
	int err;

	if (!session)
		return -ENOMEM;
	session->server = server;
	atomic_init(&session->users, 2);
	cl_self_spare_restore();
	err = open_socket(session);
	if (!err) {
		err = -cl_thread_start(&session->thread, server_main, session);
		if (!err) {
			server->session = session;
			server->pid = getpid();
			return 0;
		}
		remove_name(session);
		hang_up(&session->listener);
	}
	free(session);
	return err;
}

/* A connection wakes a thread whose listening descriptor the program has closed. */
static void knock(const struct cl_session *session)
{
	struct sockaddr_un address;
	int dirfd, fd;

	if (cl_serve_address(&address, session->server->region->file_id, &dirfd))
		return;
	cl_flight_begin();
	fd = has_name(session, address.sun_path) ? socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
	if (fd >= 0) {
		(void)!connect(fd, (struct sockaddr *)&address, sizeof address);
		close(fd);
	}
	cl_flight_end();
	if (dirfd >= 0)
		close(dirfd);
}

/* Has the thread end.  It may be in the callback meanwhile. */
static void stop(struct cl_session *session)
{
	atomic_store(&session->stop, true);
	if (cl_own_fd_is_ours(&session->listener))
		shutdown(session->listener.fd, SHUT_RDWR);
	else
		knock(session);
	remove_name(session);
}

int cl_server_need(struct cl_server *server, uint32_t record)
{
	uint64_t now = cl_now();
	int err = 0;

	cl_lock(&server->lock);
	if (record >= server->records)
		server->records = record + 1;
	if (server->session && !is_up(server->session)) {
		stop(server->session);
		pthread_detach(server->session->thread);
		put(server->session);
		server->session = NULL;
	}
	if (server->ended) {
		err = -ESHUTDOWN;
	} else if (!server->session) {
		cl_flight_begin();
		err = begin_locked(server);
		cl_flight_end();
	}
	server->looked = err ? 0 : now;
	cl_unlock(&server->lock);
	return err;
}

bool cl_server_end(struct cl_server *server, uint64_t wait)
{
	struct timespec until = cl_after(wait);
	struct cl_session *session;
	bool ended;

	/* a child without fork handlers: the thread, the socket and its name are its parent's, and so may be the lock */
	if (server->pid && server->pid != getpid())
		return true;
	server->ended = true;
	server->looked = 0;
	/* a signal handler may be ending the process in the very thread that holds the lock */
	if (!cl_lock_until(&server->lock, &until))
		return false;
	session = server->session;
	server->session = NULL;
	server->looked = 0; /* a thread that had the lock may have set it */
	if (session)
		stop(session);
	cl_unlock(&server->lock);
	if (!session)
		return true;
	ended = pthread_equal(session->thread, pthread_self()) || !cl_join_until(session->thread, NULL, &until);
	if (!ended)
		pthread_detach(session->thread);
	put(session);
	return ended;
}

void cl_server_forget(struct cl_server *server)
{
	struct cl_session *session = server->session;

	/* the memory stays: a child without fork handlers may not call free() */
	if (session) {
		cl_own_fd_close(&session->listener);
		for (unsigned int i = 0; i < CL_SERVE_CLIENTS; i++)
			if (session->client[i].socket.ino)
				cl_own_fd_close(&session->client[i].socket);
	}
	server->session = NULL;
	server->pid = 0;
	server->ended = false;
	server->looked = 0;
	server->records = 0;
	memset(&server->served, 0, sizeof server->served);
	cl_lock_reset(&server->lock);
}
