/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of scenes of pools have in common. */
#ifndef CL_TEST_SCENE_POOL_H
#define CL_TEST_SCENE_POOL_H

#include "stage.h"

#define POOL_GRACE "CULIMBO_GRACE=300ms"
#define SOON_MS 15000 /* for what has no time of its own to keep */
#define MS UINT64_C(1000000) /* ns */

/* P, who has a pool, and C, who has imported it. */
struct pair {
	struct actor *p, *c;
	uint64_t pool, fd, taken; /* fd: the descriptor of the pool, in P */
};
struct pair pool_pair(struct entry p, struct entry c);
/* The pool of @pair, imported by @actor. */
uint64_t pool_taken_by(const struct pair *pair, struct actor *actor);
void pool_curtain(const struct pair *pair);

uint64_t pool_alloc(const struct pair *pair, uint64_t bytes);
int try_pool_export(struct actor *actor, uint64_t block, struct handle *data);
struct handle pool_export(struct actor *actor, uint64_t block);
int try_pool_import(struct actor *actor, uint64_t pool, const struct handle *data, uint64_t *address);
uint64_t pool_import(struct actor *actor, uint64_t pool, const struct handle *data);
int free_in(struct actor *actor, uint64_t address, uint64_t stream);
void free_in_sure(struct actor *actor, uint64_t address, uint64_t stream);
/* As claim(), of the pool of P. */
bool pool_claim(const struct pair *pair, uint64_t block, uint64_t bytes);
bool pool_claim_within(const struct pair *pair, uint64_t block, uint64_t bytes, double ms);

/* scene_pool_odd.c */
void pool_own(void);
void pool_one_sided(void);
void pool_capture(void);
void pool_fork(void);
void pool_context(void);
void pool_large(void);
void pool_pressure(void);
void pool_host(void);
void pool_destroyed(void);
void pool_observe(void);
void pool_held_bytes(void);
void pool_inline(void);

/* scene_pool_more.c */
void pool_device(void);
void pool_trim(void);
void pool_exec(void);
void pool_back(void);
void pool_freed_twice(void);
void pool_strict(void);
void pool_import_end(void);
void pool_import_end_pending(void);
void pool_import_end_other(void);
void pool_import_context(void);
void pool_import_odd(void);
void pool_inline_fence(void);
void pool_pressure_other(void);
void pool_pressure_destroyed(void);
void pool_threads(void);

/* scene_pool_holders.c */
void pool_two_holders(void);
void pool_one_of_two_dies(void);
void pool_importer_dies(void);
void pool_killed_writing(void);
void pool_exporter_dies(void);
void pool_back_soon(void);
void pool_per_thread(void);

/* scene_pool_older.c */
void pool_older(void);

#endif
