/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of pools that are shared by pointer (16): one's own, one side without culimbo, captures,
 * fork, contexts, large blocks, scarce memory, and the modes of culimbo.
 */
#include "scene_pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CAPTURE_GLOBAL = 0, CAPTURE_RELAXED = 2 };

static const struct entry both = { .env = POOL_GRACE };

/* A process imports its own block: the driver maps it once more, elsewhere. */
void pool_own(void)
{
	for (int bare = 1; bare >= 0; bare--) {
		struct entry entry = { .bare = bare, .env = POOL_GRACE };
		struct pair pair = pool_pair(entry, entry);
		uint64_t block = pool_alloc(&pair, SMALL), import;
		struct handle data = pool_export(pair.p, block);
		uint64_t taken = pool_taken_by(&pair, pair.p);
		bool got, own;

		import = pool_import(pair.p, taken, &data);
		free_block(pair.p, block);
		got = pool_claim(&pair, block, SMALL);
		own = reads(pair.p, import, SMALL, OWN, NULL);
		if (bare) {
			ok(import != block && got && !own, "control: bare, pool: one's own import reads the next block's bytes");
		} else {
			ok(import != block && !got && own, "16 one's own import, freed where it was allocated: it reads its own "
							   "bytes");
			free_block(pair.p, import);
			ok(pool_claim_within(&pair, block, SMALL, SOON_MS), "16 freed there, too, the address is given again");
		}
		pool_curtain(&pair);
	}
}

/* Only one of the two has culimbo: all works as bare, and the exporter's grace protects what is on its way. */
void pool_one_sided(void)
{
	for (int side = 0; side < 2; side++) {
		struct pair pair = pool_pair((struct entry){ .bare = side == 0, .env = POOL_GRACE },
					     (struct entry){ .bare = side == 1, .env = POOL_GRACE });
		const char *who = side ? "P" : "C";
		uint64_t block = pool_alloc(&pair, SMALL), import, again;
		struct handle data = pool_export(pair.p, block);
		int first, second;

		import = pool_import(pair.c, pair.taken, &data);
		again = pool_import(pair.c, pair.taken, &data);
		ok(import == again && reads(pair.c, import, SMALL, OWN, NULL), "16 only %s has culimbo: C reads what P wrote", who);
		first = try_free(pair.c, import);
		second = try_free(pair.c, import);
		ok(!first && second == (side ? INVALID_VALUE : 0), "16 only %s has culimbo: two frees of two imports (%d, %d)", who,
		   first, second);
		free_block(pair.p, block);
		ok(pool_claim_within(&pair, block, SMALL, SOON_MS), "16 only %s has culimbo: what is freed is used again", who);
		pool_curtain(&pair);
	}
}

/* What a process does with shared blocks while a stream of it captures. */
static void captured(const struct pair *pair, int mode, int *answer)
{
	uint64_t first = pool_alloc(pair, SMALL), second = pool_alloc(pair, SMALL), import, stream, other;
	struct handle data = pool_export(pair->p, first), more;

	stream = ASK(pair->c, stream_create, 1)->v[0];
	other = ASK(pair->c, stream_create, 1)->v[0];
	import = pool_import(pair->c, pair->taken, &data);
	more = pool_export(pair->p, second);
	(void)more;
	ASK(pair->c, stream_capture, stream, (uint64_t)mode);
	/* in the very stream: refused, and the capture goes on */
	*answer++ = free_in(pair->c, import, stream);
	/* in another stream: as the mode has it */
	*answer++ = free_in(pair->c, import, other);
	*answer++ = ASK(pair->c, stream_captured, stream)->result;
	if (mode != CAPTURE_RELAXED)
		*answer++ = try_free(pair->c, import);
	stream = ASK(pair->p, stream_create, 1)->v[0];
	ASK(pair->p, stream_capture, stream, (uint64_t)mode);
	*answer++ = free_in(pair->p, second, stream);
	*answer++ = try_free(pair->p, second);
	*answer++ = ASK(pair->p, stream_captured, stream)->result;
	if (mode != CAPTURE_RELAXED)
		*answer++ = try_free(pair->p, second);
	free_block(pair->p, first);
}

