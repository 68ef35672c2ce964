/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the events of many processes to blocks, opens and marks: see trace.h. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HASH_NONFATAL_OOM 1
#define HASH_FUNCTION HASH_OAT /* clang warns that uthash's default falls through cases */
#include <uthash.h>

#include "tools/trace/grow.h"
#include "tools/trace/pack.h"
#include "tools/trace/trace.h"


/* An entry of a hash: a key and its latest index. */
struct place {
	UT_hash_handle hh;
	struct place_key {
		uint64_t a, b;
		uint32_t c, d;
	} key;
	uint32_t at;
};
enum of { BY_ADDRESS, BY_RECORD, BY_STAMP, BY_OPEN, MAPS };

struct joining {
	struct cu_trace *t;
	struct place *map[MAPS];
	bool failed; /* no memory */
};

static struct place_key key_of(uint64_t a, uint64_t b, uint32_t c, uint32_t d)
{
	struct place_key key;

	memset(&key, 0, sizeof key);
	key.a = a;
	key.b = b;
	key.c = c;
	key.d = d;
	return key;
}

static uint32_t map_get(struct joining *j, enum of of, struct place_key key)
{
	struct place *place;

	HASH_FIND(hh, j->map[of], &key, sizeof key, place);
	return place ? place->at : UINT32_MAX;
}

static void map_set(struct joining *j, enum of of, struct place_key key, uint32_t at)
{
	struct place *place;

	HASH_FIND(hh, j->map[of], &key, sizeof key, place);
	if (!place) {
		place = calloc(1, sizeof *place);
		if (!place) {
			j->failed = true;
			return;
		}
		place->key = key;
		HASH_ADD(hh, j->map[of], key, sizeof place->key, place);
		if (!place->hh.tbl) {
			free(place);
			j->failed = true;
			return;
		}
	}
	place->at = at;
}

static void maps_free(struct joining *j)
{
	struct place *place, *next;

	for (int i = 0; i < MAPS; i++) {
		HASH_ITER(hh, j->map[i], place, next) {
			HASH_DELETE(hh, j->map[i], place);
			free(place);
		}
	}
}

static int64_t time_of(const struct cu_trace_process *p, uint64_t when)
{
	return (int64_t)(when + (uint64_t)p->to_zero);
}

static struct place_key address_key(uint32_t process, const struct cl_trace_event *e)
{
	return key_of(e->key, process, e->kind, 0);
}

static struct cu_trace_block *new_block(struct joining *j, uint32_t process,
					const struct cl_trace_event *e)
{
	struct cu_trace_block *b = CU_ADD(j->t->block, j->t->blocks);

	if (!b) {
		j->failed = true;
		return NULL;
	}
	memset(b, 0, sizeof *b);
	b->process = process;
	b->kind = e->kind;
	b->device = e->device;
	b->key = e->key;
	b->size = e->size;
	b->record = CL_NO_RECORD;
	b->first_open = UINT32_MAX;
	b->allocated = b->exported = b->freed = b->limbo = b->held = b->ready = b->released =
		b->kept = CU_NEVER;
	map_set(j, BY_ADDRESS, address_key(process, e), (uint32_t)(j->t->blocks - 1));
	return b;
}

/* Returns the block at @e's address that is not released yet, or NULL. */
static struct cu_trace_block *at_address(struct joining *j, uint32_t process,
					 const struct cl_trace_event *e)
{
	uint32_t at = map_get(j, BY_ADDRESS, address_key(process, e));
	struct cu_trace_block *b = at == UINT32_MAX ? NULL : &j->t->block[at];

	return b && b->released == CU_NEVER ? b : NULL;
}

/*
 * Returns the block at @e's address whose first known event is its free, and that was
 * taken for never exported, or NULL.  It was exported before the oldest record.
 */
static struct cu_trace_block *freed_unseen(struct joining *j, uint32_t process,
					   const struct cl_trace_event *e)
{
	uint32_t at = map_get(j, BY_ADDRESS, address_key(process, e));
	struct cu_trace_block *b = at == UINT32_MAX ? NULL : &j->t->block[at];

	if (!b || b->freed == CU_NEVER || b->released != b->freed || b->allocated != CU_NEVER ||
	    b->record != CL_NO_RECORD)
		return NULL;
	b->released = CU_NEVER;
	b->at_once = false;
	b->size = b->size ? b->size : e->size;
	return b;
}

/*
 * Returns the block of @e: found by its record, or by its address, or a new one that began before
 * the trace.
 */
