/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the parts of a process under torture: player.c, player_memory.c for blocks and imports,
 * player_pool.c for pools, player_async.c for stream-ordered memory by legacy handles, player_virtual.c for
 * virtual memory.
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
	uint64_t pool;	       /* the serial number of its pool, whose pointers it exports; 0: it has legacy handles */
	bool async;	       /* stream-ordered memory with legacy handles */
	CUmemoryPool from;     /* its pool, or NULL */
	CUipcMemHandle handle; /* or a pool's export data */
};

struct import {
	CUdeviceptr address;
	int opens;
	struct gift gift;
};

#define COUNT(name) atomic_fetch_add(&table->name, 1)

/* Records the current source line; PLAYER_FILE tells which file it is in. */
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
/* Sends @gift, with a pool's descriptor or -1. */
void send_with(const struct gift *gift, uint32_t to, int fd);
bool gift_alive(const struct gift *gift);
/* Complains unless the first @n words are the block's own. */
bool check_words(const uint64_t *words, uint64_t n, const struct gift *gift, const char *when);
void free_block(uint32_t slot);
/* On a GPU, before @pool is destroyed: a block that is freed later has the driver use freed memory (measured). */
void free_blocks_from(CUmemoryPool pool);
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
/* Returns the descriptor of a gift's pool, or -1 when this process does not know the pool. */
int pool_descriptor(const struct gift *gift);
/* Takes over the descriptor of a pool that came with a gift. */
void pool_arrived(const struct gift *gift, int fd);
/* Returns false when this process does not know the pool. */
bool pool_import(const struct gift *gift, CUdeviceptr *address, CUresult *result);
void pool_free_import(const struct import *import);

/* player_async.c */
bool shares_all(void); /* CULIMBO_SHARE=all is set here */
CUresult async_alloc(struct block *block, uint64_t bytes);
/* Returns false, without a complaint, where nothing is shared. */
bool async_export(struct block *block);
/* Frees @block in the order of a stream in which a copy is queued. */
bool async_free_behind_a_copy(const struct block *block);
void do_async(void);
void end_async(void);
void async_tell(void);
/* Returns true if @block is of a default pool whose USED_MEM_CURRENT async_tell() says: cuMemFree() must not free it. */
bool is_counted(const struct block *block);

/* player_virtual.c */
void do_virtual(void);
void virtual_open(const struct gift *gift);
/* In a forked child: returns true if it cannot unmap what its parent has. */
bool virtual_in_child(void);
void end_virtual(void);

#endif
