/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations: each makes the call that the dice of the operation say, if what it names is
 * there, prints its line, and notes in the model what the call has done.
 *
 * Never played, for a driver may crash on it: an event or a context after its end; and, for
 * without culimbo it may be anything, a pointer after its end once its address can be
 * another's (anything was allocated or opened since), a close too many of what may be so.
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
/* What is in pools by now may differ with and without culimbo. */
bool pools_may_take_memory(void);

#endif
