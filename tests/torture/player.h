/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of a process under torture share: player.c, and player_memory.c for what it
 * does with blocks and imports.
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
	CUipcMemHandle handle;
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
extern struct block blocks[BLOCKS];
extern struct import imports[IMPORTS];
extern CUevent own_events[EVENTS], open_events[EVENTS];
uint32_t dice(uint32_t sides);
bool exporter(void);
void complain(const char *call, CUresult result);

/* player_memory.c */
void send_somewhere(const struct gift *gift);
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

#endif
