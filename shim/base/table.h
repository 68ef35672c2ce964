/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash table for things that a hooked call looks up and that may be millions.  A key is 8 bytes.
 * The other tables use uthash, which takes 56 bytes an element, has chains of ten, and touches
 * two more elements at each addition and deletion.
 *
 * There are as many buckets as elements, or up to twice as many, so a chain has one or two
 * elements.  The first buckets are part of the table, so adding cannot fail: without
 * memory for more buckets the chains get longer.
 *
 * The first bits of a key's hash choose the bucket.  When the number of buckets doubles, the
 * elements of bucket i move to 2i and 2i + 1.  Each new element moves only a few buckets, so that
 * no single call pays for the whole table.
 *
 * Elements begin with a struct cl_link.  The table has no lock: the caller holds one.
 */
#ifndef CL_TABLE_H
#define CL_TABLE_H

#include <stdint.h>
#include "shim/base/hash.h"

struct cl_link {
	struct cl_link *next; /* in the same bucket */
	uint64_t key;
};

enum { CL_TABLE_FEW = 6 }; /* log2 of the first number of buckets */
struct cl_table {
	struct cl_link **bucket;
	unsigned int log;
	uint64_t n;
	struct cl_link **old; /* the buckets before the doubling, half as many, or NULL */
	uint64_t divided;     /* so many of them have been moved; UINT64_MAX: there are none */
	struct cl_link *few[1u << CL_TABLE_FEW];
};
/* The initializer of @table, an lvalue. */
#define CL_TABLE_BEGIN(table) { .bucket = (table).few, .log = CL_TABLE_FEW, .divided = UINT64_MAX }

/* Begins to double the buckets if there is memory; if a doubling is under way, moves a few more. */
void cl_table_widen(struct cl_table *table) __attribute__((cold));

static inline struct cl_link **cl_table_bucket(const struct cl_table *table, uint64_t key)
{
	uint64_t i = cl_hash_word(key) >> (64 - table->log);

	return i / 2 >= table->divided ? &table->old[i / 2] : &table->bucket[i];
}

/* Returns the element with @key, the last added if there are several, or NULL. */
static inline void *cl_table_find(const struct cl_table *table, uint64_t key)
{
	struct cl_link *link = *cl_table_bucket(table, key);

	while (link && link->key != key)
		link = link->next;
	return link;
}

/* Adds @link, whose key the caller has set. */
static inline void cl_table_add(struct cl_table *table, struct cl_link *link)
{
	struct cl_link **bucket;

	if (++table->n > 1ull << table->log || table->divided != UINT64_MAX)
		cl_table_widen(table);
	bucket = cl_table_bucket(table, link->key);
	link->next = *bucket;
	*bucket = link;
}

/* Returns the pointer that points to @link, which is in the table. */
static inline struct cl_link **cl_table_at(const struct cl_table *table, const struct cl_link *link)
{
	struct cl_link **at = cl_table_bucket(table, link->key);

	while (*at != link)
		at = &(*at)->next;
	return at;
}

/* Removes @link, which is in the table. */
static inline void cl_table_remove(struct cl_table *table, const struct cl_link *link)
{
	*cl_table_at(table, link) = link->next;
	table->n--;
}

/* Puts @by in the place of @link; both have the same key. */
static inline void cl_table_replace(const struct cl_table *table, const struct cl_link *link,
				    struct cl_link *by)
{
	by->next = link->next;
	*cl_table_at(table, link) = by;
}

/*
 * Visits each element in no order, as @link; @next_ is a variable for the macro.  The
 * body may remove or replace the element that it visits, but must not add any.
 */
#define CL_TABLE_EACH(table, link, next_)                                        \
	for (uint64_t bucket_ = 0; bucket_ < 1ull << (table)->log; bucket_++)    \
		for ((link) = cl_table_chain((table), bucket_);                  \
		     (link) && ((next_) = (link)->next, 1); (link) = (next_))

/* Returns the first element of bucket @i.  Of the two that share an old bucket, the odd one is empty. */
static inline struct cl_link *cl_table_chain(const struct cl_table *table, uint64_t i)
{
	if (i / 2 < table->divided)
		return table->bucket[i];
	return i % 2 ? NULL : table->old[i / 2];
}

#endif
