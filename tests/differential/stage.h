/* SPDX-License-Identifier: Apache-2.0 */
/* The players' processes, the orders that they get, and the output lines. */
#ifndef DIFFERENTIAL_STAGE_H
#define DIFFERENTIAL_STAGE_H

#include "tests/differential/model.h"

/* Records the current call of a play, for a play that hangs or ends. */
void underway_open(void);
void say_underway(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Has player @p execute the order. */
struct answer tell(unsigned int p, const struct order *order);
/* Waits for all work of the current player. */
void settle(void);
/* Lets its busy stream go. */
void let_go(void);

/* The second player is a process of its own from the start: @self with its arguments. */
void start(struct player *player, const char *self);
/* Ends the player; returns its status. */
int end(struct player *player, unsigned int how);

/* Sets the operands that the next line prints. */
enum { OPERANDS = 160 };
extern char operands[OPERANDS];
void with(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Has the next line say that @what is broken, unless @holds; returns @holds. */
bool promised(bool holds, const char *what);
/* Prints the line of a call; @reason: why it may differ, or NULL. */
void print(const char *name, const struct answer *a, const char *reason);

#endif
