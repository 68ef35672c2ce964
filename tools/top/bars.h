/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts that the tables and the screen of `culimbo top` share.  They are drawn with UTF-8
 * characters, or with ASCII if cu_live.ascii is set.
 */
#ifndef CU_BARS_H
#define CU_BARS_H

#include <stddef.h>
#include <stdint.h>

#include "tools/top/rows.h"

/* Draws a bar of @width columns, filled to @part of @whole; with UTF-8 in steps of an eighth. */
void cu_draw_bar(char *to, size_t size, unsigned int width, uint64_t part, uint64_t whole);
/* Draws the last @width samples, relative to the largest of them; nothing if @h is NULL. */
void cu_draw_trend(char *to, size_t size, unsigned int width, const struct cu_history *h);
/* Writes the number of processes, and what they share, in one line. */
void cu_say_sum(char *to, size_t size);

#endif
