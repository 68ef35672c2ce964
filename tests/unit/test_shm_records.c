/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exporter file: its records.  A hold is never lost, and a stale handle never gives one.  The ready map
 * is a set.  Damaged records do no harm.
 */
#include "tests/unit/region.h"

#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>

/* ------------------------------------------------------------------ records */
static void the_life_of_a_record(void **state)
{
	struct cl_region r = make_region();
	uint32_t ready[64];
	uint16_t slots[4] = { 0 };
	uint32_t g;

	atomic_store(&r.header->slots_used, 130);
	assert_int_equal(hold(&r, 0, 5, 0, 1), -ESTALE); /* never exported */
	g = publish(&r, 5, 1);
	assert_int_equal(g, 0);
	assert_int_equal(hold(&r, 0, 5, 1, 1), -ESTALE); /* a generation to come */
	assert_int_equal(hold(&r, 0, 5, 0, 2), -EBADMSG); /* another handle */
	assert_false(cl_record_held(&r, 5));
	assert_int_equal(hold(&r, 0, 5, 0, 1), 0);
	assert_int_equal(hold(&r, 129, 5, 0, 1), 0);
	assert_int_equal(cl_record_holders(&r, 5, slots, 4), 2);
	assert_int_equal(slots[0], 0);
	assert_int_equal(slots[1], 129);
	assert_int_equal(cl_record_holders(&r, 5, slots, 0), 2);
	cl_record_unhold(&r, 0, 5);
	assert_int_equal(hold(&r, 0, 5, 0, 1), 0);
	assert_false(cl_record_any_ready(&r)); /* not in limbo: nobody waits for it */
	cl_record_export_again(&r, 5, 77);
	assert_int_equal(r.record[5].exports, 2);
	assert_int_equal(r.record[5].exported, 77);

	cl_record_to_limbo(&r, 5, 99);
	assert_int_equal(r.record[5].freed, 99);
	assert_int_equal(cl_life_state(cl_record_life(&r, 5)), CL_LIMBO);
	assert_false(cl_record_try_release(&r, 5));
	assert_int_equal(cl_life_state(cl_record_life(&r, 5)), CL_LIMBO);
	cl_record_unhold(&r, 0, 5);
	assert_false(cl_record_any_ready(&r)); /* another process still holds it */
	assert_int_equal(hold(&r, 7, 5, 0, 1), 0); /* a handle that was on its way */
	cl_record_unhold(&r, 7, 5);
	assert_false(cl_record_any_ready(&r));
	cl_record_unhold(&r, 129, 5);
	assert_true(cl_record_any_ready(&r));
	assert_int_equal(cl_record_take_ready(&r, ready, 64), 1);
	assert_int_equal(ready[0], 5);
	assert_false(cl_record_any_ready(&r));

	assert_true(cl_record_try_release(&r, 5));
	assert_int_equal(cl_record_life(&r, 5), cl_life(1, CL_FREE));
	assert_int_equal(hold(&r, 0, 5, 0, 1), -ESTALE);
	assert_int_equal(hold(&r, 0, 5, 1, 1), -ESTALE);
	assert_false(cl_record_held(&r, 5));
	assert_int_equal(publish(&r, 5, 1), 1); /* the driver gave the same handle again */
	assert_int_equal(r.record[5].exports, 1);
	assert_int_equal(r.record[5].freed, 0);
	assert_int_equal(hold(&r, 0, 5, 0, 1), -ESTALE);
	assert_int_equal(hold(&r, 0, 5, 1, 1), 0);

	/* its context ended: its holders keep the record, and no other process gets a hold */
	assert_false(cl_record_orphan(&r, 5));
	assert_int_equal(cl_life_state(cl_record_life(&r, 5)), CL_ORPHANED);
	assert_int_equal(hold(&r, 3, 5, 1, 1), -ESTALE);
	assert_false(cl_record_try_release(&r, 5));
	cl_record_unhold(&r, 0, 5);
	assert_int_equal(cl_record_take_ready(&r, ready, 64), 1);
	assert_true(cl_record_try_release(&r, 5));
	assert_int_equal(publish(&r, 5, 3), 2);
	assert_true(cl_record_orphan(&r, 5));
	assert_int_equal(cl_record_life(&r, 5), cl_life(3, CL_FREE));
	drop_region(&r);
}

