/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limbo: see limbo.h.  This file has the states of blocks, the counts of the limbo, and how blocks
 * enter it.
 *
 * This table has every step from state to state.  enum cl_block_state says what a state means.
 *
 *   from                 to                  by
 *   LIVE                 FREEING             a thread of the program frees it: take_for_free()
 *                        ORPHANED, DELETED   the program unmaps it (virtual memory), or the driver has made
 *                                            another block at its address: with holders, without
 *                        DELETED             it got no record, which virtual memory needs
 *   FREEING              LIVE                the driver refused the free
 *                        DELETED             the driver took it: nobody has it or can get it
 *                        GRACE, HELD,        it enters the limbo: the first of these that applies
 *                          FENCED, READY
 *                        UNTRACKED           it has no record, and it is a pool's, or it shares an allocation
 *                                            of the driver
 *                        ORPHANED, DELETED   the driver took it under CULIMBO_MODE=observe: with holders, without
 *   GRACE                GRACE               the wheel: another bucket
 *                        HELD, FENCED, READY its grace is over, or the budget is, or memory is short
 *   HELD                 HELD                a holder went, another is left
 *                        FENCED, READY       the ready map, or the last own close
 *   FENCED               READY               its fence was reached, or its stream's context died
 *   READY                HELD                a batch finds a holder
 *                        BLOCKED             a batch finds that its context is just ending
 *                        RELEASING           a batch takes it
 *   BLOCKED              HELD, READY         that end is over
 *   HELD                 RELEASING           more is held than CULIMBO_HELD_BYTES
 *   GRACE, HELD, READY   RELEASING           it is an event beyond CULIMBO_MAX_EVENTS
 *   RELEASING            DELETED             given back
 *                        ORPHANED            given back though it is held (CULIMBO_HELD_BYTES)
 *                        GRACE, HELD, READY  an event that was forced out: its record waits as before
 *   ORPHANED             DELETED             its last holder went
 *   any other            ORPHANED, DELETED   its context died: with holders, without
 *
 * "Any other" is any state but RELEASING and ORPHANED.  The end of a context waits for a RELEASING block.  An
 * ORPHANED block belongs to no context any more.  A FREEING block goes when its thread is back from the driver.  An
 * UNTRACKED block has no record for holders to keep, so it can only become DELETED.
 */
#ifdef CL_DEBUG
#include <stdio.h>
#include <stdlib.h>
#endif
#include <string.h>

#include "shim/base/hot.h"
#include "shim/limbo/exporter.h"
#include "shim/base/log.h"
#include "shim/diag/trace.h"
#include "shim/limbo/grace.h"
#include "shim/limbo/inside.h"
#include "shim/self/self.h"

/* --------------------------------------------------------------- the states */
#define BIT(state) CL_BLOCK_BIT(CL_BLOCK_##state)
#define ENDS (BIT(ORPHANED) | BIT(DELETED))
/* The table above. */
const uint16_t cl_block_steps[CL_BLOCK_STATES] = {
	[CL_BLOCK_LIVE] = BIT(FREEING) | ENDS,
	[CL_BLOCK_FREEING] = BIT(LIVE) | BIT(GRACE) | BIT(HELD) | BIT(FENCED) | BIT(READY) | BIT(UNTRACKED) | ENDS,
	[CL_BLOCK_GRACE] = BIT(GRACE) | BIT(HELD) | BIT(FENCED) | BIT(READY) | BIT(RELEASING) | ENDS,
	[CL_BLOCK_HELD] = BIT(HELD) | BIT(FENCED) | BIT(READY) | BIT(RELEASING) | ENDS,
	[CL_BLOCK_FENCED] = BIT(READY) | ENDS,
	[CL_BLOCK_READY] = BIT(HELD) | BIT(BLOCKED) | BIT(RELEASING) | ENDS,
	[CL_BLOCK_BLOCKED] = BIT(HELD) | BIT(READY) | ENDS,
	[CL_BLOCK_RELEASING] = BIT(GRACE) | BIT(HELD) | BIT(READY) | ENDS,
	[CL_BLOCK_UNTRACKED] = BIT(DELETED),
	[CL_BLOCK_ORPHANED] = BIT(DELETED),
};

#ifdef CL_DEBUG
static void end_the_program(const char *from, const char *to)
{
	fprintf(stderr, "culimbo: a block that is %s cannot become %s\n", from, to);
	abort();
}
void (*cl_block_impossible_step)(const char *from, const char *to) = end_the_program;
#else
void (*cl_block_impossible_step)(const char *from, const char *to);
#endif

