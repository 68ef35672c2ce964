/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scene that reads all that the driver tells of stream-ordered memory and of its pools, bare and under culimbo (18):
 * each is the same, but for what doc/sharing.md says.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scene_async.h"

enum { FD = 1, READINGS = 600, POOLS = 4 };

/* Attributes of the driver.  NUMBER: which number it is says nothing, as it counts what the process has made. */
enum { P_RESERVED = 5, P_USED_HIGH = 8, P_EXPORT_TYPES = 10, P_LAST = 15 };
enum { A_CONTEXT = 1, A_POINTER = 3, A_TOKENS = 5, A_NUMBER = 7, A_LEGACY = 10, A_START = 11, A_TYPES = 14, A_POOL = 17,
       A_MAPPING_SIZE = 18, A_MAPPING = 19, A_BLOCK_NUMBER = 20, A_LAST = 21 };

/* What may differ from bare, in which mode. */
enum {
	NEVER,
	PIECES, /* with the option, on a GPU: how much the driver takes at once for a pool that can be exported; */
		/* with all,visible also when it gives that back, as the pools have been exported by then */
	HANDLES /* with all,visible: that there are any */
};

struct reading {
	char what[64];
	int may_differ, result;
	uint64_t value;
};
struct readings {
	struct reading each[READINGS];
	unsigned int count;
	uint64_t pool[POOLS]; /* the default one, the device's, two of the program's */
};

static void add(struct readings *r, int may_differ, const char *what, unsigned int number, unsigned int of, int result,
		uint64_t value)
{
	struct reading *new = &r->each[r->count];

	if (r->count++ == READINGS - 1)
		break_off("there are more readings");
	new->may_differ = may_differ;
	new->result = result;
	new->value = value;
	snprintf(new->what, sizeof new->what, "%s %u of %u", what, number, of);
}

/* Which of the pools it is: handles are addresses. */
static uint64_t name_of(const struct readings *r, uint64_t pool)
{
	for (unsigned int i = 0; i < POOLS; i++)
		if (r->pool[i] == pool)
			return i;
	return pool ? POOLS : POOLS + 1;
}

static void read_pool(struct actor *p, struct readings *r, unsigned int which)
{
	uint64_t pool = r->pool[which], devices = ASK(p, devices)->v[0];

	for (unsigned int i = 1; i <= P_LAST; i++) {
		const struct wire_reply *told = ASK(p, a_attribute, pool, i, 0);

		add(r, i == P_EXPORT_TYPES ? HANDLES : i >= P_RESERVED && i <= P_USED_HIGH ? PIECES : NEVER,
		    "attribute", i, which, told->result, told->v[0]);
	}
	for (unsigned int device = 0; device < devices && device < 2; device++) {
		const struct wire_reply *told = ASK(p, a_access, pool, device);

		add(r, NEVER, "access of device", device, which, told->result, told->v[0]);
	}
	add(r, HANDLES, "export", 0, which, ASK(p, a_export_pool, pool)->result, 0);
}

static int may_differ(unsigned int attribute)
{
	switch (attribute) {
	case A_LEGACY:
	case A_TYPES:
		return HANDLES;
	case A_MAPPING:
	case A_MAPPING_SIZE:
		return PIECES;
	default:
		return NEVER;
	}
}

/* What is told of the block @at, without addresses and numbers. */
static uint64_t plain(const struct readings *r, uint64_t at, unsigned int attribute, uint64_t value)
{
	switch (attribute) {
	case A_CONTEXT:
	case A_NUMBER:
	case A_BLOCK_NUMBER:
		return value != 0;
	case A_POINTER:
	case A_START:
	case A_MAPPING:
		return at - value;
	case A_POOL:
		return name_of(r, value);
	default:
		return value;
	}
}

static void read_block(struct actor *p, struct readings *r, uint64_t at, unsigned int which)
{
	for (unsigned int i = 1; i <= A_LAST; i++) {
		const struct wire_reply *told;

		if (i == A_TOKENS) /* random, and of drivers that are long gone */
			continue;
		told = ASK(p, v_ask, at, i);
		add(r, may_differ(i), "pointer attribute", i, which, told->result, told->result ? 0 : plain(r, at, i, told->v[0]));
		told = ASK(p, v_ask_two, at, i);
		add(r, may_differ(i), "one of several pointer attributes,", i, which, told->result,
		    told->result ? 0 : plain(r, at, i, told->v[0]));
		add(r, NEVER, "type of memory beside", i, which, told->result, told->v[1]);
	}
}

