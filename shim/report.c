/* SPDX-License-Identifier: Apache-2.0 */
/* The report at exit: see report.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shim/blocks.h"
#include "shim/imports.h"
#include "shim/limbo.h"
#include "shim/log.h"
#include "shim/report.h"
#include "shim/self.h"

enum { LISTED = 20 }; /* of a class; then "and K more" */

/* --------------------------------------------------------------------- writing */
static struct {
	char text[8192];
	size_t n;
	int fd;
} out;

static void flush(void)
{
	for (size_t at = 0; at < out.n;) {
		long n = cl_write_quietly(out.fd, out.text + at, out.n - at);

		if (n <= 0)
			break;
		at += (size_t)n;
	}
	out.n = 0;
}

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
	char line[512];
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(line, sizeof line, format, args);
	va_end(args);
	if (n < 0)
		return;
	if (n >= (int)sizeof line) {
		n = sizeof line - 1;
		line[n - 1] = '\n';
	}
	if (out.n + (size_t)n > sizeof out.text)
		flush();
	/* names of processes are theirs to choose: no control bytes into a terminal */
	for (int i = 0; i < n; i++)
		out.text[out.n++] = line[i] == '\n' || (unsigned char)line[i] >= ' ' ? line[i] : '?';
}

static void begin(void)
{
	out.n = 0;
	out.fd = STDERR_FILENO;
	if (!cl_options.report_file.text[0])
		return;
	out.fd = cl_open_to_append(cl_options.report_file.text);
	if (out.fd < 0) {
		cl_log(CL_LOG_ERROR, "cannot write the report to %s (CULIMBO_REPORT_FILE): it follows here",
		       cl_options.report_file.text);
		out.fd = STDERR_FILENO;
	}
}

static void end(void)
{
	flush();
	if (out.fd != STDERR_FILENO)
		close(out.fd);
}

/* Sizes and times for people; each call has a buffer of its own among a few. */
static char *scratch(void)
{
	static char buffer[8][32];
	static unsigned int next;

	return buffer[next++ % 8];
}

static const char *bytes(uint64_t n)
{
	static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	char *text = scratch();
	unsigned int u = 0;
	uint64_t rest = 0;

	while (n >= 1024 && u < 4) {
		rest = n % 1024;
		n /= 1024;
		u++;
	}
	if (u && rest)
		snprintf(text, 32, "%llu.%llu %s", (unsigned long long)n,
			 (unsigned long long)(rest * 10 / 1024), unit[u]);
	else
		snprintf(text, 32, "%llu %s", (unsigned long long)n, unit[u]);
	return text;
}

static const char *since(uint64_t then, uint64_t now)
{
	char *text = scratch();
	uint64_t ms = now > then ? (now - then) / 1000000 : 0;

	if (ms < 1000)
		snprintf(text, 32, "%llu ms", (unsigned long long)ms);
	else if (ms < 120000)
		snprintf(text, 32, "%llu.%llu s", (unsigned long long)(ms / 1000),
			 (unsigned long long)(ms % 1000 / 100));
	else
		snprintf(text, 32, "%llu min", (unsigned long long)(ms / 60000));
	return text;
}

/* ------------------------------------------------------------- looking at blocks */
enum class { HELD_LIVE, HELD_FREED, HELD_GONE, GRACE, WAITING, KEPT, CLASSES };
static const char *const title[CLASSES] = {
	[HELD_LIVE] = "exported, never freed, and mapped by others at exit",
	[HELD_FREED] = "freed, but still mapped by others (in limbo)",
	[HELD_GONE] = "gone with their context, but still mapped by others",
	[GRACE] = "freed within the grace of the last export (in limbo)",
	[WAITING] = "freed, on the way back to the driver (in limbo)",
	[KEPT] = "freed, but kept: they could not be tracked",
};
static const char *const hint[CLASSES] = {
	[HELD_LIVE] = "the processes named should close what they opened (cudaIpcCloseMemHandle) before this one ends",
	[HELD_FREED] = "the processes named do not close what they opened (cudaIpcCloseMemHandle)",
	[HELD_GONE] = "the processes named should close what they opened before this one destroys or resets the context",
	[GRACE] = "nothing to do; CULIMBO_GRACE sets how long",
	[WAITING] = "nothing to do",
	[KEPT] = "make room in the directory of exporter files (CULIMBO_DIR)",
};