static __attribute__((cold, noinline)) void impossible(const struct cl_block *block, enum cl_block_state to)
{
	static const char *const names[CL_BLOCK_STATES] = {
		"LIVE",	   "FREEING",	"GRACE",     "HELD",	 "FENCED",  "READY",
		"BLOCKED", "RELEASING", "UNTRACKED", "ORPHANED", "DELETED",
	};

	if (cl_block_impossible_step)
		cl_block_impossible_step(names[block->state], names[to]);
	cl_log_once(CL_LOG_ERROR,
		    "a fault of culimbo: block %#llx is %s and cannot become %s, so it stays as it is; please "
		    "report this",
		    (unsigned long long)block->link.key, names[block->state], names[to]);
}

static struct cl_list *list_of(struct cl_exporter *ex, const struct cl_block *block)
{
	switch ((enum cl_block_state)block->state) {
	case CL_BLOCK_HELD:
		return &ex->limbo.held;
	case CL_BLOCK_READY:
		return &ex->limbo.ready;
	case CL_BLOCK_BLOCKED:
		return &ex->limbo.blocked;
	case CL_BLOCK_UNTRACKED:
		return &ex->limbo.untracked;
	default:
		return NULL;
	}
}

/* The devices from the last entry on share that entry. */
static uint64_t *held_bytes_of(struct cl_exporter *ex, const struct cl_block *block)
{
	return &ex->limbo.held_bytes[block->device < CL_LIMBO_DEVICES ? block->device : CL_LIMBO_DEVICES - 1];
}

bool cl_limbo_is_too_much_held(struct cl_exporter *ex, const struct cl_block *block)
{
	uint64_t limit = cl_options.held_bytes.number;

	return limit && *held_bytes_of(ex, block) > limit;
}

static void warn_if_many_held(struct cl_exporter *ex)
{
	if (ex->limbo.warned || !cl_options.warn_blocks.number ||
	    ex->limbo.held.n <= cl_options.warn_blocks.number)
		return;
	ex->limbo.warned = true;
	cl_log(CL_LOG_WARN,
	       "%llu freed blocks wait for processes that still map them: some importer does not close "
	       "what it opens. The report at exit names it (CULIMBO_WARN_BLOCKS sets this limit)",
	       (unsigned long long)ex->limbo.held.n);
}

/* ---------------------------------------------------------- what others see of it */
static inline bool is_on_host(const struct cl_block *block)
{
	return __builtin_expect(block->device == CL_NO_DEVICE, 0);
}

/* Returns the entry of the header's `device` that counts @block, which is not on the host. */
static unsigned int device_of(struct cl_exporter *ex, const struct cl_block *block)
{
	return block->kind != CL_EVENT ? ex->blocks.devices.of[block->device] : CL_ANY_DEVICE;
}

/* The most bytes of the device that @block keeps: a small block keeps the page that it shares. */
static uint64_t device_bytes(const struct cl_block *block)
{
	return block->kind != CL_EVENT ? (block->size + CL_GRACE_PAGE - 1) & ~(CL_GRACE_PAGE - 1) : 0;
}

/* In these states a block cannot go now, even if somebody needs its memory. */
#define WAITS (BIT(HELD) | BIT(FENCED))

static __attribute__((noinline)) void count_waits_changed(struct cl_exporter *ex,
		     const struct cl_block *block, bool waits)
{
	uint64_t bytes = device_bytes(block);
	unsigned int device;

	if (is_on_host(block)) {
		ex->limbo.of[CL_LIMBO_HOST].waits += waits ? bytes : -bytes;
		return;
	}
	device = device_of(ex, block);
	ex->limbo.of[device].waits += waits ? bytes : -bytes;
	atomic_store_explicit(&ex->blocks.region->header->device[device].waits, ex->limbo.of[device].waits,
			      memory_order_release);
}
static inline void count_waits(struct cl_exporter *ex, const struct cl_block *block,
			       enum cl_block_state from, enum cl_block_state to)
{
	if ((WAITS >> from ^ WAITS >> to) & 1)
		count_waits_changed(ex, block, WAITS >> to & 1);
}

