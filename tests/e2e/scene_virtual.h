/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by scene_virtual.c, which has the list, and the other scene_virtual_*.c. */
#ifndef CL_TEST_SCENE_VIRTUAL_H
#define CL_TEST_SCENE_VIRTUAL_H

#include "stage.h"

#define ALL "CULIMBO_SHARE=all"
#define PIECE (2 * MIB)

/* scene_virtual.c */
uint64_t virtual_reserve(struct actor *actor, uint64_t bytes);
uint64_t virtual_make(struct actor *actor, uint64_t bytes, uint64_t types);
/* Maps @bytes of new memory at @address, and fills it. */
void virtual_map(struct actor *actor, uint64_t address, uint64_t bytes, unsigned char value);
void virtual_unmap(struct actor *actor, uint64_t address, uint64_t bytes);
void virtual_curtain(struct actor *p, struct actor *c);

/* scene_virtual_cached.c */
void virtual_cached(void);

/* scene_virtual_ends.c */
void virtual_told_of_ends(void);

/* scene_virtual_many.c */
void virtual_many(void);

/* scene_virtual_more.c */
void virtual_dead(void);
void virtual_stopped(void);
void virtual_no_service(void);
void virtual_odd(void);
void virtual_forks(void);
void virtual_threads(void);
void virtual_execs(void);
void virtual_off(void);
void virtual_no_descriptors(void);
void virtual_peers(void);
void virtual_flips(void);
void virtual_told(void);
void virtual_misused(void);

#endif