static struct cu_trace_block *block_of(struct joining *j, uint32_t process,
				       const struct cl_trace_event *e)
{
	uint32_t at = e->record == CL_NO_RECORD ?
			      UINT32_MAX :
			      map_get(j, BY_RECORD, key_of(e->record, process, 0, 0));
	struct cu_trace_block *b = at == UINT32_MAX ? NULL : &j->t->block[at];

	if (!b || b->key != e->key || b->kind != e->kind)
		b = at_address(j, process, e);
	if (b)
		return b;
	b = freed_unseen(j, process, e);
	if (!b)
		b = new_block(j, process, e);
	if (b && e->record != CL_NO_RECORD) {
		b->file_id = e->file_id;
		b->record = e->record;
		map_set(j, BY_RECORD, key_of(e->record, process, 0, 0), (uint32_t)(b - j->t->block));
	}
	return b;
}

static void exported(struct joining *j, uint32_t process, const struct cl_trace_event *e, int64_t when)
{
	uint32_t at = map_get(j, BY_RECORD, key_of(e->record, process, 0, 0));
	struct cu_trace_block *b = at == UINT32_MAX || e->record == CL_NO_RECORD ? NULL :
										    &j->t->block[at];

	if (!b || b->generation != e->generation || b->key != e->key || b->released != CU_NEVER) {
		b = at_address(j, process, e);
		/* the same address with another generation is another block */
		if (b && b->file_id && e->record != CL_NO_RECORD)
			b->released = when, b->assumed = true, b = NULL;
		if (!b)
			b = new_block(j, process, e);
		if (!b)
			return;
	}
	if (b->exported == CU_NEVER)
		b->exported = when;
	if (!b->export_stack)
		b->export_stack = (uint32_t)e->value;
	b->exports++;
	b->device = e->device;
	b->size = e->size;
	b->file_id = e->file_id;
	b->record = e->record;
	b->generation = e->generation;
	if (e->record == CL_NO_RECORD)
		return;
	map_set(j, BY_RECORD, key_of(e->record, process, 0, 0), (uint32_t)(b - j->t->block));
	map_set(j, BY_STAMP, key_of(e->file_id, e->record, e->generation, 0),
		(uint32_t)(b - j->t->block));
}

static void limbo_is(struct joining *j, uint32_t process, const struct cl_trace_event *e, int64_t when)
{
	struct cu_trace_process *p = &j->t->process[process];
	struct cu_limbo_sample *s = CU_ADD(p->limbo, p->limbo_n);

	if (!s) {
		j->failed = true;
		return;
	}
	*s = (struct cu_limbo_sample){ when, e->value };
	if (e->value > p->limbo_peak)
		p->limbo_peak = e->value;
}

static struct place_key open_key(uint32_t process, const struct cl_trace_event *e)
{
	return key_of(e->key, process, e->kind, e->flags & CL_TRACE_OWN);
}

static struct cu_trace_open *new_open(struct joining *j, uint32_t process,
				      const struct cl_trace_event *e, int64_t when)
{
	struct cu_trace_open *o = CU_ADD(j->t->open, j->t->opens);

	if (!o) {
		j->failed = true;
		return NULL;
	}
	*o = (struct cu_trace_open){ .process = process, .block = CU_NO_BLOCK, .file_id = e->file_id,
				     .record = e->record, .generation = e->generation, .pid = e->pid,
				     .key = e->key, .size = e->size, .opened = when,
				     .closed = CU_NEVER, .kind = e->kind,
				     .next_of_block = UINT32_MAX,
				     .own = e->flags & CL_TRACE_OWN };
	map_set(j, BY_OPEN, open_key(process, e), (uint32_t)(j->t->opens - 1));
	return o;
}

static struct cu_trace_open *open_at(struct joining *j, uint32_t process,
				     const struct cl_trace_event *e)
{
	uint32_t at = map_get(j, BY_OPEN, open_key(process, e));
	struct cu_trace_open *o = at == UINT32_MAX ? NULL : &j->t->open[at];

	return o && o->closed == CU_NEVER ? o : NULL;
}

static void opened(struct joining *j, uint32_t process, const struct cl_trace_event *e, int64_t when)
{
	struct cu_trace_open *o = open_at(j, process, e);

	if (o && (o->file_id != e->file_id || o->record != e->record ||
		  o->generation != e->generation))
		o->closed = when, o = NULL;
	if (!o)
		o = new_open(j, process, e, when);
	if (o && !o->opens++)
		o->stack = (uint32_t)e->value;
}

static void closed(struct joining *j, uint32_t process, const struct cl_trace_event *e, int64_t when)
{
	struct cu_trace_open *o = open_at(j, process, e);
	uint64_t n = e->value ? e->value : 1;

	if (!o) /* opened before the oldest record */
		o = new_open(j, process, e, j->t->process[process].begin);
	if (!o)
		return;
	o->opens = o->opens > n ? o->opens - n : 0;
	if (!o->opens)
		o->closed = when;
}

