/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by scene_shared.c, which has the list, and scene_shared_importers.c. */
#ifndef CL_TEST_SCENE_SHARED_H
#define CL_TEST_SCENE_SHARED_H

#include "stage.h"

#define LAZY 1 /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */

enum kind { LEGACY, VIRTUAL, ASYNC, KINDS };

/* scene_shared.c */
extern const char *const kinds[KINDS];
/* @bytes of @kind on P's current device, full of @value. */
uint64_t shared_alloc(struct actor *p, enum kind kind, uint64_t bytes, unsigned char value);
/* Waits until the actor has taken the request that it was told. */
void taken(const struct actor *actor);
bool has_answered(const struct actor *actor);

/* scene_shared_importers.c */
/* All threads of the actor stand still when it returns. */
void stop(const struct actor *actor);
/*
 * Has C open @handle, of an exporter that stands still.  When it returns C has asked the exporter's service, and sleeps
 * until that answers.
 */
void ask_for(struct actor *c, const struct handle *handle);
void shared_importer_killed(void);
void shared_crowd(void);

#endif
