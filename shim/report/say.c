/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second half of the report: prints what was seen, as text or as JSON Lines: the head, the
 * groups class by class, the sums.  See report.h.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "shim/report/hint.h"
#include "shim/report/origin.h"
#include "shim/base/options.h"
#include "shim/report/peer_files.h"
#include "shim/report/report_table.h"
#include "shim/report/say_group.h"
#include "shim/report/say_python.h"
#include "shim/report/title.h"

/* Makes @call, which prints a part of the report.  If report->both is set it is made twice: for text, then for JSON. */
#define SAY(report, call)                          \
	do {                                       \
		call;                              \
		if ((report)->both) {              \
			(report)->emit.json = true;  \
			call;                      \
			(report)->emit.json = false; \
		}                                  \
	} while (0)

/* Returns true if @g is to be printed: groups that another process has reported are in JSON only. */
static bool is_shown(const struct cl_report *report, const struct cl_report_group *g)
{
	return !g->suppressed && (!g->told || report->emit.json);
}

/* Returns the group of @class and @kind that comes after @last in the report, or NULL. */
static const struct cl_report_group *next_group(const struct cl_report *report, int class, int kind,
						const struct cl_report_group *last)
{
	const struct cl_report_table *table = report->table;
	const struct cl_report_group *best = NULL;

	for (unsigned int i = 0; i < table->n; i++) {
		const struct cl_report_group *g = &table->group[i];

		if (g->class != class || g->kind != kind || !is_shown(report, g))
			continue;
		/* by bytes, then by number, then as they came */
		if (last && (g->bytes != last->bytes ? g->bytes > last->bytes :
			     g->n != last->n ? g->n > last->n : g <= last))
			continue;
		if (!best || (g->bytes != best->bytes ? g->bytes > best->bytes : g->n > best->n))
			best = g;
	}
	return best;
}

/*
 * Returns true if groups of @class are listed.  If not all is wanted, the text lists neither freed blocks that will go by
 * themselves nor what was shared by descriptors.
 */
static bool is_listed(const struct cl_report *report, int class)
{
	return report->emit.json || report->both || report->all ||
	       (cl_report_classes[class].what & (CL_REPORT_FOUND | CL_REPORT_A_NOTE));
}

/* Prints that @n findings of @class are only counted, with the hint of the class if no group has it. */
static void say_unlisted(struct cl_report *report, int class, uint64_t n, const char *hint)
{
	struct cl_emit *e = &report->emit;

	cl_emit_line(e, "more");
	cl_emit_number(e, "pid", report->process.who.pid, NULL, "");
	cl_emit_string(e, "class", cl_report_classes[class].name, NULL, "");
	cl_emit_string(e, "kind", "unknown", NULL, "");
	cl_emit_words(e, "  FOUND: %s: ", cl_report_classes[class].title);
	cl_emit_number(e, "count", n, "", " that are only counted (there was no room for more, or no file)\n");
	if (hint)
		cl_emit_words(e, "    HINT: %s\n", hint);
	cl_emit_line_end(e);
}

/* Prints that @groups groups with @n blocks are not listed. */
static void say_more(struct cl_report *report, int class, int kind, uint64_t groups, uint64_t n, uint64_t bytes)
{
	bool is_event = kind == CL_EVENT;
	struct cl_emit *e = &report->emit;

	cl_emit_line(e, "more");
	cl_emit_number(e, "pid", report->process.who.pid, NULL, "");
	cl_emit_string(e, "class", cl_report_classes[class].name, NULL, "");
	cl_emit_string(e, "kind", cl_report_kind_name(kind), NULL, "");
	cl_emit_number(e, "groups", groups, "  and ", groups == 1 ? " more place" : " more places");
	cl_emit_number(e, "count", n, ": ", is_event ? " events" : " of them");
	cl_emit_bytes(e, "bytes", bytes, is_event || !bytes ? NULL : ", ", "");
	cl_emit_words(e, "\n");
	cl_emit_line_end(e);
}

