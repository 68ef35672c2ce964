/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What another subcommand says (`culimbo show`, `culimbo collect`), over the screen of `culimbo top`.
 *
 * Lines that name a block or a process lead on: to that block's holders and call stacks, to that
 * process.  Panes lie over each other; Escape takes the uppermost away.
 */
#ifndef CU_PANE_H
#define CU_PANE_H

#include <stdbool.h>

/* Runs `culimbo WHAT WHOM`, and shows what it prints.  Without memory or processes, nothing. */
void cu_pane_open(const char *what, const char *whom);
bool cu_pane_is_open(void);
void cu_pane_draw(void);
/* What @key does; false: nothing here. */
bool cu_pane_key(int key);
void cu_pane_close_all(void);

#endif
