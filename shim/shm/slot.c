/* SPDX-License-Identifier: Apache-2.0 */
/* Holder slots: see shm/slot.h for the contract, shm/layout.h for the rules. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "shim/shm/slot.h"

static inline enum cl_slot_state claim_state(uint64_t claim)
{
	return (enum cl_slot_state)(claim & 0xff);
}

/*
 * Identities are copied field by field.  A reader may find parts of the next owner's identity in
 * the slot; then the claim has changed, too, before the reader does anything about it (see
 * reap_one()).
 */
static void identity_put(struct cl_identity *to, const struct cl_identity *from)
{
	__atomic_store_n(&to->pid, from->pid, __ATOMIC_RELAXED);
	__atomic_store_n(&to->time_ns, from->time_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&to->pid_ns, from->pid_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&to->image, from->image, __ATOMIC_RELAXED);
	__atomic_store_n(&to->start_time, from->start_time, __ATOMIC_RELAXED);
}
static struct cl_identity identity_get(const struct cl_identity *from)
{
	return (struct cl_identity){
		.pid = __atomic_load_n(&from->pid, __ATOMIC_RELAXED),
		.time_ns = __atomic_load_n(&from->time_ns, __ATOMIC_RELAXED),
		.pid_ns = __atomic_load_n(&from->pid_ns, __ATOMIC_RELAXED),
		.image = __atomic_load_n(&from->image, __ATOMIC_RELAXED),
		.start_time = __atomic_load_n(&from->start_time, __ATOMIC_RELAXED),
	};
}

static void read_name(char name[15])
{
	int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
	ssize_t n = 0;

	memset(name, 0, 15);
	if (fd < 0)
		return;
	n = read(fd, name, 15);
	close(fd);
	if (n > 0 && name[n - 1] == '\n')
		name[n - 1] = 0;
}

static bool claim_one(struct cl_region *region, unsigned int slot, const struct cl_identity *self,
		      uint64_t now)
{
	struct cl_slot *s = &region->slot[slot];
	uint64_t claim = atomic_load_explicit(&s->claim, memory_order_relaxed);
	uint64_t mine = ((claim >> 8) + 1) << 8 | CL_SLOT_CLAIMED;
	uint32_t used;

	if (claim_state(claim) != CL_SLOT_FREE ||
	    region->locks->try_lock(region, CL_LOCK_SLOT(slot)))
		return false;
	/* before the claim: others look for claimed slots below slots_used only */
	used = atomic_load_explicit(&region->header->slots_used, memory_order_relaxed);
	while (used < slot + 1 &&
	       !atomic_compare_exchange_weak_explicit(&region->header->slots_used, &used, slot + 1,
						      memory_order_acq_rel, memory_order_relaxed))
		;
	/* acquire: what the reaper of the last owner did is done */
	if (!atomic_compare_exchange_strong_explicit(&s->claim, &claim, mine, memory_order_acq_rel,
						     memory_order_relaxed)) {
		region->locks->unlock(region, CL_LOCK_SLOT(slot));
		return false;
	}
	identity_put(&s->who, self);
	s->since = now;
	read_name(s->name);
	atomic_store_explicit(&s->told, 0, memory_order_relaxed);
	/* release: a reader that sees this epoch reads all of the identity */
	atomic_store_explicit(&s->known, (uint32_t)(mine >> 8), memory_order_release);
	return true;
}

void cl_holder_release(struct cl_region *region, unsigned int slot)
{
	struct cl_slot *s = &region->slot[slot];
	uint64_t claim = atomic_load_explicit(&s->claim, memory_order_relaxed);

	/* release: all bits are clear before the slot is free */
	atomic_store_explicit(&s->claim, claim & ~0xffull, memory_order_release);
	region->locks->unlock(region, CL_LOCK_SLOT(slot));
}

struct each_hold {
	void (*each)(void *data, unsigned int slot, uint32_t record);
	void *data;
	unsigned int slot;
};
static void tell(void *data, uint32_t record)
{
	const struct each_hold *e = data;

	e->each(e->data, e->slot, record);
}

/*
 * Reaps the slot if it still has @claim, and no context of its owner @who outlives that.  If that cannot be told now, it
 * stays until it is looked at again.  Returns false if another process has the slot's lock.
 */
static bool reap_one(struct cl_region *region, unsigned int slot, uint64_t claim, const struct cl_identity *who,
		     struct cl_reaped *sum, struct each_hold *each)
{
	struct cl_slot *s = &region->slot[slot];
	int outlived = region->is_outlived ? region->is_outlived(who) : 0;

