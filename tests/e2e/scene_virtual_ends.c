/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scene of importers that end with memory open that their exporter has unmapped (17): what the exporter says of it.
 */
#include "scene_virtual.h"

/* How C ends, and whether P has mapped other memory there by then. */
struct ending_of {
	bool killed, anew_first, inline_collector;
};

static void told_of_end(struct ending_of how)
{
	struct actor *p = ENTER("P", .env = how.inline_collector ? ALL " CULIMBO_COLLECTOR=inline" : ALL), *c = ENTER("C");
	uint64_t at = virtual_reserve(p, 4 * PIECE);
	struct handle handle;
	int said_so;

	virtual_map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	(void)open_block(c, &handle);
	virtual_unmap(p, at, PIECE);
	if (how.anew_first)
		virtual_map(p, at, PIECE, NEXT);
	if (how.killed)
		kill_actor(c);
	else
		leave(c);
	if (!how.anew_first)
		virtual_map(p, at, PIECE, NEXT);
	leave(p);
	said_so = count_said(p, "UNMAPPED: process") + count_said(p, "and mapped other memory there while");
	ok(said_so == (how.anew_first ? 2 : 0), "17 C %s %s P has mapped other memory there%s: P says %s",
	   how.killed ? "is killed" : "exits", how.anew_first ? "when" : "before", how.inline_collector ? ", inline" : "",
	   how.anew_first ? "that C had the old one mapped meanwhile" : "nothing of that");
	ok(no_file_stays(), "no file is left in CULIMBO_DIR");
}

void virtual_told_of_ends(void)
{
	for (int i = 0; i < 8; i++)
		told_of_end((struct ending_of){ .killed = i & 1, .anew_first = i & 2, .inline_collector = i & 4 });
}
