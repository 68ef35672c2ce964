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
 * Word by word: who looks at a slot may find the next one's identity there, in part; then its
 * claim is another by the time that anything comes of it (see reap_one()).
 */
static void identity_put(struct cl_identity *to, const struct cl_identity *from)
{
	__atomic_store_n(&to->pid, from->pid, __ATOMIC_RELAXED);
	__atomic_store_n(&to->time_ns, from->time_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&to->pid_ns, from->pid_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&to->start_time, from->start_time, __ATOMIC_RELAXED);
}
static struct cl_identity identity_get(const struct cl_identity *from)
{
	return (struct cl_identity){
		.pid = __atomic_load_n(&from->pid, __ATOMIC_RELAXED),
		.time_ns = __atomic_load_n(&from->time_ns, __ATOMIC_RELAXED),
		.pid_ns = __atomic_load_n(&from->pid_ns, __ATOMIC_RELAXED),
		.start_time = __atomic_load_n(&from->start_time, __ATOMIC_RELAXED),
	};
}

static void read_name(char name[16])
{
	int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
	ssize_t n = 0;

	memset(name, 0, 16);
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
	/* before the claim: whoever looks for claimed slots looks this far */
	used = atomic_load_explicit(&region->header->slots_used, memory_order_relaxed);
	while (used < slot + 1 &&
	       !atomic_compare_exchange_weak_explicit(&region->header->slots_used, &used, slot + 1,
						      memory_order_acq_rel, memory_order_relaxed))
		;
	/* acquire: what the last holder's reaper did is done */
	if (!atomic_compare_exchange_strong_explicit(&s->claim, &claim, mine, memory_order_acq_rel,
						     memory_order_relaxed)) {
		region->locks->unlock(region, CL_LOCK_SLOT(slot));
		return false;
	}
	identity_put(&s->who, self);
	s->since = now;
	read_name(s->name);
	/* release: who sees the epoch reads the identity whole */
	atomic_store_explicit(&s->known, (uint32_t)(mine >> 8), memory_order_release);
	return true;
}

void cl_holder_release(struct cl_region *region, unsigned int slot)
{
	struct cl_slot *s = &region->slot[slot];
	uint64_t claim = atomic_load_explicit(&s->claim, memory_order_relaxed);

	/* release: the bits are clear before the slot is free */
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

/* Returns true when the slot was reaped. */
static bool reap_one(struct cl_region *region, unsigned int slot, uint64_t claim,
		     struct cl_reaped *sum, struct each_hold *each)
{
	struct cl_slot *s = &region->slot[slot];

	each->slot = slot;
	/* one reaper at a time, and no claimant meanwhile */
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

/* Looks at one that is claimed.  *free_since: as cl_liveness_judge() has it. */
static void look_at(struct cl_region *region, unsigned int slot, uint64_t claim, uint64_t *free_since,
		    uint64_t now, uint64_t settle, struct cl_reaped *sum, struct each_hold *each)
{
	struct cl_slot *s = &region->slot[slot];
	struct cl_identity who = { 0 };

	/* killed before it said who it is: only its lock tells, after settling */
	if (atomic_load_explicit(&s->known, memory_order_acquire) == (uint32_t)(claim >> 8))
		who = identity_get(&s->who);
	switch (cl_liveness_judge(region, CL_LOCK_SLOT(slot), &who, free_since, now, settle)) {
	case CL_ALIVE:
		sum->alive++;
		break;
	case CL_SETTLING:
	case CL_LEAVING:
		sum->settling++;
		break;
	case CL_DEAD:
		reap_one(region, slot, claim, sum, each);
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

/* ------------------------------------------------ what claimants tell one another */
/*
 * A process that claims a slot is there for a moment only, and where /proc does not tell of the
 * dead it takes two looks, CULIMBO_SETTLE apart.  So since when a lock has been free is left in
 * the file for the next one: see CL_LOCK_FREE_UNIT_BITS.
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
	/* rounded up, or written by nobody who can be believed */
	return since - now <= 1ull << CL_LOCK_FREE_UNIT_BITS ? now : 0;
}

static uint64_t lock_free_word(uint64_t since, uint64_t tag)
{
	return since ? tag | (((since - 1) >> CL_LOCK_FREE_UNIT_BITS) + 1) : 0;
}

static void look_for_the_next(struct cl_region *region, unsigned int slot, const struct cl_identity *self,
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
	/* relaxed: only a time; two who look at once agree well enough */
	if (since != was || (!since && before))
		atomic_compare_exchange_strong_explicit(left, &before, lock_free_word(since, tag),
							memory_order_relaxed, memory_order_relaxed);
}

/*
 * Where many slots are in use, at a few of them: so the dead make room before it is needed, also
 * where it takes two looks.  (Elsewhere they are left to the exporter, who tells of them.)  Before
 * this process has a slot there, for its own lock is not seen by itself.
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
		look_for_the_next(region, (from + i) % used, self, now, settle, &sum);
}

static unsigned int look_at_all(struct cl_region *region, const struct cl_identity *self, uint64_t now,
				uint64_t settle)
{
	struct cl_reaped sum = { 0 };

	for (unsigned int slot = 0; slot < CL_SLOTS; slot++)
		look_for_the_next(region, slot, self, now, settle, &sum);
	return sum.slots;
}

/*
 * Slots of this very process: pid and start time outlive exec, the context and
 * the locks don't.  What the old image held went with it.
 */
static void reap_former_image(struct cl_region *region, const struct cl_identity *self)
{
	struct each_hold nobody = { NULL, NULL, 0 };
	struct cl_reaped sum = { 0 };
	uint32_t used = atomic_load_explicit(&region->header->slots_used, memory_order_acquire);

	for (unsigned int slot = 0; self->start_time && slot < used && slot < CL_SLOTS; slot++) {
		struct cl_slot *s = &region->slot[slot];
		uint64_t claim = atomic_load_explicit(&s->claim, memory_order_acquire);

		if (claim_state(claim) == CL_SLOT_CLAIMED &&
		    atomic_load_explicit(&s->known, memory_order_acquire) ==
			    (uint32_t)(claim >> 8) &&
		    s->who.pid == self->pid && s->who.pid_ns == self->pid_ns &&
		    s->who.start_time == self->start_time)
			reap_one(region, slot, claim, &sum, &nobody);
	}
}

int cl_holder_claim(struct cl_region *region, const struct cl_identity *self, uint64_t now, uint64_t settle)
{
	reap_former_image(region, self);
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
