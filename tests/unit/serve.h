/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests of the descriptor service (test_serve*.c): exporters and importers, which are
 * processes.  An exporter does the jobs that the test gives it.  It has its state, and takes its
 * jobs, in memory that both map, so that it needs no descriptor for that.
 *
 * A piece is a memfd of PIECE bytes that its record decides, so that each byte can be checked.
 */
#ifndef CL_TEST_SERVE_H
#define CL_TEST_SERVE_H

#include "tests/unit/region.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "shim/self/self.h"
#include "shim/descriptors/ask.h"
#include "shim/descriptors/flight.h"
#include "shim/descriptors/server.h"
#include "shim/shm/gc.h"

enum { PIECE = 512, RECORDS = 1100, SOON = 20000 /* ms */ };

struct exporter {
	pid_t pid;
	void (*_Atomic job)(struct exporter *mine);
	_Atomic int done, result;
	uint32_t file_id;
	struct cl_served served; /* its counts, a moment ago */
	_Atomic uint32_t pieces; /* so many lie from the one that is .offset before the request's record */
	_Atomic uint32_t made;	 /* descriptors */
	/* called for each batch, when the descriptors were made, or none is because of .error */
	void (*_Atomic amid)(struct exporter *mine, const struct cl_request *request);
	_Atomic int kept; /* for the jobs */
	_Atomic int error; /* what each request gets instead of pieces, below 0; 0: none */
};

__attribute__((unused)) static struct exporter *exporters; /* shared memory */

/* ------------------------------------------------------------------ the exporter */
/* In the exporter's process, as the library has them. */
static struct cl_region own;
static struct cl_server server;

static inline unsigned char byte_of(uint32_t record, unsigned int i)
{
	return (unsigned char)(record * 31 + i * 7 + (record >> 8));
}

static inline int make_piece(uint32_t record)
{
	unsigned char bytes[PIECE];
	int fd = (int)syscall(SYS_memfd_create, "piece", 1u /* MFD_CLOEXEC */);

	for (unsigned int i = 0; i < PIECE; i++)
		bytes[i] = byte_of(record, i);
	if (fd >= 0)
		CHECK(write(fd, bytes, PIECE) == PIECE);
	return fd;
}

static inline bool has(const struct cl_request *request, uint64_t at, uint32_t *run)
{
	while (*run < request->runs && request->run[*run].end <= at)
		++*run;
	return *run < request->runs && request->run[*run].begin <= at;
}

static int export_pieces(void *arg, const struct cl_request *request, struct cl_piece *piece, int *fds, uint32_t *total)
{
	struct exporter *mine = arg;
	uint32_t first = request->record - (uint32_t)(request->offset / PIECE), run = 0;
	uint64_t from = request->from > request->offset ? request->from : request->offset;
	int n = 0, most;

	if (mine->error) {
		if (mine->amid)
			mine->amid(mine, request);
		return mine->error;
	}
	*total = request->first;
	for (uint64_t at = from; at < mine->pieces * (uint64_t)PIECE; at += PIECE)
		*total += !has(request, at, &run);
	run = *total - request->first;
	most = (int)cl_flight_most(run < CL_SERVE_BATCH ? run : CL_SERVE_BATCH);
	run = 0;
	for (uint64_t at = from; at < mine->pieces * (uint64_t)PIECE && at < request->until && n < most &&
				 n < (int)request->most; at += PIECE) {
		uint32_t record = first + (uint32_t)(at / PIECE);

		if (has(request, at, &run))
			continue;
		cl_flight_begin();
		fds[n] = make_piece(record);
		fds[n] = fds[n] < 0 ? -errno : cl_flight_enter(fds[n]);
		cl_flight_end();
		if (fds[n] < 0) {
			cl_flight_close_all(fds, (unsigned int)n);
			return fds[n];
		}
		piece[n++] = (struct cl_piece){ at, PIECE, record, cl_life_generation(cl_record_life(&own, record)) };
		mine->made++;
	}
	if (mine->amid)
		mine->amid(mine, request);
	return n;
}