CL_HOT_SHARING bool cl_limbo_may_be_of(struct cl_exporter *ex, const struct cl_block *block, unsigned int device)
{
	if (is_on_host(block))
		return device == CL_ANY_DEVICE;
	return block->kind != CL_EVENT && (device == CL_ANY_DEVICE || device_of(ex, block) == device ||
					    device_of(ex, block) == CL_ANY_DEVICE);
}

bool cl_limbo_is_pressed_now(struct cl_exporter *ex, const struct cl_block *block, uint64_t now)
{
	for (unsigned int i = 0; i < CL_DEVICE_LIMBOS; i++)
		if (ex->limbo.pressed_until[i] > now && cl_limbo_may_be_of(ex, block, i))
			return true;
	return false;
}

/* Takes @block off the list of its state; enter() puts it on that of its new one. */
static void leave(struct cl_exporter *ex, struct cl_block *block)
{
	struct cl_list *list = list_of(ex, block);

	if (list)
		cl_list_remove(list, &block->node);
	if (block->state == CL_BLOCK_HELD)
		*held_bytes_of(ex, block) -= block->size;
	else if (block->state == CL_BLOCK_GRACE)
		cl_grace_remove_locked(ex, block);
	else if (block->state == CL_BLOCK_FENCED && block->fence)
		cl_fence_wait_locked(ex, block->fence, false);
	else if (block->state == CL_BLOCK_ORPHANED)
		ex->limbo.orphaned--;
}

static void enter(struct cl_exporter *ex, struct cl_block *block)
{
	struct cl_list *list = list_of(ex, block);

	if (list)
		cl_list_add(list, &block->node);
	if (block->state == CL_BLOCK_READY) {
		cl_trace_block(CL_TRACE_READY, block);
	} else if (block->state == CL_BLOCK_HELD) {
		cl_trace_block(CL_TRACE_HELD, block);
		*held_bytes_of(ex, block) += block->size;
		warn_if_many_held(ex);
	} else if (block->state == CL_BLOCK_FENCED) {
		cl_fence_wait_locked(ex, block->fence, true);
	} else if (block->state == CL_BLOCK_ORPHANED) {
		ex->limbo.orphaned++;
	}
}

CL_HOT_SHARING void cl_block_take_step(struct cl_exporter *ex, struct cl_block *block, enum cl_block_state to)
{
	enum cl_block_state from = block->state;

	if (!(cl_block_steps[from] >> to & 1)) {
		impossible(block, to);
		return;
	}
	cl_limbo_not_quiet(ex);
	if (!(CL_BLOCK_NO_LIST >> from & 1))
		leave(ex, block);
	count_waits(ex, block, from, to);
	block->state = (uint8_t)to;
	/* cl_limbo_settle() puts it into the wheel: it knows the time */
	if (!((CL_BLOCK_NO_LIST | BIT(GRACE)) >> to & 1))
		enter(ex, block);
}

CL_HOT_SHARING void cl_limbo_delete_locked(struct cl_exporter *ex, struct cl_block *block)
{
	cl_block_set_state(ex, block, CL_BLOCK_DELETED);
	cl_block_delete(&ex->blocks, block);
}

/* Returns the state that @block of the limbo belongs in when its grace is over. */
static enum cl_block_state state_after_grace(struct cl_exporter *ex, const struct cl_block *block)
{
	if (cl_limbo_is_held(ex, block))
		return CL_BLOCK_HELD;
	return block->fence ? CL_BLOCK_FENCED : CL_BLOCK_READY;
}

CL_HOT_SHARING void cl_limbo_settle(struct cl_exporter *ex, struct cl_block *block, uint64_t now, bool end_grace)
{
	if (!end_grace && cl_grace_applies(ex, block, now)) {
		cl_block_set_state(ex, block, CL_BLOCK_GRACE);
		cl_grace_add_locked(ex, block, now);
	} else {
		cl_block_set_state(ex, block, state_after_grace(ex, block));
	}
}

/* No other process gets more of the host's memory by asking, so the header does not have it. */
static __attribute__((cold, noinline)) void account_host(struct cl_limbo_device *of,
							 const struct cl_block *block, int sign)
{
	*(sign > 0 ? &of->entered : &of->returned) += device_bytes(block);
}

static inline void account_device(struct cl_limbo_device *of, struct cl_device_limbo *said,
				  const struct cl_block *block, int sign)
{
	if (sign > 0) {
		of->entered += device_bytes(block);
		atomic_store_explicit(&said->entered, of->entered, memory_order_release);
	} else {
		of->returned += device_bytes(block);
		atomic_store_explicit(&said->returned, of->returned, memory_order_release);
	}
}

