/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the stepper (steps.c) asks of the library that fails calls (inject.c).
 *
 * What must hold: only calls that libculimbo.so itself makes are counted and
 * failed, never the program's, the driver's or libc's own.
 */
#ifndef FAULTS_INJECT_H
#define FAULTS_INJECT_H

#include <stdatomic.h>
#include <sys/types.h>

/*
 * Every call of libculimbo that can fail, with the errors it is failed with: of
 * the call itself, and what a seccomp filter gives (EPERM, ENOSYS).  The first
 * is also given for good, from the Nth call on.  run.sh compares this list with
 * what the library imports.
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
	X(pthread_create, EAGAIN, EPERM)                                       \
	X(pthread_getattr_np, ENOMEM)                                          \
	X(pthread_setname_np, ENOENT)                                          \
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

enum { INJECT_ERRORS = 8 }; /* of one call, at most */
struct inject_row {
	const char *name;
	int errors[INJECT_ERRORS]; /* up to the first 0 */
};

/* Shared by the stepper with the process that it fails calls in. */
struct inject_plan {
	_Atomic pid_t pid; /* whose calls count; 0: nobody's */
	int call;	   /* enum inject_call */
	int nth;	   /* from 1; 0: only count */
	int error;
	int for_good; /* the Nth and all after it */
	atomic_int made[INJECT_CALLS_N];
	atomic_int failed;
};

/* In inject.c; the stepper finds them when the library is preloaded. */
extern struct inject_plan *inject_plan;
extern const struct inject_row inject_rows[INJECT_CALLS_N];

#endif
