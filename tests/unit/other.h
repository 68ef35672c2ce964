/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other processes for tests of one exporter.  Each obeys commands with the fake driver and answers.  Also
 * queries about the exporter that several of these tests need.
 */
#ifndef CL_TEST_OTHER_H
#define CL_TEST_OTHER_H

#include "tests/unit/fake_driver.h"

#include <fcntl.h>
#include <signal.h>

#include "shim/shm/slot.h"

enum { SOON = 20000 }; /* ms; what happens at once has happened by then, even on a slow machine */

struct order {
	char what;
	CUipcMemHandle handle;
	CUipcEventHandle event;
	uint64_t a, b;
};
struct answer {
	int64_t result;
	uint64_t value;
	CUipcMemHandle handle;
};
struct other {
	pid_t pid;
	int fd;
};

static CUresult fake_event_open(CUevent *event, CUipcEventHandle handle)
{
	uint64_t value;

	driver_entered();
	memcpy(&value, handle.reserved, sizeof value);
	*event = (CUevent)(uintptr_t)(value + 0x100000);
	return CUDA_SUCCESS;
}
static CUresult fake_imported_destroy(CUevent event)
{
	driver_entered();
	CHECK((uintptr_t)event >= 0x100000);
	return CUDA_SUCCESS;
}

/* Takes many holds at once, without the driver's part of an open. */
static struct cl_region many_region;
static int many_slot = -1;
static inline void hold_many(uint32_t file_id, uint64_t first, uint64_t end)
{
	struct cl_identity self;
	int dir = open(folder, O_RDONLY | O_DIRECTORY);

	cl_identity_self(&self);
	if (many_slot < 0) {
		CHECK_EQUAL(cl_region_open(&many_region, dir, file_id, NULL), 0);
		many_slot = cl_holder_claim(&many_region, &self, cl_now(), HOUR);
		CHECK(many_slot >= 0);
	}
	close(dir);
	for (uint32_t r = (uint32_t)first; r < end; r++) {
		uint8_t handle[64] = { 0 };

		memcpy(handle, many_region.record[r].handle, 56);
		CHECK_EQUAL(cl_record_hold(&many_region, (unsigned int)many_slot, r,
					   cl_life_generation(cl_record_life(&many_region, r)), handle),
			    0);
	}
}

static inline void obey(const struct order *order, struct answer *answer)
{
	CUdeviceptr p = 0;
	CUevent event = NULL;
	uint32_t file_id;

	switch (order->what) {
	case 'o': /* open */
		answer->result = cl_memory_import(&p, order->handle, 0, fake_open);
		answer->value = p;
		break;
	case 'c': /* close */
		answer->result = cl_memory_close(order->a);
		break;
	case 'e': /* open an event */
		answer->result = cl_event_import(&event, order->event);
		answer->value = (uintptr_t)event;
		break;
	case 'd':
		answer->result = cl_event_destroy((CUevent)(uintptr_t)order->a, fake_imported_destroy);
		break;
	case 'H':
		memcpy(&file_id, &order->handle, sizeof file_id);
		hold_many(file_id, order->a, order->b);
		break;
	case 'U': /* gives one of these back */
		cl_record_unhold(&many_region, (unsigned int)many_slot, (uint32_t)order->a);
		break;
	case 'x': /* export */
		p = fake_alloc(1024, CONTEXT_A);
		answer->handle = export_block(p);
		answer->value = p;
		break;
	case 'f': /* free */
		answer->result = cl_memory_free(order->a);
		break;
	case 'g': /* release blocks that no process holds */
		answer->value = cl_limbo_collect(&cl_exporter, true).blocks;
		break;
	case 'n': /* number of frees in the driver */
		answer->value = frees_of(order->a);
		break;
	default:
		CHECK(!"a known command");
	}
}

static inline struct other start_other(uint64_t grace)
{
	struct other other;

	other.pid = fork_with_line(&other.fd);
	if (!other.pid) {
		struct order order;

		start_with(grace, CL_COLLECTOR_THREAD);
		cl_driver.cuIpcOpenEventHandle = fake_event_open;
		while (read(other.fd, &order, sizeof order) == sizeof order) {
			struct answer answer = { 0 };

			obey(&order, &answer);
			CHECK(write(other.fd, &answer, sizeof answer) == sizeof answer);
		}
		_exit(0);
	}
	return other;
}
static inline struct answer ask(struct other *other, struct order order)
{
	struct answer answer;

	CHECK(write(other->fd, &order, sizeof order) == sizeof order);
	CHECK(read(other->fd, &answer, sizeof answer) == sizeof answer);
	return answer;
}
static inline uint64_t others_open(struct other *other, CUipcMemHandle handle)
{
	struct answer answer = ask(other, (struct order){ .what = 'o', .handle = handle });

	CHECK_EQUAL(answer.result, CUDA_SUCCESS);
	return answer.value;
}
static inline void others_close(struct other *other, uint64_t p)
{
	CHECK_EQUAL(ask(other, (struct order){ .what = 'c', .a = p }).result, CUDA_SUCCESS);
}

/* -------------------------------------------------------------- the exporter */
static inline enum cl_block_state state_of(CUdeviceptr p)
{
	struct cl_block *block;
	enum cl_block_state state;

	cl_lock(&cl_exports_lock);
	block = cl_block_find(&cl_exporter.blocks, CL_MEMORY, p);
	state = block ? (enum cl_block_state)block->state : CL_BLOCK_LIVE;
	cl_unlock(&cl_exports_lock);
	return state;
}

#endif
