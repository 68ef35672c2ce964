/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limbo: blocks that the program has freed and the driver has not.
 *
 * A block leaves it when its grace is over, nobody holds it, and (after a
 * stream-ordered free) its stream has got there.  In and out are O(1): the
 * grace is a wheel of buckets, holders that leave say so in the ready map, and
 * what just waits is never looked at.
 *
 * Giving back must not disturb the program: cuMemFree() in one thread waits for
 * all kernels, and meanwhile other threads' cuMemAlloc() and copies wait for it
 * (measured).  A block of the limbo has been waited for already, so it is freed
 * by cuMemFreeAsync() on a stream of our own, which waits for nothing.
 *
 * Functions that end in _locked want cl_exports_lock held; the others take it,
 * and let go of it around every CUDA call.
 */
#ifndef CL_LIMBO_H
#define CL_LIMBO_H

#include "shim/blocks/blocks.h"

/*
 * The program freed @block (CL_PLACE_PROGRAM).  @now: CLOCK_MONOTONIC, ns.
 * Returns when somebody must look at it: give it to cl_collector_wake_by() once
 * the lock is let go of.  *over, which is false before: the budget of the grace
 * was exceeded, and the caller is to collect what went early before its program's
 * free returns.
 */
uint64_t cl_limbo_enter_locked(struct cl_block *block, uint64_t now, bool *over);

/*
 * Whether the program's free of @block can go straight to the driver: its
 * grace is over, or the budget has no room for it, and nobody holds it.  If so its record is DYING until
 * cl_record_release_end() is told what the driver said (block->before).
 */
bool cl_limbo_can_skip_locked(struct cl_block *block, uint64_t now);
/*
 * Whether what @block will be is not known yet: a thread is in the driver with
 * it, or its context is just ending.  Then cl_limbo_wait_locked() and look again.
 */
bool cl_limbo_is_busy_locked(const struct cl_block *block);
/* Whether @ctx (@primary: of @device) is just ending, or has the address of one that is. */
bool cl_limbo_context_ends_locked(CUcontext ctx, CUdevice device, bool primary);

/* An own open of @block was closed, or something else about it changed: look at it again. */
void cl_limbo_look_again_locked(struct cl_block *block);

struct cl_collected {
	uint64_t blocks, bytes; /* given back to the driver */
	uint64_t next;	       /* when something will be due, CLOCK_MONOTONIC ns; UINT64_MAX: not by time */
	bool held;	       /* something waits for holders, so their death matters */
};
/*
 * Gives back all that may go.  @end_grace: what nobody opened does not wait
 * for its grace.  Any thread; several at once.
 */
struct cl_collected cl_limbo_collect(bool end_grace);

/*
 * Somebody needs memory of device @device, an entry of the header's `device` (CL_ANY_DEVICE:
 * of any).  The grace of all memory of it is over, and until @until (CLOCK_MONOTONIC, ns) that of
 * what is freed, too: what comes free is for who needs it, and must not become limbo again
 * before he has it.  (20 ms at least; and a second at most, whatever others say.)  Nothing is
 * given back yet.
 */
void cl_limbo_press(unsigned int device, uint64_t until);
#define CL_PRESSED_LEAST 20000000ull /* ns */
#define CL_PRESSED_MOST 1000000000ull
/* Until when, for who has needed it since @began: the longer in vain, the longer. */
static inline uint64_t cl_limbo_press_until(uint64_t began, uint64_t now)
{
	return now + CL_PRESSED_LEAST + 2 * (now - began);
}
void cl_limbo_press_over(unsigned int device); /* who needed it has it, or gave up */
#define CL_PRESSED_FOR 20000000ull /* ns */

/*
 * Of the memory of @device, an ordinal (below 0, or one that nobody can name: of all), with
 * what may be of it: the bytes that were ever put into the limbo and given back, as counted for
 * others, and those in it that could go just now.  Zeros without a file.
 */