/* An export and an import while a stream captures: refused (measured) or made, and right afterwards. */
static void shared_in_a_capture(const struct pair *pair, int mode, int *answer)
{
	uint64_t first = pool_alloc(pair, SMALL), second = pool_alloc(pair, SMALL), import = 0, stream;
	struct handle data = pool_export(pair->p, first), more;

	stream = ASK(pair->p, stream_create, 1)->v[0];
	ASK(pair->p, stream_capture, stream, (uint64_t)mode);
	*answer++ = try_pool_export(pair->p, second, &more);
	*answer++ = ASK(pair->p, stream_captured, stream)->result;
	stream = ASK(pair->c, stream_create, 1)->v[0];
	ASK(pair->c, stream_capture, stream, (uint64_t)mode);
	*answer = try_pool_import(pair->c, pair->taken, &data, &import);
	answer[1] = ASK(pair->c, stream_captured, stream)->result;
	if (!*answer)
		free_block(pair->c, import);
	answer += 2;
	/* what was refused holds nothing, and what was made is held */
	more = pool_export(pair->p, second);
	import = pool_import(pair->c, pair->taken, &more);
	if (!pair->p->bare) {
		free_block(pair->p, first);
		free_block(pair->p, second);
		ok(pool_claim_within(pair, first, SMALL, SOON_MS), "16 after a capture, mode %d: nothing of the import in it is held",
		   mode);
		ok(!pool_claim(pair, second, SMALL) && reads(pair->c, import, SMALL, OWN, NULL),
		   "16 after a capture, mode %d: what C imports then is held", mode);
		free_block(pair->c, import);
		ok(pool_claim_within(pair, second, SMALL, SOON_MS), "16 after a capture, mode %d: until C frees it", mode);
	}
}

/* C imports stale data while a stream of it captures. */
static void stale_in_a_capture(const struct pair *pair, int mode, int *answer)
{
	uint64_t block = pool_alloc(pair, SMALL), stream = ASK(pair->c, stream_create, 1)->v[0], import;
	struct handle data = pool_export(pair->p, block);

	free_block(pair->p, block);
	if (!pool_claim_within(pair, block, SMALL, SOON_MS))
		break_off("the block does not go back");
	ASK(pair->c, stream_capture, stream, (uint64_t)mode);
	*answer++ = try_pool_import(pair->c, pair->taken, &data, &import);
	*answer++ = ASK(pair->c, stream_captured, stream)->result;
}

/*
 * A stream of P captures while P destroys its pool, of which it has freed a shared block.  Under culimbo that block waits
 * in the limbo, so the destroy waits; the capture must not tell the difference.
 */
static void destroyed_in_a_capture(const struct pair *pair, int mode, int *answer)
{
	uint64_t block = pool_alloc(pair, SMALL), stream = ASK(pair->p, stream_create, 1)->v[0];

	pool_export(pair->p, block);
	free_block(pair->p, block);
	ASK(pair->p, stream_capture, stream, (uint64_t)mode);
	*answer++ = ASK(pair->p, pool_destroy, pair->pool)->result;
	*answer++ = ASK(pair->p, stream_captured, stream)->result;
	*answer++ = ASK(pair->p, pool_destroy, pair->pool)->result;
}