CL_HOT_SHARING void cl_limbo_account(struct cl_exporter *ex, const struct cl_block *block, int sign)
{
	struct cl_header *h = ex->blocks.region->header;
	uint64_t blocks = atomic_load_explicit(&ex->limbo.blocks, memory_order_relaxed) +
			  (uint64_t)(int64_t)sign;

	atomic_store_explicit(&ex->limbo.blocks, blocks, memory_order_relaxed);
	ex->limbo.bytes += (uint64_t)((int64_t)sign * (int64_t)block->size);
	atomic_store_explicit(&h->limbo_blocks, blocks, memory_order_relaxed);
	atomic_store_explicit(&h->limbo_bytes, ex->limbo.bytes, memory_order_relaxed);
	if (sign > 0)
		atomic_fetch_sub_explicit(&h->live_blocks, 1, memory_order_relaxed);
	else
		ex->limbo.returned += device_bytes(block);
	if (is_on_host(block))
		account_host(&ex->limbo.of[CL_LIMBO_HOST], block, sign);
	else
		account_device(&ex->limbo.of[device_of(ex, block)], &h->device[device_of(ex, block)], block, sign);
}

bool cl_limbo_is_busy_locked(const struct cl_block *block)
{
	return cl_block_is_taken(block) || cl_limbo_context_ends(block);
}

CL_HOT_SHARING struct cl_block *cl_limbo_find_settled_locked(struct cl_exporter *ex, enum cl_kind kind,
							     uint64_t key)
{
	struct cl_block *block;
	uint64_t until = 0;
	bool over = false;

	/*
	 * While a thread is in the driver with the block, only the driver's answer tells
	 * whether the program may free that address again, so we wait for it.  We wait for
	 * the end of a context a second at most: the thread that ends it may be waiting for
	 * a host function that this thread runs.  Once the driver has ended the context, the address
	 * may be another block's already.  The thread that ends it forgets the rest, and wakes the collector.
	 */
	while ((block = cl_block_find(&ex->blocks, kind, key)) != NULL && cl_limbo_is_busy_locked(block))
		if (block->state == CL_BLOCK_FREEING || block->state == CL_BLOCK_RELEASING) {
			cl_gate_wait_locked();
		} else if (cl_context_is_dead(cl_block_context(block))) {
			cl_block_leave_context(block);
			cl_limbo_forget_block_locked(ex, block);
		} else {
			if (over)
				return block;
			if (!until)
				until = cl_now() + CL_DRIVER_WAIT;
			over = !cl_gate_wait_until_locked(until);
		}
	return block;
}

/* ------------------------------------------- what the driver no longer has */
static struct cl_node *order_of(struct cl_block *block)
{
	return &((struct cl_event_block *)block)->order;
}

void cl_limbo_event_forget(struct cl_exporter *ex, struct cl_block *block)
{
	/* it is not on the list if it was not in the limbo, or was forced out of it */
	if (cl_list_has(&ex->limbo.events, order_of(block)))
		cl_list_remove(&ex->limbo.events, order_of(block));
}

uint64_t cl_limbo_events_back(const struct cl_exporter *ex)
{
	return atomic_load_explicit(&ex->limbo.events_back, memory_order_relaxed);
}

void cl_limbo_event_went(struct cl_exporter *ex)
{
	atomic_fetch_add_explicit(&ex->limbo.events_back, 1, memory_order_relaxed);
}

bool cl_limbo_forget_block_locked(struct cl_exporter *ex, struct cl_block *block)
{
	const unsigned int not_in_limbo = 1u << CL_BLOCK_LIVE | 1u << CL_BLOCK_FREEING | 1u << CL_BLOCK_UNTRACKED;
	bool in_limbo = !(not_in_limbo >> block->state & 1), tracked = block->record != CL_NO_RECORD;
	bool orphaned = tracked && !cl_record_orphan(ex->blocks.region, block->record);

	/* a fence that a thread is asking about stays on its list, where rounds pass it over */
	if (block->fence)
		cl_fence_wait_locked(ex, block->fence, false);
	cl_fence_detach_locked(ex, block);
	cl_block_set_state(ex, block, orphaned ? CL_BLOCK_ORPHANED : CL_BLOCK_DELETED);
	block->own_opens = 0;
	cl_limbo_not_quiet(ex); /* the fence that it detached must be destroyed */
	if (in_limbo)
		cl_limbo_account(ex, block, -1);
	else if (tracked)
		atomic_fetch_sub_explicit(&ex->blocks.region->header->live_blocks, 1, memory_order_relaxed);
	if (tracked && block->kind == CL_EVENT) {
		cl_limbo_event_forget(ex, block);
		cl_limbo_event_went(ex); /* the driver has one more event to give (measured) */
	}
	if (tracked)
		cl_trace_block(CL_TRACE_ORPHANED, block, .value = ex->limbo.bytes);
	cl_block_unhash(&ex->blocks, block);
	if (!orphaned)
		cl_block_delete(&ex->blocks, block);
	return orphaned;
}

