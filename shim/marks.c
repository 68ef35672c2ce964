/* SPDX-License-Identifier: Apache-2.0 */
/* Marks of other contexts: see marks.h. */
#include <stdlib.h>

#include "shim/marks.h"

static struct cl_table marks = CL_TABLE_BEGIN(marks);

static struct cl_mark *find(const struct cl_block *block)
{
	return block->elsewhere ? cl_table_find(&marks, (uint64_t)(uintptr_t)block) : NULL;
}

uint64_t cl_marks_n(void)
{
	return marks.n;
}

void cl_mark_add(struct cl_block *block, struct cl_mark *mark)
{
	mark->link.key = (uint64_t)(uintptr_t)block;
	cl_table_add(&marks, &mark->link);
	block->elsewhere = true;
}

const struct cl_mark *cl_mark_of(const struct cl_block *block)
{
	return find(block);
}

static struct cl_mark *take(struct cl_block *block)
{
	struct cl_mark *mark = find(block);

	if (mark) {
		block->elsewhere = false;
		cl_table_remove(&marks, &mark->link);
	}
	return mark;
}

void cl_mark_drop(struct cl_block *block)
{
	free(take(block));
}

struct cl_mark *cl_stray_marks;

void cl_mark_stray(struct cl_block *block)
{
	struct cl_mark *mark = take(block);

	if (!mark)
		return;
	mark->event = block->drained;
	block->drained = NULL;
	mark->next = cl_stray_marks;
	cl_stray_marks = mark;
}

void cl_mark_each(void (*each)(struct cl_block *block, const struct cl_mark *mark, void *data),
		  void *data)
{
	struct cl_link *link, *next;

	CL_TABLE_EACH(&marks, link, next)
		each((struct cl_block *)(uintptr_t)link->key, (const struct cl_mark *)link, data);
}

void cl_marks_forget(void)
{
	cl_stray_marks = NULL;
	marks = (struct cl_table)CL_TABLE_BEGIN(marks); /* their memory is left, see cl_blocks_forget() */
}
