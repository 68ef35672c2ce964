/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of a process under torture share: player.c, and player_memory.c for what it
 * does with blocks and imports, player_pool.c for what is different with those of pools.
 */
#ifndef CL_TEST_PLAYER_H
#define CL_TEST_PLAYER_H

#include "tests/e2e/cuda_door.h"
#include "tests/torture/torture.h"

#include <errno.h>
#include <stdio.h>

#define IMPORTS 12

#define EVENTS 6
#define BEGIN_MS 30000
#define PHASE_MS 120000
#define PRESSURE_MS 2000

struct block {
	CUdeviceptr address;
	uint64_t bytes, serial;
	uint64_t pool;	       /* the serial of its pool, 0: of cuMemAlloc */
	CUipcMemHandle handle; /* or a pool's export data */
};

struct import {
	CUdeviceptr address;
	int opens;
	struct gift gift;
};

#define COUNT(name) atomic_fetch_add(&table->name, 1)

/* Leaves word of where we are; each file says by PLAYER_FILE which it is. */
#define CALL(call) (atomic_store(&me->line, PLAYER_LINE(PLAYER_FILE, __LINE__)), (call))
#define SURE(call)                                                                                 \
	({                                                                                         \
		CUresult sure_result = CALL(call);                                                 \
		if (sure_result)                                                                   \
			complain(#call, sure_result);                                              \
		!sure_result;                                                                      \
	})

/* player.c */
extern struct table *table;
extern struct place *me;
extern uint32_t here, my_life;
extern CUstream stream;
extern CUresult (*copy_to_device)(CUdeviceptr, const void *, size_t);
extern CUresult (*copy_in_stream)(void *, CUdeviceptr, size_t, CUstream);
extern struct block blocks[BLOCKS];
extern struct import imports[IMPORTS];
extern CUevent own_events[EVENTS], open_events[EVENTS];
uint32_t dice(uint32_t sides);
bool exporter(void);
void complain(const char *call, CUresult result);

/* player_memory.c */
void send_somewhere(const struct gift *gift);
/* With a pool's descriptor, or -1. */
void send_with(const struct gift *gift, uint32_t to, int fd);
bool gift_alive(const struct gift *gift);
/* Complains unless the first @n words of a block are its own. */
bool check_words(const uint64_t *words, uint64_t n, const struct gift *gift, const char *when);
void free_block(uint32_t slot);
void do_make(void);
void do_tell(void);
void do_free(void);
void do_noise(void);
void do_pressure(void);
void close_once(struct import *import);
void do_hear(void);
void do_late(void);
void do_open_own(void);
void do_read(void);
void do_close(void);

/* player_pool.c */
CUresult pool_alloc(struct block *block, uint64_t bytes);
bool pool_export(struct block *block);
void do_pool(void);
void end_pools(void);
/* The descriptor of a gift's pool, or -1: it is not known here. */
int pool_descriptor(const struct gift *gift);
/* A gift came with the descriptor of its pool, which is taken over. */
void pool_arrived(const struct gift *gift, int fd);
/* Returns false if the pool is not known here. */
bool pool_import(const struct gift *gift, CUdeviceptr *address, CUresult *result);
void pool_free_import(const struct import *import);

#endif
