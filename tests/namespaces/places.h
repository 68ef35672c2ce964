/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Actors in other places: processes of tests/e2e/actor.c in their own namespaces.
 */
#ifndef CL_TEST_PLACES_H
#define CL_TEST_PLACES_H

#include "tests/e2e/stage.h"

#include <errno.h>

#define ENV "CULIMBO_GRACE=100ms CULIMBO_SETTLE=200ms"
#define GRACE_MS 100
#define SETTLE_MS 200
#define SOON_MS 5000
#define SOMEBODY 12345 /* a user that is not root */
#define REFUSED_AS_OWN 201 /* CUDA_ERROR_INVALID_CONTEXT */

/* places.c */
void must(bool holds, const char *what);
bool system_ok(const char *command);
bool can(const char *options, const char *what);
struct actor *enter_in(const char *name, const char *options, const char *env);
struct actor *enter_bare_in(const char *name, const char *options);
pid_t pid_of(const struct actor *actor, const char *options);
void wait_ms(double ms);
bool stays(struct actor *p, struct actor *c, uint64_t block, uint64_t import, double ms);

#endif
