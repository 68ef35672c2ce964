/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table of what there may be millions of and a hooked call looks for: found by a
 * word of 8 bytes.  (uthash, which the rest uses, takes 56 bytes an element, has
 * chains of ten, and touches two more elements at each addition and deletion.)
 *
 * Chains of one element or two, in as many buckets as there are elements or up to
 * twice that; the first few are there from the start, so adding cannot fail: where
 * there is no memory for more buckets the chains get longer.
 *
 * A bucket is the first bits of a key's hash, so those of bucket i are divided among 2i
 * and 2i + 1 when they become twice as many: a few with each element that comes, so
 * that none pays for all others.
 *
 * Elements begin with a struct cl_link.  No lock of its own.
 */
#ifndef CL_TABLE_H
#define CL_TABLE_H

#include <stdint.h>
#include "shim/base/hash.h"

struct cl_link {
	struct cl_link *next; /* of the same bucket */
	uint64_t key;
};

enum { CL_TABLE_FEW = 6 }; /* a logarithm */
struct cl_table {
	struct cl_link **bucket;
	unsigned int log;
	uint64_t n;
	struct cl_link **old; /* half as many buckets, */
	uint64_t divided;     /* of which those before this are divided; all: there are none */
	struct cl_link *few[1u << CL_TABLE_FEW];
};
/* What @table, which is an lvalue, begins as. */
#define CL_TABLE_BEGIN(table) { .bucket = (table).few, .log = CL_TABLE_FEW, .divided = UINT64_MAX }

/* Twice the buckets, if there is memory for them; or goes on dividing those that are there. */
void cl_table_widen(struct cl_table *table) __attribute__((cold));

static inline struct cl_link **cl_table_bucket(const struct cl_table *table, uint64_t key)
{
	uint64_t i = cl_hash_word(key) >> (64 - table->log);

	return i / 2 >= table->divided ? &table->old[i / 2] : &table->bucket[i];
}

/* NULL: there is none.  Of several of one key, the one that was added last. */
static inline void *cl_table_find(const struct cl_table *table, uint64_t key)
{
	struct cl_link *link = *cl_table_bucket(table, key);

	while (link && link->key != key)
		link = link->next;
	return link;
}

/* Its key is set. */
static inline void cl_table_add(struct cl_table *table, struct cl_link *link)
{
	struct cl_link **bucket;

	if (++table->n > 1ull << table->log || table->divided != UINT64_MAX)
		cl_table_widen(table);
	bucket = cl_table_bucket(table, link->key);
	link->next = *bucket;
	*bucket = link;
}

/* Where @link, which is in the table, is pointed to from. */
static inline struct cl_link **cl_table_at(const struct cl_table *table, const struct cl_link *link)
{
	struct cl_link **at = cl_table_bucket(table, link->key);

	while (*at != link)
		at = &(*at)->next;
	return at;
}

/* It is there. */
static inline void cl_table_remove(struct cl_table *table, const struct cl_link *link)
{
	*cl_table_at(table, link) = link->next;
	table->n--;
}

/* Puts @by, of the same key, where @link is. */
static inline void cl_table_replace(const struct cl_table *table, const struct cl_link *link,
				    struct cl_link *by)
{
	by->next = link->next;
	*cl_table_at(table, link) = by;
}

/*
 * Each element, in no order: @link is it, @next another lvalue that is needed.  The
 * body may remove or replace its element, and add none.
 */
#define CL_TABLE_EACH(table, link, next_)                                        \
	for (uint64_t bucket_ = 0; bucket_ < 1ull << (table)->log; bucket_++)    \
		for ((link) = cl_table_chain((table), bucket_);                  \
		     (link) && ((next_) = (link)->next, 1); (link) = (next_))

/* What bucket @i begins with; of an old one, which stands for two, by the first of them. */
static inline struct cl_link *cl_table_chain(const struct cl_table *table, uint64_t i)
{
	if (i / 2 < table->divided)
		return table->bucket[i];
	return i % 2 ? NULL : table->old[i / 2];
}

#endif
