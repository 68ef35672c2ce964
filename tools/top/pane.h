/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shows the output of `culimbo show` and `culimbo collect` over the screen of `culimbo top`.
 *
 * Lines that name a block lead on to its holders and call stacks; lines that name a process lead
 * to that process.  Panes are stacked; Escape closes the uppermost.
 */
#ifndef CU_PANE_H
#define CU_PANE_H

#include <stdbool.h>

/*
 * Runs `culimbo WHAT WHOM` and shows its output.  If it can't be run, or without memory, does
 * nothing.
 */
void cu_pane_open(const char *what, const char *whom);
bool cu_pane_is_open(void);
void cu_pane_draw(void);
/* Handles @key.  Returns false if it means nothing here. */
bool cu_pane_key(int key);
void cu_pane_close_all(void);

#endif