static inline void export_and_serve(struct exporter *mine)
{
	child_begins();
	cl_identity_self(&cl_self.identity);
	CHECK_EQUAL(cl_region_create(&own, folder_fd, &cl_self.identity), 0);
	while (atomic_load(&own.header->record_chunks) < RECORDS / CL_CHUNK + 1)
		CHECK_EQUAL(cl_region_grow(&own), 0);
	for (uint32_t i = 0; i < RECORDS; i++)
		publish(&own, i, 1);
	server = (struct cl_server)CL_SERVER_INIT(&own, export_pieces, mine);
	mine->file_id = own.file_id;
	mine->pieces = 1;
	mine->done = 1;
	for (;;) {
		void (*job)(struct exporter *) = mine->job;

		if (job) {
			mine->job = NULL;
			job(mine);
			mine->done = 1;
		}
		memcpy((void *)&mine->served, (void *)&server.served, sizeof mine->served);
		test_moment();
	}
}

/* Starts exporter @i, which serves nothing yet. */
static inline struct exporter *start_exporter(unsigned int i)
{
	struct exporter *its = &exporters[i];
	pid_t pid;

	memset((void *)its, 0, sizeof *its);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		export_and_serve(its);
	its->pid = pid; /* as this process counts */
	CHECK(COMES_TRUE(its->done, SOON));
	return its;
}

/* Has @its do @job, and does not wait for its end. */
static inline void begin_job(struct exporter *its, void (*job)(struct exporter *))
{
	its->done = 0;
	its->job = job;
}
static inline int has_done(struct exporter *its)
{
	CHECK(COMES_TRUE(its->done, SOON));
	return its->result;
}
static inline int have(struct exporter *its, void (*job)(struct exporter *))
{
	begin_job(its, job);
	return has_done(its);
}

static inline void need(struct exporter *mine)
{
	mine->result = cl_server_need(&server, RECORDS - 1);
}
static inline void end(struct exporter *mine)
{
	mine->result = cl_server_end(&server, SOON * MS);
}
static inline struct exporter *start_serving(unsigned int i)
{
	struct exporter *its = start_exporter(i);

	CHECK_EQUAL(have(its, need), 0);
	return its;
}
static inline void kill_exporter(struct exporter *its)
{
	kill(its->pid, SIGKILL);
	CHECK(waitpid(its->pid, NULL, 0) == its->pid);
}

static inline unsigned int descriptors(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
	return count_entries(path);
}

/* The service's threads: a sanitizer may have one of its own. */
static inline unsigned int threads(const struct exporter *its)
{
	char path[320], name[16];
	unsigned int n = 0;
	DIR *dir;

	snprintf(path, sizeof path, "/proc/%d/task", (int)its->pid);
	dir = opendir(path);
	for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
		int fd;

		snprintf(path, sizeof path, "/proc/%d/task/%s/comm", (int)its->pid, entry->d_name);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		n += fd >= 0 && read(fd, name, sizeof name) == 8 && !memcmp(name, "culimbo\n", 8);
		if (fd >= 0)
			close(fd);
	}
	if (dir)
		closedir(dir);
	return n;
}

static inline void socket_path(const struct exporter *its, char path[108])
{
	snprintf(path, 108, "%s/serve-%06x", folder, its->file_id);
}
static inline bool has_socket(const struct exporter *its)
{
	char path[108];
	struct stat st;

	socket_path(its, path);
	return !lstat(path, &st) && S_ISSOCK(st.st_mode);
}

/* ------------------------------------------------------------------ the importer */
struct taken {
	unsigned int n;
	int *keep;			   /* the descriptors, if not NULL */
	int (*then)(struct taken *taken); /* after each piece, if not NULL */
	struct exporter *of;
};

static inline int take_piece(void *arg, const struct cl_piece *piece, int fd)
{
	struct taken *taken = arg;
	unsigned char bytes[PIECE + 1];

	CHECK_EQUAL(piece->offset, (uint64_t)taken->n * PIECE);
	CHECK_EQUAL(piece->size, PIECE);
	CHECK_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
	CHECK_EQUAL(pread(fd, bytes, sizeof bytes, 0), PIECE);
	for (unsigned int i = 0; i < PIECE; i++)
		CHECK_EQUAL(bytes[i], byte_of(piece->record, i));
	if (taken->keep)
		taken->keep[taken->n] = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	taken->n++;
	return taken->then ? taken->then(taken) : 0;
}