void pool_capture(void)
{
	enum { ANSWERS = 16 };
	int answer[2][ANSWERS];

	for (int mode = CAPTURE_GLOBAL; mode <= CAPTURE_RELAXED; mode += CAPTURE_RELAXED) {
		memset(answer, 0, sizeof(answer));
		for (int bare = 1; bare >= 0; bare--) {
			struct entry entry = { .bare = bare, .env = POOL_GRACE };
			struct pair pair = pool_pair(entry, entry);

			shared_in_a_capture(&pair, mode, answer[bare]);
			leave_by(pair.c, END_EXIT, 0);
			leave_by(pair.p, END_EXIT, 0);
		}
		ok(!memcmp(answer[0], answer[1], sizeof(answer[0])),
		   "16 exported and imported in a capture, mode %d: each answer is as bare (%d, %d, %d, %d)", mode, answer[1][0],
		   answer[1][1], answer[1][2], answer[1][3]);
	}

	for (int mode = CAPTURE_GLOBAL; mode <= CAPTURE_RELAXED; mode += CAPTURE_RELAXED) {
		memset(answer, 0, sizeof(answer));
		for (int bare = 1; bare >= 0; bare--) {
			struct entry entry = { .bare = bare, .env = POOL_GRACE };
			struct pair pair = pool_pair(entry, entry);

			captured(&pair, mode, answer[bare]);
			pool_curtain(&pair);
		}
		ok(!memcmp(answer[0], answer[1], sizeof(answer[0])), "16 in a capture, mode %d: each answer is as bare", mode);
		for (int i = 0; i < 8; i++)
			note("answer %d: %d, and under culimbo %d", i, answer[1][i], answer[0][i]);
	}

	for (int mode = CAPTURE_GLOBAL; mode < CAPTURE_RELAXED; mode++) {
		memset(answer, 0, sizeof(answer));
		for (int bare = 1; bare >= 0; bare--) {
			struct entry entry = { .bare = bare, .env = "CULIMBO_GRACE=1h" };
			struct pair pair = pool_pair(entry, entry);

			destroyed_in_a_capture(&pair, mode, answer[bare]);
			leave_by(pair.c, END_EXIT, 0);
			leave_by(pair.p, END_EXIT, 0);
		}
		ok(answer[1][0] && answer[1][1] && !answer[1][2] && !memcmp(answer[0], answer[1], sizeof(answer[0])),
		   "16 destroyed in a capture, mode %d: refused, the capture is spoilt, and afterwards destroyed, as bare"
		   " (%d, %d, %d; %d, %d, %d)", mode, answer[1][0], answer[1][1], answer[1][2], answer[0][0], answer[0][1],
		   answer[0][2]);
	}

	for (int mode = CAPTURE_GLOBAL; mode < CAPTURE_RELAXED; mode++) {
		memset(answer, 0, sizeof(answer));
		for (int bare = 1; bare >= 0; bare--) {
			struct entry entry = { .bare = bare, .env = POOL_GRACE };
			struct pair pair = pool_pair(entry, entry);

			stale_in_a_capture(&pair, mode, answer[bare]);
			leave_by(pair.c, END_EXIT, 0);
			leave_by(pair.p, END_EXIT, 0);
		}
		ok(answer[1][0] && answer[1][1] && !memcmp(answer[0], answer[1], sizeof(answer[0])),
		   "16 stale data imported in a capture, mode %d: refused, and the capture is spoilt, as bare (%d, %d; %d, %d)",
		   mode, answer[1][0], answer[1][1], answer[0][0], answer[0][1]);
	}
}

/* A child has nothing of what its parent holds, and takes nothing of it away. */
static void fork_once(bool bare)
{
	struct entry entry = { .bare = bare, .env = POOL_GRACE };
	struct pair pair = pool_pair(entry, entry);
	uint64_t block = pool_alloc(&pair, SMALL), import;
	struct handle data = pool_export(pair.p, block);
	bool got;

	import = pool_import(pair.c, pair.taken, &data);
	ASK(pair.c, fork, END_EXIT, 0);
	ASK(pair.p, fork, END_EXIT, 0);
	ASK(pair.c, fork, END_EXIT, 1);
	free_block(pair.p, block);
	got = pool_claim(&pair, block, SMALL);
	if (bare) {
		ok(got && reads(pair.c, import, SMALL, NEXT, NULL),
		   "control: bare, pool: both fork, the children end: C reads the next block's bytes");
		pool_curtain(&pair);
		return;
	}
	ok(!got && reads(pair.c, import, SMALL, OWN, NULL), "16 both fork, the children end: C reads its own bytes");
	free_block(pair.c, import);
	ok(pool_claim_within(&pair, block, SMALL, SOON_MS), "16 and after C's free P gets the address again");
	pool_curtain(&pair);
}

void pool_fork(void)
{
	fork_once(true);
	fork_once(false);
}

