/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process: who it is, its locks, the directory of exporter files, and the counts in the
 * report.  shim/life.c has what it does when it begins to share, forks and ends; locks.h has the
 * order of its locks.
 */
#ifndef CL_SELF_H
#define CL_SELF_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include "shim/shm/liveness.h"
#include "shim/self/locks.h"
#include "shim/self/sharing.h"

extern struct cl_lock cl_imports_lock; /* peers and imports */
extern struct cl_lock cl_exports_lock; /* this process's exporter file, blocks, limbo */

/*
 * Places (see cl_place_of()) of the directory of exporter files, by itself and by its name, and of
 * the directory above.  0: it does not exist, or cannot be seen.
 */
struct cl_places {
	uint64_t own, named, above;
};

struct cl_self {
	struct cl_identity identity;
	pid_t pid; /* 0: cl_self_prepare() of shim/life.h was not called yet */
	uid_t user; /* the effective one, at that time */
	struct cl_places places; /* at that time */
	_Atomic bool ended; /* the report is written: nothing new is begun */
	_Atomic bool file_ended; /* we have removed our file, and no other process had before us */
};
extern struct cl_self cl_self;
/* Fills @identity for the calling process and the program that it runs.  Any thread. */
void cl_self_identify(struct cl_identity *identity);
extern struct cl_known cl_self_known; /* a forked child keeps it */

/* How long the end of a process, or a fork, waits for a lock, or for a thread that is in the driver; ns. */
#define CL_END_WAIT 200000000ull
/*
 * How long a thread waits for calls of other threads to the driver that may end or create a context, ns.  Not for
 * ever: such a call may in turn wait for this thread, if this thread runs a host function.
 */
#define CL_DRIVER_WAIT 1000000000ull

/*
 * A function that takes our locks and is called without CL_DOOR or CL_GUARD begins with this.  So does one that must
 * not be cancelled halfway.  Until it returns, its thread is not cancelled: no lock stays behind.  It also restores
 * errno, which the program may still need, and which it would keep without culimbo.
 */
#define CL_UNCANCELLED                                                            \
	__attribute__((cleanup(cl_cancel_state_restore), unused))                 \
	struct cl_cancel_state cl_cancel_state = cl_cancel_state_disable()
struct cl_cancel_state {
	int before, err;
};
static inline struct cl_cancel_state cl_cancel_state_disable(void)
{
	struct cl_cancel_state state = { .err = errno };

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state.before);
	return state;
}
static inline void cl_cancel_state_restore(const struct cl_cancel_state *state)
{
	errno = state->err;
	pthread_setcancelstate(state->before, NULL);
}

/*
 * For two functions with a call of the driver between them: no cancellation from the first to the second,
 * which passes cl_cancel_restore() what cl_cancel_disable() has returned.  errno stays as the driver's call
 * leaves it.
 */
static inline int cl_cancel_disable(void)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}
static inline void cl_cancel_restore(int before)
{
	pthread_setcancelstate(before, NULL);
}

/*
 * As CL_UNCANCELLED at a quarter of its cost, without errno, for code that passes no cancellation
 * point while it has a lock.
 */
#define CL_CANCELLED_LATER                                                        \
	__attribute__((cleanup(cl_cancel_type_restore), unused)) int              \
		cl_cancel_type = cl_cancel_type_defer()
static inline int cl_cancel_type_defer(void)
{
	int before;

	pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &before);
	return before;
}
static inline void cl_cancel_type_restore(const int *before)
{
	if (__builtin_expect(*before != PTHREAD_CANCEL_DEFERRED, 0))
		pthread_setcanceltype(*before, NULL);
}

/*
 * A child that was forked without fork handlers (_Fork(), clone()) has its parent's memory, but not
 * the files that are mapped in the parent: it must begin anew first.  The kernel clears this word
 * in such a child.
 */
extern uint32_t *_Atomic cl_self_word;
extern void (*cl_self_begin_anew)(void); /* set together with the word, by cl_self_prepare() */
static inline bool cl_self_is_copy(void)
{
	/* acquire: for what begin_anew() has written to the word */
	const uint32_t *word = atomic_load_explicit(&cl_self_word, memory_order_acquire);

	return __builtin_expect(word && !*word, 0);
}
/* Makes such a child forget its parent's state, and returns false.  Returns true in any other process. */
static inline bool cl_guard_enter(void)
{
	if (!cl_self_is_copy())
		return true;
	cl_self_begin_anew();
	return false;
}

