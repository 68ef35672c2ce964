/* SPDX-License-Identifier: Apache-2.0 */
/* The first half of the report: looks at a process and groups what it sees.  See report.h. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "shim/report/peer_files.h"
#include "shim/report/place.h"
#include "shim/report/report_table.h"

enum {
	TOP = 10,	   /* groups that are listed of each class and kind by default */
	GROUPS = 4096,
	FEW_GROUPS = 24,   /* if there is no memory */
	SLOTS_SEEN = 64,   /* holders of one block that are counted by process */
	NAMES = 8 * CL_STACK_FRAMES, /* of a group's frames, for suppressions */
};

/* -------------------------------------------------------------------- groups */
static union {
	struct cl_report_table table;
	char room[offsetof(struct cl_report_table, group) + FEW_GROUPS * sizeof(struct cl_report_group)];
} few;

static struct cl_report_table *table_make(void)
{
	size_t index_at = sizeof(struct cl_report_table) + GROUPS * sizeof(struct cl_report_group);
	size_t size = index_at + 2 * GROUPS * sizeof(uint16_t);
	struct cl_report_table *table = mmap(NULL, size, PROT_READ | PROT_WRITE,
					     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (table == MAP_FAILED) {
		memset(&few, 0, sizeof(few));
		few.table.size = FEW_GROUPS;
		return &few.table;
	}
	table->size = GROUPS;
	table->mapped = size;
	table->index = (uint16_t *)((char *)table + index_at);
	table->index_mask = 2 * GROUPS - 1;
	return table;
}

static bool same_group(const struct cl_report_group *a, const struct cl_report_group *b)
{
	return a->class == b->class && a->kind == b->kind && a->device == b->device &&
	       a->others == b->others && a->place[0] == b->place[0] && a->place[1] == b->place[1] &&
	       a->pid == b->pid && a->file_id == b->file_id && a->made == b->made && a->call == b->call &&
	       a->result == b->result && a->told == b->told && a->exporter_gone == b->exporter_gone && a->why == b->why;
}

static uint32_t hash_of(const struct cl_report_group *g)
{
	uint64_t h = 0xcbf29ce484222325u;
	uint32_t words[] = { (uint32_t)g->class | (uint32_t)g->kind << 8 | (uint32_t)g->device << 16,
			     (uint32_t)g->place[0], (uint32_t)g->place[1], g->pid, g->file_id,
			     (uint32_t)g->made | (uint32_t)g->call << 8 | (uint32_t)g->exporter_gone << 16 | (uint32_t)g->why << 24,
			     g->result };

	for (unsigned int i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		h = (h ^ words[i]) * 0x100000001b3u;
	return (uint32_t)(h ^ h >> 32);
}

static struct cl_report_group *group_new(struct cl_report_table *table, const struct cl_report_group *key)
{
	struct cl_report_group *g = &table->group[table->n++];

	memset(g, 0, sizeof(*g));
	*g = *key;
	return g;
}

/*
 * The table has no room for a group of @key's own.  Returns the group that stands for all such blocks of @key's class and
 * kind.  Virtual memory has a group apart, since the title has other words for it ("unmapped").  The last places of the
 * table are kept for these groups; if even those are taken, returns the table's last group.
 */
static struct cl_report_group *group_of_others(struct cl_report_table *table, const struct cl_report_group *key)
{
	struct cl_report_group all = { .class = key->class, .kind = key->kind, .others = true };

	if (key->made == CL_MADE_VIRTUAL && key->class != CL_REPORT_REFUSED && key->class != CL_REPORT_DESCRIPTOR)
		all.made = key->made;
	for (unsigned int i = table->n; i-- > 0;)
		if (same_group(&table->group[i], &all))
			return &table->group[i];
	if (table->n < table->size)
		return group_new(table, &all);
	return &table->group[table->size - 1];
}

/* Finds or makes the group whose first members equal those of @key.  Sets the places of @key. */
static struct cl_report_group *group_get(struct cl_report *report, struct cl_report_group *key)
{
	struct cl_report_table *table = report->table;
	unsigned int room = table->size - (table->mapped ? 3 * CL_REPORT_CLASSES : 4);

	for (int s = 0; s < 2; s++)
		key->place[s] = cl_report_place(report->view, key->stack[s]);
	if (!table->index) {
		for (unsigned int i = 0; i < table->n; i++)
			if (same_group(&table->group[i], key))
				return &table->group[i];
		return table->n < room ? group_new(table, key) : group_of_others(table, key);
	}
	for (uint32_t at = hash_of(key) & table->index_mask;; at = (at + 1) & table->index_mask) {
		if (!table->index[at]) {
			if (table->n >= room)
				return group_of_others(table, key);
			table->index[at] = (uint16_t)(table->n + 1);
			return group_new(table, key);
		}
		if (same_group(&table->group[table->index[at] - 1], key))
			return &table->group[table->index[at] - 1];
	}
}

static void add_item(struct cl_report_group *g, const struct cl_report_item *item)
{
	unsigned int at = g->items;

	g->n++;
	g->bytes += item->bytes;
	if (item->since && (!g->oldest || item->since < g->oldest))
		g->oldest = item->since;
	/* the largest first; of equals, the one that came first */
	while (at > 0 && g->item[at - 1].bytes < item->bytes)
		at--;
	if (at == CL_REPORT_ITEMS)
		return;
	if (g->items < CL_REPORT_ITEMS)
		g->items++;
	memmove(&g->item[at + 1], &g->item[at], (g->items - 1 - at) * sizeof(g->item[0]));
	g->item[at] = *item;
}

/* -------------------------------------------------------------------- looking */
/* Returns true if what began at @since is younger than CULIMBO_MIN_AGE.  Then its @bytes are counted, and not listed. */
static bool is_young(struct cl_report *report, uint64_t since, uint64_t bytes)
{
	if (!report->min_age || since + report->min_age <= report->now)
		return false;
	report->sums.young++;
	report->sums.young_bytes += bytes;
	return true;
}

/* ------------------------------------------------------------ adding to the groups */
struct cl_report_group *cl_report_add_block(struct cl_report *report, enum cl_report_class as,
					    const struct cl_view_block *b)
{
	struct cl_report_group key = { .class = (uint8_t)as, .kind = (uint8_t)b->kind,
				       .device = (uint8_t)b->device, .told = b->told,
				       .made = b->is_virtual ? CL_MADE_VIRTUAL : CL_MADE_UNKNOWN,
				       .stack = { b->export_stack, b->freed ? b->free_stack : 0 } };
	struct cl_report_item item = { .key = b->base, .bytes = b->size, .since = b->exported,
				       .other_since = b->freed, .record = b->record,
				       .generation = b->generation, .exports = b->exports };
	struct cl_report_group *g;

	if (is_young(report, b->freed ? b->freed : b->exported, b->size))
		return NULL;
	g = group_get(report, &key);
	add_item(g, &item);
	g->pinned += b->pinned;
	return g;
}

void cl_report_add_import(struct cl_report *report, const struct cl_view_import *import, bool stays)
{
	struct cl_report_group key = {
		.class = import->file_id ? CL_REPORT_NOT_CLOSED : CL_REPORT_UNMANAGED,
		.kind = (uint8_t)import->kind, .device = (uint8_t)import->device,
		.stack = { import->stack }, .pid = import->exporter_pid, .file_id = import->file_id,
		.told = report->once && import->told };
	struct cl_report_item item = { .key = import->key, .bytes = import->size,
				       .since = import->since, .opens = import->opens,
				       .record = import->record, .generation = import->generation };
	struct cl_report_group *g;

	if (is_young(report, import->since, import->size))
		return;
	g = group_get(report, &key);
	add_item(g, &item);
	g->stays += stays;
}

static enum cl_report_class class_of_finding(uint32_t kind)
{
	for (int c = 0; c < CL_REPORT_CLASSES; c++)
		if ((cl_report_classes[c].what & CL_REPORT_A_FINDING) && cl_report_classes[c].kind == kind)
			return (enum cl_report_class)c;
	return CL_REPORT_CLASSES;
}

static void add_finding(struct cl_report *report, const struct cl_finding *f)
{
	struct cl_report_group key = { .class = (uint8_t)class_of_finding(f->kind), .kind = f->block_kind,
				       .device = f->device, .stack = { f->stack, f->other_stack },
				       .pid = f->pid, .file_id = f->file_id,
				       .told = report->once && f->told, .made = f->made,
				       .exporter_gone = f->exporter_gone != 0 };
	struct cl_report_item item = { .key = f->key, .bytes = f->size, .since = f->when,
				       .other_since = f->other_when, .record = f->record,
				       .generation = f->generation };
	struct cl_report_group *g;
	uint64_t times = 1;

	if (key.class == CL_REPORT_FREED_WHILE_MAPPED && f->until > f->when)
		item.after_free = f->until - f->when;
	if (key.class == CL_REPORT_OPENED_AFTER_FREE && f->other_when && f->when > f->other_when)
		item.after_free = f->when - f->other_when;
	if (key.class == CL_REPORT_CLASSES)
		return;
	if (key.class == CL_REPORT_OPENED_AFTER_FREE)
		key.result = f->result;
	if (cl_finding_is_note(f->kind)) {
		key.call = f->call;
		key.why = f->why;
		key.result = f->result;
		if (f->times)
			times = f->times;
	}
	report->table->listed[key.class] += times;
	g = group_get(report, &key);
	add_item(g, &item);
	/* what an item stands for besides itself */
	g->n += times - 1;
	if (f->bytes > f->size)
		g->bytes += f->bytes - f->size;
	if (!g->others)
		snprintf(g->name, sizeof(g->name), "%.16s", f->name);
}

void cl_report_add_findings(struct cl_report *report, uint64_t (*count)(const struct cl_view *view,
									 enum cl_finding_kind kind))
{
	uint32_t n = cl_view_findings(report->view);
	struct cl_finding f;

	for (uint32_t i = 0; i < n; i++)
		if (cl_view_finding(report->view, i, &f))
			add_finding(report, &f);
	for (int c = 0; c < CL_REPORT_CLASSES; c++)
		if (cl_report_classes[c].what & CL_REPORT_A_FINDING) {
			uint64_t all = count(report->view, cl_report_classes[c].kind);

			report->table->unlisted[c] = all > report->table->listed[c] ? all - report->table->listed[c] : 0;
		}
}

/* ----------------------------------------------------------------- suppressions */
/* Texts that are copied into one buffer, and where each of them begins. */
struct names {
	const char **name;
	unsigned int n;
	char *room;
	size_t left;
};

static void add_name(struct names *names, const char *text)
{
	size_t length = strlen(text) + 1;

	if (length == 1 || length > names->left || names->n == NAMES)
		return;
	memcpy(names->room, text, length);
	names->name[names->n++] = names->room;
	names->room += length;
	names->left -= length;
}

/* Adds a NULL: it ends the names of a frame or, directly behind such a NULL, those of a stack. */
static void end_names(struct names *names)
{
	if (names->n < NAMES)
		names->name[names->n++] = NULL;
}

static void add_python_names(struct names *names, const struct cl_view *view, uint32_t stack)
{
	unsigned int depth = cl_view_python_depth(view, stack, NULL);
	struct cl_view_python frame;

	for (unsigned int i = 0; i < depth && cl_view_python_frame(view, stack, i, &frame); i++) {
		add_name(names, frame.function);
		add_name(names, frame.file);
		end_names(names);
	}
}

/*
 * Adds the names of a stack's frames that a pattern may match, those of Python before the others.  A frame without a
 * name counts as well: a pattern for its caller must not match what the frame calls.
 */
static void add_stack(struct names *all, struct cl_report *report, const struct cl_view *view, uint32_t stack)
{
	unsigned int depth = cl_view_stack_depth(view, stack);

	add_python_names(all, view, stack);
	for (unsigned int i = 0; i < depth; i++) {
		struct cl_report_symbol symbol = { .line = 0 };
		struct cl_view_frame frame;
		unsigned int before = all->n;
		char place[256];

		if (!cl_view_stack_frame(view, stack, i, &frame))
			continue;
		if (report->resolve)
			report->resolve(report->data, view, &frame, &symbol);
		snprintf(place, sizeof(place), "%s+%#llx", frame.path, (unsigned long long)frame.offset);
		add_name(all, symbol.function);
		add_name(all, symbol.file);
		add_name(all, frame.path);
		if (frame.path[0])
			add_name(all, place);
		if (all->n == before)
			add_name(all, CL_SUPPRESS_NAMELESS);
		end_names(all);
	}
	end_names(all);
}

static char room[1 << 17]; /* there is one report at a time in a process */

/* Finds the suppression of @class (NULL: without a class) that matches the stacks of the group itself. */
static struct cl_suppression *find_own(struct cl_report *report, const struct cl_report_group *g, const char *class)
{
	const char *names[NAMES];
	struct names all = { .name = names, .room = room, .left = sizeof(room) };

	for (int s = 0; s < 2; s++)
		add_stack(&all, report, report->view, g->stack[s]);
	return cl_suppress_find(report->suppressions, class, names, all.n);
}

/* The same for the stack of a holder's open. */
static struct cl_suppression *find_holders(struct cl_report *report, const struct cl_report_group *g,
					   unsigned int index, const char *class)
{
	const char *names[NAMES];
	struct names all = { .name = names, .room = room, .left = sizeof(room) };
	const struct cl_view *its;
	uint32_t stack = cl_report_holder_stack(report, g, index, &its);

	if (!stack || cl_report_holder_has_more_stacks(report, g, index))
		return NULL;
	add_stack(&all, report, its, stack);
	return cl_suppress_find(report->suppressions, class, names, all.n);
}

/* Returns the suppression that hides @g, or NULL. */
static struct cl_suppression *find(struct cl_report *report, const struct cl_report_group *g)
{
	const char *class = cl_report_classes[g->class].name;
	struct cl_suppression *by = find_own(report, g, NULL);

	if (by)
		return by;
	if (!g->holders)
		return g->other_holds || g->pinned ? NULL : find_own(report, g, class);
	if (g->other_holds || g->pinned || g->own_opens)
		return NULL;
	for (unsigned int i = 0; i < g->holders && (i == 0 || by); i++)
		by = find_holders(report, g, i, class);
	return by;
}

static void suppress(struct cl_report *report)
{
	struct cl_report_table *table = report->table;

	if (!report->suppressions || !report->suppressions->n)
		return;
	for (unsigned int i = 0; i < table->n; i++) {
		struct cl_report_group *g = &table->group[i];
		struct cl_suppression *by;

		if (!(cl_report_classes[g->class].what & CL_REPORT_FOUND) || g->others)
			continue;
		by = find(report, g);
		if (!by)
			continue;
		by->blocks += g->n;
		by->bytes += g->bytes;
		g->suppressed = true;
		report->sums.suppressed += g->n;
		report->sums.suppressed_bytes += g->bytes;
	}
}

/* ------------------------------------------------------------- the whole report */
void cl_report_begin(struct cl_report *report)
{
	memset(report, 0, sizeof(*report));
	report->top = TOP;
	report->dirfd = -1;
	report->table = table_make();
}

static void close_peers(struct cl_report *report)
{
	for (unsigned int i = 0; i < report->peers; i++)
		if (!report->peer[i].err)
			cl_view_close(&report->peer[i].view);
	report->peers = 0;
}

void cl_report_end(struct cl_report *report)
{
	close_peers(report);
	if (report->table->mapped)
		munmap(report->table, report->table->mapped);
	report->table = NULL;
}

void cl_report_look_begin(struct cl_report *report, const struct cl_view *view, uint64_t now)
{
	struct cl_report_table *table = report->table;

	table->n = 0;
	memset(table->unlisted, 0, sizeof(table->unlisted));
	memset(table->listed, 0, sizeof(table->listed));
	if (table->index)
		memset(table->index, 0, (table->index_mask + 1) * sizeof(table->index[0]));
	memset(&report->sums, 0, sizeof(report->sums));
	memset(&report->process, 0, sizeof(report->process));
	close_peers(report);
	cl_report_place_forget();
	report->view = view;
	report->now = now;
	report->imports_left = CL_REPORT_IMPORTS;
	cl_view_process(view, &report->process);
}

/* Adds what @from has to @to. */
static void merge(struct cl_report_group *to, const struct cl_report_group *from)
{
	uint64_t n = to->n + from->n, bytes = to->bytes + from->bytes;

	for (unsigned int i = 0; i < from->items; i++)
		add_item(to, &from->item[i]);
	to->n = n;
	to->bytes = bytes;
	if (from->oldest && (!to->oldest || from->oldest < to->oldest))
		to->oldest = from->oldest;
}

/*
 * Blocks that were opened after their free at one place are one bug, also if the stack of the free is known for some
 * of them only.  Joins the groups of such blocks.
 */
static void merge_unknown_frees(struct cl_report_table *table)
{
	for (unsigned int i = 0; i < table->n; i++) {
		const struct cl_report_group *g = &table->group[i];
		struct cl_report_group wanted = *g;

		if ((g->class != CL_REPORT_OPENED_AFTER_FREE && g->class != CL_REPORT_STALE_REFUSED) || g->stack[1] ||
		    g->others)
			continue;
		for (unsigned int j = 0; j < table->n; j++) {
			wanted.place[1] = table->group[j].place[1];
			if (!wanted.place[1] || !same_group(&table->group[j], &wanted))
				continue;
			merge(&table->group[j], g);
			/* the index of groups is needed no more */
			if (i != --table->n)
				table->group[i] = table->group[table->n];
			i--;
			break;
		}
	}
}

void cl_report_look_end(struct cl_report *report)
{
	struct cl_report_sums *sums = &report->sums;

	merge_unknown_frees(report->table);
	suppress(report);
	for (unsigned int i = 0; i < report->table->n; i++) {
		const struct cl_report_group *g = &report->table->group[i];

		if (g->suppressed)
			continue;
		sums->n[g->class] += g->n;
		sums->bytes[g->class] += g->bytes;
		sums->told += g->told ? g->n : 0;
		sums->freed_observed += g->freed_observed ? g->n : 0;
		sums->freed_observed_bytes += g->freed_observed ? g->bytes : 0;
	}
	for (int c = 0; c < CL_REPORT_CLASSES; c++) {
		sums->n[c] += report->table->unlisted[c];
		/* a process that lives and holds or shares something is no finding */
		if ((cl_report_classes[c].what & CL_REPORT_FOUND) &&
		    ((cl_report_classes[c].what & CL_REPORT_A_FINDING) || report->at_exit ||
		     report->process.state == CL_DEAD || report->process.state == CL_LEAVING))
			sums->findings += sums->n[c];
	}
	/* only a report at exit has groups that were told, and all classes of these groups count as findings there */
	sums->findings -= sums->told;
}

static enum cl_report_class class_of_view(enum cl_view_class class)
{
	static const enum cl_report_class as[CL_VIEW_CLASSES] = {
		[CL_VIEW_HELD_LIMBO] = CL_REPORT_HELD_LIMBO, [CL_VIEW_GRACE] = CL_REPORT_GRACE,
		[CL_VIEW_LIMBO] = CL_REPORT_LIMBO,	     [CL_VIEW_HELD] = CL_REPORT_HELD,
		[CL_VIEW_ORPHANED] = CL_REPORT_ORPHANED,	     [CL_VIEW_LIVE] = CL_REPORT_CLASSES,
	};

	return as[class];
}

static uint64_t found(const struct cl_view *view, enum cl_finding_kind kind)
{
	return cl_view_finding_count(view, kind);
}

void cl_report_add_blocks(struct cl_report *report, unsigned int (*own_opens)(uint32_t record))
{
	uint32_t records = cl_view_records(report->view);
	struct cl_view_block block;

	for (uint32_t r = 0; r < records; r++) {
		unsigned int n, own = own_opens ? own_opens(r) : 0;
		uint16_t slots[SLOTS_SEEN];
		struct cl_report_group *g;

		if (!cl_view_block(report->view, r, &block))
			continue;
		if (block.exported + report->view->region.header->grace >= report->now) {
			report->sums.fresh++;
			report->sums.fresh_exports += block.exports;
		}
		/* no context has ended, and a finding of its own says that it was given back */
		if (block.given_back)
			continue;
		/* its holders have closed it or have ended, and no collection has seen that yet: nothing is open */
		if (block.class == CL_VIEW_ORPHANED && !block.holders && !block.pinned && !own)
			continue;
		/* no context has ended here, either: CULIMBO_MODE=protect would keep it in the limbo */
		if (block.freed_observed)
			block.class = CL_VIEW_HELD_LIMBO;
		if (own && (block.class == CL_VIEW_GRACE || block.class == CL_VIEW_LIMBO))
			block.class = CL_VIEW_HELD_LIMBO;
		if (block.class == CL_VIEW_LIVE) {
			report->sums.live++;
			report->sums.live_bytes += block.size;
			continue;
		}
		n = cl_view_holder_slots(report->view, r, slots, SLOTS_SEEN);
		block.told = report->once && !own && !block.pinned && n < SLOTS_SEEN &&
			     cl_report_holders_have_told(report, slots, n);
		g = cl_report_add_block(report, class_of_view(block.class), &block);
		if (!g)
			continue;
		g->freed_observed = block.freed_observed;
		g->own_opens += own;
		cl_report_add_holders(g, &block, slots, n < SLOTS_SEEN ? n : SLOTS_SEEN);
		g->other_holds += n < SLOTS_SEEN ? 0 : n - SLOTS_SEEN;
	}
}

void cl_report_look_at_view(struct cl_report *report, const struct cl_view *view)
{
	uint32_t imports = cl_view_imports(view);
	struct cl_view_import import;

	cl_report_look_begin(report, view, view->now);
	cl_report_add_blocks(report, NULL);
	for (uint32_t i = 0; i < imports; i++)
		if (cl_view_import(view, i, &import))
			cl_report_add_import(report, &import, false);
	cl_report_add_findings(report, found);
	cl_report_look_end(report);
}
