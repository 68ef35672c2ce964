/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limbo: the states of a block.  The test tries every change from one state to another, those that the table
 * at the head of limbo.c allows and all others.  It has a copy of that table.
 */
#include "tests/unit/limbo.h"

#include "shim/limbo/fence.h"
#include "shim/limbo/inside.h"
#include "shim/limbo/inside.h"

#define STEP(from, to) { CL_BLOCK_##from, CL_BLOCK_##to }
static const struct {
	enum cl_block_state from, to;
} steps[] = {
	STEP(LIVE, FREEING),
	STEP(LIVE, ORPHANED),
	STEP(LIVE, DELETED),
	STEP(FREEING, LIVE),
	STEP(FREEING, GRACE),
	STEP(FREEING, HELD),
	STEP(FREEING, FENCED),
	STEP(FREEING, READY),
	STEP(FREEING, UNTRACKED),
	STEP(FREEING, ORPHANED),
	STEP(FREEING, DELETED),
	STEP(GRACE, GRACE),
	STEP(GRACE, HELD),
	STEP(GRACE, FENCED),
	STEP(GRACE, READY),
	STEP(GRACE, RELEASING),
	STEP(GRACE, ORPHANED),
	STEP(GRACE, DELETED),
	STEP(HELD, HELD),
	STEP(HELD, FENCED),
	STEP(HELD, READY),
	STEP(HELD, RELEASING),
	STEP(HELD, ORPHANED),
	STEP(HELD, DELETED),
	STEP(FENCED, READY),
	STEP(FENCED, ORPHANED),
	STEP(FENCED, DELETED),
	STEP(READY, HELD),
	STEP(READY, BLOCKED),
	STEP(READY, RELEASING),
	STEP(READY, ORPHANED),
	STEP(READY, DELETED),
	STEP(BLOCKED, HELD),
	STEP(BLOCKED, READY),
	STEP(BLOCKED, ORPHANED),
	STEP(BLOCKED, DELETED),
	STEP(RELEASING, GRACE),
	STEP(RELEASING, HELD),
	STEP(RELEASING, READY),
	STEP(RELEASING, ORPHANED),
	STEP(RELEASING, DELETED),
	STEP(UNTRACKED, DELETED),
	STEP(ORPHANED, DELETED),
};

static bool is_a_step(enum cl_block_state from, enum cl_block_state to)
{
	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
		if (steps[i].from == from && steps[i].to == to)
			return true;
	return false;
}

/* Brings @block into the state by the limbo's own calls, which follow the table. */
static void bring(struct cl_block *block, enum cl_block_state to)
{
	static const enum cl_block_state before[CL_BLOCK_STATES] = {
		[CL_BLOCK_FREEING] = CL_BLOCK_LIVE,   [CL_BLOCK_GRACE] = CL_BLOCK_FREEING,
		[CL_BLOCK_HELD] = CL_BLOCK_FREEING,   [CL_BLOCK_FENCED] = CL_BLOCK_FREEING,
		[CL_BLOCK_READY] = CL_BLOCK_FREEING,  [CL_BLOCK_UNTRACKED] = CL_BLOCK_FREEING,
		[CL_BLOCK_BLOCKED] = CL_BLOCK_READY,  [CL_BLOCK_RELEASING] = CL_BLOCK_READY,
		[CL_BLOCK_ORPHANED] = CL_BLOCK_LIVE,  [CL_BLOCK_DELETED] = CL_BLOCK_LIVE,
	};

	if (to == CL_BLOCK_LIVE)
		return;
	bring(block, before[to]);
	cl_block_set_state(&cl_exporter, block, to);
	if (to == CL_BLOCK_GRACE)
		cl_grace_add_locked(&cl_exporter, block, cl_now());
}

static bool is_on(const struct cl_list *list, const struct cl_block *block)
{
	const struct cl_block *at;

	CL_LIST_EACH (at, list, const struct cl_block, node)
		if (at == block)
			return true;
	return false;
}

