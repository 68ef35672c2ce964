/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the trace: see trace.h, and trace_layout.h for the file. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shim/base/log.h"
#include "shim/shm/map_place.h"
#include "shim/self/self.h"
#include "shim/diag/trace.h"

/*
 * How many names for the file are tried.  This process may have taken the first before an exec, or a process of
 * another PID namespace.
 */
enum { NAMES = 64 };
#define STACKS_MOST (2ull << 20) /* bytes for call stacks; a small file has an eighth of its size for them */
#define WAIT_FOR_MAKER 100000000ull /* ns that a thread waits for another one that makes the file */

enum { NOT_MADE, MAKING, MADE, FAILED };

/*
 * This lies on a page of its own, which the kernel clears in a forked child.  So a child never
 * has its parent's trace, however it was forked.
 */
struct live {
	_Atomic int state;
	uint32_t pid;
	struct cl_trace_header *header;
	struct cl_trace_record *record;
	uint64_t records;
	char *stacks;
	uint64_t stacks_size;
};
static struct live *_Atomic live_page;

/* This thread's id, in process @pid. */
static __thread struct {
	uint32_t pid, tid;
	bool in_creation;
} self __attribute__((tls_model("initial-exec")));

/* ------------------------------------------------------------------- the file */
static void read_small(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, size - 1);

	if (fd >= 0)
		close(fd);
	if (n < 0)
		n = 0;
	while (n && (!text[n - 1] || text[n - 1] == '\n'))
		n--;
	for (ssize_t i = 0; i < n; i++)
		if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
			text[i] = ' ';
	text[n] = 0;
}

/* Makes a path from CULIMBO_TRACE: adds .PID if it names none, and .@number from the second on. */
static int make_path(char *path, size_t size, unsigned int number)
{
	const char *pattern = cl_options.trace.text;
	int err = cl_path_expand(path, size, pattern);
	size_t n = strlen(path);
	int more = 0;

	if (!err && !cl_path_has_pid(pattern))
		more = snprintf(path + n, size - n, ".%ld", (long)getpid());
	if (!err && number > 1 && more < (int)(size - n)) {
		n += (size_t)more;
		more = snprintf(path + n, size - n, ".%u", number);
	}
	return err || more < (int)(size - n) ? err : -ENAMETOOLONG;
}

/*
 * Looks at the file that has the name we want.  Returns 0 if the name is free, also because it
 * was a dead process's trace, which this removes; -EAGAIN if it is a trace that must stay; -EEXIST
 * if it is no trace; or another -errno.
 */
static int clear_old(const char *path, const struct cl_identity *who)
{
	struct cl_trace_header old;
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), err = 0;

	if (fd < 0)
		return errno == ENOENT ? 0 : -EEXIST;
	if (read(fd, &old, sizeof old) != sizeof old || memcmp(&old, CL_TRACE_MAGIC, 8))
		err = -EEXIST;
	/* a trace's writer has this lock for as long as it maps the file */
	else if (syscall(SYS_flock, fd, LOCK_EX | LOCK_NB) ||
		 (old.who.pid == who->pid && old.who.start_time == who->start_time &&
		  old.who.pid_ns == who->pid_ns))
		err = -EAGAIN;
	else if (unlinkat(AT_FDCWD, path, 0))
		err = -errno;
	close(fd);
	return err;
}

/* Creates the trace file by the first name that is free, which it writes to @path.  Returns a descriptor, or -errno. */
static int create(char *path, size_t size, const struct cl_identity *who)
{
	int err = 0;

	for (unsigned int number = 1; number <= NAMES && !err; number++) {
		for (int tries = 0; tries < 4 && !err; tries++) {
			int fd;

			err = make_path(path, size, number);
			if (err)
				break;
			fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY,
				  0600);
			if (fd >= 0)
				return fd;
			err = errno == EEXIST ? clear_old(path, who) : -errno;
		}
		if (err == -EAGAIN)
			err = 0;
	}
	return err ? err : -EEXIST;
}

