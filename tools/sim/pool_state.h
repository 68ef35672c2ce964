/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contents of the files of device memory, only for pool_state.c, pool_files.c and pool.c.
 * All other files call pool_*(), which sim.h declares.
 *
 * "state" has a struct pool_state, its slots, and then the events of each process.  "memory" has
 * the bytes.  pool.c lists the invariants.
 */
#ifndef CULIMBO_SIM_POOL_STATE_H
#define CULIMBO_SIM_POOL_STATE_H

#include <sys/types.h>

#include "sim.h"

#define POOL_MAGIC UINT64_C(0x6c6f6f706d697363)
#define POOL_VERSION 3
#define POOL_PROCESSES 1024
#define HOLDER_WORDS (POOL_PROCESSES / 64)
#define LOCK_PROCESS ((off_t)1 << 40) /* a byte for each process slot */
#define LOCK_SEGMENT ((off_t)1 << 41) /* a byte for each segment that a descriptor names */
#define LOCK_MEMPOOL ((off_t)1 << 50) /* a byte for each pool that a descriptor names: sim_pool_mempool_byte() */

enum { SEGMENT_NONE, SEGMENT_TAKING, SEGMENT_LIVE, SEGMENT_GIVING };

struct pool_process {
	uint32_t client; /* 0: free */
	uint32_t pid;
	uint64_t cookie;
	uint32_t serial; /* of the next segment that it publishes */
	uint32_t pad;
};

struct pool_slot {
	uint32_t segment; /* 1 + the first slot of its segment, 0: free */
	/* the rest is used only in a segment's first slot */
	uint32_t state;
	uint32_t slots;
	uint32_t device;
	uint32_t client; /* the process that published it */
	uint32_t serial;
	uint64_t base; /* the address by which others may open it; 0: they may not */
	uint32_t exported; /* a descriptor of it was made; of a pool's segment: the number of the pool */
	uint32_t way; /* enum pool_way, in which others may open it */
	uint64_t holders[HOLDER_WORDS];
};

struct pool_state {
	uint64_t magic;
	uint32_t version;
	uint32_t devices;
	uint64_t memory;
	uint32_t next_client;
	uint32_t pad;
	pthread_mutex_t lock;
	uint64_t free_slots[SIM_DEVICES_MAX];
	struct pool_process process[POOL_PROCESSES];
	struct pool_slot slot[];
};
#define SIM_POOL_EVENTS_BYTES (SIM_IPC_EVENTS * sizeof(struct sim_event_core))

struct sim_pool {
	struct pool_state *state;
	size_t state_bytes;
	char *memory; /* a mapping of all device memory, from which the others are made */
	size_t memory_bytes;
	struct sim_event_core *events;
	uint32_t *holds; /* how often this process holds each segment, for one bit in the file */
	unsigned int me;
	/* @shown devices, by CUDA_VISIBLE_DEVICES; behind them those that it hides */
	unsigned int shown, physical[SIM_DEVICES_MAX];
	char path[320];
	dev_t device;
	ino_t inode, memory_inode;
};
extern struct sim_pool sim_pool;

/* ---- sizes ---- */

size_t sim_pool_slots(const struct pool_state *state); /* of each device */
size_t sim_pool_state_size(unsigned int devices, size_t memory);
/* The SIM_IPC_EVENTS places of process slot @process. */
struct sim_event_core *sim_pool_events(unsigned int process);

/* ---- byte locks of the open file description of @fd ---- */

bool sim_pool_byte_lock(int fd, short type, off_t start);
/* A process with more than 4,096 pools has one byte for several, which keeps their memory longer. */
off_t sim_pool_mempool_byte(uint32_t client, uint32_t number);
/*
 * Returns true if a description other than @fd's has a lock in the range, or if that is not
 * known.
 */
bool sim_pool_bytes_locked(int fd, off_t start, off_t length);
/*
 * Opens "state" again, for a description without locks.  Returns -1 if the folder is not ours any
 * more.
 */
int sim_pool_open_state(void);

/* Locks the state, by a robust mutex.  What a dead owner left half done is undone first. */
void sim_pool_lock(void);
void sim_pool_unlock(void);

/* ---- segments; the caller has locked the state ---- */

bool sim_pool_held(const struct pool_slot *segment);
void sim_pool_count_free(struct pool_state *state);
/* Returns how many slots from @i on, at most @most, belong to the segment @first. */
size_t sim_pool_run_length(size_t i, uint32_t first, size_t most);
/* Adds a hold of this process on the segment. */
void sim_pool_hold(uint32_t first);
/*
 * Gives the segment back if no process holds it and no descriptor keeps it.  @fd is a descriptor
 * of the state; with -1 a segment that ever had a descriptor stays.
 */
void sim_pool_maybe_give_back(uint32_t first, int fd);
/* Gives back everything that process slot @process had; afterwards the slot is free. */
void sim_pool_bury(unsigned int process, int fd);
/* Reclaims what dead processes had and what closed descriptors kept. */
void sim_pool_reap(void);

#endif
