/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of blocks through their prev and next: in at either end and out
 * anywhere, each O(1).  A block is on one such list at a time.  Whoever calls
 * holds the lock that the list is under.
 */
#ifndef CL_LIST_H
#define CL_LIST_H

#include "shim/blocks/blocks.h"

struct cl_list {
	struct cl_block *first, *last;
	uint64_t n;
};

static inline void cl_list_add(struct cl_list *list, struct cl_block *block)
{
	block->prev = list->last;
	block->next = NULL;
	*(list->last ? &list->last->next : &list->first) = block;
	list->last = block;
	list->n++;
}

static inline void cl_list_add_front(struct cl_list *list, struct cl_block *block)
{
	block->prev = NULL;
	block->next = list->first;
	*(list->first ? &list->first->prev : &list->last) = block;
	list->first = block;
	list->n++;
}

static inline void cl_list_remove(struct cl_list *list, struct cl_block *block)
{
	*(block->prev ? &block->prev->next : &list->first) = block->next;
	*(block->next ? &block->next->prev : &list->last) = block->prev;
	block->prev = block->next = NULL;
	list->n--;
}

#endif