	each->slot = slot;
	if (outlived > 0) {
		sum->outlived++;
		sum->outlived_pid = who->pid;
	}
	if (outlived)
		return true;
	/* the lock keeps away other reapers, and claimants */
	if (region->locks->try_lock(region, CL_LOCK_SLOT(slot)))
		return false;
	if (atomic_load_explicit(&s->claim, memory_order_acquire) == claim) {
#ifdef CL_PLANT_SLOT_BEFORE_BITS /* a fault for the tests to find */
		atomic_store(&s->claim, claim & ~0xffull);
#endif
		sum->holds += cl_record_clear_slot(region, slot, each->each ? tell : NULL, each);
		sum->slots++;
		/* release: bits first, slot last */
		atomic_store_explicit(&s->claim, claim & ~0xffull, memory_order_release);
	}
	region->locks->unlock(region, CL_LOCK_SLOT(slot));
	return true;
}

/* Judges the owner of a claimed slot, and reaps it if it is dead.  *free_since: see liveness.h. */
static void look_at(struct cl_region *region, unsigned int slot, uint64_t claim, uint64_t *free_since,
		    uint64_t now, uint64_t settle, struct cl_reaped *sum, struct each_hold *each)
{
	struct cl_slot *s = &region->slot[slot];
	struct cl_identity who = { 0 };

	/* an owner killed before it wrote its identity: only its lock tells, after CULIMBO_SETTLE */
	if (atomic_load_explicit(&s->known, memory_order_acquire) == (uint32_t)(claim >> 8))
		who = identity_get(&s->who);
	if (claim_state(claim) == CL_SLOT_LEFT) {
		reap_one(region, slot, claim, &who, sum, each);
		return;
	}
	switch (cl_liveness_judge(region, CL_LOCK_SLOT(slot), &who, free_since, now, settle)) {
	case CL_ALIVE:
		sum->alive++;
		break;
	case CL_SETTLING:
	case CL_LEAVING:
		sum->settling++;
		break;
	case CL_DEAD:
		reap_one(region, slot, claim, &who, sum, each);
		break;
	}
}

struct cl_reaped cl_holder_reap(struct cl_region *region, struct cl_slot_watch *watch,
				uint64_t now, uint64_t settle,
				void (*each)(void *data, unsigned int slot, uint32_t record),
				void *data)
{
	struct each_hold e = { each, data, 0 };
	struct cl_reaped sum = { 0 };
	uint32_t used = atomic_load_explicit(&region->header->slots_used, memory_order_acquire);

	for (unsigned int slot = 0; slot < used && slot < CL_SLOTS; slot++) {
		uint64_t claim = atomic_load_explicit(&region->slot[slot].claim, memory_order_acquire);

		if (claim_state(claim) == CL_SLOT_FREE)
			continue;
		if (watch[slot].claim != claim)
			watch[slot] = (struct cl_slot_watch){ .claim = claim };
		look_at(region, slot, claim, &watch[slot].free_since, now, settle, &sum, &e);
	}
	return sum;
}

/* ------------------------------------------------ what claimants leave for each other */
/*
 * Where /proc does not tell who is dead, it takes two looks, CULIMBO_SETTLE apart.  A claimant
 * looks only once, so it leaves in the file since when a lock has been free, for the next claimant:
 * see CL_LOCK_FREE_UNIT_BITS.
 */
static uint64_t lock_free_tag(uint64_t claim, const struct cl_identity *self)
{
	uint32_t clock = self->time_ns ^ self->time_ns >> 8 ^ self->time_ns >> 16 ^ self->time_ns >> 24;

	return (claim >> 8) << CL_LOCK_FREE_EPOCH_SHIFT | (uint64_t)(clock & 0xff) << CL_LOCK_FREE_TIME_BITS;
}

static uint64_t lock_free_get(uint64_t word, uint64_t tag, uint64_t now)
{
	const uint64_t of_time = (1ull << CL_LOCK_FREE_TIME_BITS) - 1;
	uint64_t since = (word & of_time) << CL_LOCK_FREE_UNIT_BITS;

	if ((word & ~of_time) != tag)
		return 0;
	if (since <= now)
		return since;
	/* a little in the future: it was rounded up.  More: it was not written by culimbo */
	return since - now <= 1ull << CL_LOCK_FREE_UNIT_BITS ? now : 0;
}

