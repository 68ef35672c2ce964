/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exporter file: slots are claimed once and given back, and dead processes (only they) are reaped.  One
 * thread acts as the processes in turn; test_shm_deaths.c has real ones.
 */
#include "tests/unit/region.h"

#include <errno.h>

#include "shim/shm/slot.h"

static uint32_t cleared[64];
static unsigned int cleared_n;
static void keep_cleared(void *data, uint32_t record)
{
	assert_ptr_equal(data, &cleared_n);
	cleared[cleared_n++ % 64] = record;
}

static void a_slot_is_cleared_and_what_came_free_is_ready(void **state)
{
	struct cl_region r = make_region();
	uint32_t ready[128];

	grow_to(&r, 3);
	atomic_store(&r.header->slots_used, 71);
	for (uint32_t record = 0; record < 3 * CL_CHUNK; record += CL_CHUNK / 2) {
		publish(&r, record, 1);
		assert_int_equal(hold(&r, 70, record, 0, 1), 0);
		if (record)
			cl_record_to_limbo(&r, record, 1);
	}
	assert_int_equal(hold(&r, 1, CL_CHUNK, 0, 1), 0);
	cleared_n = 0;
	/* exported, in limbo, and in limbo but held by another: 1 + 4 + 1 */
	assert_int_equal(cl_record_clear_slot(&r, 70, keep_cleared, &cleared_n), 6);
	assert_int_equal(cleared_n, 6);
	for (unsigned int i = 0; i < 6; i++)
		assert_int_equal(cleared[i], i * CL_CHUNK / 2);
	assert_int_equal(cl_record_take_ready(&r, ready, 128), 4);
	for (unsigned int i = 0; i < 4; i++)
		assert_int_not_equal(ready[i], CL_CHUNK);
	assert_int_equal(cl_record_holders(&r, CL_CHUNK, NULL, 0), 1);
	assert_int_equal(cl_record_clear_slot(&r, 70, NULL, NULL), 0);
	assert_false(cl_record_any_ready(&r));
	drop_region(&r);
}

/* Killed after its bit was gone and before the record was made ready. */
static void a_close_that_was_cut_short_is_finished_by_the_reaper(void **state)
{
	struct cl_region r = make_region();
	uint32_t ready[64];

	publish(&r, 9, 1);
	cl_record_to_limbo(&r, 9, 1);
	atomic_store(&r.slot[4].closing, 9 + 1);
	assert_int_equal(cl_record_clear_slot(&r, 4, NULL, NULL), 0);
	assert_int_equal(cl_record_take_ready(&r, ready, 64), 1);
	assert_int_equal(ready[0], 9);
	assert_true(cl_record_try_release(&r, 9));
	/* a damaged `closing` does no harm */
	atomic_store(&r.slot[4].closing, UINT32_MAX);
	assert_int_equal(cl_record_clear_slot(&r, 4, NULL, NULL), 0);
	atomic_store(&r.slot[4].closing, CL_CHUNK + 1);
	assert_int_equal(cl_record_clear_slot(&r, 4, NULL, NULL), 0);
	assert_false(cl_record_any_ready(&r));
	drop_region(&r);
}

/* Processes that this thread acts for in turn: the owner of each byte's lock. */
static uint32_t lock_owner[CL_SLOTS + 1];
static uint32_t playing;

static int played_try_lock(struct cl_region *region, off_t byte)
{
	if (lock_owner[byte] && lock_owner[byte] != playing)
		return -EAGAIN;
	lock_owner[byte] = playing;
	return 0;
}
static int played_unlock(struct cl_region *region, off_t byte)
{
	if (lock_owner[byte] == playing)
		lock_owner[byte] = 0;
	return 0;
}
static int played_is_locked(struct cl_region *region, off_t byte)
{
	return lock_owner[byte] && lock_owner[byte] != playing;
}
static const struct cl_lock_ops played_locks = { played_try_lock, played_unlock, played_is_locked };