static void mark(struct joining *j, uint32_t process, const struct cl_trace_event *e, int64_t when)
{
	struct cu_trace_mark *m = CU_ADD(j->t->mark, j->t->marks);

	if (!m) {
		j->failed = true;
		return;
	}
	*m = (struct cu_trace_mark){ process, CU_NO_BLOCK, *e, when };
	if (e->what == CL_TRACE_RECLAIMED)
		m->block = map_get(j, BY_RECORD, key_of(e->record, process, 0, 0));
}

static void join_event(struct joining *j, uint32_t process, const struct cl_trace_event *e)
{
	int64_t when = time_of(&j->t->process[process], e->when);
	struct cl_trace_event memory = *e;
	struct cu_trace_block *b;

	/*
	 * records of allocations and frees don't say whether memory is a pool's, so treat both
	 * the same
	 */
	if (e->kind == CL_POOL) {
		memory.kind = CL_MEMORY;
		e = &memory;
	}

	switch ((enum cl_trace_what)e->what) {
	case CL_TRACE_ALLOCATED:
		b = at_address(j, process, e);
		if (b) {
			b->released = when;
			b->assumed = true;
		}
		b = new_block(j, process, e);
		if (b)
			b->allocated = when;
		break;
	case CL_TRACE_FREED:
		b = at_address(j, process, e);
		if (!b)
			b = new_block(j, process, e);
		if (b) {
			b->freed = when;
			if (b->exported == CU_NEVER && b->limbo == CU_NEVER) {
				b->released = when;
				b->at_once = true;
			}
		}
		break;
	case CL_TRACE_EXPORTED:
		exported(j, process, e, when);
		break;
	case CL_TRACE_LIMBO:
	case CL_TRACE_UNTRACKED:
		b = block_of(j, process, e);
		if (b) {
			*(e->what == CL_TRACE_LIMBO ? &b->limbo : &b->kept) = when;
			if (e->what == CL_TRACE_LIMBO)
				b->free_stack = e->generation;
			if (b->freed == CU_NEVER)
				b->freed = when;
		}
		if (e->what == CL_TRACE_LIMBO)
			limbo_is(j, process, e, when);
		break;
	case CL_TRACE_HELD:
		b = block_of(j, process, e);
		if (b && b->held == CU_NEVER)
			b->held = when;
		if (b)
			b->ready = CU_NEVER;
		break;
	case CL_TRACE_READY:
		b = block_of(j, process, e);
		if (b)
			b->ready = when;
		break;
	case CL_TRACE_RELEASED:
	case CL_TRACE_ORPHANED:
		b = block_of(j, process, e);
		if (b) {
			b->released = when;
			b->gone = e->what == CL_TRACE_ORPHANED;
			b->at_once = e->flags & CL_TRACE_AT_ONCE;
		}
		if (!(e->flags & CL_TRACE_AT_ONCE))
			limbo_is(j, process, e, when);
		break;
	case CL_TRACE_OPENED:
		opened(j, process, e, when);
		break;
	case CL_TRACE_CLOSED:
		closed(j, process, e, when);
		break;
	case CL_TRACE_RECLAIMED:
	case CL_TRACE_WAITED:
	case CL_TRACE_ASKED:
	case CL_TRACE_SERVED:
	case CL_TRACE_STALE:
		mark(j, process, e, when);
		break;
	default: /* CL_TRACE_ENDED, which was handled before, or a kind of a later version */
		break;
	}
}

/* Ends the opens of that block by @m->event.pid, a dead holder. */
static void reclaimed(struct cu_trace *t, const struct cu_trace_mark *m)
{
	uint32_t at = t->block[m->block].first_open;

	for (struct cu_trace_open *o; at != UINT32_MAX; at = o->next_of_block) {
		o = &t->open[at];
		if (o->closed == CU_NEVER && t->process[o->process].pid == m->event.pid &&
		    o->opened <= m->when) {
			o->closed = m->when;
			o->reclaimed = true;
		}
	}
}

/*
 * Joins opens and stale handles to the blocks that they name, which may be in a file that was
 * read later.
 */
static void join_across(struct joining *j)
{
	struct cu_trace *t = j->t;

	for (size_t i = 0; i < t->opens; i++) {
		struct cu_trace_open *o = &t->open[i];

		if (!o->file_id)
			continue;
		o->block = map_get(j, BY_STAMP, key_of(o->file_id, o->record, o->generation, 0));
		if (o->block == CU_NO_BLOCK)
			continue;
		o->next_of_block = t->block[o->block].first_open;
		t->block[o->block].first_open = (uint32_t)i;
		t->block[o->block].opens++;
	}
	for (size_t i = 0; i < t->marks; i++) {
		struct cu_trace_mark *m = &t->mark[i];

		if (m->event.what == CL_TRACE_STALE)
			m->block = map_get(j, BY_STAMP, key_of(m->event.file_id, m->event.record,
								m->event.generation, 0));
		else if (m->event.what == CL_TRACE_RECLAIMED && m->block != CU_NO_BLOCK)
			reclaimed(t, m);
	}
}