static void read_pools(struct actor *p, struct readings *r, unsigned int when)
{
	const struct wire_reply *told = ASK(p, a_pools, 0);

	r->pool[0] = told->v[0];
	add(r, NEVER, "the device's pool", when, 0, told->result, name_of(r, told->v[1]));
	r->pool[1] = told->v[1];
}

/* All that the driver tells @p, which is new. */
static void read_all(struct actor *p, struct readings *r)
{
	uint64_t at[POOLS];

	memset(r, 0, sizeof *r);
	read_pools(p, r, 0);
	r->pool[2] = ASK(p, a_new_pool, 0, 0)->v[0];
	r->pool[3] = ASK(p, a_new_pool, 0, FD)->v[0];
	for (unsigned int i = 0; i < POOLS; i++)
		read_pool(p, r, i);
	at[0] = async_alloc(p, SMALL, OWN);
	for (unsigned int i = 1; i < POOLS; i++)
		at[i] = ASK(p, a_alloc_from, r->pool[i], BIG, 0)->v[0];
	add(r, NEVER, "threshold", 0, 0, ASK(p, a_attribute, r->pool[0], THRESHOLD, 1, 1 << 20)->result, 0);
	for (unsigned int i = 0; i < POOLS; i++) {
		read_pool(p, r, i);
		read_block(p, r, at[i], i);
	}
	add(r, NEVER, "the device gets a pool", 2, 0, ASK(p, a_set_pool, 0, r->pool[2])->result, 0);
	read_pools(p, r, 1);
	at[1] = ASK(p, a_alloc, SMALL, 0)->v[0];
	add(r, NEVER, "its memory's pool", 1, 1, ASK(p, v_ask, at[1], A_POOL)->result, name_of(r, p->reply.v[0]));
	add(r, NEVER, "the device gets its default pool", 0, 0, ASK(p, a_set_pool, 0, r->pool[0])->result, 0);
	read_pools(p, r, 2);
	async_free(p, at[0]);
	read_pool(p, r, 0);
}

/* Returns how many readings differ that must not; says the first.  *differ: how many tell of handles. */
static unsigned int compare(const struct readings *bare, const struct readings *ours, int allowed, unsigned int *differ)
{
	unsigned int wrong = bare->count != ours->count;

	*differ = 0;
	for (unsigned int i = 0; i < bare->count && i < ours->count; i++) {
		const struct reading *a = &bare->each[i], *b = &ours->each[i];

		if (a->result == b->result && a->value == b->value)
			continue;
		if (a->may_differ && a->may_differ <= allowed && (allowed == HANDLES || getenv("E2E_GPU")))
			*differ += a->may_differ == HANDLES;
		else if (!wrong++)
			printf("# %s: %llu (%d) bare, %llu (%d) under culimbo\n", a->what, (unsigned long long)a->value,
			       a->result, (unsigned long long)b->value, b->result);
	}
	return wrong;
}

/* What the driver tells of pools and their memory is what it tells bare. */
void async_told(void)
{
	static const struct { const char *env; int allowed; } tries[] = {
		{ "CULIMBO_SHARE=cuda", NEVER }, { NULL, NEVER }, { ALL, PIECES }, { "CULIMBO_SHARE=all,visible", HANDLES },
	};
	static struct readings bare, ours;
	unsigned int differ, wrong;
	struct actor *p = ENTER("P", .bare = true);

	read_all(p, &bare);
	leave(p);
	for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
		const char *env = tries[i].env ? tries[i].env : "by default";

		p = ENTER("P", .env = tries[i].env);
		read_all(p, &ours);
		wrong = compare(&bare, &ours, tries[i].allowed, &differ);
		ok(!wrong, "18 %s: of %u things that the driver tells of pools and their memory all are as bare (%u are not)",
		   env, bare.count, wrong);
		if (tries[i].allowed == HANDLES)
			ok(differ > 0, "18 %s: but that there are handles (%u)", env, differ);
		leave(p);
	}
}