static int allocate(int fd, uint64_t size)
{
	struct rlimit limit;
	int err;

	/* beyond this limit fallocate() would not only fail but raise SIGXFSZ */
	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < size)
		return -EFBIG;
	/* all memory is got here, so that a full disk later is no SIGBUS */
	do
		err = fallocate(fd, 0, 0, (off_t)size) ? -errno : 0;
	while (err == -EINTR);
	return err;
}

static void fill_header(struct cl_trace_header *h, const struct cl_identity *who, uint64_t records)
{
	struct timespec real;
	uint64_t magic;

	h->version = CL_TRACE_VERSION;
	h->header_size = CL_TRACE_HEADER_SIZE;
	h->record_size = sizeof(struct cl_trace_record);
	h->uid = geteuid();
	h->records = records;
	h->who = *who;
	cl_boot_id(h->boot_id);
	h->monotonic = cl_now();
	clock_gettime(CLOCK_REALTIME, &real);
	h->realtime = (uint64_t)real.tv_sec * 1000000000u + (uint64_t)real.tv_nsec;
	read_small("/proc/self/comm", h->name, sizeof h->name);
	read_small("/proc/self/cmdline", h->command, sizeof h->command);
	memcpy(&magic, CL_TRACE_MAGIC, sizeof magic);
	/* release: a reader that sees the magic sees the rest */
	atomic_store_explicit(&h->magic, magic, memory_order_release);
}

