/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "Did you mean ...?": how far apart two short words are, for option names,
 * their values, and the subcommands of `culimbo`.
 *
 * Must always hold: bounded in time and stack whatever the words (they come
 * from the environment and the command line), no allocation, no locale.
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

/* Are the words the same, but for the case of A to Z? */
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
 * The number of letters to insert, drop, change or swap with a neighbour that
 * makes one word of the other; SIZE_MAX when a word is longer than
 * CL_NEAREST_LONGEST, which nobody mistypes.
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
 * Is @distance close enough to @length letters for a suggestion to help rather
 * than to puzzle?  One mistake in three letters.
 */
static inline int cl_word_near(size_t distance, size_t length)
{
	return distance <= (length + 2) / 3 && distance < length;
}

#endif
