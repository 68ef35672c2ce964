/* SPDX-License-Identifier: Apache-2.0 */
/* Lists, compared with an array that has their expected elements and order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "shim/base/list.h"

enum { ELEMENTS = 12, STEPS = 20000 };
struct element {
	int number;
	struct cl_node node, order; /* of two lists, and none is the first of the struct */
};

/* In both directions. */
static void must_be(const struct cl_list *list, struct element *const *expected, size_t n)
{
	struct element *at, *last = NULL;
	size_t i = 0;

	assert_int_equal(list->n, n);
	CL_LIST_EACH (at, list, struct element, node) {
		assert_true(i < n);
		assert_ptr_equal(at, expected[i]);
		assert_ptr_equal(at->node.prev, last ? &last->node : NULL);
		last = at;
		i++;
	}
	assert_int_equal(i, n);
	assert_ptr_equal(list->last, last ? &last->node : NULL);
}

static void what_is_put_in_and_taken_out_is_there_in_its_order(void **state)
{
	struct element elements[ELEMENTS], *expected[ELEMENTS];
	struct cl_list list = { 0 };
	size_t n = 0, at;

	(void)state;
	memset(elements, 0, sizeof elements);
	srand(7);
	for (int step = 0; step < STEPS; step++) {
		struct element *e = &elements[rand() % ELEMENTS];

		for (at = 0; at < n && expected[at] != e; at++)
			;
		assert_int_equal(cl_list_has(&list, &e->node), at < n);
		if (at < n) {
			cl_list_remove(&list, &e->node);
			memmove(&expected[at], &expected[at + 1], (--n - at) * sizeof *expected);
		} else if (rand() % 2) {
			cl_list_add(&list, &e->node);
			expected[n++] = e;
		} else {
			cl_list_add_front(&list, &e->node);
			memmove(&expected[1], &expected[0], n++ * sizeof *expected);
			expected[0] = e;
		}
		must_be(&list, expected, n);
	}
}

static void the_body_may_take_its_element_out(void **state)
{
	struct element elements[ELEMENTS], *expected[ELEMENTS], *e, *next;
	struct cl_list list = { 0 };

	(void)state;
	for (int i = 0; i < ELEMENTS; i++) {
		elements[i].number = i;
		cl_list_add(&list, &elements[i].node);
		if (i % 2)
			expected[i / 2] = &elements[i];
	}
	CL_LIST_EACH_REMOVING (e, next, &list, struct element, node)
		if (e->number % 2 == 0) {
			cl_list_remove(&list, &e->node);
			memset(e, 0xff, sizeof *e);
		}
	must_be(&list, expected, ELEMENTS / 2);
	CL_LIST_EACH_REMOVING (e, next, &list, struct element, node)
		cl_list_remove(&list, &e->node);
	must_be(&list, expected, 0);
	assert_null(CL_LIST_FIRST(&list, struct element, node));
}

static void an_element_is_on_two_lists(void **state)
{
	struct element elements[3], *e;
	struct cl_list list = { 0 }, order = { 0 };
	int number = 2;

	(void)state;
	for (int i = 0; i < 3; i++) {
		elements[i].number = i;
		cl_list_add(&list, &elements[i].node);
		cl_list_add_front(&order, &elements[i].order);
	}
	CL_LIST_EACH (e, &order, struct element, order)
		assert_int_equal(e->number, number--);
	cl_list_remove(&order, &elements[1].order);
	assert_int_equal(order.n, 2);
	assert_int_equal(list.n, 3);
	assert_true(cl_list_has(&list, &elements[1].node));
	assert_false(cl_list_has(&order, &elements[1].order));
	assert_ptr_equal(CL_LIST_NEXT(&elements[2], struct element, order), &elements[0]);
}

static void a_chain_needs_no_list(void **state)
{
	struct element elements[3];
	struct cl_node *a = &elements[0].node, *b = &elements[1].node, *c = &elements[2].node;

	(void)state;
	memset(elements, 0, sizeof elements);
	cl_chain_add_after(a, c);
	cl_chain_add_after(a, b);
	assert_true(!a->prev && a->next == b && b->prev == a && b->next == c && c->prev == b && !c->next);
	cl_chain_remove(b);
	assert_true(a->next == c && c->prev == a && !b->prev && !b->next);
	cl_chain_remove(a);
	assert_true(!c->prev && !c->next && !a->next);
	cl_chain_add_after(c, a);
	cl_chain_remove(a);
	assert_true(!c->prev && !c->next);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_put_in_and_taken_out_is_there_in_its_order),
		cmocka_unit_test(the_body_may_take_its_element_out),
		cmocka_unit_test(an_element_is_on_two_lists),
		cmocka_unit_test(a_chain_needs_no_list),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
