/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The judge: what another process finds after the victim was killed, and whether it can
 * continue.  The judge uses only what shim/ offers to other processes.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/shm/gc.h"
#include "shim/shm/view.h"
#include "tests/kill/world.h"

static const char *say(const char *what, unsigned int number)
{
	static char text[128];

	snprintf(text, sizeof text, "%s (%u)", what, number);
	return text;
}

static uint64_t bits(const struct cl_region *region, unsigned int word, uint32_t record)
{
	return cl_region_has_word(region, word, record) ?
		       atomic_load(cl_region_word(region, word, record)) :
		       0;
}

static bool is_held_by(const struct cl_region *region, unsigned int slot, uint32_t record)
{
	return bits(region, slot / 64, record) >> (slot % 64) & 1;
}

/* Conditions that hold at every moment, whichever process was killed. */
static const char *look(const struct world *w, const struct cl_region *region)
{
	uint32_t used = atomic_load(&region->header->slots_used);
	uint64_t claimed = 0;

	for (unsigned int slot = 0; slot < 64; slot++)
		if ((atomic_load(&region->slot[slot].claim) & 0xff) != CL_SLOT_FREE) {
			claimed |= 1ull << slot;
			if (slot >= used)
				return say("a claimed slot that no search covers", slot);
		}
	if (w->has_region && atomic_load(&region->slot[SLOT_A].claim) != w->claim_of_a)
		return "the slot of a living importer changed hands";
	for (uint32_t record = 0; record < R_END; record++) {
		uint64_t life = cl_record_life(region, record);

		if (bits(region, 0, record) & ~claimed)
			return say("a hold in a slot that is free", record);
		if (bits(region, 1, record))
			return say("a hold without a holder", record);
		if (is_held_by(region, SLOT_A, record) != w->held_by_a[record])
			return say("a living importer's hold changed", record);
		if (cl_life_generation(life) > 1 || cl_life_state(life) > CL_ORPHANED)
			return say("a record in an invalid state", record);
		if (w->held_by_a[record] &&
		    (cl_life_generation(life) != 0 || cl_life_state(life) == CL_FREE))
			return say("a record was released with a live hold", record);
	}
	return NULL;
}

/*
 * The counts of opens: rule 1 in shim/shm/layout.h.  No stale importer counts in a later generation here,
 * so that each holder's bit, and a pin, has an open before it.
 */
static const char *look_at_opens(struct world *w, const struct cl_region *region)
{
	for (uint32_t record = 0; record < R_END; record++) {
		uint64_t life = cl_record_life(region, record), before = w->counted[record].life;
		unsigned int opens = atomic_load(&region->record[record].opens);
		unsigned int had = (unsigned int)__builtin_popcountll(bits(region, 0, record)) +
				   atomic_load(&region->record[record].pinned);

		if (opens < had)
			return say("a hold whose open is not counted", record);
		/* an export, from FREE on, begins at 0 */
		if (cl_life_generation(life) == cl_life_generation(before) &&
		    cl_life_state(before) != CL_FREE && opens < w->counted[record].opens)
			return say("a count of opens went down", record);
		w->counted[record].life = life;
		w->counted[record].opens = (uint16_t)opens;
	}
	return NULL;
}

/* ---------------------------------------------------------------------- report data */
static int64_t pages(uint64_t bytes)
{
	return (int64_t)((bytes + CL_PAGE - 1) / CL_PAGE * CL_PAGE);
}

int64_t spare_bytes(const struct cl_region *region)
{
	struct cl_header *h = region->header;
	uint32_t chunks = atomic_load(&h->record_chunks);
	int64_t counted = CL_AT_FIXED_END + (int64_t)chunks * CL_CHUNK * (int64_t)sizeof(struct cl_record);
	struct stat st;

	counted += pages((uint64_t)chunks * CL_CHUNK / 8);
	for (unsigned int i = 0; i < CL_WORDS * CL_CHUNKS / 64; i++)
		counted += __builtin_popcountll(atomic_load(&region->word_pages[i])) * (int64_t)CL_PAGE;
	counted += pages(atomic_load(&h->modules) * sizeof(struct cl_module));
	counted += pages(atomic_load(&h->stack_words) * 8ull);
	counted += pages(atomic_load(&h->imports) * sizeof(struct cl_import_entry));
	counted += pages(atomic_load(&h->findings) * sizeof(struct cl_finding));
	return fstat(region->fd, &st) ? INT64_MIN : (int64_t)st.st_blocks * 512 - counted;
}

/* The victim and the judge are one program at the same addresses, so the judge knows every frame. */
static const char *look_at_frame(const struct cl_view_frame *frame)
{
	const char *name = strrchr(frame->path, '/'), *real;
	struct link_map *map;
	Dl_info info;

	if (!frame->path[0])
		return "a frame of a recorded stack belongs to no recorded file";
	if (!dladdr1((void *)(uintptr_t)(frame->address - 1), &info, (void **)&map, RTLD_DL_LINKMAP))
		return "a frame of a recorded stack is not in code";
	real = strrchr(info.dli_fname, '/');
	if (strcmp(name ? name : frame->path, real ? real : info.dli_fname) ||
	    frame->offset != frame->address - map->l_addr)
		return "a frame of a recorded stack has a wrong place";
	return NULL;
}