struct tally {
	uint64_t n[CLASSES], bytes[CLASSES], live, live_bytes, imports, import_bytes, unmanaged;
	uint64_t now, listed;
	enum class list; /* the class to list; CLASSES: only count */
};

static enum class classify(const struct cl_block *block)
{
	if (block->record == CL_NO_RECORD)
		return block->place == CL_PLACE_KEPT ? KEPT : CLASSES;
	if (block->place == CL_PLACE_GONE)
		return HELD_GONE;
	if (block->place == CL_PLACE_PROGRAM)
		return cl_record_held(&cl_own, block->record) ? HELD_LIVE : CLASSES;
	if (block->own_opens || cl_record_held(&cl_own, block->record))
		return HELD_FREED;
	return block->place == CL_PLACE_GRACE ? GRACE : WAITING;
}

static void say_holders(const struct cl_block *block, uint64_t now)
{
	uint16_t slots[4];
	unsigned int n = cl_record_holders(&cl_own, block->record, slots, 4);

	for (unsigned int i = 0; i < n && i < 4; i++) {
		const struct cl_slot *s = &cl_own.slot[slots[i]];
		bool alive = cl_own.locks->is_locked(&cl_own, CL_LOCK_SLOT(slots[i])) != 0;

		say("      held by process %u (%.16s, %s), which has opened blocks of ours for %s\n",
		    s->who.pid, s->name, alive ? "alive" : "dead", since(s->since, now));
	}
	if (n > 4)
		say("      and by %u more\n", n - 4);
	if (atomic_load_explicit(&cl_own.record[block->record].pinned, memory_order_relaxed))
		say("      held by a process that found no room to say so: kept to the end\n");
	if (block->own_opens)
		say("      opened %u times in this process itself\n", block->own_opens);
}

static void list_block(struct cl_block *block, void *data)
{
	struct tally *t = data;
	const struct cl_record *r;

	if (classify(block) != t->list || t->listed++ >= LISTED)
		return;
	if (block->record == CL_NO_RECORD) {
		say("    block %#llx, %s, device %u\n", (unsigned long long)block->key,
		    bytes(block->size), block->device);
		return;
	}
	r = &cl_own.record[block->record];
	say("    %s %#llx%s%s, device %u: exported %u %s, last %s ago",
	    block->kind == CL_EVENT ? "event" : "block", (unsigned long long)block->key,
	    block->kind == CL_EVENT ? "" : ", ", block->kind == CL_EVENT ? "" : bytes(block->size),
	    block->device, r->exports, r->exports == 1 ? "time" : "times",
	    since(atomic_load(&r->exported), t->now));
	if (atomic_load(&r->freed))
		say("; freed %s ago", since(atomic_load(&r->freed), t->now));
	say("\n");
	say_holders(block, t->now);
}

static void count_block(struct cl_block *block, void *data)
{
	struct tally *t = data;
	enum class c = classify(block);

	if (c != CLASSES) {
		t->n[c]++;
		t->bytes[c] += block->size;
	} else {
		t->live++;
		t->live_bytes += block->size;
	}
}

struct visit {
	void (*each)(struct cl_block *block, void *data);
	void *data;
};
static void visit_untracked(struct cl_block *block, void *data)
{
	struct visit *visit = data;

	if (block->record == CL_NO_RECORD)
		visit->each(block, visit->data);
}
static void each_block(void (*each)(struct cl_block *block, void *data), void *data)
{
	struct visit visit = { each, data };

	cl_block_each_record(each, data);
	cl_block_each(CL_MEMORY, visit_untracked, &visit);
	cl_block_each(CL_EVENT, visit_untracked, &visit);
}

