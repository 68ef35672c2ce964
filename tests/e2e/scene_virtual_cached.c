/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scene of a program that keeps what it has opened by the bytes of its handle, and opens nothing where it gets the
 * same bytes again, as vLLM's custom all-reduce and UCX do (17).
 */
#include "scene_virtual.h"

/* What C has opened, by handle. */
struct kept {
	struct handle handle[16];
	uint64_t import[16];
	int n;
};

/* Returns where C has @handle open; opens it if its bytes are new. */
static uint64_t keep(struct actor *c, struct kept *kept, struct handle handle)
{
	for (int i = 0; i < kept->n; i++)
		if (same_handle(&kept->handle[i], &handle))
			return kept->import[i];
	if (kept->n == (int)(sizeof kept->import / sizeof *kept->import))
		break_off("too many handles");
	kept->handle[kept->n] = handle;
	kept->import[kept->n] = open_block(c, &handle);
	return kept->import[kept->n++];
}

/* P shares by handles of the first piece at @from, 0 or 1, while what lies beside it changes. */
static void cached(uint64_t from)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C");
	uint64_t at = virtual_reserve(p, 8 * PIECE), first = at + from * PIECE, import, grown;
	struct kept kept = { .n = 0 };
	struct handle handle, again;
	int opens;

	virtual_map(p, first, PIECE, 1);
	handle = export_block(p, first);
	again = export_block(p, first);
	ok(same_handle(&handle, &again), "17 piece %d: two handles of what has not changed have the same bytes", (int)from);
	import = keep(c, &kept, handle);
	ok(reads(c, import, PIECE, 1, NULL), "17 C reads it");

	virtual_map(p, first + PIECE, PIECE, 2);
	grown = keep(c, &kept, export_block(p, first));
	ok(reads(c, grown, PIECE, 1, NULL) && reads(c, grown + PIECE, PIECE, 2, NULL),
	   "17 it grows: C, which keeps what it has opened by the handle's bytes, reads the new piece");

	virtual_unmap(p, first + PIECE, PIECE);
	virtual_map(p, first + PIECE, PIECE, 3);
	grown = keep(c, &kept, export_block(p, first));
	ok(reads(c, grown, PIECE, 1, NULL) && reads(c, grown + PIECE, PIECE, 3, NULL),
	   "17 the new piece is unmapped, and mapped anew: C reads what P has there now");
	opens = kept.n;
	grown = keep(c, &kept, export_block(p, first));
	ok(kept.n == opens && reads(c, grown + PIECE, PIECE, 3, NULL), "17 then nothing changes: C opens nothing more");

	import = open_block(c, &handle);
	ok(reads(c, import, PIECE, 1, NULL) && reads(c, import + PIECE, PIECE, 3, NULL),
	   "17 the first handle is good, since the piece that it names is mapped, and gives what is there now");
	close_block(c, import);
	for (int i = 0; i < kept.n; i++)
		close_block(c, kept.import[i]);
	leave(c);
	leave(p);
	/* C had the old piece mapped, since an open takes all that lies there, and has not read it after it was unmapped */
	ok(count_said(p, " could read what") > 0, "17 P does not say that C read what was unmapped: it could");
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

void virtual_cached(void)
{
	cached(0);
	cached(1);
}