/* A pool's block belongs to no context: it survives the end of that in which it was shared, on both sides. */
static void context_once(bool bare)
{
	struct entry entry = { .bare = bare, .env = POOL_GRACE };
	struct pair pair = pool_pair(entry, entry);
	uint64_t at_p = ASK(pair.p, ctx_create)->v[0], at_c = ASK(pair.c, ctx_create)->v[0];
	uint64_t block = pool_alloc(&pair, SMALL), import;
	struct handle data = pool_export(pair.p, block);
	bool got;

	import = pool_import(pair.c, pair.taken, &data);
	ASK(pair.p, ctx_destroy, at_p);
	ASK(pair.c, ctx_destroy, at_c);
	free_block(pair.p, block);
	got = pool_claim(&pair, block, SMALL);
	if (bare)
		ok(got && reads(pair.c, import, SMALL, NEXT, NULL),
		   "control: bare, pool: both destroy the context that they shared in: C reads the next block's bytes");
	else
		ok(!got && reads(pair.c, import, SMALL, OWN, NULL),
		   "16 both destroy the context that they shared in: C reads its own bytes");
	ASK(pair.p, no_context);
	ASK(pair.c, no_context);
	ok(!try_free(pair.c, import), "%sC frees its import without a context", bare ? "control: bare, pool: " : "16 ");
	block = 0;
	pool_curtain(&pair);
}

void pool_context(void)
{
	context_once(true);
	context_once(false);
}

/* By default what is larger than 4 GiB is refused: bare the importer crashes at 6 GiB (fact 16). */
static void large_by_default(void)
{
	struct pair pair;
	struct handle data;
	uint64_t block, import;
	int result;

	setenv("CULIMBO_SIM_MEMORY", "16GiB", 1); /* it takes what is touched alone */
	pair = pool_pair(both, both);
	for (int over = 0; over < 2; over++) {
		/* not by pool_alloc(), which writes to all of it */
		block = ASK(pair.p, pool_alloc, pair.pool, 4096 * MIB + (over ? 2048 * MIB : 0))->v[0];
		if (pair.p->reply.result) {
			ok(true, "16 a block of more than 4 GiB # SKIP the device has no room for one");
			break;
		}
		fill(pair.p, block, SMALL, OWN);
		data = pool_export(pair.p, block);
		result = try_pool_import(pair.c, pair.taken, &data, &import);
		ok(over ? result == NOT_SUPPORTED : !result && reads(pair.c, import, SMALL, OWN, NULL),
		   "16 a block of %d GiB is %s (%d)", over ? 6 : 4, over ? "not imported" : "imported", result);
		if (!result)
			free_block(pair.c, import);
		free_block(pair.p, block);
	}
	leave(pair.c);
	leave(pair.p);
}

void pool_large(void)
{
	struct pair pair = pool_pair((struct entry){ .env = POOL_GRACE },
				     (struct entry){ .env = POOL_GRACE " CULIMBO_POOL_IMPORT_MAX=1MiB" });
	uint64_t block = pool_alloc(&pair, BIG), import;
	struct handle data = pool_export(pair.p, block);
	int result = try_pool_import(pair.c, pair.taken, &data, &import);

	ok(result == NOT_SUPPORTED, "16 a block beyond CULIMBO_POOL_IMPORT_MAX is not imported (%d)", result);
	ok(count_said(pair.c, "CULIMBO_POOL_IMPORT_MAX") == 1, "16 and C says why");
	free_block(pair.p, block);
	ok(pool_claim_within(&pair, block, BIG, SOON_MS), "16 and holds nothing of it");
	leave(pair.c);
	leave(pair.p);

	pair = pool_pair((struct entry){ .bare = true }, (struct entry){ .env = "CULIMBO_POOL_IMPORT_MAX=1MiB" });
	block = pool_alloc(&pair, BIG);
	data = pool_export(pair.p, block);
	result = try_pool_import(pair.c, pair.taken, &data, &import);
	ok(!result && reads(pair.c, import, BIG, OWN, NULL),
	   "16 one of a process without culimbo is imported as bare: its size would be a guess (%d)", result);
	free_block(pair.c, import);
	leave(pair.c);
	leave(pair.p);
	large_by_default();
}

