/* SPDX-License-Identifier: Apache-2.0 */
/* What `culimbo check` says of the processes that CMD has started: see check_descendants.h. */
#include "config.h"

#include <string.h>
#include <sys/wait.h>

#include "shim/report/emit.h"
#include "tools/commands/check_descendants.h"
#include "tools/commands/check_ends.h"
#include "tools/commands/check_run.h"
#include "tools/common/text.h"

enum { NAMED = 10 }; /* at most this many processes get a line of text */

static bool was_killed(const struct cu_descendant *d)
{
	return !d->runs && d->status != -1 && WIFSIGNALED(d->status);
}

/* How a process ended, as JSON has it.  @lost: it shared, and wrote no report. */
static const char *how_ended(const struct cu_check_findings *f, const struct cu_descendant *d, bool lost)
{
	return d->status != -1 && WIFSIGNALED(d->status) ? "signal" :
	       lost && cu_check_has_reported(f, (uint64_t)d->pid) ? "exec" :
	       d->status != -1 ? "exit" : "unknown";
}

/* Says one line.  @what has its own "by", unless the process was killed by a known signal. */
static void say_one(struct cu_check_findings *f, const struct cu_descendant *d, bool finding, bool lost, const char *what)
{
	struct cl_emit *e = &f->report->emit;

	cl_emit_line(e, "descendant");
	cl_emit_number(e, "pid", (uint64_t)d->pid, "culimbo: process ", "");
	cl_emit_string(e, "command", d->command, d->command[0] ? " (" : NULL, ") ");
	if (!d->command[0])
		cl_emit_words(e, " (which lived for a moment only) ");
	cl_emit_flag(e, "running", d->runs);
	cl_emit_flag(e, "cuda", d->cuda);
	cl_emit_flag(e, "unprotected", d->unprotected);
	cl_emit_flag(e, "finding", finding);
	if (!d->runs) {
		cl_emit_flag(e, "reported", cu_check_has_reported(f, (uint64_t)d->pid));
		cl_emit_string(e, "ended", how_ended(f, d, lost), NULL, "");
	}
	if (was_killed(d))
		cl_emit_number(e, "signal", (uint64_t)WTERMSIG(d->status), NULL, "");
	else if (!d->runs && d->status != -1)
		cl_emit_number(e, "status", (uint64_t)WEXITSTATUS(d->status), NULL, "");
	cl_emit_words(e, "%s", what);
	if (was_killed(d) && !d->unprotected)
		cl_emit_words(e, " by signal %d (%s)", WTERMSIG(d->status), strsignal(WTERMSIG(d->status)));
	cl_emit_words(e, "\n");
	cl_emit_line_end(e);
}

static bool is_lost(const struct cu_check_findings *f, const struct cu_descendant *d)
{
	for (size_t i = 0; i < f->n_lost; i++)
		if (f->lost[i].pid == (uint32_t)d->pid && (!d->start || f->lost[i].start == d->start))
			return true;
	return false;
}

/* Says how a process with an own file ended that wrote no report, unless a signal is known. */
static const char *why_lost(const struct cu_check_findings *f, const struct cu_descendant *d)
{
	return cu_check_has_reported(f, (uint64_t)d->pid) ?
		       "became another program (exec), and so wrote no report of what it had open" :
	       d->status != -1 ? "ended without a report of its own, though no signal killed it" :
				 "ended without a report of its own: probably killed, by which signal is not known";
}

/*
 * Says the processes that shared and wrote no report, and whose end the watch has not seen.  Their
 * files tell of them, however short they lived.
 */
static unsigned int say_lost(struct cu_check_findings *f, unsigned int named)
{
	for (size_t i = 0; i < f->n_lost; i++) {
		struct cu_descendant d = { .pid = (pid_t)f->lost[i].pid, .cuda = true, .status = -1 };
		struct cl_identity self;
		bool said = false;

		for (size_t k = 0; k < f->watch->n && !said; k++)
			said = f->watch->list[k].pid == d.pid && is_lost(f, &f->watch->list[k]);
		if (said || (!f->report->emit.json && named++ >= NAMED))
			continue;
		cl_identity_self(&self);
		if (f->lost[i].pid_ns == self.pid_ns)
			d.status = cu_ends_status(f->watch->ends, d.pid);
		cu_clean(d.command, sizeof(d.command), f->lost[i].command, sizeof(f->lost[i].command));
		say_one(f, &d, false, true, was_killed(&d) ? "was killed" : why_lost(f, &d));
	}
	return named;
}

