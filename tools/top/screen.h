/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CU_SCREEN_H
#define CU_SCREEN_H

#include <stdbool.h>
#include <stdint.h>

struct cu_command;

/*
 * Returns true if the terminal can move the cursor; a dumb one can't.  Prints a message if
 * ncurses is missing.
 */
bool cu_top_has_screen(const struct cu_command *command);
/*
 * Shows the processes and handles keys until q, a signal, or the end of @times scans (< 0: no
 * limit), @delay ns apart.  Returns the exit status.
 */
int cu_top_screen(const struct cu_command *command, uint64_t delay, long long times);

#endif