struct cl_limbo_moved {
	uint64_t entered, returned, could_go;
	unsigned int device; /* its entry, for cl_limbo_press() */
};
struct cl_limbo_moved cl_limbo_moved(int device);

/* Holds taken back from the dead, for the report: the first few. */
struct cl_reclaimed {
	uint32_t pid;
	char name[16];
	uint64_t base, size;
	uint8_t kind;
};
enum { CL_RECLAIMED = 32 };
extern struct cl_reclaimed cl_reclaimed[CL_RECLAIMED];
extern unsigned int cl_reclaimed_n;

/* Looks for dead holders of this process's blocks.  Returns how many are still settling. */
unsigned int cl_limbo_reap(void);
/* The same at the end of the process, where nothing may be waited for. */
void cl_limbo_reap_at_end_locked(void);

/*
 * Last resort, when an allocation fails and nothing else came free: gives
 * back blocks of 2 MiB and more that could not be tracked (CL_PLACE_KEPT).
 * Their importers, if any, go on reading the old bytes: such a block is an
 * allocation of its own (measured).
 */
struct cl_collected cl_limbo_release_kept(void);
bool cl_limbo_has_kept(void); /* such blocks */

/*
 * Destroys the oldest events of the limbo, held or not, a few at a time.  Where other
 * threads are at all that there are (give them back, or may be ending their context), waits
 * until @until (CLOCK_MONOTONIC, ns) at most for one that can go.
 */
void cl_limbo_force_events_out(uint64_t until);
/* Whether the limbo has events, or a thread is in the driver with the last of them. */
bool cl_limbo_has_events(void);
/* How many exported events have gone to the driver, whoever gave them; one has. */
uint64_t cl_limbo_events_back(void);
void cl_limbo_event_went(void);

/*
 * See cl_context_end_begin() in shim.h.  go_on() returns whether the collector has
 * something to look at.
 */
void cl_limbo_context_hold_off(CUcontext ctx, CUdevice device);
bool cl_limbo_context_go_on(CUcontext ctx, CUdevice device, bool gone);
/*
 * Around a question to the driver for which the primary context of @device is retained
 * and released: no hooked call gives back the program's last reference to it meanwhile,
 * or its end would be ours, and unnoticed.  begin() waits until none does (a second at
 * most), no lock of ours may be held.
 */
enum { CL_ASKED_DEVICES = 64 };
void cl_limbo_ask_begin(CUdevice device);
void cl_limbo_ask_end(CUdevice device);

/*
 * The driver has dropped what @block (on no list) names.  True: holders keep its
 * record, and the collector must be awake by CL_REAP_EVERY from now at the latest, as for
 * what waits for them in the limbo: it may sleep for good, or not have been started.
 */
bool cl_limbo_forget_block_locked(struct cl_block *block);
/* Out of the books but for its record.  True: the same. */
bool cl_limbo_gone_locked(struct cl_block *block);
/*
 * Waits until @until (CLOCK_MONOTONIC, ns) at most, until no other thread is in the driver
 * to give blocks back: what they had taken is back then.  And as long as @back() is @had,
 * until none keeps blocks from going by a call that may end their context; true: one did so,
 * and does not any more: a collection may find something.
 */
bool cl_limbo_wait_for_others(uint64_t until, uint64_t (*back)(void), uint64_t had);

/* How often somebody looks for dead holders while something waits for holders, ns. */
#define CL_REAP_EVERY 100000000ull

/* How much is in limbo; a few loads under the lock. */
struct cl_limbo_sum {
	uint64_t blocks, bytes, events, kept;
};
struct cl_limbo_sum cl_limbo_sum_locked(void);

/* A hint: any thread, without the lock; a load.  (What is kept for want of a record is not counted.) */
bool cl_limbo_is_empty(void);

/* Waits until no other thread is in the driver with @block; the caller must look it up again. */
void cl_limbo_wait_locked(void);
/* A block of CL_PLACE_BUSY was let go of: whoever waits looks again. */
void cl_limbo_changed_locked(void);

void cl_limbo_forget(void); /* in a forked child */

#endif