/* What the limbo has of a pool is there when the pool needs it. */
void pool_pressure(void)
{
	const uint64_t large = 256 * MIB;
	struct pair pair;
	uint64_t block;
	int result;

	setenv("CULIMBO_SIM_MEMORY", "1GiB", 1);
	pair = pool_pair((struct entry){ .env = "CULIMBO_GRACE=1m CULIMBO_GRACE_BYTES=1GiB" }, (struct entry){ .bare = true });
	ASK(pair.c, hog, 400 * MIB);
	block = pool_alloc(&pair, large);
	pool_export(pair.p, block);
	free_block(pair.p, block);
	ok(free_memory(pair.c) < large, "control: the driver has less to give than P wants");
	result = ASK(pair.p, pool_alloc, pair.pool, large)->result;
	ok(!result, "16 an allocation of the pool that only the limbo can serve succeeds (%d)", result);
	leave(pair.c);
	leave(pair.p);
}

/* A pool that may have no more than one block has it again when it is freed, on the host as well. */
void pool_host(void)
{
	for (unsigned int host = 0; host < 2; host++)
		for (int bare = 1; bare >= 0; bare--) {
			struct actor *p = enter("P", (struct entry){ .bare = bare, .env = "CULIMBO_GRACE=1m" });
			uint64_t pool = ASK(p, pool_new, 0, host, 8 * MIB)->v[0], block;
			struct handle data;
			int result = 0;

			for (unsigned int i = 0; !result && i < 3; i++) {
				block = ASK(p, pool_alloc, pool, 8 * MIB)->v[0];
				result = p->reply.result;
				if (!result && !try_pool_export(p, block, &data))
					free_block(p, block);
			}
			ok(!result, "16 %s, a pool on the %s is full: what was shared and freed is there for it (%d)",
			   bare ? "control, bare" : p->door, host ? "host" : "device", result);
			leave(p);
		}
}

static void pool_destroyed_once(bool bare)
{
	struct entry entry = { .bare = bare, .env = POOL_GRACE };
	struct pair pair = pool_pair(entry, entry);
	uint64_t block = pool_alloc(&pair, SMALL), import, early = pool_alloc(&pair, SMALL), at;
	struct handle data = pool_export(pair.p, block), other = pool_export(pair.p, early);

	import = pool_import(pair.c, pair.taken, &data);
	free_block(pair.p, block);
	free_block(pair.p, early);
	ok(!ASK(pair.p, pool_destroy, pair.pool)->result, "%sP destroys the pool with freed blocks of it%s: 0",
	   bare ? "control: bare, pool: " : "16 ", bare ? "" : " in the limbo");
	ok(reads(pair.c, import, SMALL, OWN, NULL), "%sC reads its own bytes", bare ? "control: bare, pool: " : "16 ");
	if (bare) { /* nobody has the pool's memory next, as long as C has imported it */
		free_block(pair.c, import);
		pool_curtain(&pair);
		return;
	}
	ok(!try_pool_import(pair.c, pair.taken, &other, &at) && reads(pair.c, at, SMALL, OWN, NULL),
	   "16 and imports within the grace what P has freed");
	free_block(pair.c, at);
	free_block(pair.c, import);
	pool_curtain(&pair);
}

void pool_destroyed(void)
{
	pool_destroyed_once(true);
	pool_destroyed_once(false);
}

/* CULIMBO_MODE=observe: all is as bare, and the report says what would have been prevented. */
void pool_observe(void)
{
	int answer[2][6];

	for (int bare = 1; bare >= 0; bare--) {
		struct entry entry = { .bare = bare, .env = "CULIMBO_MODE=observe CULIMBO_REPORT=always" };
		struct pair pair = pool_pair(entry, entry);
		uint64_t block = pool_alloc(&pair, SMALL), import, other;
		struct handle data = pool_export(pair.p, block);

		import = pool_import(pair.c, pair.taken, &data);
		pool_import(pair.c, pair.taken, &data);
		free_block(pair.p, block);
		answer[bare][0] = pool_claim(&pair, block, SMALL);
		answer[bare][1] = reads(pair.c, import, SMALL, OWN, NULL);
		answer[bare][2] = try_free(pair.c, import);
		answer[bare][3] = try_free(pair.c, import);
		answer[bare][4] = try_pool_import(pair.c, pair.taken, &data, &other);
		answer[bare][5] = try_free(pair.c, other);
		leave(pair.c);
		leave(pair.p);
		if (bare)
			continue;
		ok(!memcmp(answer[0], answer[1], sizeof(answer[0])), "16 CULIMBO_MODE=observe: each answer is as bare");
		ok(count_said(pair.p, "while process ") == 1, "16 P's report has the block that it freed while C had it imported");
		ok(strstr(said(pair.c), "STALE: ") != NULL, "16 and C's the stale data that it imported");
	}
}

