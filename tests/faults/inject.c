/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fails chosen calls of libculimbo.  It is preloaded after libculimbo, so those calls come
 * here before they reach libc; see inject.h.
 *
 * A call counts if its return address lies in libculimbo.so.  The last call of a function
 * may be a jump; then the return address is in the function's caller.  That is libculimbo
 * as well, since no public function ends in such a jump.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "tests/faults/inject.h"

struct inject_plan *inject_plan;
const struct inject_row inject_rows[INJECT_CALLS_N] = {
#define X(name, ...) { #name, { __VA_ARGS__ } },
	INJECT_CALLS(X)
#undef X
};

/* ------------------------------------------------------------ whose call it is */
static uintptr_t from, until; /* libculimbo.so */

static int look(struct dl_phdr_info *object, size_t size, void *unused)
{
	if (!object->dlpi_name || !strstr(object->dlpi_name, "/libculimbo.so"))
		return 0;
	from = UINTPTR_MAX;
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];
		uintptr_t begin = object->dlpi_addr + part->p_vaddr;

		if (part->p_type != PT_LOAD)
			continue;
		if (begin < from)
			from = begin;
		if (begin + part->p_memsz > until)
			until = begin + part->p_memsz;
	}
	return 1;
}

__attribute__((constructor)) static void find_libculimbo(void)
{
	dl_iterate_phdr(look, NULL);
}

/* Returns the error to fail this call with, or 0. */
static int due(enum inject_call call, const void *caller)
{
	struct inject_plan *plan = inject_plan;
	int made;

	if (!plan || (uintptr_t)caller < from || (uintptr_t)caller >= until ||
	    atomic_load(&plan->pid) != getpid())
		return 0;
	made = atomic_fetch_add(&plan->made[call], 1) + 1;
	if (call != (enum inject_call)plan->call || !plan->nth ||
	    (plan->for_good ? made < plan->nth : made != plan->nth))
		return 0;
	atomic_fetch_add(&plan->failed, 1);
	return plan->error;
}

/* --------------------------------------------------------------------- the calls */
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_malloc(size_t size);
extern void *__libc_realloc(void *old, size_t size);
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *dso);

#define NEXT(name)                                                             \
	static __typeof__(name) *next;                                         \
	if (!next)                                                             \
		next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