/* All counted stacks, and the texts among them, one after the other. */
static const char *look_at_stacks(const struct cl_view *view)
{
	uint32_t words = atomic_load(&view->region.header->stack_words), at = 1;
	struct cl_view_frame frame;
	const char *wrong;

	while (at < words) {
		unsigned int n = cl_view_stack_depth(view, at);
		uint32_t text = n ? 0 : words_of_text(view, at);

		if (!n && !text)
			return say("a counted stack is not there", at);
		for (unsigned int i = 0; i < n; i++) {
			if (!cl_view_stack_frame(view, at, i, &frame))
				return say("a frame of a recorded stack is not there", at);
			wrong = look_at_frame(&frame);
			if (wrong)
				return wrong;
		}
		wrong = look_at_python(view, at);
		if (wrong)
			return wrong;
		at += 1 + n + cl_view_python_depth(view, at, NULL) + text;
	}
	return words && at != words ? say("a recorded stack is counted in part", words) : NULL;
}

static const char *look_at_imports(const struct cl_view *view, unsigned int open)
{
	struct cl_view_import is;

	for (uint32_t i = 0; i < cl_view_imports(view); i++) {
		struct cl_import_entry want;

		if (!cl_view_import(view, i, &is))
			continue;
		want = import_entry(is.record);
		if (is.key != want.key || is.size != want.size || is.since != want.since ||
		    is.file_id != want.file_id || is.generation != want.generation ||
		    is.stack != want.stack || is.exporter_pid != want.exporter_pid ||
		    is.kind != (enum cl_kind)want.kind || is.device != want.device || is.opens > 2)
			return say("the entry of an import mixes two imports", i);
		open -= open > 0;
	}
	return open ? say("open imports are not listed", open) : NULL;
}

static const char *look_at_findings(const struct cl_view *view)
{
	uint32_t n = cl_view_findings(view);
	struct cl_finding is;

	for (uint32_t i = 0; i < n; i++) {
		struct cl_finding want;

		if (!cl_view_finding(view, i, &is))
			return say("a finding that is counted is not there", i);
		want = finding_entry(is.record);
		want.when = is.when;
		if (strcmp(is.name, want.name))
			return say("a finding has another finding's name", i);
		memcpy(is.name, want.name, sizeof is.name); /* and what follows its end */
		if (!is.when || memcmp(&is, &want, sizeof is))
			return say("a finding mixes two findings", i);
	}
	return n > cl_view_finding_count(view, CL_FINDING_CLOSED_TWICE) ? "a finding is listed and not counted" : NULL;
}

/* Reads it as `culimbo report` does. */
static const char *look_at_report_data(const struct cl_region *region, unsigned int imports)
{
	const struct cl_view view = { .region = *region, .now = cl_now(), .state = CL_DEAD };
	struct cl_view_block block;
	const char *wrong = look_at_stacks(&view);

	for (uint32_t record = 0; !wrong && record < R_END; record++)
		if (cl_view_block(&view, record, &block) && block.export_stack &&
		    !cl_view_stack_depth(&view, block.export_stack))
			wrong = say("a block names a stack that is not there", record);
	if (!wrong)
		wrong = look_at_imports(&view, imports);
	return wrong ? wrong : look_at_findings(&view);
}

static const char *reap(const struct world *w, struct cl_region *region)
{
	static struct cl_slot_watch watch[CL_SLOTS];
	struct cl_reaped sum;

	memset(watch, 0, sizeof watch);
	sum = cl_holder_reap(region, watch, cl_now(), 0, NULL, NULL);
	if (sum.settling)
		return "a dead process counts as live";
	if (sum.alive != w->has_region)
		return "a live process was taken for dead, or a dead one for live";
	for (unsigned int slot = 0; slot < 64; slot++)
		if ((slot != SLOT_A || !w->has_region) &&
		    (atomic_load(&region->slot[slot].claim) & 0xff) != CL_SLOT_FREE)
			return say("a dead process's slot is left after a reap", slot);
	for (uint32_t record = 0; record < R_END; record++)
		if (bits(region, 0, record) & ~(w->has_region ? 1ull << SLOT_A : 0))
			return say("a hold of a dead process is left after a reap", record);
	return look(w, region);
}

