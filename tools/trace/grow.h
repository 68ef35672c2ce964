/* SPDX-License-Identifier: Apache-2.0 */
/* Lists that grow by one element at a time; a trace has many. */
#ifndef CU_GROW_H
#define CU_GROW_H

#include <stdlib.h>

/* Makes room for one more in *@list, which has @n.  Returns NULL without memory. */
static inline void *cu_grow(void *list, size_t n, size_t each)
{
	void **at = list, *more;

	if (n & (n - 1) || (n && n < 16)) /* full at 16 and at each power of two after it */
		return *at;
	more = realloc(*at, (n < 16 ? 16 : 2 * n) * each);
	if (more)
		*at = more;
	return more;
}

/*
 * Adds an element to @list, which has @n, and changes both.  Returns the element; NULL: no
 * memory.
 */
#define CU_ADD(list, n) (cu_grow(&(list), (n), sizeof *(list)) ? &(list)[(n)++] : NULL)

#endif
