/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "Did you mean ...?": measures how far apart two short words are, for option names,
 * their values, and the subcommands of `culimbo`.
 *
 * The words come from the environment and the command line.  So time and stack are bounded
 * whatever the words are, and nothing is allocated or depends on the locale.  Any thread.
 */
#ifndef CL_NEAREST_H
#define CL_NEAREST_H

#include <stddef.h>
#include <string.h>

#define CL_NEAREST_LONGEST 48

static inline unsigned char cl_lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (unsigned char)(c - 'A' + 'a') : (unsigned char)c;
}

/* Returns 1 if the words are equal but for the case of A to Z, else 0. */
static inline int cl_same_word(const char *a, size_t a_length, const char *b, size_t b_length)
{
	if (a_length != b_length)
		return 0;
	for (size_t i = 0; i < a_length; i++)
		if (cl_lower(a[i]) != cl_lower(b[i]))
			return 0;
	return 1;
}

/*
 * Returns how many letters must be inserted, dropped, changed or swapped with a neighbour to turn
 * one word into the other, or SIZE_MAX if a word is longer than CL_NEAREST_LONGEST (no option and
 * no subcommand is that long).
 */
static inline size_t cl_word_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
	unsigned char row[3][CL_NEAREST_LONGEST + 1];
	unsigned char *before = row[0], *above = row[1], *now = row[2], *spare;

	if (a_length > CL_NEAREST_LONGEST || b_length > CL_NEAREST_LONGEST)
		return (size_t)-1;
	for (size_t j = 0; j <= b_length; j++)
		above[j] = (unsigned char)j;
	for (size_t i = 1; i <= a_length; i++) {
		now[0] = (unsigned char)i;
		for (size_t j = 1; j <= b_length; j++) {
			int differ = cl_lower(a[i - 1]) != cl_lower(b[j - 1]);
			unsigned char best = (unsigned char)(above[j - 1] + differ);

			if (above[j] + 1 < best)
				best = (unsigned char)(above[j] + 1);
			if (now[j - 1] + 1 < best)
				best = (unsigned char)(now[j - 1] + 1);
			if (i > 1 && j > 1 && cl_lower(a[i - 1]) == cl_lower(b[j - 2]) &&
			    cl_lower(a[i - 2]) == cl_lower(b[j - 1]) && before[j - 2] + 1 < best)
				best = (unsigned char)(before[j - 2] + 1);
			now[j] = best;
		}
		spare = before;
		before = above;
		above = now;
		now = spare;
	}
	return above[b_length];
}

/*
 * Returns 1 if a word at @distance is near enough to one of @length letters to be suggested: at
 * most one mistake for each three letters, the last of which may be fewer.  Else returns 0.
 */
static inline int cl_word_near(size_t distance, size_t length)
{
	return distance <= (length + 2) / 3 && distance < length;
}

#endif
