/* SPDX-License-Identifier: Apache-2.0 */
/* The players' processes, what they are told, and the lines that are printed of it. */
#ifndef DIFFERENTIAL_STAGE_H
#define DIFFERENTIAL_STAGE_H

#include "tests/differential/model.h"

/* What a play is at, for whoever looks when it does not go on, or is no more. */
void underway_open(void);
void say_underway(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Has player @p do it. */
struct answer tell(unsigned int p, const struct order *order);
/* Waits for all work of the player whose operation it is. */
void settle(void);
/* Lets go what it is busy with. */
void let_go(void);

/* The second player, which is a process of its own from the beginning on: @self with its arguments. */
void start(struct player *player, const char *self);
/* Ends it; its status. */
int end(struct player *player, unsigned int how);

/* What the next line says that the call is made with. */
enum { OPERANDS = 160 };
extern char operands[OPERANDS];
void with(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Has the next line say that @what is broken, unless it @holds; returns that. */
bool promised(bool holds, const char *what);
/* The line of a call; @reason: it may differ for that, or NULL. */
void print(const char *name, const struct answer *a, const char *reason);

#endif