static void a_pinned_block_is_kept(void **state)
{
	struct cl_region r = make_region();
	uint8_t right[64] = { 0 }, wrong[64] = { 0 };

	memset(right, 1, 56);
	memset(wrong, 2, 56);
	assert_int_equal(cl_record_pin(&r, 0, 0, right), -EBADMSG); /* its handle is zeros */
	publish(&r, 0, 1);
	assert_int_equal(cl_record_pin(&r, 0, 0, wrong), -EBADMSG);
	assert_int_equal(cl_record_pin(&r, 0, 1, right), -ESTALE);
	assert_int_equal(cl_record_pin(&r, CL_CHUNK, 0, right), -EBADMSG);
	assert_false(cl_record_held(&r, 0));
	assert_int_equal(cl_record_pin(&r, 0, 0, right), 0);
	assert_true(cl_record_held(&r, 0));
	cl_record_to_limbo(&r, 0, 1);
	assert_false(cl_record_try_release(&r, 0));
	assert_int_equal(cl_record_pin(&r, 0, 0, right), 0); /* in limbo, too */
	/* holds and closes change nothing */
	assert_int_equal(hold(&r, 0, 0, 0, 1), 0);
	cl_record_unhold(&r, 0, 0);
	assert_false(cl_record_try_release(&r, 0));
	drop_region(&r);
}

/* Its exporter is finding out whether it may free the block, or was killed there.  The caller waits, without a lock. */
static void a_dying_record_is_answered_at_once_and_left_as_it_is(void **state)
{
	struct cl_region r = make_region();
	uint8_t handle[64] = { 0 };

	memset(handle, 1, 56);
	publish(&r, 0, 1);
	atomic_store(&r.record[0].life, cl_life(0, CL_DYING));
	assert_int_equal(hold(&r, 0, 0, 0, 1), -EAGAIN);
	assert_int_equal(cl_record_pin(&r, 0, 0, handle), -EAGAIN);
	assert_int_equal(hold(&r, 0, 0, 1, 1), -ESTALE);
	assert_int_equal(cl_record_holders(&r, 0, NULL, 0), 0);
	assert_false(cl_record_held(&r, 0));
	assert_int_equal(r.record[0].opens, 0);
	assert_false(cl_record_any_ready(&r));
	/* it may not: the block was held, or the driver has refused */
	cl_record_release_end(&r, 0, cl_life(0, CL_EXPORTED), false);
	assert_int_equal(hold(&r, 0, 0, 0, 1), 0);
	drop_region(&r);
}

static void a_record_whose_generations_are_used_up_is_retired(void **state)
{
	struct cl_region r = make_region();
	struct cl_stamp s;
	uint32_t g;

	atomic_store(&r.header->slots_used, 1);
	atomic_store(&r.record[0].life, cl_life(CL_GENERATIONS - 1, CL_FREE));
	assert_true(cl_record_reusable(&r, 0));
	g = publish(&r, 0, 1);
	assert_int_equal(g, CL_GENERATIONS - 1);
	s = cl_stamp_unpack(cl_stamp_pack((struct cl_stamp){ r.file_id, 0, g, 0, 0 }));
	assert_int_equal(s.generation, g);
	assert_int_equal(hold(&r, 0, 0, s.generation, 1), 0);
	cl_record_to_limbo(&r, 0, 1);
	assert_false(cl_record_try_release(&r, 0));
	cl_record_unhold(&r, 0, 0);
	assert_true(cl_record_try_release(&r, 0));
	/* one more would give generation 0 again in a stamp: the oldest handle would be valid */
	assert_false(cl_record_reusable(&r, 0));
	assert_int_equal(cl_stamp_unpack(cl_stamp_pack((struct cl_stamp){ r.file_id, 0, g + 1, 0, 0 })).generation,
			 0);
	assert_int_equal(hold(&r, 0, 0, 0, 1), -ESTALE);
	drop_region(&r);
}