/* @block is in @state, and only on the lists that belong to that state. */
static void check_is(const struct cl_block *block, enum cl_block_state state)
{
	uint64_t waits = state == CL_BLOCK_HELD || state == CL_BLOCK_FENCED ? 2u << 20 : 0, sum = 0;

	CHECK_EQUAL(block->state, state);
	CHECK_EQUAL(is_on(&cl_exporter.limbo.held, block), state == CL_BLOCK_HELD);
	CHECK_EQUAL(is_on(&cl_exporter.limbo.ready, block), state == CL_BLOCK_READY);
	CHECK_EQUAL(is_on(&cl_exporter.limbo.blocked, block), state == CL_BLOCK_BLOCKED);
	CHECK_EQUAL(is_on(&cl_exporter.limbo.untracked, block), state == CL_BLOCK_UNTRACKED);
	CHECK_EQUAL(cl_exporter.grace.waiting, state == CL_BLOCK_GRACE);
	CHECK_EQUAL(cl_fences_wait_locked(&cl_exporter), state == CL_BLOCK_FENCED);
	CHECK_EQUAL(cl_exporter.limbo.orphaned, state == CL_BLOCK_ORPHANED);
	CHECK_EQUAL(cl_exporter.limbo.held_bytes[block->device], state == CL_BLOCK_HELD ? block->size : 0);
	for (unsigned int i = 0; i < CL_DEVICE_LIMBOS; i++)
		sum += cl_exporter.limbo.of[i].waits;
	CHECK_EQUAL(sum, waits);
}

/* Tries the change with a new block.  True: it was accepted. */
static bool try(enum cl_block_state from, enum cl_block_state to)
{
	struct cl_block *block = cl_block_find(&cl_exporter.blocks, CL_MEMORY, exported_block());
	struct cl_fence *fence = calloc(1, sizeof *fence);
	bool taken;

	CHECK(block && fence);
	cl_lock(&cl_exports_lock);
	CHECK_EQUAL(block->state, CL_BLOCK_LIVE);
	cl_belongs_to(&fence->of, cl_block_context(block), &cl_block_context(block)->fences);
	cl_fence_add_locked(&cl_exporter, fence, block);
	cl_block_impossible_step = end_the_test;
	bring(block, from);
	check_is(block, from);
	cl_block_impossible_step = NULL;
	cl_block_set_state(&cl_exporter, block, to);
	taken = is_a_step(from, to);
	if (taken && to == CL_BLOCK_GRACE)
		cl_grace_add_locked(&cl_exporter, block, cl_now());
	check_is(block, taken ? to : from);
	/* ends the block, so that the next starts with nothing */
	cl_fence_wait_locked(&cl_exporter, fence, false);
	cl_fence_detach_locked(&cl_exporter, block);
	if (block->state != CL_BLOCK_DELETED)
		cl_block_set_state(&cl_exporter, block, CL_BLOCK_DELETED);
	cl_block_delete(&cl_exporter.blocks, block);
	cl_unlock(&cl_exports_lock);
	return taken;
}

IN_A_CHILD(each_step_of_the_table_is_taken_and_no_other_is)
{
	size_t taken = 0;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	for (unsigned int from = 0; from < CL_BLOCK_STATES; from++)
		for (unsigned int to = 0; to < CL_BLOCK_STATES; to++)
			taken += try((enum cl_block_state)from, (enum cl_block_state)to);
	CHECK_EQUAL(taken, sizeof steps / sizeof *steps);
	/* one message for all */
	CHECK_EQUAL(logged("a fault of culimbo: block "), 1);
}

/* With --enable-debug, and in each unit test, the program aborts. */
IN_A_CHILD(an_impossible_step_ends_a_test)
{
	char said[128] = "";
	int ends[2], status;
	pid_t child;

	CHECK(!pipe(ends));
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		dup2(ends[1], STDERR_FILENO);
		start_with(HOUR, CL_COLLECTOR_INLINE);
		cl_block_set_state(&cl_exporter, cl_block_find(&cl_exporter.blocks, CL_MEMORY, exported_block()), CL_BLOCK_READY);
		_exit(0);
	}
	close(ends[1]);
	CHECK(read(ends[0], said, sizeof said - 1) > 0);
	CHECK(strstr(said, "a block that is LIVE cannot become READY"));
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_step_of_the_table_is_taken_and_no_other_is),
		cmocka_unit_test(an_impossible_step_ends_a_test),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