static void count_import(const struct cl_import *import, void *data)
{
	struct tally *t = data;

	t->imports++;
	t->import_bytes += import->size;
	t->unmanaged += !import->managed;
}

static void list_import(const struct cl_import *import, void *data)
{
	struct tally *t = data;

	if (t->listed++ >= LISTED)
		return;
	say("    %s %#llx", import->kind == CL_EVENT ? "event" : "import",
	    (unsigned long long)import->key);
	if (import->size)
		say(", %s", bytes(import->size));
	if (import->managed)
		say(", of process %u%s", import->exporter_pid,
		    import->stays ? ", which has freed it and waits for us" : "");
	else
		say(", of a process without culimbo");
	say(": opened %s ago, %llu %s not closed\n", since(import->since, t->now),
	    (unsigned long long)import->opens, import->opens == 1 ? "open" : "opens");
}

static void say_more(const struct tally *t)
{
	if (t->listed > LISTED)
		say("    and %llu more\n", (unsigned long long)(t->listed - LISTED));
}

/* --------------------------------------------------------------------- misuse */
static const struct {
	_Atomic uint64_t *count;
	const char *what;
} misuse[] = {
	{ &cl_counts.freed_twice, "blocks freed twice (the driver's error was given)" },
	{ &cl_counts.exported_after_free, "exports of something freed (the driver's error was given)" },
	{ &cl_counts.freed_import, "imports freed instead of closed (they stayed mapped)" },
	{ &cl_counts.closed_twice, "closes of what was not open (the driver's error was given)" },
	{ &cl_counts.stale_refused, "stale handles refused: their block had been freed" },
	{ &cl_counts.events_destroyed_twice,
	  "events destroyed twice (without culimbo the driver crashes)" },
};
enum { MISUSES = sizeof misuse / sizeof misuse[0] };

static uint64_t misuses(void)
{
	uint64_t n = 0;

	for (unsigned int i = 0; i < MISUSES; i++)
		n += atomic_load_explicit(misuse[i].count, memory_order_relaxed);
	return n;
}

/* ------------------------------------------------------------------- the report */
static void say_head(void)
{
	char name[32] = "?";
	int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, name, sizeof name - 1);

	if (fd >= 0)
		close(fd);
	if (n > 0)
		name[n - (name[n - 1] == '\n')] = 0;
	say("culimbo: report of process %d (%s), which shared GPU memory for %s\n", (int)cl_self.pid,
	    name, since(cl_self.started, cl_now()));
}