/*
 * The guard of a function that needs neither of the two things that CL_DOOR (shim/door.h) adds: the start of sharing and
 * the collector's work.  It is CL_UNCANCELLED and cl_guard_enter(), whose result it declares as bool @ours.  No lock
 * may be held.
 */
#define CL_GUARD(ours)                                                            \
	CL_UNCANCELLED;                                                           \
	__attribute__((unused)) bool ours = cl_guard_enter()

/* Finds the places as they are now.  Any thread. */
struct cl_places cl_self_find_places(void);
/*
 * Returns the place for the stamps of a file in the directory @dirfd (-1: the directory is asked by
 * its path).  It stays the same as long as the directory does.  The place of the default directory
 * is by its name: the last process that leaves removes that directory, and another makes it again.
 */
uint64_t cl_self_place(int dirfd);
/*
 * Says where the file that @stamp names would be: CL_HERE in the directory of exporter files,
 * CL_ELSEWHERE not there, or CL_OUT_OF_SIGHT if this process has seen that directory and does not
 * see it any more (chroot), so that it is not known.  A few system calls.  Any thread.
 */
enum cl_sight { CL_HERE, CL_ELSEWHERE, CL_OUT_OF_SIGHT };
enum cl_sight cl_self_sight(struct cl_stamp stamp);

/*
 * Opens the directory of exporter files, and makes it first if @make.  Returns a descriptor, or
 * -errno: -ENOENT, or -EPERM if it is another user's or others may write there.  The caller
 * closes the descriptor soon, since programs close descriptors that they don't know.
 */
int cl_self_open_dir(bool make);
/* Writes the directory's path to @path, of @size bytes. */
void cl_self_dir_path(char *path, size_t size);

/*
 * Returns 0 if cl_self_open_dir() would use the directory at @path, whose last part is no link,
 * else -errno.  Needs no descriptor.
 */
int cl_self_check_dir(const char *path);

/*
 * A spare descriptor, for opening or making an exporter's file when no other is to be had.
 * release() closes it and returns true, or returns false if there was none; restore() opens it
 * again.  Any thread.
 */
bool cl_self_spare_release(void);
void cl_self_spare_restore(void);

/*
 * Before any use of @region's descriptor: if the program has closed it, opens it again and takes
 * its lock on @byte again (-1: none).  Returns false if that failed: the caller does without.  The
 * caller holds the lock that guards @region.
 */
bool cl_self_keep_descriptor(struct cl_region *region, off_t byte);

/* What the report counts.  Relaxed atomics: they are sums, not signals. */
struct cl_counts {
	_Atomic uint64_t exports, imports, closes, limbo_entered, limbo_released, limbo_bytes_released;
	_Atomic uint64_t graces_cut, graces_cut_bytes; /* blocks that went before their grace was over */
	_Atomic uint64_t kept_mapped; /* blocks of the limbo that other processes had mapped, and have closed */
	_Atomic uint64_t pool_exports; /* exports of pointers into pools */
	_Atomic uint64_t unmanaged_exports, unmanaged_imports;
	_Atomic uint64_t findings[CL_FINDING_KINDS]; /* see diag/happened.h */
	_Atomic uint64_t dead_holders, pinned;
	_Atomic uint64_t calls_short; /* calls of the program that lacked device memory */
};
extern struct cl_counts cl_counts;
#define cl_count(what) atomic_fetch_add_explicit(&cl_counts.what, 1, memory_order_relaxed)
#define cl_count_add(what, n) atomic_fetch_add_explicit(&cl_counts.what, (n), memory_order_relaxed)
/* For counts that change under one lock only. */
#define cl_count_locked(what)                                            \
	atomic_store_explicit(&cl_counts.what, cl_count_get(what) + 1, memory_order_relaxed)
#define cl_count_get(what) atomic_load_explicit(&cl_counts.what, memory_order_relaxed)

#endif