static struct cl_identity play(uint32_t process)
{
	playing = process;
	/* it is in another PID namespace, so culimbo does not look for it in /proc */
	return (struct cl_identity){ .pid = process, .pid_ns = 1, .start_time = 100 + process };
}
static void played_death(uint32_t process)
{
	for (unsigned int i = 0; i <= CL_SLOTS; i++)
		if (lock_owner[i] == process)
			lock_owner[i] = 0;
}

static struct cl_region make_played_region(void)
{
	struct cl_region r = make_region();

	r.locks = &played_locks;
	memset(lock_owner, 0, sizeof lock_owner);
	memset(watch, 0, sizeof watch);
	return r;
}

static void slots_are_claimed_once_and_given_back(void **state)
{
	struct cl_region r = make_played_region();
	struct cl_identity w;
	struct cl_reaped reaped;

	for (uint32_t p = 1; p <= 3; p++) {
		w = play(p);
		assert_int_equal(cl_holder_claim(&r, &w, 10 + p, 50), p - 1);
		assert_int_equal(r.slot[p - 1].who.pid, p);
		assert_int_equal(r.slot[p - 1].since, 10 + p);
		assert_int_equal(r.slot[p - 1].known, r.slot[p - 1].claim >> 8);
		assert_true(r.slot[p - 1].name[0]);
	}
	assert_int_equal(r.header->slots_used, 3);
	play(2);
	cl_holder_release(&r, 1);
	assert_int_equal(lock_owner[CL_LOCK_SLOT(1)], 0);
	play(99);
	reaped = cl_holder_reap(&r, watch, 1000, 50, NULL, NULL);
	assert_int_equal(reaped.alive, 2);
	assert_int_equal(reaped.slots + reaped.settling, 0);
	w = play(4);
	assert_int_equal(cl_holder_claim(&r, &w, 20, 50), 1);
	assert_int_equal(r.slot[1].claim, 2 << 8 | CL_SLOT_CLAIMED); /* each claim has a new epoch */
	assert_int_equal(r.slot[1].who.pid, 4);
	drop_region(&r);
}

static void all_slots_may_be_taken_and_the_dead_make_room(void **state)
{
	struct cl_region r = make_played_region();
	struct cl_identity w;

	assert_true(CL_SLOTS >= 1024);
	publish(&r, 8, 1);
	for (uint32_t p = 1; p <= CL_SLOTS; p++) {
		w = play(p);
		assert_int_equal(cl_holder_claim(&r, &w, 1, 50), p - 1);
		assert_int_equal(hold(&r, p - 1, 8, 0, 1), 0);
	}
	assert_int_equal(cl_record_holders(&r, 8, NULL, 0), CL_SLOTS);
	cl_record_to_limbo(&r, 8, 1);
	w = play(5000);
	assert_int_equal(cl_holder_claim(&r, &w, 1000 * MS, 50 * MS), -EUSERS);
	played_death(700);
	/* settling: it may still be alive */
	assert_int_equal(cl_holder_claim(&r, &w, 1000 * MS, 50 * MS), -EUSERS);
	assert_int_equal(cl_holder_claim(&r, &w, 1050 * MS - 1, 50 * MS), -EUSERS);
	assert_int_equal(cl_record_holders(&r, 8, NULL, 0), CL_SLOTS);
	/* a time in the file is rounded up to a millisecond or so, never down */
	assert_int_equal(cl_holder_claim(&r, &w, 1052 * MS, 50 * MS), 699);
	assert_int_equal(cl_record_holders(&r, 8, NULL, 0), CL_SLOTS - 1);
	assert_int_equal(r.slot[699].who.pid, 5000);
	for (uint32_t p = 1; p <= CL_SLOTS; p++)
		played_death(p);
	play(6000);
	assert_int_equal(cl_holder_reap(&r, watch, 2000, 50, NULL, NULL).settling, CL_SLOTS - 1);
	assert_int_equal(cl_holder_reap(&r, watch, 2050, 50, NULL, NULL).slots, CL_SLOTS - 1);
	assert_false(cl_record_held(&r, 8));
	assert_true(cl_record_any_ready(&r));
	assert_true(cl_record_try_release(&r, 8));
	drop_region(&r);
}