void cl_report_write(void)
{
	struct tally t = { .now = cl_now(), .list = CLASSES };
	uint64_t findings, wrong = misuses(), reclaimed = cl_count_get(dead_holds);

	if (cl_options.report.number == CL_REPORT_OFF)
		return;
	each_block(count_block, &t);
	cl_imports_each(count_import, &t);
	findings = t.n[HELD_LIVE] + t.n[HELD_FREED] + t.n[HELD_GONE] + t.n[KEPT] + t.imports + wrong + reclaimed +
		   cl_count_get(pinned);
	if (!findings && cl_options.report.number != CL_REPORT_ALWAYS)
		return;
	begin();
	say_head();
	for (enum class c = 0; c < CLASSES; c++) {
		if (!t.n[c])
			continue;
		say("  %s: %llu, %s\n", title[c], (unsigned long long)t.n[c], bytes(t.bytes[c]));
		t.list = c;
		t.listed = 0;
		each_block(list_block, &t);
		say_more(&t);
		say("    HINT: %s\n", hint[c]);
	}
	if (t.imports) {
		say("  imported and never closed: %llu, %s\n", (unsigned long long)t.imports,
		    bytes(t.import_bytes));
		t.listed = 0;
		cl_imports_each(list_import, &t);
		say_more(&t);
		say("    HINT: close each import when done with it (cudaIpcCloseMemHandle, "
		    "cudaEventDestroy); its exporter cannot reuse the memory before\n");
	}
	if (reclaimed) {
		say("  taken back from %llu %s that ended without closing: %llu %s\n",
		    (unsigned long long)cl_count_get(dead_holders),
		    cl_count_get(dead_holders) == 1 ? "process" : "processes",
		    (unsigned long long)reclaimed, reclaimed == 1 ? "hold" : "holds");
		for (unsigned int i = 0; i < cl_reclaimed_n && i < LISTED; i++) {
			const struct cl_reclaimed *r = &cl_reclaimed[i];

			say("    %s %#llx%s%s: process %u (%.16s)\n",
			    r->kind == CL_EVENT ? "event" : "block", (unsigned long long)r->base,
			    r->kind == CL_EVENT ? "" : ", ",
			    r->kind == CL_EVENT ? "" : bytes(r->size), r->pid, r->name);
		}
		if (reclaimed > LISTED)
			say("    and %llu more\n", (unsigned long long)(reclaimed - LISTED));
		say("    HINT: a process that is killed, or ends by itself, without closing what it opened\n");
	}
	if (cl_count_get(pinned))
		say("  opened without room to say so: %llu; their exporters keep them to the end\n",
		    (unsigned long long)cl_count_get(pinned));
	for (unsigned int i = 0; i < MISUSES; i++)
		if (atomic_load_explicit(misuse[i].count, memory_order_relaxed))
			say("  misuse: %llu %s\n", (unsigned long long)atomic_load(misuse[i].count),
			    misuse[i].what);
	if (t.live)
		say("  exported, never freed, held by nobody: %llu, %s (an ordinary end)\n",
		    (unsigned long long)t.live, bytes(t.live_bytes));
	if (cl_count_get(unmanaged_imports) || cl_count_get(unmanaged_exports))
		say("  not looked after: %llu imports of processes without culimbo, %llu exports\n",
		    (unsigned long long)cl_count_get(unmanaged_imports),
		    (unsigned long long)cl_count_get(unmanaged_exports));
	say("culimbo: SUMMARY pid=%d exports=%llu imports=%llu held=%llu held_bytes=%llu limbo=%llu "
	    "limbo_bytes=%llu not_closed=%llu reclaimed=%llu misuse=%llu stale_refused=%llu "
	    "released=%llu released_bytes=%llu kept=%llu\n",
	    (int)cl_self.pid, (unsigned long long)cl_count_get(exports),
	    (unsigned long long)cl_count_get(imports),
	    (unsigned long long)(t.n[HELD_LIVE] + t.n[HELD_FREED] + t.n[HELD_GONE]),
	    (unsigned long long)(t.bytes[HELD_LIVE] + t.bytes[HELD_FREED] +
				 t.bytes[HELD_GONE]),
	    (unsigned long long)(t.n[HELD_FREED] + t.n[GRACE] + t.n[WAITING]),
	    (unsigned long long)(t.bytes[HELD_FREED] + t.bytes[GRACE] + t.bytes[WAITING]),
	    (unsigned long long)t.imports, (unsigned long long)reclaimed, (unsigned long long)wrong,
	    (unsigned long long)cl_count_get(stale_refused),
	    (unsigned long long)cl_count_get(limbo_released),
	    (unsigned long long)cl_count_get(limbo_bytes_released), (unsigned long long)t.n[KEPT]);
	end();
}

void cl_report_nothing(void)
{
	begin();
	say("culimbo: report of process %d: it shared no GPU memory (no call to export or import reached "
	    "culimbo)\nculimbo: SUMMARY pid=%d exports=0 imports=0\n",
	    (int)getpid(), (int)getpid());
	end();
}