bool cl_limbo_unblock_locked(struct cl_exporter *ex)
{
	/* a collection passes over fences and surplus events while their context may be ending */
	bool waited = ex->limbo.blocked.n || cl_fences_wait_locked(ex) || cl_fences_any_detached_locked(ex) ||
		      ex->limbo.events.n > cl_options.max_events.number;
	struct cl_block *block;

	/* and over HELD blocks beyond CULIMBO_HELD_BYTES; it may have set `quiet` nevertheless */
	if (cl_options.held_bytes.number && ex->limbo.held.n) {
		waited = true;
		cl_limbo_not_quiet(ex);
	}
	while ((block = CL_LIST_FIRST(&ex->limbo.blocked, struct cl_block, node)) != NULL)
		cl_limbo_settle(ex, block, cl_now(), true);
	return waited;
}

/* ------------------------------------------------------------------ entering */
/*
 * Ends graces until the budget, which @entered may have exceeded, suffices.  Returns true if it ended any.
 * A block that becomes HELD does not go back: only its holder keeps it from now on.
 */
static bool end_graces_locked(struct cl_exporter *ex, struct cl_block *entered, uint64_t now)
{
	struct cl_grace_round round = { 0 };
	struct cl_block *block;

	while ((block = cl_grace_next_over_locked(ex, entered, &round)) != NULL) {
		cl_limbo_settle(ex, block, now, true);
		if (block->state != CL_BLOCK_HELD) {
			cl_count(graces_cut);
			cl_count_add(graces_cut_bytes, block->size);
		}
	}
	return round.ended != 0;
}

CL_HOT_SHARING uint64_t cl_limbo_enter_locked(struct cl_exporter *ex, struct cl_block *block, uint64_t now,
					      bool *over)
{
	if (block->record == CL_NO_RECORD) {
		cl_block_set_state(ex, block, CL_BLOCK_UNTRACKED);
		cl_trace_block(CL_TRACE_UNTRACKED, block);
		return UINT64_MAX;
	}
	cl_record_to_limbo(ex->blocks.region, block->record, now);
	cl_block_waits_for_pool(&ex->blocks, block, true);
	cl_count(limbo_entered);
	cl_live_add_locked(ex->blocks.region, CL_LIVE_KEPT, 1);
	cl_limbo_account(ex, block, 1);
	cl_trace_block(CL_TRACE_LIMBO, block, .value = ex->limbo.bytes,
		       .generation = atomic_load_explicit(&ex->blocks.region->record[block->record].free_stack,
							 memory_order_relaxed));
	if (block->kind == CL_EVENT)
		cl_list_add(&ex->limbo.events, order_of(block));
	cl_limbo_settle(ex, block, now, cl_limbo_is_pressed(ex, block, now));
	*over = (block->state == CL_BLOCK_GRACE && cl_grace_is_over(ex, block) && end_graces_locked(ex, block, now)) ||
		cl_limbo_is_too_much_held(ex, block);
	if (block->state == CL_BLOCK_GRACE && ex->limbo.events.n <= cl_options.max_events.number)
		return cl_grace_end(ex, block) + cl_grace_tick(&ex->grace);
	return block->state == CL_BLOCK_HELD ? now + CL_REAP_EVERY : now;
}

void cl_limbo_look_again_locked(struct cl_exporter *ex, struct cl_block *block)
{
	if (block->state == CL_BLOCK_HELD)
		cl_block_set_state(ex, block, block->fence ? CL_BLOCK_FENCED : CL_BLOCK_READY);
}

/* ---------------------------------------------------------------------- rest */
CL_HOT_SHARING bool cl_limbo_is_empty(struct cl_exporter *ex)
{
	return !atomic_load_explicit(&ex->limbo.blocks, memory_order_relaxed);
}
