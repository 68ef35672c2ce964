/* SPDX-License-Identifier: Apache-2.0 */
/* Wheels, compared with an array that has the tick of each node. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "shim/base/wheel.h"

enum { ELEMENTS = 200, STEPS = 20000, BEGIN = 1000000 };
struct element {
	struct cl_node node;
	uint64_t when; /* the tick that it waits for, 0: it does not wait */
	uint8_t bucket;
};
struct test {
	struct cl_wheel wheel;
	struct element element[ELEMENTS];
	uint64_t now;
	bool all;
	unsigned int n, came;
};

static void add(struct test *t, struct element *e, uint64_t when)
{
	/* an empty wheel begins at the tick of now */
	uint64_t at = t->wheel.n ? t->wheel.at : t->now;

	e->bucket = cl_wheel_add(&t->wheel, &e->node, when, t->now);
	if (when > t->now + CL_BUCKETS - 1)
		when = t->now + CL_BUCKETS - 1;
	e->when = when <= at ? at + 1 : when;
	t->n++;
}

static void take_out(struct test *t, struct element *e)
{
	cl_wheel_remove(&t->wheel, &e->node, e->bucket);
	e->when = 0;
	t->n--;
}

static void came(struct cl_node *node, void *data)
{
	struct element *e = CL_LIST_ENTRY(node, struct element, node);
	struct test *t = data;

	assert_true(e->when && (t->all || e->when <= t->now));
	take_out(t, e);
	t->came++;
}

/* The wheel has the elements that wait, and says for which tick the first of them does. */
static void must_be_right(const struct test *t)
{
	uint64_t first = 0;

	for (int i = 0; i < ELEMENTS; i++)
		if (t->element[i].when && (!first || t->element[i].when < first))
			first = t->element[i].when;
	assert_int_equal(t->wheel.n, t->n);
	assert_int_equal(cl_wheel_next(&t->wheel, t->wheel.at + 1), first);
}

static void each_comes_at_its_tick(void **state)
{
	struct test *t = calloc(1, sizeof *t);

	(void)state;
	assert_non_null(t);
	t->now = BEGIN;
	srandom(1);
	for (int step = 0; step < STEPS; step++) {
		struct element *e = &t->element[random() % ELEMENTS];

		if (random() % 4 == 0) {
			/* now and then laps later, or all at once */
			t->now += (uint64_t)random() % (random() % 16 ? 8 : 3 * CL_BUCKETS);
			t->all = random() % 64 == 0;
			cl_wheel_turn(&t->wheel, t->now, t->all, came, t);
			for (int i = 0; i < ELEMENTS; i++)
				assert_true(!t->element[i].when || (!t->all && t->element[i].when > t->now));
		} else if (e->when) {
			take_out(t, e);
		} else {
			/* also for a tick that is over, and for one that is too far away */
			add(t, e, t->now - 5 + (uint64_t)random() % (CL_BUCKETS + 50));
		}
		must_be_right(t);
	}
	assert_true(t->came > STEPS / 100);
	free(t);
}

/* Adds the node again, to the bucket that it was in. */
static void put_back(struct cl_node *node, void *data)
{
	struct element *e = CL_LIST_ENTRY(node, struct element, node);
	struct test *t = data;
	uint8_t bucket = e->bucket;
	uint64_t when = t->now + 1;

	assert_true(++t->came <= 3);
	take_out(t, e);
	while (when % CL_BUCKETS != bucket)
		when++;
	add(t, e, when);
	assert_int_equal(e->bucket, bucket);
}

/* After a turn that comes laps late, a node that is added again does not come twice in that turn. */
static void what_waits_on_comes_once_a_turn(void **state)
{
	struct test *t = calloc(1, sizeof *t);

	(void)state;
	assert_non_null(t);
	t->now = BEGIN;
	for (int i = 0; i < 3; i++)
		add(t, &t->element[i], t->now + 1);
	t->now += 2 * CL_BUCKETS + 40;
	cl_wheel_turn(&t->wheel, t->now, false, put_back, t);
	assert_int_equal(t->came, 3);
	assert_int_equal(t->wheel.n, 3);
	assert_int_equal(t->wheel.at, t->now);
	/* a wheel that was not turned for longer than it is */
	t->now += 2 * CL_BUCKETS;
	cl_wheel_turn(&t->wheel, t->now, false, came, t);
	assert_int_equal(t->came, 6);
	assert_int_equal(t->wheel.n, 0);
	assert_int_equal(t->wheel.at, t->now);
	assert_int_equal(cl_wheel_next(&t->wheel, t->wheel.at + 1), 0);
	free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_comes_at_its_tick),
		cmocka_unit_test(what_waits_on_comes_once_a_turn),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