/* The exporter lives: it must learn of each block that no process holds any more. */
static const char *collect(const struct world *w, struct cl_region *region)
{
	static const uint32_t waiting[] = { R_HELD, R_LAST,  R_BOTH, R_DEAD,
					    R_FAR,  R_READY, R_CLOSING };
	bool ready[R_END] = { false };
	uint32_t list[256];
	unsigned int n;

	while ((n = cl_record_take_ready(region, list, 256)) > 0)
		for (unsigned int i = 0; i < n; i++) {
			if (list[i] >= R_END)
				return say("a record that does not exist is ready", list[i]);
			ready[list[i]] = true;
		}
	for (unsigned int i = 0; i < sizeof waiting / sizeof *waiting; i++) {
		uint32_t record = waiting[i];

		if (w->held_by_a[record]) {
			if (cl_record_try_release(region, record))
				return say("a held record was released", record);
			continue;
		}
		if (record == R_LAST && !w->victim_held && !ready[record])
			continue; /* its exporter knew that from the beginning */
		if (!ready[record])
			return say("a record that no process holds was not made ready", record);
		if (!cl_record_try_release(region, record))
			return say("a record that no process holds cannot be released", record);
		if (cl_record_hold(region, SLOT_A, record, 0, handle) != -ESTALE)
			return say("a stale handle opens", record);
	}
	/* unmapped while it was held: the exporter learns of the last close, and makes the record free */
	if (cl_life_state(cl_record_life(region, R_OPENED)) == CL_ORPHANED && !ready[R_OPENED])
		return say("an orphaned record that no process holds was not made ready", R_OPENED);
	return NULL;
}

/* Another process comes and does what an importer does. */
static const char *import(const struct world *w, struct cl_region *region, bool exporter_lives)
{
	struct cl_identity other = { .pid = 1, .pid_ns = 1, .start_time = 1 };
	int slot = cl_holder_claim(region, &other, cl_now(), 0), err;

	if (slot < 0)
		return "no slot can be claimed";
	if (slot == SLOT_A && w->has_region)
		return "a living importer's slot was claimed";
	err = cl_record_hold(region, (unsigned int)slot, R_EXPORTED, 0, handle);
	if (err && (exporter_lives || (err != -ESTALE && err != -EAGAIN)))
		return say("an exported block cannot be opened", (unsigned int)-err);
	if (!err) {
		if (!is_held_by(region, (unsigned int)slot, R_EXPORTED))
			return "an open took no hold";
		if (exporter_lives && cl_record_try_release(region, R_EXPORTED))
			return "a block was released under a new hold";
		cl_record_unhold(region, (unsigned int)slot, R_EXPORTED);
	}
	cl_holder_release(region, (unsigned int)slot);
	/* and A closes its imports */
	for (uint32_t record = 0; w->has_region && record < R_END; record++)
		if (w->held_by_a[record]) {
			cl_record_unhold(region, SLOT_A, record);
			if (is_held_by(region, SLOT_A, record))
				return say("a close left a hold", record);
		}
	return NULL;
}

/* Another process does what an exporter does. */
static const char *export(const struct world *w, int dir)
{
	struct cl_export what = { .kind = CL_MEMORY, .base = 1, .size = 1, .handle = handle, .now = 1 };
	struct cl_region mine;
	const char *wrong = NULL;

	if (cl_region_create(&mine, dir, &w->self))
		return "another exporter cannot make its file";
	if (cl_region_grow(&mine) || cl_record_publish(&mine, 0, &what) != 0)
		wrong = "another exporter cannot export";
	write_each(&mine);
	if (!wrong)
		wrong = look_at_report_data(&mine, 1);
	if (!wrong && (mine.header->stack_words < 2 || !mine.header->modules || mine.header->findings != 1))
		wrong = "another process cannot record stacks and findings";
	cl_record_to_limbo(&mine, 0, 2);
	if (!wrong && !cl_record_try_release(&mine, 0))
		wrong = "another exporter cannot release";
	if (cl_region_unlink(&mine, dir))
		wrong = "another exporter cannot remove its file";
	cl_region_close(&mine);
	return wrong;
}

const char *judge(struct world *w, struct cl_region *region, int dir)
{
	const char *wrong = NULL;
	char name[16], unfinished[16], socket[16];

	if (region) {
		if (w->role == IMPORTER || w->role == EXPORTER) {
			wrong = look(w, region);
			if (!wrong)
				wrong = look_at_opens(w, region);
			if (!wrong)
				wrong = look_at_report_data(region, w->report_data ? w->report_data->imports : 0);
			if (!wrong)
				wrong = reap(w, region);
			if (!wrong && w->role == IMPORTER)
				wrong = collect(w, region);
			if (!wrong)
				wrong = import(w, region, w->role == IMPORTER);
		}
		cl_region_name(name, region->file_id);
		if (!wrong && cl_gc_file(region, dir))
			wrong = "a dead exporter's file cannot be removed";
		snprintf(unfinished, sizeof unfinished, "new-%06x", region->file_id);
		if (!wrong && (faccessat(dir, name, F_OK, 0) == 0 || faccessat(dir, unfinished, F_OK, 0) == 0))
			wrong = "a removed file is still there";
		cl_region_socket_name(socket, region->file_id);
		if (!wrong && faccessat(dir, socket, F_OK, 0) == 0)
			wrong = "the socket of a removed file is still there";
	}
	if (!wrong && w->role != IMPORTER)
		wrong = export(w, dir);
	return wrong;
}