/* --------------------------------------------------------- ends, and clocks */
static void ends(struct cu_trace *t)
{
	for (size_t i = 0; i < t->opens; i++) {
		struct cu_trace_open *o = &t->open[i];
		struct cu_trace_process *p = &t->process[o->process];

		/* a killed process may have lived until another one found it dead */
		if (o->reclaimed && o->closed > p->end && p->state == CU_TRACE_KILLED)
			p->end = o->closed;
	}
	for (size_t i = 0; i < t->opens; i++) {
		struct cu_trace_open *o = &t->open[i];

		o->end = o->closed != CU_NEVER ? o->closed : t->process[o->process].end;
		if (o->end < o->opened)
			o->end = o->opened;
	}
	for (size_t i = 0; i < t->blocks; i++) {
		struct cu_trace_block *b = &t->block[i];
		const struct cu_trace_process *p = &t->process[b->process];

		b->begin = b->allocated != CU_NEVER ? b->allocated :
			   p->lost || b->exported == CU_NEVER ? p->begin : b->exported;
		b->end = b->released != CU_NEVER ? b->released : p->end;
		if (b->end < b->begin)
			b->end = b->begin;
	}
}

/* Converts all times to the first file's clock; for files of another boot by the time of day. */
static void set_clocks(struct cu_trace *t)
{
	const struct cu_trace_process *first = t->process;
	struct timespec now;
	uint64_t zero = UINT64_MAX;

	for (size_t i = 0; i < t->processes; i++) {
		struct cu_trace_process *p = &t->process[i];

		if (memcmp(p->boot_id, first->boot_id, sizeof p->boot_id) ||
		    p->who.time_ns != first->who.time_ns)
			p->to_zero = (int64_t)(p->realtime - p->monotonic -
					       (first->realtime - first->monotonic));
		for (size_t k = 0; k < p->events && k < 1; k++)
			if (p->event[k].when + (uint64_t)p->to_zero < zero)
				zero = p->event[k].when + (uint64_t)p->to_zero;
	}
	if (zero == UINT64_MAX)
		zero = t->processes ? first->monotonic : 0;
	if (t->processes)
		t->zero_realtime = first->realtime + (zero - first->monotonic);
	clock_gettime(CLOCK_MONOTONIC, &now);
	for (size_t i = 0; i < t->processes; i++) {
		struct cu_trace_process *p = &t->process[i];

		p->to_zero -= (int64_t)zero;
		p->begin = p->events ? time_of(p, p->event[0].when) : 0;
		p->end = p->events ? time_of(p, p->event[p->events - 1].when) : p->begin;
		if (p->state == CU_TRACE_RUNNING) {
			int64_t until = time_of(p, (uint64_t)now.tv_sec * 1000000000u +
							   (uint64_t)now.tv_nsec);

			if (until > p->end)
				p->end = until;
		}
	}
}

/* Numbers the processes: by pid, unless another file has the pid already. */
static void set_ids(struct cu_trace *t)
{
	for (size_t i = 0; i < t->processes; i++) {
		t->process[i].id = t->process[i].pid;
		for (size_t k = 0; k < i; k++)
			if (t->process[k].id == t->process[i].pid)
				t->process[i].id = (uint32_t)(1000000000u + i);
	}
}

static int by_begin(const void *a, const void *b)
{
	const struct cu_trace_process *x = a, *y = b;

	return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1) :
	       x->pid != y->pid ? (x->pid < y->pid ? -1 : 1) : strcmp(x->path, y->path);
}

int cu_trace_join(struct cu_trace *t)
{
	struct joining j = { .t = t };
	int err = 0;

	set_clocks(t);
	if (t->processes)
		qsort(t->process, t->processes, sizeof *t->process, by_begin);
	set_ids(t);
	for (uint32_t p = 0; p < t->processes; p++)
		for (size_t i = 0; i < t->process[p].events && !j.failed; i++)
			join_event(&j, p, &t->process[p].event[i]);
	if (!j.failed)
		join_across(&j);
	maps_free(&j);
	if (j.failed)
		return -ENOMEM;
	ends(t);
	for (size_t i = 0; i < t->processes; i++)
		if (t->process[i].end > t->span)
			t->span = t->process[i].end;
	err = cu_trace_pack(t);
	return err;
}