/*
 * Importers in other PID namespaces that are killed one after the other, as those of a server of weights
 * may be.  Each lives only for a moment, so no importer sees a slot twice.
 */
static void the_dead_make_room_before_all_slots_are_taken(void **state)
{
	struct cl_region r = make_played_region();
	unsigned int highest = 0;

	for (uint32_t p = 1; p <= 5 * CL_SLOTS; p++) {
		struct cl_identity w = play(p);
		int slot = cl_holder_claim(&r, &w, p * MS, 50 * MS);

		assert_in_range(slot, 0, CL_SLOTS - 1);
		highest = (unsigned int)slot > highest ? (unsigned int)slot : highest;
		played_death(p);
	}
	/* an importer looks for dead ones only in a crowd; the exporter reports those that did not close */
	assert_in_range(highest, CL_CROWD, CL_SLOTS - 1);
	for (unsigned int i = 0; i <= CL_SLOTS; i++)
		assert_int_equal(lock_owner[i], 0);
	drop_region(&r);
}

/*
 * All importers die at once.  The first new importer cannot know yet that they are dead.  For the next
 * one it records when it saw their locks free.
 */
static void who_finds_all_slots_taken_tells_the_next(void **state)
{
	struct cl_region r = make_played_region();
	struct cl_identity w;

	for (uint32_t p = 1; p <= CL_SLOTS; p++) {
		w = play(p);
		assert_int_equal(cl_holder_claim(&r, &w, MS, 50 * MS), p - 1);
	}
	for (uint32_t p = 1; p <= CL_SLOTS; p++)
		played_death(p);
	w = play(5000);
	assert_int_equal(cl_holder_claim(&r, &w, 1000 * MS, 50 * MS), -EUSERS);
	w = play(5001);
	assert_int_equal(cl_holder_claim(&r, &w, 1010 * MS, 50 * MS), -EUSERS);
	/* a time of another clock is not compared with this clock */
	w = play(5002);
	w.time_ns = 1;
	assert_int_equal(cl_holder_claim(&r, &w, 9000 * MS, 50 * MS), -EUSERS);
	w = play(5003);
	assert_int_equal(cl_holder_claim(&r, &w, 9010 * MS, 50 * MS), -EUSERS);
	w = play(5004);
	assert_true(cl_holder_claim(&r, &w, 9062 * MS, 50 * MS) >= 0);
	drop_region(&r);
}

/* The data left in a slot's file entry belong to one claim of it, and are never of a future time. */
static void what_is_left_of_one_claim_is_not_of_the_next(void **state)
{
	struct cl_region r = make_played_region();
	struct cl_identity w;

	for (uint32_t p = 1; p <= CL_SLOTS; p++) {
		w = play(p);
		assert_int_equal(cl_holder_claim(&r, &w, MS, 50 * MS), p - 1);
	}
	played_death(1);
	w = play(5000);
	assert_int_equal(cl_holder_claim(&r, &w, 1000 * MS, 50 * MS), -EUSERS);
	assert_int_not_equal(r.lock_free[0], 0);
	/* meanwhile the exporter has reaped the slot, and another process claims it and dies */
	play(6000);
	cl_holder_reap(&r, watch, 1000 * MS, 0, NULL, NULL);
	w = play(5001);
	assert_int_equal(cl_holder_claim(&r, &w, 1040 * MS, 50 * MS), 0);
	played_death(5001);
	w = play(5002);
	assert_int_equal(cl_holder_claim(&r, &w, 1060 * MS, 50 * MS), -EUSERS);
	assert_int_equal(cl_holder_claim(&r, &w, 1112 * MS, 50 * MS), 0);
	/* a time that another process wrote */
	played_death(5002);
	w = play(5003);
	assert_int_equal(cl_holder_claim(&r, &w, 2000 * MS, 50 * MS), -EUSERS);
	r.lock_free[0] |= 0xffffffff;
	assert_int_equal(cl_holder_claim(&r, &w, 2010 * MS, 50 * MS), -EUSERS);
	assert_int_equal(cl_holder_claim(&r, &w, 2062 * MS, 50 * MS), 0);
	/* a lock that a process has again was not free */
	played_death(5003);
	w = play(5004);
	assert_int_equal(cl_holder_claim(&r, &w, 3000 * MS, 50 * MS), -EUSERS);
	lock_owner[CL_LOCK_SLOT(0)] = 5000;
	assert_int_equal(cl_holder_claim(&r, &w, 3010 * MS, 50 * MS), -EUSERS);
	assert_int_equal(r.lock_free[0], 0);
	lock_owner[CL_LOCK_SLOT(0)] = 0;
	assert_int_equal(cl_holder_claim(&r, &w, 3100 * MS, 50 * MS), -EUSERS);
	drop_region(&r);
}