/* Asks @its for what starts at @record, with @taken to be filled in.  Leaves no descriptor. */
static inline int ask_of(struct exporter *its, uint32_t record, uint64_t ms, struct taken *taken)
{
	struct cl_region region;
	struct cl_asking asking = { .region = &region, .record = record, .wait.until = cl_now() + ms * MS,
				    .take = take_piece, .arg = taken };
	unsigned int before;
	int result;

	cl_identity_self(&cl_self.identity);
	CHECK_EQUAL(cl_region_open(&region, folder_fd, its->file_id, NULL), 0);
	before = descriptors(getpid());
	taken->of = its;
	result = cl_ask(&asking);
	/* a process that serves others has descriptors of theirs */
	if (!taken->keep && !server.session)
		CHECK(COMES_TRUE(descriptors(getpid()) == before, SOON)); /* another thread may just have one */
	cl_region_close(&region);
	return result;
}
static inline int ask_simply(struct exporter *its, uint64_t ms)
{
	struct taken taken = { 0 };
	int result = ask_of(its, 0, ms, &taken);

	if (result >= 0)
		CHECK_EQUAL(taken.n, result);
	return result;
}
/* The service works: one ask gets all pieces. */
#define CHECK_SERVES(its) CHECK_EQUAL(ask_simply(its, SOON), (its)->pieces)
#define COUNTS(its, what, n) COMES_TRUE((its)->served.what == (n), SOON)

/* A connection that the test itself uses.  Returns -errno if it cannot be made. */
static inline int connect_raw(const struct exporter *its, int flags)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0), err;

	CHECK(fd >= 0);
	socket_path(its, to.sun_path);
	if (!connect(fd, (struct sockaddr *)&to, sizeof to))
		return fd;
	err = -errno;
	close(fd);
	return err;
}

static inline struct cl_request request_of(const struct exporter *its)
{
	struct cl_request request = { .file_id = its->file_id, .until = UINT64_MAX, .most = CL_SERVE_BATCH };

	cl_serve_head_set(&request.head, sizeof request);
	return request;
}

/* Waits for an answer.  Returns its size, 0 for the end of the connection, or -errno. */
static inline ssize_t read_answer(int fd, struct cl_answer *answer)
{
	struct pollfd ready = { fd, POLLIN, 0 };
	ssize_t n;

	CHECK_EQUAL(poll(&ready, 1, SOON), 1);
	n = recv(fd, answer, sizeof *answer, 0);
	return n < 0 ? -errno : n;
}

/* --------------------------------------------------------------------- the tests */
static inline void set_limit(pid_t pid, rlim_t now)
{
	struct rlimit limit;

	/* the hard limit stays: valgrind lets nobody change it */
	CHECK(!prlimit(pid, RLIMIT_NOFILE, NULL, &limit));
	limit.rlim_cur = now < limit.rlim_max ? now : limit.rlim_max;
	CHECK(!prlimit(pid, RLIMIT_NOFILE, &limit, NULL));
}

/* Leaves as many descriptors free as .kept says, and no more. */
static inline void use_up(struct exporter *mine)
{
	static int opened[400];
	int n = 0;

	while ((opened[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
		n++;
	CHECK_EQUAL(errno, EMFILE);
	for (int i = 0; i < mine->kept; i++)
		close(opened[--n]);
}

/* Returns true if this process became user @id, which only root can. */
static inline bool become(uid_t id)
{
	return geteuid() == 0 && !setgid(id) && !setuid(id);
}
static inline bool become_other(void)
{
	return become(65534);
}

static inline int make_stage(void **state)
{
	if (make_folder(state))
		return -1;
	cl_options.dir.text = folder;
	cl_options.log.number = CL_LOG_ERROR;
	cl_options.settle.number = 20 * MS;
	exporters = mmap(NULL, 2 * sizeof *exporters, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return exporters == MAP_FAILED ? -1 : 0;
}
/* Ends what a test has left, and empties the folder. */
static inline int clear_stage(void **state)
{
	for (int i = 0; i < 2; i++)
		if (exporters[i].pid > 0) {
			kill(exporters[i].pid, SIGKILL);
			exporters[i].pid = 0;
		}
	chmod(folder, 0700);
	remove_folder_at(folder);
	return mkdir(folder, 0700) || (close(folder_fd), folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0;
}

#endif