static void say_kind(struct cl_report *report, int class, int kind)
{
	const struct cl_report_class_row *row = &cl_report_classes[class];
	const struct cl_report_group *g, *last = NULL;
	uint64_t groups = 0, n = 0, bytes = 0, shown = 0;
	char hint[512], before[512] = "";
	uint64_t unlisted = kind == CL_MEMORY ? report->table->unlisted[class] : 0;

	if (!is_listed(report, class))
		return;
	for (unsigned int i = 0; i < report->table->n; i++) {
		g = &report->table->group[i];
		if (g->class == class && g->kind == kind && is_shown(report, g)) {
			groups++;
			n += g->n;
			bytes += g->bytes;
		}
	}
	for (uint64_t i = 0; (g = next_group(report, class, kind, last)) != NULL; i++, last = g) {
		if (report->generate) {
			if (row->what & CL_REPORT_FOUND)
				cl_report_say_group_pattern(report, g);
			continue;
		}
		if (report->top && i >= report->top)
			break;
		cl_report_make_hint(report, g, hint);
		SAY(report, cl_report_say_group(report, g, hint, report->both || strcmp(hint, before)));
		memcpy(before, hint, sizeof(before));
		shown++;
		n -= g->n;
		bytes -= g->bytes;
	}
	if (report->generate)
		return;
	if (groups > shown)
		SAY(report, say_more(report, class, kind, groups - shown, n, bytes));
	if (unlisted) {
		struct cl_report_group none = { .class = (uint8_t)class, .kind = CL_MEMORY };

		cl_report_make_hint(report, &none, hint);
		SAY(report, say_unlisted(report, class, unlisted,
					 groups || row->kind == CL_FINDING_HOLD_RECLAIMED ? NULL : hint));
	}
}

/* ------------------------------------------------------------------- the report */
static void say_head(struct cl_report *report)
{
	const struct cl_view_process *p = &report->process;
	struct cl_emit *e = &report->emit;

	cl_emit_line(e, "process");
	cl_emit_number(e, "pid", p->who.pid, "culimbo: report of process ", "");
	cl_emit_string(e, "when", report->at_exit ? "exit" : "look", NULL, "");
	if (report->at_exit)
		cl_emit_string(e, "state", "ending", NULL, "");
	else
		cl_emit_string(e, "state", cl_report_state_name(p->state), NULL, "");
	if (!report->at_exit)
		cl_emit_words(e, " (%s)", cl_report_state_words(p->state, p->called_exec));
	cl_emit_string(e, "command", p->command, p->command[0] ? ": " : NULL, "");
	if (strlen(p->command) >= sizeof(((struct cl_header *)0)->command) - 1)
		cl_emit_words(e, "..."); /* there is room for its start only */
	if (p->file_id) {
		char name[16];

		cl_region_name(name, p->file_id);
		cl_emit_string(e, "file", name, NULL, "");
	}
	if (p->created) {
		struct timespec t = { 0, 0 };
		uint64_t now;

		clock_gettime(CLOCK_REALTIME, &t);
		now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
		cl_emit_age(e, "shared_ns", now > p->created ? now - p->created : 0, NULL, "");
	}
	cl_report_say_origin(report);
	cl_emit_words(e, "\n");
	cl_emit_line_end(e);
}

static void say_number(struct cl_emit *e, const char *key, uint64_t value)
{
	char before[40];

	snprintf(before, sizeof(before), " %s=", key);
	cl_emit_number(e, key, value, before, "");
}

/*
 * Returns the number of exports if no process under culimbo has ever opened any of them, else 0.  While
 * the process lives, those whose grace runs do not count: somebody may be about to open them.
 */
static uint64_t never_opened(const struct cl_report *report, const struct cl_report_counts *counts)
{
	uint64_t all = counts ? counts->exports : report->process.live_blocks + report->process.limbo_blocks;
	uint64_t fresh = counts ? report->sums.fresh_exports : report->sums.fresh;

	/* without a file of its own an exporter does not see who opens what it exports */
	if (!report->process.file_id || cl_view_was_opened(report->view))
		return 0;
	if (report->at_exit || report->process.state == CL_DEAD || report->process.state == CL_LEAVING)
		return all;
	return all > fresh ? all - fresh : 0;
}

/* A number that the text leaves out where it is 0. */
static void say_count(struct cl_emit *e, const char *key, uint64_t value)
{
	if (value)
		say_number(e, key, value);
	else
		cl_emit_number(e, key, value, NULL, "");
}

/* What a process shared by descriptors: calls, and their bytes.  An allocation that is shared twice counts twice. */
struct by_descriptor {
	uint64_t exports, export_bytes, imports, import_bytes;
	uint64_t fabric; /* both ways */
};

static struct by_descriptor count_descriptors(const struct cl_report_table *table)
{
	struct by_descriptor by = { 0 };

