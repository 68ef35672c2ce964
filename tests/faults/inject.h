/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stepper (steps.c) tells the library that fails calls (inject.c) what to do.
 *
 * What must hold: it counts and fails only calls that libculimbo.so itself makes, never
 * those of the program, the driver or libc.
 */
#ifndef FAULTS_INJECT_H
#define FAULTS_INJECT_H

#include <stdatomic.h>
#include <sys/types.h>

/*
 * Every call of libculimbo that can fail, with the errors to fail it with: the call's own,
 * and those of a seccomp filter (EPERM, ENOSYS).  With the first error, one more run fails
 * all calls from the Nth on.  run.sh compares this list with the library's imports.
 */
#define INJECT_CALLS(X)                                                        \
	X(calloc, ENOMEM)                                                      \
	X(malloc, ENOMEM)                                                      \
	X(realloc, ENOMEM)                                                     \
	X(open, EMFILE, ENFILE, EACCES, EINTR)                                 \
	X(openat, EMFILE, ENOSPC, EACCES, EROFS, EOPNOTSUPP, EINTR)            \
	X(mkdir, ENOSPC, EACCES, EROFS)                                        \
	X(rmdir, EBUSY)                                                        \
	X(fallocate, ENOSPC, EINTR, EOPNOTSUPP, EPERM)                         \
	X(ftruncate, ENOSPC, EINTR, EFBIG)                                     \
	X(fchmod, EPERM)                                                       \
	X(fchmodat, EPERM, EOPNOTSUPP)                                         \
	X(fstat, ENOMEM)                                                       \
	X(fstatat, ENOMEM)                                                     \
	X(fstatfs, EIO, EINTR, ENOSYS)                                         \
	X(stat, ENOMEM)                                                        \
	X(linkat, ENOSPC, EEXIST, ENOENT, EPERM, ENOSYS)                       \
	X(renameat2, ENOSPC, EEXIST, ENOENT, EPERM, EINVAL, ENOSYS)             \
	X(unlinkat, EACCES, EROFS, ENOENT)                                     \
	X(mmap, ENOMEM, EPERM)                                                 \
	X(munmap, ENOMEM)                                                      \
	X(mremap, ENOMEM, EAGAIN, EPERM)                                       \
	X(mprotect, ENOMEM, EACCES)                                            \
	X(munlock, ENOMEM, EPERM)                                              \
	X(madvise, EINVAL, ENOMEM)                                             \
	X(fcntl, ENOLCK, EMFILE, EINTR, EPERM)                                 \
	X(getrandom, ENOSYS, EAGAIN)                                           \
	X(read, EIO, EINTR)                                                    \
	X(pread, EIO, EINTR)                                                   \
	X(process_vm_readv, EPERM, ENOSYS, EFAULT)                             \
	X(on_exit, ENOMEM)                                                     \
	X(readlink, ENOENT, EACCES)                                            \
	X(close, EINTR)                                                        \
	X(getrlimit, EPERM)                                                    \
	X(getcwd, ENOENT)                                                      \
	X(fdopendir, ENOMEM)                                                   \
	X(readdir, EIO)                                                        \
	X(nanosleep, EINTR)                                                    \
	X(syscall, EINTR, EAGAIN, ENOSPC)                                      \
	X(socket, EMFILE, ENFILE, ENOBUFS, EACCES, EPERM)                      \
	X(socketpair, EMFILE, ENFILE, ENOBUFS, EACCES, EPERM)                  \
	X(bind, EADDRINUSE, ENOSPC, EACCES, EROFS)                             \
	X(listen, EADDRINUSE, EPERM)                                           \
	X(accept4, EMFILE, ENFILE, ENOMEM, ECONNABORTED, EINTR, EPERM)         \
	X(connect, ECONNREFUSED, EAGAIN, ENOENT, EACCES, EINTR, EPERM)         \
	X(getsockopt, ENOBUFS, EPERM)                                          \
	X(setsockopt, ENOBUFS, EPERM)                                          \
	X(shutdown, ENOTCONN)                                                  \
	X(poll, ENOMEM, EINTR)                                                 \
	X(send, ENOBUFS, EAGAIN, EINTR, EPERM)                                 \
	X(sendmsg, ENOBUFS, EAGAIN, EPIPE, ETOOMANYREFS, EINTR, EPERM)         \
	X(recv, ENOMEM, ECONNRESET, EINTR, EPERM)                              \
	X(recvmsg, ENOMEM, ECONNRESET, EINTR, EPERM)                           \
	X(pthread_create, EAGAIN, EPERM)                                       \
	X(pthread_attr_init, ENOMEM)                                           \
	X(pthread_attr_setaffinity_np, ENOMEM)                                 \
	X(sched_getaffinity, EINVAL, EPERM)                                    \
	X(sched_getscheduler, EPERM)                                           \
	X(setpriority, EACCES, EPERM)                                          \
	X(pthread_getattr_np, ENOMEM)                                          \
	X(pthread_setname_np, ENOENT)                                          \
	X(pthread_key_create, EAGAIN, ENOMEM)                                  \
	X(pthread_setspecific, ENOMEM)                                         \
	X(access, ENOMEM)                                                      \
	X(pthread_mutex_timedlock, ETIMEDOUT)                                  \
	X(pthread_mutex_clocklock, ETIMEDOUT)                                  \
	X(pthread_clockjoin_np, ETIMEDOUT)                                     \
	X(pthread_mutex_trylock, EBUSY)                                        \
	X(pthread_timedjoin_np, ETIMEDOUT)                                     \
	X(__register_atfork, ENOMEM)

enum inject_call {
#define X(name, ...) INJECT_##name,
	INJECT_CALLS(X)
#undef X
	INJECT_CALLS_N
};

enum { INJECT_ERRORS = 8 }; /* at most, of one call */
struct inject_row {
	const char *name;
	int errors[INJECT_ERRORS]; /* up to the first 0 */
};

/* Shared by the stepper with the process that it fails calls in. */
struct inject_plan {
	_Atomic pid_t pid; /* the process whose calls count; 0: none */
	int call;	   /* enum inject_call */
	int nth;	   /* from 1; 0: only count */
	int error;
	int for_good; /* fail the Nth and all after it */
	atomic_int made[INJECT_CALLS_N];
	atomic_int failed;
};

/* These are in inject.c; the stepper has them if the library is preloaded. */
extern struct inject_plan *inject_plan;
extern const struct inject_row inject_rows[INJECT_CALLS_N];

#endif