/* Names those that were not seen while they lived, from the files that they left. */
static void name_unseen(struct cu_check_findings *f)
{
	for (size_t i = 0; i < f->watch->n; i++) {
		struct cu_descendant *d = &f->watch->list[i];

		for (size_t k = 0; k < f->n_lost && !d->command[0]; k++) {
			if (f->lost[k].pid != (uint32_t)d->pid)
				continue;
			cu_clean(d->command, sizeof(d->command), f->lost[k].command, sizeof(f->lost[k].command));
			d->cuda = true;
		}
	}
}

/*
 * A process uses CUDA without the library, and some export of the job was never opened by a process
 * under it: then that process is the importer, and blocks may be freed while it maps them.  Or a process
 * under it has opened what a process without it exports: then that process may free it meanwhile.  Both
 * are findings.  Otherwise it may be a tool that shares nothing, and is only named.
 */
static bool count_descendants(struct cu_check_findings *f)
{
	bool finding;

	for (size_t i = 0; i < f->watch->n; i++) {
		const struct cu_descendant *d = &f->watch->list[i];

		f->unprotected += d->unprotected;
		f->running += d->runs;
		f->running_cuda += d->runs && d->cuda;
	}
	finding = f->unprotected && (f->never_opened || f->unmanaged_imports);
	if (finding)
		f->n += f->unprotected;
	return finding;
}

/*
 * Returns true if @d ran without the library at its end: it ended in order, and wrote no report.  The
 * program may have been the importer of what no process under culimbo opened.
 */
static bool ran_without(const struct cu_check_findings *f, const struct cu_descendant *d)
{
	return f->never_opened && !d->runs && d->status != -1 && WIFEXITED(d->status) &&
	       !cu_check_has_reported(f, (uint64_t)d->pid);
}

void cu_check_say_descendants(struct cu_check_findings *f)
{
	struct cl_emit *e = &f->report->emit;
	bool finding = count_descendants(f);
	unsigned int named = 0;

	name_unseen(f);
	for (size_t i = 0; i < f->watch->n; i++) {
		const struct cu_descendant *d = &f->watch->list[i];
		bool lost = !d->runs && is_lost(f, d), without = !lost && ran_without(f, d);

		if ((!d->unprotected && !d->runs && !was_killed(d) && !lost && !without) || (!e->json && named++ >= NAMED))
			continue;
		say_one(f, d, finding && d->unprotected, lost,
			d->unprotected ? "uses CUDA without culimbo: what it opens or exports is not protected.\n"
					 "culimbo: Did LD_PRELOAD get lost on the way to it (sudo, env -i, a container)?" :
			d->runs && d->cuda ? "still runs, and uses CUDA: what it will leave is not known" :
			d->runs ? "still runs" : was_killed(d) ? "was killed" : lost ? why_lost(f, d) :
			"ended without a report: it ran without culimbo, and may have opened what no other process did");
	}
	named = say_lost(f, named);
	if (named > NAMED)
		cl_emit_words(e, "culimbo: and %u more processes\n", named - NAMED);
	if (f->watch->oom_kills)
		cl_emit_words(e, "culimbo: memory ran out: the kernel has killed %llu of this cgroup's processes meanwhile\n",
			      (unsigned long long)f->watch->oom_kills);
}

void cu_check_say_unsuppressed(struct cu_check_findings *f)
{
	struct cl_emit *e = &f->report->emit;
	bool finding = count_descendants(f);

	for (size_t i = 0; i < f->watch->n && finding; i++)
		if (f->watch->list[i].unprotected)
			cl_emit_words(e, "# no suppression hides this finding: process %u (%s) uses CUDA without culimbo\n",
				      (unsigned int)f->watch->list[i].pid, f->watch->list[i].command);
	cl_emit_flush(e);
}
