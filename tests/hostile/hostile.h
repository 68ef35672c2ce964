/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the scenes of damaged and hostile files: P, D, which holds a block of P, and P's
 * file.
 */
#ifndef CL_TEST_HOSTILE_H
#define CL_TEST_HOSTILE_H

#include "tests/e2e/stage.h"

#include <errno.h>

#define ENV "CULIMBO_GRACE=100ms"
#define GRACE_MS 100
#define SOON_MS 5000
#define NOBODY 65534

/* damage.c */
extern char path[300]; /* the only exporter file */
extern char aside[320];
void must(bool holds, const char *what);
void poke(uint64_t at, const void *bytes, size_t n);
void in_its_place(void);
int lines_of(const struct actor *actor, const char *text);
void wait_out(double from);
void once(const struct actor *c, const char *what);
extern struct actor *p, *d;
extern uint64_t block, at_d;
extern struct handle handle;
void begin(void);
void d_keeps(const char *what);
void damaged_header(void);
void damaged_file(void);
void replaced_by_link(void);
void replaced_by_other(void);
void numbers_lie(void);
void exported_again(void);

#endif