/* Beyond CULIMBO_HELD_BYTES a block goes although C has it imported, and P names C. */
void pool_held_bytes(void)
{
	struct pair pair = pool_pair((struct entry){ .env = POOL_GRACE " CULIMBO_HELD_BYTES=1MiB" }, both);
	uint64_t block = pool_alloc(&pair, BIG);
	struct handle data = pool_export(pair.p, block);
	char who[64];

	pool_import(pair.c, pair.taken, &data);
	free_block(pair.p, block);
	snprintf(who, sizeof(who), "although process %d ", (int)pair.c->pid);
	ok(pool_claim_within(&pair, block, BIG, SOON_MS) && count_said(pair.p, who) == 1,
	   "16 CULIMBO_HELD_BYTES: beyond it the block goes back to its pool, and P names who has it");
	/* C still has it imported when P ends: no context of P has ended, so P must not say that */
	leave_by(pair.p, END_EXIT, 0);
	ok(count_said(pair.p, "FORCED: ") == 1 && count_said(pair.p, "CONTEXT: ") == 0,
	   "16 and its report has that, and no block that went with a context");
	leave_by(pair.c, END_EXIT, 0);
}

/* Without a collector thread the calls of the program do its work, also of an importer. */
void pool_inline(void)
{
	struct entry entry = { .env = POOL_GRACE " CULIMBO_COLLECTOR=inline" };
	struct pair pair = pool_pair(entry, entry);
	uint64_t block = pool_alloc(&pair, SMALL), import;
	struct handle data = pool_export(pair.p, block);
	bool got = false;

	import = pool_import(pair.c, pair.taken, &data);
	free_block(pair.p, block);
	if (free_in(pair.c, import, 0))
		break_off("cuMemFreeAsync failed with %d", pair.c->reply.result);
	for (double deadline = now_ms() + SOON_MS; !got && watch_until(deadline); got = pool_claim(&pair, block, SMALL))
		free_block(pair.c, alloc(pair.c, SMALL));
	ok(got, "16 CULIMBO_COLLECTOR=inline: what both have freed is used again");
	pool_curtain(&pair);
}

/*
 * C frees its import in a busy stream, and then makes only calls that have to do with no block of a
 * pool.
 */
static void inline_fence_once(const char *env, const char *how)
{
	struct pair pair = pool_pair(both, (struct entry){ .env = env });
	uint64_t block = pool_alloc(&pair, SMALL), import, stream;
	struct handle data = pool_export(pair.p, block);
	bool got = false;

	stream = ASK(pair.c, stream_create, 1)->v[0];
	ASK(pair.c, stream_spin, stream, MS);
	import = pool_import(pair.c, pair.taken, &data);
	free_block(pair.p, block);
	ASK(pair.c, stream_spin, stream, 200 * MS);
	if (free_in(pair.c, import, stream))
		break_off("cuMemFreeAsync failed with %d", pair.c->reply.result);
	for (double deadline = now_ms() + SOON_MS; !got && watch_until(deadline); got = pool_claim(&pair, block, SMALL))
		alloc(pair.c, SMALL);
	ok(got, "16 %s: what C has freed in a busy stream comes back by its next calls", how);
	pool_curtain(&pair);
}

void pool_inline_fence(void)
{
	inline_fence_once(POOL_GRACE " CULIMBO_COLLECTOR=inline", "CULIMBO_COLLECTOR=inline");
}
