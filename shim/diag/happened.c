/* SPDX-License-Identifier: Apache-2.0 */
/* Reports happenings: see happened.h.  No other file fills in a finding. */
#include <stdio.h>
#include <string.h>

#include "shim/base/log.h"
#include "shim/base/options.h"
#include "shim/diag/happened.h"
#include "shim/diag/note_words.h"
#include "shim/diag/report_data.h"
#include "shim/diag/trace.h"
#include "shim/self/self.h"

/* Returns the finding for our file and for reports.  Its `when` is 0 if @about does not say when: then it is now. */
static struct cl_finding finding_of(enum cl_finding_kind kind, const struct cl_about *about, uint32_t stack)
{
	struct cl_finding finding = { .kind = kind,
				      .pid = about->pid,
				      .key = about->key,
				      .size = about->size,
				      .stack = stack,
				      .other_stack = about->stack,
				      .file_id = about->file_id,
				      .record = about->record,
				      .generation = about->generation,
				      .block_kind = about->kind,
				      .device = about->device,
				      .when = about->at,
				      .other_when = about->when,
				      .until = about->until,
				      .result = about->result,
				      .told = about->told,
				      .exporter_gone = about->exporter_gone };

	if (cl_finding_is_note(kind) || kind == CL_FINDING_FREED_WHILE_MAPPED)
		finding.made = about->made;
	if (cl_finding_is_note(kind)) {
		finding.call = about->call;
		finding.why = about->why;
		finding.times = !about->more;
		finding.bytes = about->size;
	}
	memcpy(finding.name, about->name, sizeof finding.name);
	return finding;
}

static void trace(enum cl_finding_kind kind, const struct cl_about *about)
{
	if (kind == CL_FINDING_STALE_REFUSED)
		cl_trace(CL_TRACE_STALE, .file_id = about->file_id, .record = about->record,
			 .generation = about->generation);
	if (kind == CL_FINDING_HOLD_RECLAIMED)
		cl_trace(CL_TRACE_RECLAIMED, .kind = about->kind, .key = about->key, .size = about->size,
			 .file_id = about->file_id, .record = about->record, .pid = about->pid);
}

static void log_held_forced_out(const struct cl_about *about)
{
	char who[64] = "a process that is not known may map it";

	if (about->pid)
		snprintf(who, sizeof who, "process %u (%.16s) maps it", about->pid, about->name);
	cl_log(CL_LOG_WARN,
	       "block %#llx of %llu bytes goes back to the driver although %s: freed blocks that other processes map "
	       "take more of its device than CULIMBO_HELD_BYTES, %llu",
	       (unsigned long long)about->key, (unsigned long long)about->size, who,
	       (unsigned long long)cl_options.held_bytes.number);
}

/* Returns the word for what the exporter's program has done to the block. */
static const char *ended(const struct cl_about *about)
{
	return cl_ended_word((enum cl_kind)about->kind, about->kind == CL_VIRTUAL);
}

static void log_stale_refused(const struct cl_about *about)
{
	if (about->exporter_gone && about->kind == CL_POOL)
		cl_log(CL_LOG_INFO,
		       "culimbo refused to import a block of a memory pool of process %u: that process has ended, or its "
		       "exporter file %06x was removed, so culimbo cannot tell whether the block was freed. A process that "
		       "has imported from process %u before can still import what was not freed",
		       about->pid, about->file_id, about->pid);
	else if (about->exporter_gone)
		cl_log(CL_LOG_INFO,
		       "culimbo refused a stale handle of process %u: that process has ended, or its exporter file %06x was "
		       "removed and it runs in another PID namespace, where culimbo cannot see whether it lives",
		       about->pid, about->file_id);
	else
		cl_log(CL_LOG_INFO,
		       "culimbo refused a stale handle (exporter file %06x, record %u, generation %u): its block has "
		       "been %s",
		       about->file_id, about->record, about->generation, ended(about));
}

/* Logs a refusal, once for each kind of memory: libraries try such calls to learn what works. */
static void log_refused(const struct cl_about *about)
{
	static atomic_uint said;
	const bool open = about->call == CL_CALL_OPEN_HANDLE;
	unsigned int bit = 1u << (about->made + (open ? CL_MADE_KINDS : 0));
	unsigned int was = atomic_fetch_or_explicit(&said, bit, memory_order_relaxed);
	const char *hint = cl_note_hint(about->made, about->call, about->result, about->why);

	if (was & bit)
		return;
	if (open && about->made != CL_MADE_ALLOC)
		cl_log(CL_LOG_INFO, "%s of process %u was not opened by its handle, %llu bytes (error %u): %s",
		       cl_made_words(about->made), about->pid, (unsigned long long)about->size, about->result, hint);
	else if (open)
		cl_log(CL_LOG_INFO, "CUDA refused to open memory of process %u, %llu bytes (error %u): %s", about->pid,
		       (unsigned long long)about->size, about->result, hint);
	else
		cl_log(CL_LOG_INFO, "CUDA refused a handle of %s at %#llx, %llu bytes (error %u): %s",
		       cl_made_words(about->made), (unsigned long long)about->key,
		       (unsigned long long)about->size, about->result, hint);
}

