/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of device memory: segments, the processes that hold them, and the lock
 * that all processes take.  See pool_state.h; pool.c lists the invariants.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pool_state.h"

struct sim_pool sim_pool;

/* ---- sizes ---- */

static size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

size_t sim_pool_slots(const struct pool_state *state)
{
	return state->memory / SIM_PAGE;
}

static size_t events_offset(unsigned int devices, size_t memory)
{
	return round_up(sizeof(struct pool_state) +
				devices * (memory / SIM_PAGE) * sizeof(struct pool_slot),
			65536);
}

size_t sim_pool_state_size(unsigned int devices, size_t memory)
{
	return events_offset(devices, memory) + POOL_PROCESSES * SIM_POOL_EVENTS_BYTES;
}

struct sim_event_core *sim_pool_events(unsigned int process)
{
	const struct pool_state *state = sim_pool.state;
	size_t offset = events_offset(state->devices, state->memory);

	return (struct sim_event_core *)((char *)sim_pool.state + offset) +
	       (size_t)process * SIM_IPC_EVENTS;
}

/* ---- byte locks of the open file description of @fd ---- */

bool sim_pool_byte_lock(int fd, short type, off_t start)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = 1 };

	return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

off_t sim_pool_mempool_byte(uint32_t client, uint32_t number)
{
	return LOCK_MEMPOOL + ((off_t)client << 12 | (number & 4095));
}

bool sim_pool_bytes_locked(int fd, off_t start, off_t length)
{
	struct flock lock = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = length
	};

	if (length == 0)
		return false;
	return fcntl(fd, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}

int sim_pool_open_state(void)
{
	char path[sizeof(sim_pool.path) + 8];
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/state", sim_pool.path);
	fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -1;
	if (fstat(fd, &st) || st.st_dev != sim_pool.device || st.st_ino != sim_pool.inode) {
		close(fd);
		return -1;
	}
	return fd;
}

/* ---- segments; the caller has locked the state ---- */

bool sim_pool_held(const struct pool_slot *segment)
{
	for (unsigned int i = 0; i < HOLDER_WORDS; i++)
		if (segment->holders[i])
			return true;
	return false;
}

void sim_pool_count_free(struct pool_state *state)
{
	size_t per_device = sim_pool_slots(state);

	for (unsigned int d = 0; d < state->devices; d++) {
		uint64_t n = 0;

		for (size_t i = 0; i < per_device; i++)
			n += !state->slot[d * per_device + i].segment;
		state->free_slots[d] = n;
	}
}

size_t sim_pool_run_length(size_t i, uint32_t first, size_t most)
{
	size_t end = (sim_pool.state->slot[first].device + 1) * sim_pool_slots(sim_pool.state);
	size_t run = 0;

	while (run < most && i + run < end && sim_pool.state->slot[i + run].segment == first + 1)
		run++;
	return run;
}

static void give_back(uint32_t first)
{
	struct pool_slot *segment = &sim_pool.state->slot[first];
	size_t end = (segment->device + 1) * sim_pool_slots(sim_pool.state);
	size_t left = segment->slots;

	segment->state = SEGMENT_GIVING;
	atomic_signal_fence(memory_order_seq_cst);
	for (size_t i = first; i < end && left; i++) {
		size_t run = sim_pool_run_length(i, first, left);

		if (!run)
			continue;
		/*
		 * Empty it before it is free, so that the next owner does not lose what it
		 * writes.
		 */
		madvise(sim_pool.memory + i * SIM_PAGE, run * SIM_PAGE, MADV_REMOVE);
		left -= run;
		while (run--)
			sim_pool.state->slot[i++].segment = 0;
		i--;
	}
	sim_pool.state->free_slots[segment->device] += segment->slots - left;
	memset(segment->holders, 0, sizeof(segment->holders));
	segment->base = 0;
	segment->exported = 0;
	atomic_signal_fence(memory_order_seq_cst);
	segment->state = SEGMENT_NONE;
}

