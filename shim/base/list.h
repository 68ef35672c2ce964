/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list: its elements have a struct cl_node for each list that they can be on at a time.
 * In at either end and out anywhere is O(1).  Whoever calls holds the lock that the list
 * is under.
 *
 * All zeros is an empty list.  A node that is on no list is all zeros, too, once it has been
 * taken out; cl_list_has() wants that also before it is put on one.
 */
#ifndef CL_LIST_H
#define CL_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cl_node {
	struct cl_node *prev, *next;
};

struct cl_list {
	struct cl_node *first, *last;
	uint64_t n;
};

/* The element of @type that @node is the @member of; NULL of NULL. */
#define CL_LIST_ENTRY(node, type, member)                                                   \
	__extension__({                                                                     \
		struct cl_node *node_ = (node);                                             \
		node_ ? (type *)(void *)((char *)node_ - offsetof(type, member)) : NULL;    \
	})
#define CL_LIST_FIRST(list, type, member) CL_LIST_ENTRY((list)->first, type, member)
#define CL_LIST_NEXT(entry, type, member) CL_LIST_ENTRY((entry)->member.next, type, member)

/* Each element of @list, first to last; the body takes none out. */
#define CL_LIST_EACH(entry, list, type, member)                          \
	for ((entry) = CL_LIST_FIRST(list, type, member); (entry) != NULL; \
	     (entry) = CL_LIST_NEXT(entry, type, member))
/* The same; the body may take its own element out.  @following is a variable that is needed. */
#define CL_LIST_EACH_REMOVING(entry, following, list, type, member)                               \
	for ((entry) = CL_LIST_FIRST(list, type, member);                                         \
	     (entry) != NULL && ((following) = CL_LIST_NEXT(entry, type, member), 1); (entry) = (following))

/* Whether @node, which is on @list or on none, is on it. */
static inline bool cl_list_has(const struct cl_list *list, const struct cl_node *node)
{
	return node->prev || list->first == node;
}

/* As the last. */
static inline void cl_list_add(struct cl_list *list, struct cl_node *node)
{
	node->prev = list->last;
	node->next = NULL;
	*(list->last ? &list->last->next : &list->first) = node;
	list->last = node;
	list->n++;
}

static inline void cl_list_add_front(struct cl_list *list, struct cl_node *node)
{
	node->prev = NULL;
	node->next = list->first;
	*(list->first ? &list->first->prev : &list->last) = node;
	list->first = node;
	list->n++;
}

static inline void cl_list_remove(struct cl_list *list, struct cl_node *node)
{
	*(node->prev ? &node->prev->next : &list->first) = node->next;
	*(node->next ? &node->next->prev : &list->last) = node->prev;
	node->prev = node->next = NULL;
	list->n--;
}

/* A chain has no struct cl_list: something else leads to its first element, whose .prev is NULL. */
#define CL_CHAIN_EACH(entry, first_, type, member) \
	for ((entry) = (first_); (entry) != NULL; (entry) = CL_LIST_NEXT(entry, type, member))
static inline void cl_chain_add_after(struct cl_node *before, struct cl_node *node)
{
	node->prev = before;
	node->next = before->next;
	if (before->next)
		before->next->prev = node;
	before->next = node;
}

static inline void cl_chain_remove(struct cl_node *node)
{
	if (node->prev)
		node->prev->next = node->next;
	if (node->next)
		node->next->prev = node->prev;
	node->prev = node->next = NULL;
}

#endif