static uint64_t lock_free_word(uint64_t since, uint64_t tag)
{
	return since ? tag | (((since - 1) >> CL_LOCK_FREE_UNIT_BITS) + 1) : 0;
}

static void look_and_leave_word(struct cl_region *region, unsigned int slot, const struct cl_identity *self,
				uint64_t now, uint64_t settle, struct cl_reaped *sum)
{
	struct each_hold nobody = { NULL, NULL, 0 };
	_Atomic uint64_t *left = &region->lock_free[slot];
	uint64_t claim = atomic_load_explicit(&region->slot[slot].claim, memory_order_acquire);
	uint64_t before = atomic_load_explicit(left, memory_order_relaxed), tag, since, was;

	if (claim_state(claim) == CL_SLOT_FREE)
		return;
	tag = lock_free_tag(claim, self);
	was = since = lock_free_get(before, tag, now);
	look_at(region, slot, claim, &since, now, settle, sum, &nobody);
	/* relaxed: it is only a time, and it does not matter which of two writers wins */
	if (since != was || (!since && before))
		atomic_compare_exchange_strong_explicit(left, &before, lock_free_word(since, tag),
							memory_order_relaxed, memory_order_relaxed);
}

/*
 * If many slots are in use, looks at a few of them, so that the dead make room before it runs out,
 * also where that takes two looks.  Else the exporter reaps, which also reports it.  Runs before
 * this process has a slot in the file, since a process does not see its own locks.
 */
static void look_at_some(struct cl_region *region, const struct cl_identity *self, uint64_t now, uint64_t settle)
{
	uint32_t used = atomic_load_explicit(&region->header->slots_used, memory_order_acquire), from;
	struct cl_reaped sum = { 0 };

	if (used <= CL_CROWD)
		return;
	used = used < CL_SLOTS ? used : CL_SLOTS;
	from = atomic_fetch_add_explicit(&region->header->slots_seen, CL_CROWD_LOOKS, memory_order_relaxed);
	for (uint32_t i = 0; i < CL_CROWD_LOOKS; i++)
		look_and_leave_word(region, (from + i) % used, self, now, settle, &sum);
}

static unsigned int look_at_all(struct cl_region *region, const struct cl_identity *self, uint64_t now,
				uint64_t settle)
{
	struct cl_reaped sum = { 0 };

	for (unsigned int slot = 0; slot < CL_SLOTS; slot++)
		look_and_leave_word(region, slot, self, now, settle, &sum);
	return sum.slots;
}

/*
 * Says that the program which claimed @slot has called exec.  A reaper that is past its look at the claim makes the slot
 * free all the same; one that is not leaves it, and the next look reaps it.
 */
static void mark_left(struct cl_region *region, unsigned int slot, uint64_t claim)
{
	/* if this fails, somebody has just reaped the slot */
	atomic_compare_exchange_strong_explicit(&region->slot[slot].claim, &claim, (claim & ~0xffull) | CL_SLOT_LEFT,
						memory_order_acq_rel, memory_order_relaxed);
}

void cl_holder_reap_former(struct cl_region *region, const struct cl_identity *self)
{
	struct each_hold nobody = { NULL, NULL, 0 };
	struct cl_reaped sum = { 0 };
	uint32_t used = atomic_load_explicit(&region->header->slots_used, memory_order_acquire);

	for (unsigned int slot = 0; self->start_time && slot < used && slot < CL_SLOTS; slot++) {
		struct cl_slot *s = &region->slot[slot];
		uint64_t claim = atomic_load_explicit(&s->claim, memory_order_acquire);
		struct cl_identity who;

		if (claim_state(claim) != CL_SLOT_CLAIMED ||
		    atomic_load_explicit(&s->known, memory_order_acquire) != (uint32_t)(claim >> 8))
			continue;
		who = identity_get(&s->who);
		if (who.pid != self->pid || who.pid_ns != self->pid_ns || who.start_time != self->start_time)
			continue;
		reap_one(region, slot, claim, &who, &sum, &nobody);
		if (who.image != self->image)
			mark_left(region, slot, claim);
	}
}

int cl_holder_claim(struct cl_region *region, const struct cl_identity *self, uint64_t now, uint64_t settle)
{
	cl_holder_reap_former(region, self);
	look_at_some(region, self, now, settle);
	for (int round = 0; round < 2; round++) {
		for (unsigned int slot = 0; slot < CL_SLOTS; slot++)
			if (claim_one(region, slot, self, now))
				return (int)slot;
		if (round == 0 && !look_at_all(region, self, now, settle))
			break;
	}
	return -EUSERS;
}