/* A lock that is free only for a moment means no death.  Each claim has a settle time of its own. */
static void settling_begins_anew(void **state)
{
	struct cl_region r = make_played_region();
	struct cl_identity w = play(1);
	struct cl_reaped reaped;

	assert_int_equal(cl_holder_claim(&r, &w, 1, 50), 0);
	play(9);
	lock_owner[CL_LOCK_SLOT(0)] = 0;
	assert_int_equal(cl_holder_reap(&r, watch, 100, 50, NULL, NULL).settling, 1);
	lock_owner[CL_LOCK_SLOT(0)] = 1;
	assert_int_equal(cl_holder_reap(&r, watch, 140, 50, NULL, NULL).alive, 1);
	lock_owner[CL_LOCK_SLOT(0)] = 0;
	assert_int_equal(cl_holder_reap(&r, watch, 160, 50, NULL, NULL).settling, 1);
	play(1);
	assert_int_equal(played_try_lock(&r, CL_LOCK_SLOT(0)), 0);
	cl_holder_release(&r, 0);
	w = play(2);
	assert_int_equal(cl_holder_claim(&r, &w, 170, 50), 0);
	played_death(2);
	play(9);
	reaped = cl_holder_reap(&r, watch, 211, 50, NULL, NULL);
	assert_int_equal(reaped.settling, 1); /* 211 is over 160 + 50, but that was another */
	assert_int_equal(cl_holder_reap(&r, watch, 261, 50, NULL, NULL).slots, 1);
	drop_region(&r);
}

/* A process was killed between its claim and the write of its identity: only its lock shows that. */
static void a_claim_without_an_identity_is_reaped_by_its_lock(void **state)
{
	struct cl_region r = make_played_region();
	struct cl_identity w = me;

	playing = 1; /* a live process's identity, left from a claim before */
	assert_int_equal(cl_holder_claim(&r, &w, 1, 50), 0);
	cl_holder_release(&r, 0);
	atomic_store(&r.slot[0].claim, 2 << 8 | CL_SLOT_CLAIMED);
	lock_owner[CL_LOCK_SLOT(0)] = 1;
	playing = 2;
	assert_int_equal(cl_holder_reap(&r, watch, 10, 50, NULL, NULL).alive, 1);
	played_death(1);
	assert_int_equal(cl_holder_reap(&r, watch, 20, 50, NULL, NULL).settling, 1);
	assert_int_equal(cl_holder_reap(&r, watch, 70, 50, NULL, NULL).slots, 1);
	drop_region(&r);
}