	for (unsigned int i = 0; i < table->n; i++) {
		const struct cl_report_group *g = &table->group[i];

		if (g->class != CL_REPORT_DESCRIPTOR || g->others)
			continue;
		if (cl_call_is_by_fabric(g->call)) {
			by.fabric += g->n;
		} else if (cl_call_is_import(g->call)) {
			by.imports += g->n;
			by.import_bytes += g->bytes;
		} else {
			by.exports += g->n;
			by.export_bytes += g->bytes;
		}
	}
	return by;
}

static void say_descriptors(struct cl_emit *e, const struct by_descriptor *by)
{
	char out[32], in[32];

	if (by->exports || by->imports)
		cl_emit_words(e, "  shared by descriptors, which the driver counts: exports: %llu, %s; imports: %llu, %s\n",
			      (unsigned long long)by->exports, cl_emit_format_bytes(out, by->export_bytes),
			      (unsigned long long)by->imports, cl_emit_format_bytes(in, by->import_bytes));
	if (by->fabric)
		cl_emit_words(e, "  shared by fabric handles, which culimbo does not cover: %llu\n",
			      (unsigned long long)by->fabric);
}

static void say_summary(struct cl_report *report, const struct cl_report_counts *counts,
			const struct by_descriptor *by)
{
	const struct cl_report_sums *s = &report->sums;
	struct cl_emit *e = &report->emit;
	uint64_t misuse = 0;

	for (int c = CL_REPORT_FREED_TWICE; c <= CL_REPORT_EVENT_DESTROYED_TWICE; c++)
		misuse += s->n[c];
	cl_emit_line(e, "summary");
	cl_emit_words(e, "culimbo: SUMMARY");
	say_number(e, "pid", report->process.who.pid);
	if (counts) {
		say_count(e, "exports", counts->exports);
		say_count(e, "imports", counts->imports);
	}
	say_count(e, "held", s->n[CL_REPORT_HELD] + s->n[CL_REPORT_HELD_LIMBO] + s->n[CL_REPORT_ORPHANED]);
	say_count(e, "held_bytes",
		   s->bytes[CL_REPORT_HELD] + s->bytes[CL_REPORT_HELD_LIMBO] + s->bytes[CL_REPORT_ORPHANED]);
	say_count(e, "limbo", s->n[CL_REPORT_HELD_LIMBO] + s->n[CL_REPORT_GRACE] + s->n[CL_REPORT_LIMBO] -
					    s->freed_observed);
	say_count(e, "limbo_bytes", s->bytes[CL_REPORT_HELD_LIMBO] + s->bytes[CL_REPORT_GRACE] +
					     s->bytes[CL_REPORT_LIMBO] - s->freed_observed_bytes);
	say_count(e, "not_closed", s->n[CL_REPORT_NOT_CLOSED] + s->n[CL_REPORT_UNMANAGED]);
	say_count(e, "reclaimed", s->n[CL_REPORT_RECLAIMED]);
	say_count(e, "misuse", misuse);
	say_count(e, "stale_refused", s->n[CL_REPORT_STALE_REFUSED]);
	if (counts) {
		say_count(e, "released", counts->released);
		say_count(e, "released_bytes", counts->released_bytes);
		say_count(e, "pool_exports", counts->pool_exports);
		say_count(e, "unmanaged_imports", counts->unmanaged_imports);
		say_count(e, "cut", counts->cut);
		say_count(e, "cut_bytes", counts->cut_bytes);
		say_count(e, "kept_mapped", counts->kept_mapped);
	}
	say_count(e, "refused_by_cuda", s->n[CL_REPORT_REFUSED]);
	say_count(e, "fd_exports", by->exports);
	say_count(e, "fd_export_bytes", by->export_bytes);
	say_count(e, "fd_imports", by->imports);
	say_count(e, "fd_import_bytes", by->import_bytes);
	say_count(e, "fabric", by->fabric);
	say_count(e, "kept", s->n[CL_REPORT_UNTRACKED]);
	say_count(e, "unmanaged", s->n[CL_REPORT_UNMANAGED]);
	say_count(e, "never_opened", never_opened(report, counts));
	say_count(e, "live", s->live);
	say_count(e, "live_bytes", s->live_bytes);
	say_count(e, "suppressed", s->suppressed);
	say_count(e, "suppressed_bytes", s->suppressed_bytes);
	say_count(e, "young", s->young);
	say_number(e, "findings", s->findings);
	cl_emit_words(e, "\n");
	cl_emit_line_end(e);
}

