/* SPDX-License-Identifier: Apache-2.0 */
/* Gives a table more buckets: see table.h. */
#include <stdlib.h>

#include "shim/base/table.h"

enum { AT_ONCE = 4 }; /* so many for each new element: done long before the next doubling */

static void divide(struct cl_table *table, uint64_t i)
{
	struct cl_link **end[2] = { &table->bucket[2 * i], &table->bucket[2 * i + 1] };

	for (struct cl_link *link = table->old[i]; link; link = link->next) {
		unsigned int half = cl_hash_word(link->key) >> (64 - table->log) & 1;

		*end[half] = link;
		end[half] = &link->next;
	}
	*end[0] = *end[1] = NULL;
	table->divided = i + 1;
}

void cl_table_widen(struct cl_table *table)
{
	if (table->divided == UINT64_MAX) {
		struct cl_link **wide = calloc(2ull << table->log, sizeof(struct cl_link *));

		if (!wide)
			return;
		table->old = table->bucket;
		table->bucket = wide;
		table->log++;
		table->divided = 0;
	}
	for (unsigned int i = 0; i < AT_ONCE && table->divided < 1ull << (table->log - 1); i++)
		divide(table, table->divided);
	if (table->divided < 1ull << (table->log - 1))
		return;
	if (table->old != table->few)
		free(table->old);
	table->old = NULL;
	table->divided = UINT64_MAX;
}