static void log_descriptor(const struct cl_about *about)
{
	if (cl_call_is_by_fabric(about->call))
		cl_log_once(CL_LOG_INFO,
			    "this process shares memory by fabric handles, which culimbo does not cover. It "
			    "only counts them: a block that is freed too early is not kept");
}

static void log_opened_after_free(const struct cl_about *about)
{
	if (about->result)
		cl_log(CL_LOG_INFO, "CUDA refused to open block %#llx of %llu bytes, which process %u had %s (error %u)",
		       (unsigned long long)about->key, (unsigned long long)about->size, about->pid, ended(about), about->result);
	else
		cl_log(CL_LOG_INFO, "import %#llx of %llu bytes was opened after process %u had %s its block",
		       (unsigned long long)about->key, (unsigned long long)about->size, about->pid, ended(about));
}

/* Logs the happening.  The switch has every kind, so that the compiler warns if a new kind is missing here. */
static void log_it(enum cl_finding_kind kind, const struct cl_about *about)
{
	unsigned long long key = about->key;
	const char *what = about->kind == CL_EVENT ? "event" : "block";

	switch (kind) {
	case CL_FINDING_FREED_TWICE:
		cl_log(CL_LOG_INFO, "block %#llx was freed twice", key);
		break;
	case CL_FINDING_EXPORTED_AFTER_FREE:
		cl_log(CL_LOG_INFO, "%s %#llx was exported after it was freed", what, key);
		break;
	case CL_FINDING_IMPORT_FREED:
		cl_log(CL_LOG_INFO, "import %#llx was freed instead of closed; it stays mapped", key);
		break;
	case CL_FINDING_CLOSED_TWICE:
		cl_log(CL_LOG_INFO, "import %#llx was closed once more than it was opened", key);
		break;
	case CL_FINDING_STALE_REFUSED:
		log_stale_refused(about);
		break;
	case CL_FINDING_EVENT_DESTROYED_TWICE:
		cl_log(CL_LOG_INFO, "event %#llx was destroyed twice", key);
		break;
	case CL_FINDING_EVENT_FORCED_OUT:
		cl_log_once(CL_LOG_INFO,
			    "more than %llu destroyed events (CULIMBO_MAX_EVENTS) wait for their importers: "
			    "the oldest go back to the driver now",
			    (unsigned long long)cl_options.max_events.number);
		break;
	case CL_FINDING_HELD_FORCED_OUT:
		log_held_forced_out(about);
		break;
	case CL_FINDING_HOLD_RECLAIMED:
		cl_log(CL_LOG_DEBUG, "process %u (%.16s) died holding block %#llx of %llu bytes", about->pid,
		       about->name, key, (unsigned long long)about->size);
		break;
	case CL_FINDING_FREED_WHILE_MAPPED:
		cl_log(CL_LOG_INFO,
		       "block %#llx of %llu bytes was %s while process %u (%.16s) had it open, and stayed mapped for %llu us",
		       key, (unsigned long long)about->size,
		       about->kind == CL_VIRTUAL ? "unmapped, and something else mapped there," : "freed", about->pid, about->name,
		       about->until > about->at ? (unsigned long long)(about->until - about->at) / 1000 : 0);
		break;
	case CL_FINDING_OPENED_AFTER_FREE:
		log_opened_after_free(about);
		break;
	case CL_FINDING_REFUSED:
		log_refused(about);
		break;
	case CL_FINDING_DESCRIPTOR:
		log_descriptor(about);
		break;
	case CL_FINDING_NONE:
	case CL_FINDING_KINDS:
		break;
	}
}

static void tell(enum cl_finding_kind kind, const struct cl_about *about)
{
	if (about->more)
		return;
	cl_count(findings[kind]);
	trace(kind, about);
	if (!about->unnamed)
		log_it(kind, about);
}

static void add_locked(enum cl_finding_kind kind, const struct cl_about *about, uint32_t stack)
{
	struct cl_finding finding = finding_of(kind, about, stack);

	if (cl_finding_is_note(kind))
		cl_finding_tally_locked(&finding);
	else
		cl_finding_add_locked(&finding);
}

void cl_happened(enum cl_finding_kind kind, const struct cl_about *about, uint32_t stack)
{
	cl_lock(&cl_exports_lock);
	add_locked(kind, about, stack);
	cl_unlock(&cl_exports_lock);
	tell(kind, about);
}

void cl_happened_locked(enum cl_finding_kind kind, const struct cl_about *about, uint32_t stack)
{
	add_locked(kind, about, stack);
	tell(kind, about);
}
