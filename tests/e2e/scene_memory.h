/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by scene_memory.c and scene_back.c: their grace period, their end, and their list. */
#ifndef CL_TEST_SCENE_MEMORY_H
#define CL_TEST_SCENE_MEMORY_H

#include "stage.h"

#define GRACE "CULIMBO_GRACE=300ms"
#define SOON_MS 15000 /* a bound for waits that have no time limit of their own */

/* scene_memory.c */
void curtain(struct actor *p, struct actor *c);

/* scene_back.c */
void back_big(void);
void back_small(void);
void back_after_grace(void);
void back_inline(void);
void twice(void);
void own_handle(void);
void one_sided(void);

#endif