__attribute__((noinline)) static int make(struct live *live)
{
	uint64_t size = cl_options.trace_size.number / CL_TRACE_HEADER_SIZE * CL_TRACE_HEADER_SIZE;
	uint64_t room = size / 8 < STACKS_MOST ? size / 8 / CL_PAGE * CL_PAGE : STACKS_MOST;
	struct cl_identity who;
	char path[PATH_MAX];
	void *map;
	int fd, err;

	cl_identity_self(&who);
	path[0] = 0;
	fd = create(path, sizeof path, &who);
	err = fd < 0 ? fd : allocate(fd, size);
	if (!err) {
		/* the mapping keeps the lock when the descriptor is closed; see clear_old() */
		syscall(SYS_flock, fd, LOCK_EX | LOCK_NB);
		map = cl_map_away((uint32_t)getpid(), size, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
		err = map == MAP_FAILED ? -errno : 0;
	}
	if (err) {
		cl_log(CL_LOG_ERROR,
		       "cannot make the trace file \"%s\" of %llu bytes: %s; this process is not traced%s",
		       path, (unsigned long long)size, strerror(-err),
		       err == -EEXIST ? "; the file that is there is not a trace, so culimbo leaves it alone" : "");
		if (fd >= 0) {
			unlinkat(AT_FDCWD, path, 0);
			close(fd);
		}
		return err;
	}
	close(fd);
	live->pid = (uint32_t)getpid();
	live->header = map;
	live->record = (void *)((char *)map + CL_TRACE_HEADER_SIZE);
	live->stacks_size = room;
	live->stacks = (char *)map + size - room;
	live->records = (size - room - CL_TRACE_HEADER_SIZE) / sizeof(struct cl_trace_record);
	live->header->stacks = size - room;
	fill_header(live->header, &who, live->records);
	return 0;
}

static struct live *get_page(void)
{
	struct live *page = atomic_load_explicit(&live_page, memory_order_acquire), *none = NULL;

	if (page)
		return page;
	page = mmap(NULL, CL_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return NULL;
	/* a kernel before 4.14 can't: then cl_trace_forget() does it, in processes that share */
	madvise(page, CL_PAGE, MADV_WIPEONFORK);
	if (atomic_compare_exchange_strong(&live_page, &none, page))
		return page;
	munmap(page, CL_PAGE);
	return none;
}

/* Before the first record: makes the file.  Returns NULL if the record cannot be written. */
__attribute__((noinline)) static struct live *begin(void)
{
	CL_UNCANCELLED;
	struct live *live = get_page();
	int state = NOT_MADE;
	uint64_t until;

	/* in_creation: this is a signal handler, which has interrupted its thread while that was making the file */
	if (!live || self.in_creation)
		return NULL;
	if (atomic_compare_exchange_strong(&live->state, &state, MAKING)) {
		self.in_creation = true;
		state = make(live) ? FAILED : MADE;
		self.in_creation = false;
		if (state == FAILED) /* not tried again, because an attempt makes system calls */
			atomic_fetch_and_explicit(&cl_sharing_flag, ~CL_TRACES, memory_order_relaxed);
		atomic_store_explicit(&live->state, state, memory_order_release);
	}
	until = cl_now() + WAIT_FOR_MAKER;
	while (state == MAKING && cl_now() < until) {
		struct timespec moment = { 0, 50000 };

		nanosleep(&moment, NULL);
		state = atomic_load_explicit(&live->state, memory_order_acquire);
	}
	return state == MADE ? live : NULL;
}

/* ---------------------------------------------------------------- the records */
void cl_trace_write(struct cl_trace_event *e)
{
	struct live *live = atomic_load_explicit(&live_page, memory_order_acquire);
	uint64_t word[CL_TRACE_WORDS], number;
	struct cl_trace_record *r;
	int saved = errno;

	/* reads the clock before the file is made, which takes longer than the call that is recorded */
	if (!e->when)
		e->when = cl_now();
	if (!live || atomic_load_explicit(&live->state, memory_order_acquire) != MADE)
		live = begin();
	if (!live)
		goto out;
	if (self.pid != live->pid) {
		self.tid = (uint32_t)syscall(SYS_gettid);
		self.pid = live->pid;
	}
	e->tid = self.tid;
	memcpy(word, e, sizeof word);
	number = atomic_fetch_add_explicit(&live->header->next, 1, memory_order_relaxed);
	r = &live->record[number % live->records];
	for (unsigned int i = 0; i < CL_TRACE_WORDS; i++)
		atomic_store_explicit(&r->word[i], word[i], memory_order_relaxed);
	/* release: a reader that sees the seal sees its words, or words that do not match it */
	atomic_store_explicit(&r->seal, cl_trace_seal(number, word), memory_order_release);
out:
	errno = saved;
}

void cl_trace_begin(void)
{
	if (cl_options.trace.text && *cl_options.trace.text && !cl_options.disable.number)
		atomic_fetch_or_explicit(&cl_sharing_flag, CL_TRACES, memory_order_relaxed);
}

uint64_t cl_trace_now(void)
{
	return cl_now();
}

void cl_trace_allocated(const CUdeviceptr *dptr, size_t bytes, CUresult result)
{
	if (result == CUDA_SUCCESS && dptr)
		cl_trace(CL_TRACE_ALLOCATED, .kind = CL_MEMORY, .key = *dptr, .size = bytes);
}

void cl_trace_freed(CUdeviceptr dptr, uint64_t began)
{
	cl_trace(CL_TRACE_FREED, .when = began, .kind = CL_MEMORY, .key = dptr);
}

void cl_trace_end(void)
{
	struct live *live = atomic_load_explicit(&live_page, memory_order_acquire);

	if (live && atomic_load_explicit(&live->state, memory_order_acquire) == MADE)
		cl_trace(CL_TRACE_ENDED);
}

char *cl_trace_room_for_stacks(uint64_t *size)
{
	struct live *live = atomic_load_explicit(&live_page, memory_order_acquire);

	if (!live || atomic_load_explicit(&live->state, memory_order_acquire) != MADE)
		return NULL;
	*size = live->stacks_size;
	return live->stacks;
}

void cl_trace_has_stacks(uint32_t modules, uint32_t words)
{
	struct cl_trace_header *h = atomic_load_explicit(&live_page, memory_order_acquire)->header;

	atomic_store_explicit(&h->modules, modules, memory_order_relaxed);
	/* release: a reader that sees the count reads what it counts */
	atomic_store_explicit(&h->stack_words, words, memory_order_release);
}

void cl_trace_forget(void)
{
	struct live *page = atomic_load_explicit(&live_page, memory_order_relaxed);

	if (page)
		memset(page, 0, sizeof *page);
}
