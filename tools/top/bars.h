/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tables and the screen of `culimbo top` draw alike: with letters of UTF-8, or without
 * them where cu_live.ascii is set.
 */
#ifndef CU_BARS_H
#define CU_BARS_H

#include <stddef.h>
#include <stdint.h>

#include "tools/top/rows.h"

/* @width columns, @part of @whole of them full; with UTF-8 by eighths. */
void cu_draw_bar(char *to, size_t size, unsigned int width, uint64_t part, uint64_t whole);
/* The last @width samples, of the most among them; @h NULL: none. */
void cu_draw_trend(char *to, size_t size, unsigned int width, const struct cu_history *h);
/* How many processes, and what they have, in one line. */
void cu_say_sum(char *to, size_t size);

#endif
