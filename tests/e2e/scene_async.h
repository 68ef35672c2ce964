/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by scene_async.c, which has the list, and the other scene_async_*.c. */
#ifndef CL_TEST_SCENE_ASYNC_H
#define CL_TEST_SCENE_ASYNC_H

#include "stage.h"

#define ALL "CULIMBO_SHARE=all"
#define SOON "CULIMBO_SHARE=all CULIMBO_GRACE=0"
#define THRESHOLD 4 /* CU_MEMPOOL_ATTR_RELEASE_THRESHOLD */
#define USED 7	    /* CU_MEMPOOL_ATTR_USED_MEM_CURRENT */

/* scene_async.c */
/* A block of the default pool, filled with @value. */
uint64_t async_alloc(struct actor *actor, uint64_t bytes, unsigned char value);
uint64_t async_default(struct actor *actor);
/* Frees @address in the order of the NULL stream, and waits for that. */
void async_free(struct actor *actor, uint64_t address);
/* True when the default pool gives @address out; it is then filled with NEXT. */
bool async_claim(struct actor *actor, uint64_t address, uint64_t bytes);
bool async_claim_within(struct actor *actor, uint64_t address, uint64_t bytes, double ms);
void async_curtain(struct actor *p, struct actor *c);

/* scene_async_more.c */
void async_dead(void);
void async_importer_dies(void);
void async_stopped(void);
void async_odd(void);
void async_own(void);
void async_one_side(void);
void async_off(void);
void async_device(void);
void async_flips(void);
void async_fork(void);
void async_fork_stays(void);
void async_pool(void);
void async_pool_destroyed(void);
void async_stream(void);
void async_back(void);
void async_both_ways(void);
void async_visible(void);
void async_large(void);
void async_threads(void);

/* scene_async_ends.c */
void async_context(void);
void async_context_captured(void);
void async_capture_access(void);
void async_whose(void);
void async_types(void);

/* scene_async_told.c */
void async_told(void);

/* scene_async_pools.c */
void async_together(void);
void async_stopped_threads(void);
void async_pool_taken(void);
void async_pool_taken_twice(void);
void async_used(void);

#endif
