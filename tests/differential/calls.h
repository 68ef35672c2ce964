/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations.  An operation draws its operands from the seed, makes the call if they exist, prints a
 * line, and records in the model what the call did.
 *
 * These calls are never made, because a driver may crash: calls on an event or a context after its end.
 * These are never made, because their result without culimbo is undefined: calls on a pointer after its end
 * when its address may belong to another block (something was allocated or opened since), and one close too
 * many of such a pointer.
 */
#ifndef DIFFERENTIAL_CALLS_H
#define DIFFERENTIAL_CALLS_H

#include <stdbool.h>
#include <stdint.h>

/* calls_memory.c */
void play_alloc_sync(void);
void play_alloc_async(void);
void play_free_sync(void);
void play_free_async(void);
void play_export(void);
void play_open(void);
void play_close(void);
void play_close_other(void);
void play_read(void);
void play_write(void);
void play_query(void);
void play_memory(void);
void play_exhaust(void);

/* calls.c */
void play_event_create(void);
void play_event_destroy(void);
void play_event(void);
void play_event_export(void);
void play_event_open(void);
void play_stream_create(void);
void play_stream(void);
void play_capture(void);
void play_capture_mode(void);
void play_ctx_create(void);
void play_ctx_destroy(void);
void play_ctx_current(void);
void play_ctx(void);
void play_primary(void);
void play_green(void);
void play_fork(void);
void play_hold(void);

/* calls_pool.c */
void pools_begin(unsigned int player);
void pools_player_ended(unsigned int player);
void pools_play(uint32_t dice);
/* The contents of pools may now differ with and without culimbo. */
bool pools_may_take_memory(void);

/* calls_virtual.c */
void virtual_begin(unsigned int player);
void virtual_player_ended(unsigned int player);
/* A context of the current player has ended: so have its imports. */
void virtual_context_ended(uint8_t ctx);
void virtual_play(uint32_t dice);
/* As pools_may_take_memory(). */
bool virtual_may_take_memory(void);
void virtual_opened_some(void);
bool virtual_shares_all(void);
bool virtual_can_work(void);

#endif