/* For calls that set errno on failure. */
#define OR_FAIL(name, failure)                                                 \
	do {                                                                   \
		int error_ = due(INJECT_##name, __builtin_return_address(0));  \
		if (error_) {                                                  \
			errno = error_;                                        \
			return failure;                                        \
		}                                                              \
	} while (0)
/* For calls that return the error. */
#define OR_RETURN(name)                                                        \
	do {                                                                   \
		int error_ = due(INJECT_##name, __builtin_return_address(0));  \
		if (error_)                                                    \
			return error_;                                         \
	} while (0)

/* not looked up, since libc's dlsym() allocates */
void *calloc(size_t n, size_t size)
{
	OR_FAIL(calloc, NULL);
	return __libc_calloc(n, size);
}
void *malloc(size_t size)
{
	OR_FAIL(malloc, NULL);
	return __libc_malloc(size);
}
void *realloc(void *old, size_t size)
{
	OR_FAIL(realloc, NULL);
	return __libc_realloc(old, size);
}

static mode_t mode_in(int flags, va_list args)
{
	return flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0;
}
int open(const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;
	NEXT(open);

	va_start(args, flags);
	mode = mode_in(flags, args);
	va_end(args);
	OR_FAIL(open, -1);
	return next(path, flags, mode);
}
int openat(int dir, const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;
	NEXT(openat);

	va_start(args, flags);
	mode = mode_in(flags, args);
	va_end(args);
	OR_FAIL(openat, -1);
	return next(dir, path, flags, mode);
}
int fcntl(int fd, int cmd, ...)
{
	va_list args;
	void *arg;
	NEXT(fcntl);

	va_start(args, cmd);
	arg = va_arg(args, void *);
	va_end(args);
	OR_FAIL(fcntl, -1);
	return next(fd, cmd, arg);
}
long syscall(long number, ...)
{
	va_list args;
	long a[6];
	NEXT(syscall);

	va_start(args, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	OR_FAIL(syscall, -1);
	return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
void *mremap(void *at, size_t n, size_t more, int flags, ...)
{
	va_list args;
	void *to;
	NEXT(mremap);

	va_start(args, flags);
	to = flags & MREMAP_FIXED ? va_arg(args, void *) : NULL;
	va_end(args);
	OR_FAIL(mremap, MAP_FAILED);
	return next(at, n, more, flags, to);
}
/* On Linux a close() that fails has closed the descriptor. */
int close(int fd)
{
	NEXT(close);
	int result = next(fd);

	OR_FAIL(close, -1);
	return result;
}

#define SIMPLE(type, name, failure, params, args)                              \
	type name params                                                       \
	{                                                                      \
		NEXT(name);                                                    \
		OR_FAIL(name, failure);                                        \
		return next args;                                              \
	}
#define RETURNING(name, params, args)                                          \
	int name params                                                        \
	{                                                                      \
		NEXT(name);                                                    \
		OR_RETURN(name);                                               \
		return next args;                                              \
	}
SIMPLE(int, mkdir, -1, (const char *path, mode_t mode), (path, mode))
SIMPLE(int, rmdir, -1, (const char *path), (path))
SIMPLE(int, fallocate, -1, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
SIMPLE(int, ftruncate, -1, (int fd, off_t size), (fd, size))
SIMPLE(int, fchmod, -1, (int fd, mode_t mode), (fd, mode))
SIMPLE(int, fchmodat, -1, (int dir, const char *path, mode_t mode, int flags), (dir, path, mode, flags))
SIMPLE(int, fstat, -1, (int fd, struct stat *st), (fd, st))
SIMPLE(int, fstatfs, -1, (int fd, struct statfs *fs), (fd, fs))
SIMPLE(int, fstatat, -1, (int dir, const char *path, struct stat *st, int flags),
       (dir, path, st, flags))
SIMPLE(int, stat, -1, (const char *path, struct stat *st), (path, st))
SIMPLE(int, linkat, -1, (int a, const char *b, int c, const char *d, int flags),
       (a, b, c, d, flags))
SIMPLE(int, renameat2, -1, (int a, const char *b, int c, const char *d, unsigned int flags),
       (a, b, c, d, flags))
SIMPLE(int, unlinkat, -1, (int dir, const char *path, int flags), (dir, path, flags))
SIMPLE(void *, mmap, MAP_FAILED, (void *at, size_t n, int prot, int flags, int fd, off_t off),
       (at, n, prot, flags, fd, off))
SIMPLE(int, munmap, -1, (void *at, size_t n), (at, n))
SIMPLE(int, mprotect, -1, (void *at, size_t n, int prot), (at, n, prot))
SIMPLE(int, munlock, -1, (const void *at, size_t n), (at, n))
SIMPLE(int, madvise, -1, (void *at, size_t n, int advice), (at, n, advice))
SIMPLE(ssize_t, getrandom, -1, (void *to, size_t n, unsigned int flags), (to, n, flags))
SIMPLE(ssize_t, read, -1, (int fd, void *to, size_t n), (fd, to, n))
SIMPLE(ssize_t, pread, -1, (int fd, void *to, size_t n, off_t at), (fd, to, n, at))
SIMPLE(ssize_t, process_vm_readv, -1,
       (pid_t pid, const struct iovec *local, unsigned long n, const struct iovec *remote, unsigned long m,
	unsigned long flags),
       (pid, local, n, remote, m, flags))
SIMPLE(int, on_exit, -1, (void (*function)(int status, void *data), void *data), (function, data))
SIMPLE(ssize_t, readlink, -1, (const char *path, char *to, size_t n), (path, to, n))
SIMPLE(int, getrlimit, -1, (__rlimit_resource_t what, struct rlimit *limit), (what, limit))
SIMPLE(char *, getcwd, NULL, (char *to, size_t n), (to, n))
SIMPLE(DIR *, fdopendir, NULL, (int fd), (fd))
SIMPLE(struct dirent *, readdir, NULL, (DIR *dir), (dir))
SIMPLE(int, nanosleep, -1, (const struct timespec *t, struct timespec *left), (t, left))
SIMPLE(int, socket, -1, (int family, int type, int protocol), (family, type, protocol))
SIMPLE(int, socketpair, -1, (int family, int type, int protocol, int pair[2]), (family, type, protocol, pair))
SIMPLE(int, bind, -1, (int fd, const struct sockaddr *to, socklen_t n), (fd, to, n))
SIMPLE(int, listen, -1, (int fd, int n), (fd, n))
SIMPLE(int, accept4, -1, (int fd, struct sockaddr *peer, socklen_t *n, int flags), (fd, peer, n, flags))
SIMPLE(int, connect, -1, (int fd, const struct sockaddr *to, socklen_t n), (fd, to, n))
SIMPLE(int, getsockopt, -1, (int fd, int level, int name, void *to, socklen_t *n), (fd, level, name, to, n))
SIMPLE(int, setsockopt, -1, (int fd, int level, int name, const void *value, socklen_t n), (fd, level, name, value, n))
SIMPLE(int, shutdown, -1, (int fd, int how), (fd, how))
SIMPLE(int, poll, -1, (struct pollfd *ready, nfds_t n, int wait), (ready, n, wait))
SIMPLE(ssize_t, send, -1, (int fd, const void *data, size_t n, int flags), (fd, data, n, flags))
SIMPLE(ssize_t, sendmsg, -1, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
SIMPLE(ssize_t, recv, -1, (int fd, void *to, size_t n, int flags), (fd, to, n, flags))
SIMPLE(ssize_t, recvmsg, -1, (int fd, struct msghdr *message, int flags), (fd, message, flags))
RETURNING(pthread_create,
	  (pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *data),
	  (thread, how, run, data))
RETURNING(pthread_attr_init, (pthread_attr_t *how), (how))
RETURNING(pthread_attr_setaffinity_np, (pthread_attr_t *how, size_t size, const cpu_set_t *cpus), (how, size, cpus))
SIMPLE(int, sched_getaffinity, -1, (pid_t task, size_t size, cpu_set_t *cpus), (task, size, cpus))
SIMPLE(int, sched_getscheduler, -1, (pid_t task), (task))
SIMPLE(int, setpriority, -1, (__priority_which_t which, id_t whose, int nice), (which, whose, nice))
RETURNING(pthread_getattr_np, (pthread_t thread, pthread_attr_t *attributes), (thread, attributes))
RETURNING(pthread_key_create, (pthread_key_t *key, void (*destructor)(void *)), (key, destructor))
RETURNING(pthread_setspecific, (pthread_key_t key, const void *value), (key, value))
RETURNING(pthread_setname_np, (pthread_t thread, const char *name), (thread, name))
RETURNING(pthread_mutex_timedlock, (pthread_mutex_t *lock, const struct timespec *t), (lock, t))
SIMPLE(int, access, -1, (const char *path, int how), (path, how))
RETURNING(pthread_mutex_clocklock,
	  (pthread_mutex_t *lock, clockid_t clock, const struct timespec *t), (lock, clock, t))
RETURNING(pthread_clockjoin_np,
	  (pthread_t thread, void **result, clockid_t clock, const struct timespec *t),
	  (thread, result, clock, t))
RETURNING(pthread_mutex_trylock, (pthread_mutex_t *lock), (lock))
RETURNING(pthread_timedjoin_np, (pthread_t thread, void **result, const struct timespec *t),
	  (thread, result, t))
RETURNING(__register_atfork,
	  (void (*prepare)(void), void (*parent)(void), void (*child)(void), void *dso),
	  (prepare, parent, child, dso))