static void a_new_image_reaps_what_its_former_one_held(void **state)
{
	struct cl_region r = make_played_region();
	struct cl_identity w = play(1), other;

	publish(&r, 0, 1);
	assert_int_equal(cl_holder_claim(&r, &w, 1, 50), 0);
	assert_int_equal(hold(&r, 0, 0, 0, 1), 0);
	other = play(2);
	assert_int_equal(cl_holder_claim(&r, &other, 1, 50), 1);
	assert_int_equal(hold(&r, 1, 0, 0, 1), 0);
	cl_record_to_limbo(&r, 0, 1);
	/* after exec: the same process without its locks and contexts; it need not settle */
	played_death(1);
	w = play(1);
	assert_int_equal(cl_holder_claim(&r, &w, 2, 1000000), 0);
	assert_int_equal(r.slot[0].claim, 2 << 8 | CL_SLOT_CLAIMED);
	assert_int_equal(cl_record_holders(&r, 0, NULL, 0), 1); /* the hold of the other process stays */
	/* the same pid after a reuse, or in another namespace, is another process */
	w.start_time++;
	playing = 3;
	assert_int_equal(cl_holder_claim(&r, &w, 2, 1000000), 2);
	w.pid_ns++;
	playing = 4;
	assert_int_equal(cl_holder_claim(&r, &w, 2, 1000000), 3);
	drop_region(&r);
}

static int outlived;
static int says_outlived(const struct cl_identity *who)
{
	return who->image == 1 ? outlived : 0;
}

/*
 * A child of the former program keeps its contexts alive, or that cannot be told.  The new program maps the file, so that
 * the exporter, which goes by that, would take the former one for alive.
 */
static void a_former_image_that_is_outlived_is_reaped_later(void **state)
{
	for (int said = 0; said < 2; said++) {
		struct cl_region r = make_played_region();
		struct cl_identity w = play(1);
		struct cl_reaped sum;

		r.is_outlived = says_outlived;
		outlived = said ? -EMFILE : 1;
		publish(&r, 0, 1);
		w.image = 1;
		assert_int_equal(cl_holder_claim(&r, &w, 1, 50), 0);
		assert_int_equal(hold(&r, 0, 0, 0, 1), 0);
		cl_record_to_limbo(&r, 0, 1);
		/* a slot of the same program would be no former one's */
		cl_holder_reap_former(&r, &w);
		assert_int_equal(r.slot[0].claim, 1 << 8 | CL_SLOT_CLAIMED);
		played_death(1);
		w.image = 2;
		playing = 2;
		cl_holder_reap_former(&r, &w);
		assert_int_equal(r.slot[0].claim, 1 << 8 | CL_SLOT_LEFT);
		assert_int_equal(cl_holder_claim(&r, &w, 1, 50), 1);
		assert_int_equal(r.slot[0].claim, 1 << 8 | CL_SLOT_LEFT);
		playing = 3;
		sum = cl_holder_reap(&r, watch, 10, 1000000, NULL, NULL);
		assert_int_equal(sum.outlived, said ? 0 : 1);
		assert_int_equal(sum.alive, 1);
		assert_int_equal(sum.slots, 0);
		assert_int_equal(cl_record_holders(&r, 0, NULL, 0), 1);
		/* nobody claims the slot meanwhile */
		w = play(4);
		assert_int_equal(cl_holder_claim(&r, &w, 1, 50), 2);
		playing = 3;
		outlived = 0;
		sum = cl_holder_reap(&r, watch, 20, 1000000, NULL, NULL);
		assert_int_equal(sum.slots, 1);
		assert_int_equal(sum.holds, 1);
		assert_int_equal(r.slot[0].claim, 1 << 8 | CL_SLOT_FREE);
		assert_true(cl_record_try_release(&r, 0));
		drop_region(&r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_slot_is_cleared_and_what_came_free_is_ready),
		cmocka_unit_test(a_close_that_was_cut_short_is_finished_by_the_reaper),
		cmocka_unit_test(slots_are_claimed_once_and_given_back),
		cmocka_unit_test(all_slots_may_be_taken_and_the_dead_make_room),
		cmocka_unit_test(the_dead_make_room_before_all_slots_are_taken),
		cmocka_unit_test(who_finds_all_slots_taken_tells_the_next),
		cmocka_unit_test(what_is_left_of_one_claim_is_not_of_the_next),
		cmocka_unit_test(settling_begins_anew),
		cmocka_unit_test(a_claim_without_an_identity_is_reaped_by_its_lock),
		cmocka_unit_test(a_new_image_reaps_what_its_former_one_held),
		cmocka_unit_test(a_former_image_that_is_outlived_is_reaped_later),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
