/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A doubly linked list.  An element has one struct cl_node for each list that it can be on at the
 * same time.  Adding at either end and removing anywhere take constant time.  The functions take
 * no lock: the caller holds the lock that protects the list.
 *
 * A list of all zeros is empty.  Removing a node sets it to all zeros.  cl_list_has() needs a node
 * that is on no list to be all zeros, also before it was ever added.
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

/* The element of @type whose @member is @node, or NULL if @node is NULL. */
#define CL_LIST_ENTRY(node, type, member)                                                   \
	__extension__({                                                                     \
		struct cl_node *node_ = (node);                                             \
		node_ ? (type *)(void *)((char *)node_ - offsetof(type, member)) : NULL;    \
	})
#define CL_LIST_FIRST(list, type, member) CL_LIST_ENTRY((list)->first, type, member)
#define CL_LIST_NEXT(entry, type, member) CL_LIST_ENTRY((entry)->member.next, type, member)

/* Visits each element of @list, first to last.  The body must not remove any element. */
#define CL_LIST_EACH(entry, list, type, member)                          \
	for ((entry) = CL_LIST_FIRST(list, type, member); (entry) != NULL; \
	     (entry) = CL_LIST_NEXT(entry, type, member))
/* The same, but the body may remove the element that it visits.  @following is a variable for the macro. */
#define CL_LIST_EACH_REMOVING(entry, following, list, type, member)                               \
	for ((entry) = CL_LIST_FIRST(list, type, member);                                         \
	     (entry) != NULL && ((following) = CL_LIST_NEXT(entry, type, member), 1); (entry) = (following))

/* Returns true if @node is on @list, false if it is on no list.  It must not be on another one. */
static inline bool cl_list_has(const struct cl_list *list, const struct cl_node *node)
{
	return node->prev || list->first == node;
}

/* Adds @node as the last element. */
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

/* A chain is a list without a struct cl_list: the caller keeps its first element, whose .prev is NULL. */
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
