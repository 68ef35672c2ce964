/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CU_SCREEN_H
#define CU_SCREEN_H

#include <stdbool.h>
#include <stdint.h>

struct cu_command;

/* Whether the terminal can place a cursor; a dumb one can't.  Says so where ncurses is missing. */
bool cu_top_has_screen(const struct cu_command *command);
/*
 * Shows the processes, and does what keys say, until q, a signal or the @times-th look
 * (< 0: without end), @delay ns apart.  Returns the exit status.
 */
int cu_top_screen(const struct cu_command *command, uint64_t delay, long long times);

#endif
