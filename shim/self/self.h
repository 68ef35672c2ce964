/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process: who it is, its locks, the directory of exporter files, and the
 * counts that the report gives.  When it begins to share, forks and ends is in
 * shim/life.c.
 *
 * Its locks are in locks.h, with the rules for them.
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
 * Where the directory of exporter files is (see cl_place_of()), and that above it.
 * 0: not there, or not to be seen.
 */
struct cl_places {
	uint64_t own, named, above;
};

struct cl_self {
	struct cl_identity identity;
	pid_t pid; /* 0: cl_self_prepare() of shim/life.h was not called yet */
	uint64_t started; /* then, CLOCK_MONOTONIC ns */
	uid_t user; /* effective, then */
	struct cl_places places; /* then */
	_Atomic bool ended; /* the report is written: nothing new is begun */
	_Atomic bool file_ended; /* we have taken our file away, and nobody else before us */
};
extern struct cl_self cl_self;
extern struct cl_known cl_self_known; /* also in a forked child */

/* How long the end of a process waits for a collector that is in the driver, and for a lock; ns. */
#define CL_END_WAIT 200000000ull

/*
 * At the top of what takes our locks: a thread of the program that is cancelled
 * meanwhile ends when it has left us, not with a lock in hand.  And errno is what it
 * was: the program may have a use for it yet, and bare no file of ours is looked for.
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
 * The same, at a quarter of its cost, for what comes by no cancellation point
 * with a lock in hand.
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
 * A child that was forked without fork handlers (_Fork(), clone()) has what its
 * parent knew, and not the files that this leads into: it begins anew before
 * it is used.  The kernel gives such a child zeros for the word.
 */
extern uint32_t *_Atomic cl_self_word;
extern void (*cl_self_begin_anew)(void); /* set with the word, by cl_self_prepare() in shim/life.h */
static inline bool cl_self_is_copy(void)
{
	/* acquire: with what begin_anew() has written to it */
	const uint32_t *word = atomic_load_explicit(&cl_self_word, memory_order_acquire);

	return __builtin_expect(word && !*word, 0);
}

/* As they are now; any thread. */
struct cl_places cl_self_find_places(void);
/*
 * What the stamps of a file in the directory that @dirfd is (-1: asked by its path) are to say of its place: what
 * stays the same as long as the directory does.  The default one is taken away by the last
 * process that leaves, and made again by that name.
 */
uint64_t cl_self_place(int dirfd);
/*
 * Where the file that @stamp names would be: in the directory of exporter files, or not there;
 * or this process has seen that directory and does not see it any more (chroot), so that
 * nothing can be said.  A few system calls; any thread.
 */
enum cl_sight { CL_HERE, CL_ELSEWHERE, CL_OUT_OF_SIGHT };
enum cl_sight cl_self_sight(struct cl_stamp stamp);

/*
 * Opens the directory of exporter files, making it when @make.  Returns a
 * descriptor for the caller to close, or -errno: -ENOENT, or -EPERM when it is
 * somebody else's or open to others.  Not kept open: programs close what they
 * don't know.
 */
int cl_self_open_dir(bool make);
/* Its path, into @path of @size bytes. */
void cl_self_dir_path(char *path, size_t size);

/*
 * Whether the directory at @path, which ends in no link, is one that cl_self_open_dir() would
 * use: 0 or -errno.  For who has no descriptor to open it with.
 */
int cl_self_check_dir(const char *path);

/*
 * One descriptor in hand, for opening or making an exporter's file when there is no other:
 * release() closes it (false: there was none), restore() gets it again.  Any thread.
 */
bool cl_self_spare_release(void);
void cl_self_spare_restore(void);

/*
 * Before any use of @region's descriptor: gets it (and its lock on @byte)
 * again if the program has closed it.  False: it can't be had; do without.
 * The caller holds the lock that @region is under.
 */
bool cl_self_keep_descriptor(struct cl_region *region, off_t byte);

/* What the report counts; relaxed atomics: sums, not signals. */
struct cl_counts {
	_Atomic uint64_t exports, imports, closes, limbo_entered, limbo_released, limbo_bytes_released;
	_Atomic uint64_t graces_cut, graces_cut_bytes; /* blocks that went before their grace was over */
	_Atomic uint64_t pool_exports; /* pointers into pools, which nothing protects */
	_Atomic uint64_t unmanaged_exports, unmanaged_imports;
	_Atomic uint64_t found[CL_FINDING_KINDS]; /* see diag/happened.h */
	_Atomic uint64_t dead_holders, pinned;
	_Atomic uint64_t callbacks_run, allocations_saved;
};
extern struct cl_counts cl_counts;
#define cl_count(what) atomic_fetch_add_explicit(&cl_counts.what, 1, memory_order_relaxed)
#define cl_count_add(what, n) atomic_fetch_add_explicit(&cl_counts.what, (n), memory_order_relaxed)
/* Of one that is counted under one lock alone. */
#define cl_count_locked(what)                                            \
	atomic_store_explicit(&cl_counts.what, cl_count_get(what) + 1, memory_order_relaxed)
#define cl_count_get(what) atomic_load_explicit(&cl_counts.what, memory_order_relaxed)

#endif