/* ---------------------------------------------------------------- ready map */
static void the_ready_map_is_a_set(void **state)
{
	enum { CHUNKS = 300, RECORDS = CHUNKS * CL_CHUNK, MAX = 400 };
	struct cl_region r = make_region();
	bool *in = test_calloc(RECORDS, sizeof *in);
	unsigned int in_n = 0, full = 0;
	uint32_t out[MAX];

	grow_to(&r, CHUNKS);
	for (int round = 0; round < 4000; round++) {
		/* now few and far apart, now a crowd in one place */
		unsigned int add = random_next() % 8 ? random_next() % 6 : random_next() % 900;
		uint32_t near = random_next() % RECORDS;

		for (unsigned int i = 0; i < add; i++) {
			uint32_t record = add > 6 ? (near + random_next() % 2000) % RECORDS :
						    random_next() % RECORDS;

			cl_record_set_ready(&r, record);
			in_n += !in[record];
			in[record] = true;
		}
		if (random_next() % 2) {
			unsigned int max = random_next() % MAX;
			unsigned int n = cl_record_take_ready(&r, out, max);

			assert_true(n <= max);
			assert_true(n || !in_n || max < 64);
			assert_true(n + 64 > max || n == in_n); /* all, or as many as fit */
			full += n && n + 64 > max;
			for (unsigned int i = 0; i < n; i++) {
				assert_true(out[i] < RECORDS);
				assert_true(in[out[i]]);
				in[out[i]] = false;
			}
			in_n -= n;
		}
		assert_int_equal(cl_record_any_ready(&r), in_n != 0);
	}
	assert_true(full > 10); /* batches beyond the maximum were among them */
	while (in_n) {
		unsigned int n = cl_record_take_ready(&r, out, 64);

		assert_true(n > 0);
		in_n -= n;
		for (unsigned int i = 0; i < n; i++) {
			assert_true(in[out[i]]);
			in[out[i]] = false;
		}
	}
	assert_false(cl_record_any_ready(&r));
	test_free(in);
	drop_region(&r);
}

static void damaged_ready_bits_lead_nowhere(void **state)
{
	struct cl_region r = make_region();
	uint32_t out[128];
	struct stat before, after;

	assert_int_equal(fstat(r.fd, &before), 0);
	memset(r.ready_top, 0xff, sizeof *r.ready_top);
	cl_record_set_ready(&r, 3);
	assert_int_equal(cl_record_take_ready(&r, out, 128), 1);
	assert_int_equal(out[0], 3);
	assert_false(cl_record_any_ready(&r));
	assert_int_equal(fstat(r.fd, &after), 0);
	assert_int_equal(after.st_blocks, before.st_blocks);
	drop_region(&r);
}

enum { SETTERS = 2, SET_RECORDS = 3000, SET_TIMES = 150000 };
static struct setter {
	struct cl_region region;
	pthread_t thread;
	unsigned int number;
	_Atomic uint32_t set[SET_RECORDS]; /* how often; before the ready bit */
} setters[SETTERS];
static atomic_int setting;

static void *set_many(void *setter)
{
	struct setter *s = setter;
	uint64_t state = 12345 + s->number;

	for (int i = 0; i < SET_TIMES; i++) {
		uint32_t record;

		state = state * 6364136223846793005u + 1442695040888963407u;
		record = (uint32_t)(state >> 33) % SET_RECORDS;
		atomic_fetch_add(&s->set[record], 1);
		cl_record_set_ready(&s->region, record);
	}
	atomic_fetch_sub(&setting, 1);
	return NULL;
}

/* What was set after the last time it was taken is still there. */
static void nothing_ready_is_lost_among_threads(void **state)
{
	static uint32_t seen[SETTERS][SET_RECORDS];
	struct cl_region r = make_region();
	uint32_t out[200];
	bool last;

	grow_to(&r, SET_RECORDS / CL_CHUNK + 1);
	atomic_store(&setting, SETTERS);
	for (unsigned int i = 0; i < SETTERS; i++) {
		setters[i].region = r;
		setters[i].number = i;
		assert_int_equal(pthread_create(&setters[i].thread, NULL, set_many, &setters[i]), 0);
	}
	do {
		unsigned int n;

		last = atomic_load(&setting) == 0;
		while ((n = cl_record_take_ready(&r, out, 200)) > 0)
			for (unsigned int i = 0; i < n; i++)
				for (unsigned int s = 0; s < SETTERS; s++)
					seen[s][out[i]] = atomic_load(&setters[s].set[out[i]]);
	} while (!last);
	for (unsigned int i = 0; i < SETTERS; i++) {
		pthread_join(setters[i].thread, NULL);
		for (unsigned int record = 0; record < SET_RECORDS; record++)
			assert_int_equal(seen[i][record], atomic_load(&setters[i].set[record]));
	}
	drop_region(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_life_of_a_record),
		cmocka_unit_test(a_pinned_block_is_kept),
		cmocka_unit_test(a_dying_record_is_answered_at_once_and_left_as_it_is),
		cmocka_unit_test(a_record_whose_generations_are_used_up_is_retired),
		cmocka_unit_test(the_ready_map_is_a_set),
		cmocka_unit_test(damaged_ready_bits_lead_nowhere),
		cmocka_unit_test(nothing_ready_is_lost_among_threads),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
