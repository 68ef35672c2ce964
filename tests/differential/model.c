/* SPDX-License-Identifier: Apache-2.0 */
/* The model's state: see model.h. */
#include "tests/differential/calls.h"
#include "tests/differential/model.h"

const struct settings *settings;
bool under_culimbo;
struct life life[LIVES];
struct event_life event_life[LIVES];
int lives, event_lives;
struct handle handles[HANDLES], event_handles[HANDLES];
struct player players[PLAYERS];
bool scattered;
struct op op;

/* ------------------------------------------------------------------ the state */
struct player *me(void)
{
	return &players[op.player];
}
uint8_t whole(uint8_t ctx)
{
	return ctx == GREEN ? PRIMARY_0 : ctx;
}
uint8_t device_of(uint8_t ctx)
{
	if (ctx == OWN_A || ctx == OWN_B)
		return me()->own_device[ctx];
	return ctx == PRIMARY_1;
}
uint8_t context_of(unsigned int stream)
{
	return whole(stream < MADE_A ? current() : me()->stream[stream].ctx);
}
bool primary_alive(const struct player *p, unsigned int device)
{
	return p->references[device] || (device == 0 && p->own[GREEN]);
}
bool context_alive(const struct player *p, uint8_t ctx)
{
	if (ctx == NOWHERE)
		return false;
	return ctx < DEVICES ? primary_alive(p, ctx) : p->own[ctx];
}
uint8_t current(void)
{
	return me()->depth ? me()->stack[me()->depth - 1] : NOWHERE;
}
unsigned int on_stack(uint8_t ctx)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < me()->depth; i++)
		n += me()->stack[i] == ctx;
	return n;
}
/* it is not known what a driver does with another context's stream */
bool usable(unsigned int stream)
{
	const struct stream *s = &me()->stream[stream];

	return s->alive && (!settings->gpu || stream < MADE_A || s->ctx == current());
}
bool captures(const struct player *p)
{
	return p->stream[MADE_A].captures || p->stream[MADE_B].captures;
}
unsigned int held(int l)
{
	unsigned int n = 0;

	for (unsigned int p = 0; p < settings->players; p++)
		for (unsigned int i = 0; i < IMPORTS; i++)
			if (players[p].import[i].life == l)
				n += players[p].import[i].count;
	return n;
}
struct life *block_at(unsigned int slot)
{
	int l = me()->block[slot];

	return l < 0 ? NULL : &life[l];
}
bool anybody_busy(void)
{
	return players[0].busy || players[1].busy;
}

bool is_alone(const struct life *l)
{
	return l->state == LIVE || l->ended_at == me()->taken;
}

void end_context(uint8_t ctx)
{
	struct player *p = me();

	for (int l = 0; l < lives; l++)
		if (life[l].player == op.player && life[l].ctx == ctx && life[l].state != GONE && !life[l].async) {
			if (life[l].state == LIVE)
				life[l].ended_at = p->taken;
			life[l].state = GONE;
			life[l].pending = life[l].in_order = false;
			life[l].own_opens = 0;
		}
	virtual_context_ended(ctx);
	for (unsigned int i = 0; i < IMPORTS; i++)
		if (p->import[i].life >= 0 && p->import[i].ctx == ctx)
			p->import[i] = (struct import){ .life = -1 };
	for (unsigned int e = 0; e < EVENTS; e++)
		if (p->event[e].life >= 0 && p->event[e].ctx == ctx) {
			struct event_life *l = &event_life[p->event[e].life];

			if (l->player == op.player)
				l->gone = true, l->alive = false;
			p->event[e].life = -1;
		}
	for (unsigned int s = MADE_A; s < STREAMS; s++)
		if (p->stream[s].alive && p->stream[s].ctx == ctx)
			p->stream[s] = (struct stream){ 0 };
	if (ctx == PRIMARY_0) /* after a reset: what was created in the green context's streams */
		for (unsigned int s = MADE_A; s < STREAMS; s++)
			if (p->stream[s].alive && p->stream[s].ctx == GREEN)
				p->stream[s] = (struct stream){ 0 };
}

bool is_kept(const struct life *l)
{
	return l->exported && settings->tail && (l->async || l->bytes < PAGE);
}

void freed(int l)
{
	struct life *f = &life[l];
	bool stays = held(l) || f->own_opens || is_kept(f), had = stays || f->outlived;

	f->state = FREED;
	f->was_freed = true;
	f->ended_at = me()->taken;
	f->waits = f->exported && (stays || (settings->grace == GRACE_LONG && !me()->pressed));
	f->refused = f->exported && settings->grace == GRACE_NONE && !had;
	if (f->exported && !f->refused)
		me()->maybe_limbo[f->device] = true;
	if (!f->exported)
		f->refused = true;
	if (f->async) {
		me()->async[f->device].freed = true;
		/* what was allocated in a capture that is spoilt has a handle, too */
		me()->async[f->device].handed_freed |= f->exported || f->of_graph;
	}
}

bool pools_may_keep(uint8_t device, unsigned int player)
{
	for (unsigned int p = 0; p < settings->players; p++)
		if (players[p].async[device].handed &&
		    (p == player ? players[p].async[device].handed_freed : players[p].async[device].freed))
			return true;
	return false;
}

void settled(void)
{
	for (int l = 0; l < lives; l++)
		if (life[l].player == op.player)
			life[l].pending = false;
}

bool any_limbo(void)
{
	for (unsigned int d = 0; d < DEVICES; d++)
		if (players[0].maybe_limbo[d] || players[1].maybe_limbo[d])
			return true;
	return false;
}

/* ------------------------------------------------------------------ what may differ */
/*
 * All differences that are allowed, as doc/differences.md lists them, rule by rule, and only where the model says
 * that they are possible.  That page explains each rule; these are the lines to which the rules apply:
 *   stale     an open of a handle whose block or event has ended
 *   own       an open of one of the process's own handles, where the driver would check the
 *             handle; closes of what such opens gave
 *   foreign   a read through a mapping of a freed block
 *   freed     an export of a block that was shared before and freed in stream order, while its
 *             player has not waited for all work since; on a GPU also later
 *   known     a query about a pointer to a freed shared block
 *   virtual   a handle of virtual memory, and its open, where CULIMBO_SHARE=all
 *   async     a handle of stream-ordered memory, likewise
 *   memory    how much memory is free, or can be allocated, while a freed shared
 *             block may not be released yet
 *   threshold the same, once stream-ordered memory was freed of a pool of whose memory a
 *             handle was made, where CULIMBO_SHARE=all
 */
const char *may_differ_as(const struct life *l)
{
	return l && l->exported && l->state == FREED ? "known" : NULL;
}