/*
 * Says that nobody under culimbo has ever opened what this process exports.  That is no finding by
 * itself: libraries export what nobody asks for.  `culimbo check` makes it one when the job has a
 * process that uses CUDA without culimbo.
 */
static void say_never_opened(struct cl_report *report, const struct cl_report_counts *counts)
{
	uint64_t exports = never_opened(report, counts);

	if (exports)
		cl_emit_words(&report->emit,
			      "  exported, none ever opened under culimbo: %llu; are the importers preloaded?\n",
			      (unsigned long long)exports);
}

/* Says which command gives the names that a process does not know of itself when it ends. */
static void say_how_to_name(struct cl_report *report)
{
	struct cl_emit *e = &report->emit;
	bool any = false;

	for (unsigned int i = 0; i < report->table->n && !any; i++) {
		const struct cl_report_group *g = &report->table->group[i];

		any = is_shown(report, g) &&
		      (cl_report_is_fault(report, g) || (cl_report_classes[g->class].what & CL_REPORT_A_NOTE)) &&
		      (g->stack[0] || g->stack[1] || g->holders);
	}
	if (!any || report->both || !report->at_exit)
		return;
	if (report->file)
		cl_emit_string(e, NULL, report->file, "culimbo: names and lines: culimbo report ", "\n");
	else
		cl_emit_words(e, "culimbo: names and lines: `culimbo run --names`, or this text to `culimbo report -`\n");
}


void cl_report_say(struct cl_report *report, const struct cl_report_counts *counts)
{
	struct cl_report_sums *s = &report->sums;
	struct cl_emit *e = &report->emit;
	struct by_descriptor by_descriptor = count_descriptors(report->table);
	char size[32];

	/* with report->both a command reads the text, adds names and then folds it itself (tools/common/known.c) */
	e->fold = !report->both && !report->generate;
	if (!report->generate) {
		cl_report_find_origin(report);
		SAY(report, say_head(report));
	}
	for (int c = 0; c < CL_REPORT_CLASSES; c++) {
		say_kind(report, c, CL_MEMORY);
		say_kind(report, c, CL_POOL);
		say_kind(report, c, CL_EVENT);
	}
	if (report->generate)
		return;
	if (counts && cl_observes())
		cl_emit_words(e, "  CULIMBO_MODE=observe: nothing was kept or refused, and the program read what it would read without culimbo\n");
	if (counts && counts->pinned)
		cl_emit_words(e, "  opened without room to register as a holder: %llu; their exporters keep them until they end\n",
			      (unsigned long long)counts->pinned);
	if (s->live)
		cl_emit_words(e, "  exported, not freed, held by nobody: %llu, %s%s\n",
			      (unsigned long long)s->live, cl_emit_format_bytes(size, s->live_bytes),
			      report->at_exit ? " (an ordinary end)" : "");
	say_never_opened(report, counts);
	if (counts && (counts->unmanaged_imports || counts->unmanaged_exports))
		cl_emit_words(e, "  unmanaged: imports of processes without culimbo or without their file: %llu, exports: %llu\n",
			      (unsigned long long)counts->unmanaged_imports,
			      (unsigned long long)counts->unmanaged_exports);
	say_descriptors(e, &by_descriptor);
	if (counts && counts->cut)
		cl_emit_words(e, "  given back before their grace was over: %llu, %s (CULIMBO_GRACE_BYTES)\n",
			      (unsigned long long)counts->cut, cl_emit_format_bytes(size, counts->cut_bytes));
	if (counts && counts->kept_mapped)
		cl_emit_words(e, counts->kept_mapped == 1 ?
				 "  culimbo kept %llu block alive that this program freed while others had it mapped, or before they opened it\n" :
				 "  culimbo kept %llu blocks alive that this program freed while others had them mapped, or before they opened them\n",
			      (unsigned long long)counts->kept_mapped);
	if (s->told)
		cl_emit_words(e, "  not closed, which the other process's report has: %llu\n", (unsigned long long)s->told);
	if (s->suppressed)
		cl_emit_words(e, "  suppressed: %llu, %s (CULIMBO_SUPPRESSIONS)\n",
			      (unsigned long long)s->suppressed, cl_emit_format_bytes(size, s->suppressed_bytes));
	if (s->young)
		cl_emit_words(e, "  younger than CULIMBO_MIN_AGE: %llu, %s\n", (unsigned long long)s->young,
			      cl_emit_format_bytes(size, s->young_bytes));
	SAY(report, say_summary(report, counts, &by_descriptor));
	e->fold = false;
	say_how_to_name(report);
}