/* Called after a process died with the lock: afterwards every segment is LIVE or gone. */
static void repair(void)
{
	struct pool_state *state = sim_pool.state;
	size_t slots = state->devices * sim_pool_slots(state);

	/* the dead process may have let go of the last hold, and not have given the segment back yet */
	for (size_t i = 0; i < slots; i++) {
		struct pool_slot *slot = &state->slot[i];

		if (slot->state == SEGMENT_LIVE && !slot->exported && !sim_pool_held(slot))
			slot->state = SEGMENT_GIVING;
	}
	for (size_t i = 0; i < slots; i++) {
		uint32_t segment = state->slot[i].segment;

		if (!segment || state->slot[segment - 1].state == SEGMENT_LIVE)
			continue;
		madvise(sim_pool.memory + i * SIM_PAGE, SIM_PAGE, MADV_REMOVE);
		state->slot[i].segment = 0;
	}
	for (size_t i = 0; i < slots; i++) {
		struct pool_slot *slot = &state->slot[i];

		if (slot->state == SEGMENT_TAKING || slot->state == SEGMENT_GIVING) {
			memset(slot->holders, 0, sizeof(slot->holders));
			slot->base = 0;
			slot->exported = 0;
			slot->state = SEGMENT_NONE;
		}
	}
	sim_pool_count_free(state);
}

void sim_pool_lock(void)
{
	if (pthread_mutex_lock(&sim_pool.state->lock) == EOWNERDEAD) {
		repair();
		pthread_mutex_consistent(&sim_pool.state->lock);
	}
}

void sim_pool_unlock(void)
{
	pthread_mutex_unlock(&sim_pool.state->lock);
}

void sim_pool_hold(uint32_t first)
{
	sim_pool.holds[first]++;
	sim_pool.state->slot[first].holders[sim_pool.me / 64] |= UINT64_C(1) << (sim_pool.me % 64);
}

void sim_pool_maybe_give_back(uint32_t first, int fd)
{
	struct pool_slot *segment = &sim_pool.state->slot[first];
	off_t byte = segment->way == POOL_BY_POINTER ? sim_pool_mempool_byte(segment->client, segment->exported) :
						       LOCK_SEGMENT + first;

	if (segment->state != SEGMENT_LIVE || sim_pool_held(segment))
		return;
	if (segment->exported && (fd < 0 || sim_pool_bytes_locked(fd, byte, 1)))
		return;
	give_back(first);
}

void sim_pool_bury(unsigned int process, int fd)
{
	struct pool_state *state = sim_pool.state;
	size_t slots = state->devices * sim_pool_slots(state);
	uint32_t client = state->process[process].client;
	uint64_t bit = UINT64_C(1) << (process % 64);

	for (size_t i = 0; i < slots; i++) {
		struct pool_slot *segment = &state->slot[i];

		if (segment->state != SEGMENT_LIVE)
			continue;
		/*
		 * what a process imports from a pool can be imported again until the process ends
		 * (measured)
		 */
		if (segment->client == client && segment->way != POOL_BY_POINTER)
			segment->base = 0;
		if (segment->holders[process / 64] & bit) {
			segment->holders[process / 64] &= ~bit;
			sim_pool_maybe_give_back((uint32_t)i, fd);
		}
	}
	state->process[process].client = 0;
}

void sim_pool_reap(void)
{
	struct pool_state *state = sim_pool.state;
	size_t slots = state->devices * sim_pool_slots(state);
	int fd = sim_pool_open_state();

	if (fd < 0)
		return;
	for (unsigned int i = 0; i < POOL_PROCESSES; i++)
		if (i != sim_pool.me && state->process[i].client &&
		    !sim_pool_bytes_locked(fd, LOCK_PROCESS + i, 1))
			sim_pool_bury(i, fd);
	for (size_t i = 0; i < slots; i++)
		if (state->slot[i].state == SEGMENT_LIVE && state->slot[i].exported)
			sim_pool_maybe_give_back((uint32_t)i, fd);
	close(fd);
}
