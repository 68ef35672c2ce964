/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of the findings in a report: each class, as text and as JSON.
 */
#include "scene_report.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs @program with its output discarded; true when it ended with 0. */
static bool runs(char *const argv[])
{
	int status = -1;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		int null = open("/dev/null", O_RDWR | O_CLOEXEC);

		dup2(null, STDOUT_FILENO);
		execvp(argv[0], argv);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		break_off("cannot run %s", argv[0]);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
		break_off("there is no %s", argv[0]);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* True when jq's @filter holds for all lines of @file together. */
static bool holds(const char *file, const char *filter)
{
	return runs((char *[]){ (char *)"jq", (char *)"-e", (char *)"-s", (char *)filter, (char *)file, NULL });
}

/* True when each line of @file is valid by doc/report.schema.json. */
static bool is_valid(const char *file)
{
	char checker[600], schema[600];

	if (!getenv("E2E_SOURCE"))
		break_off("no E2E_SOURCE");
	snprintf(checker, sizeof(checker), "%s/tests/report/schema.py", getenv("E2E_SOURCE"));
	snprintf(schema, sizeof(schema), "%s/doc/report.schema.json", getenv("E2E_SOURCE"));
	return runs((char *[]){ (char *)"python3", checker, schema, (char *)file, NULL });
}

/*
 * One finding.  play() causes it with actors that have @env, lets the actor whose report names
 * it end, and returns that actor.
 */
struct finding {
	const char *class, *kind;
	struct actor *(*play)(const char *env);
	const char *text;   /* the text report must contain it */
	const char *filter; /* a jq filter that the group's object must also satisfy */
	const char *env;
};

static struct actor *play_held_in_limbo(const char *env)
{
	struct actor *p = ENTER("P", .env = env), *c = ENTER("C", .env = "CULIMBO_REPORT=off");
	uint64_t block = alloc(p, BIG);
	struct handle handle = export_block(p, block);

	open_block(c, &handle);
	free_block(p, block);
	leave_by(p, END_EXIT, 0);
	kill_actor(c);
	return p;
}

static struct actor *play_held(const char *env)
{
	struct actor *p = ENTER("P", .env = env), *c = ENTER("C", .env = "CULIMBO_REPORT=off");
	uint64_t block = alloc(p, BIG);
	struct handle handle = export_block(p, block);

	open_block(c, &handle);
	leave_by(p, END_EXIT, 0);
	kill_actor(c);
	return p;
}

static struct actor *play_grace(const char *env)
{
	struct actor *p = ENTER("P", .env = env);
	uint64_t block = alloc(p, BIG);

	export_block(p, block);
	free_block(p, block);
	leave_by(p, END_EXIT, 0);
	return p;
}

static struct actor *play_context_gone(const char *env)
{
	struct actor *p = ENTER("P", .env = env), *c = ENTER("C", .env = "CULIMBO_REPORT=off");
	uint64_t block = alloc(p, BIG);
	struct handle handle = export_block(p, block);

	open_block(c, &handle);
	ASK(p, ctx_reset);
	leave_by(p, END_EXIT, 0);
	kill_actor(c);
	return p;
}

static struct actor *play_kept(const char *env)
{
	struct actor *p = ENTER("P", .env = env);
	uint64_t block = alloc(p, SMALL);

	export_block(p, block);
	free_block(p, block);
	leave_by(p, END_EXIT, 0);
	return p;
}

static struct actor *play_not_closed(const char *env)
{
	struct actor *p = ENTER("P", .env = "CULIMBO_REPORT=off"), *c = ENTER("C", .env = env);
	struct handle handle = export_block(p, alloc(p, BIG));

	open_block(c, &handle);
	leave_by(c, END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
	return c;
}

static struct actor *play_unmanaged(const char *env)
{
	struct actor *p = ENTER("P", .bare = true), *c = ENTER("C", .env = env);
	struct handle handle = export_block(p, alloc(p, BIG));

	open_block(c, &handle);
	leave_by(c, END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
	return c;
}

static struct actor *play_reclaimed(const char *env)
{
	struct actor *p = ENTER("P", .env = env), *c = ENTER("C", .env = "CULIMBO_REPORT=off");
	uint64_t neighbour = alloc(p, SMALL), block = alloc(p, SMALL);
	struct handle handle = export_block(p, block);

	(void)neighbour;
	open_block(c, &handle);
	free_block(p, block);
	kill_actor(c);
	if (!claim_within(p, block, SMALL, NEXT, SOON_MS, NULL))
		break_off("P does not get the address again");
	leave_by(p, END_EXIT, 0);
	return p;
}

static struct actor *play_freed_twice(const char *env)
{
	struct actor *p = ENTER("P", .env = env);
	uint64_t block = alloc(p, BIG);

	export_block(p, block);
	free_block(p, block);
	try_free(p, block);
	leave_by(p, END_EXIT, 0);
	return p;
}

static struct actor *play_exported_after_free(const char *env)
{
	struct actor *p = ENTER("P", .env = env);
	uint64_t block = alloc(p, BIG);
	struct handle handle = export_block(p, block);

	free_block(p, block);
	try_export(p, block, &handle);
	leave_by(p, END_EXIT, 0);
	return p;
}

static struct actor *play_import_freed(const char *env)
{
	struct actor *p = ENTER("P", .env = "CULIMBO_REPORT=off"), *c = ENTER("C", .env = env);
	struct handle handle = export_block(p, alloc(p, BIG));
	uint64_t import = open_block(c, &handle);

	try_free(c, import);
	close_block(c, import);
	leave_by(c, END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
	return c;
}

static struct actor *play_closed_twice(const char *env)
{
	struct actor *p = ENTER("P", .env = "CULIMBO_REPORT=off"), *c = ENTER("C", .env = env);
	struct handle handle = export_block(p, alloc(p, BIG));
	uint64_t import = open_block(c, &handle);

	close_block(c, import);
	try_close(c, import);
	leave_by(c, END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
	return c;
}

/* @again: the exporter's record already describes another block. */
static struct actor *stale(const char *env, bool again)
{
	struct actor *p = ENTER("P", .env = GRACE " CULIMBO_REPORT=off"), *c = ENTER("C", .env = env);
	uint64_t neighbour = alloc(p, SMALL), block = alloc(p, SMALL), other = alloc(p, SMALL), import;
	struct handle handle = export_block(p, block);

	(void)neighbour;
	free_block(p, block);
	if (!claim_within(p, block, SMALL, NEXT, SOON_MS, NULL))
		break_off("P does not get the address again");
	if (again)
		export_block(p, other);
	if (!refused(try_open(c, &handle, &import)))
		break_off("a stale handle was opened");
	leave_by(c, END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
	return c;
}

static struct actor *play_stale(const char *env)
{
	return stale(env, false);
}

static struct actor *play_stale_used_again(const char *env)
{
	return stale(env, true);
}

/* The region of an exporter that has ended cannot be read. */
static struct actor *play_stale_of_the_dead(const char *env)
{
	struct actor *p = ENTER("P", .env = GRACE " CULIMBO_REPORT=off"), *c = ENTER("C", .env = env);
	struct handle handle = export_block(p, alloc(p, SMALL));
	uint64_t import;

	leave_by(p, END_EXIT, 0);
	if (!refused(try_open(c, &handle, &import)))
		break_off("a dead exporter's handle was opened");
	leave_by(c, END_EXIT, 0);
	return c;
}

#define SHARED_EVENT (2 | 4) /* CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS */

static struct handle shared_event(struct actor *actor, uint64_t *event)
{
	struct handle handle;

	*event = ASK(actor, event_create, SHARED_EVENT)->v[0];
	if (ASK(actor, event_export, *event)->result)
		break_off("cuIpcGetEventHandle failed with %d", actor->reply.result);
	memcpy(handle.bytes, actor->reply.handle, sizeof(handle.bytes));
	return handle;
}

static struct actor *play_event_held(const char *env)
{
	struct actor *p = ENTER("P", .env = env), *c = ENTER("C", .env = "CULIMBO_REPORT=off");
	uint64_t event;
	struct handle handle = shared_event(p, &event);

	if (ask(c, OP_event_open, handle.bytes, (const uint64_t[6]){ 0 })->result)
		break_off("cuIpcOpenEventHandle failed with %d", c->reply.result);
	ASK(p, event_destroy, event);
	leave_by(p, END_EXIT, 0);
	kill_actor(c);
	return p;
}

static struct actor *play_event_not_closed(const char *env)
{
	struct actor *p = ENTER("P", .env = "CULIMBO_REPORT=off"), *c = ENTER("C", .env = env);
	uint64_t event;
	struct handle handle = shared_event(p, &event);

	if (ask(c, OP_event_open, handle.bytes, (const uint64_t[6]){ 0 })->result)
		break_off("cuIpcOpenEventHandle failed with %d", c->reply.result);
	leave_by(c, END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
	return c;
}

static struct actor *play_event_destroyed_twice(const char *env)
{
	struct actor *p = ENTER("P", .env = env);
	uint64_t event;

	shared_event(p, &event);
	ASK(p, event_destroy, event);
	ASK(p, event_destroy, event);
	leave_by(p, END_EXIT, 0);
	return p;
}

static struct actor *play_event_import_destroyed_twice(const char *env)
{
	struct actor *p = ENTER("P", .env = "CULIMBO_REPORT=off"), *c = ENTER("C", .env = env);
	uint64_t event, import;
	struct handle handle = shared_event(p, &event);

	if (ask(c, OP_event_open, handle.bytes, (const uint64_t[6]){ 0 })->result)
		break_off("cuIpcOpenEventHandle failed with %d", c->reply.result);
	import = c->reply.v[0];
	ASK(c, event_destroy, import);
	ok(ASK(c, event_destroy, import)->result == 400, /* CUDA_ERROR_INVALID_HANDLE */
	   "an imported event that is destroyed again: an error, and no crash");
	leave_by(c, END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
	return c;
}

static struct actor *play_event_forced_out(const char *env)
{
	struct actor *p = ENTER("P", .env = env), *c = ENTER("C", .env = "CULIMBO_REPORT=off");
	uint64_t event;
	struct handle handle = shared_event(p, &event);

	if (ask(c, OP_event_open, handle.bytes, (const uint64_t[6]){ 0 })->result)
		break_off("cuIpcOpenEventHandle failed with %d", c->reply.result);
	ASK(p, event_destroy, event);
	leave_by(p, END_EXIT, 0);
	kill_actor(c);
	return p;
}

static struct actor *freed_while_mapped(const char *env, uint64_t bytes)
{
	struct actor *p = ENTER("P", .env = env), *c = ENTER("C", .env = "CULIMBO_REPORT=off");
	uint64_t neighbour = alloc(p, SMALL), block = alloc(p, bytes), import;
	struct handle handle = export_block(p, block);

	(void)neighbour;
	import = open_block(c, &handle);
	free_block(p, block);
	close_block(c, import);
	leave_by(c, END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
	return p;
}

static struct actor *play_freed_while_mapped(const char *env)
{
	return freed_while_mapped(env, SMALL);
}

static struct actor *play_freed_while_mapped_big(const char *env)
{
	return freed_while_mapped(env, BIG);
}

static struct actor *play_opened_after_free(const char *env)
{
	struct actor *p = ENTER("P", .env = "CULIMBO_REPORT=off"), *c = ENTER("C", .env = env);
	uint64_t neighbour = alloc(p, SMALL), block = alloc(p, SMALL);
	struct handle handle = export_block(p, block);

	(void)neighbour;
	free_block(p, block);
	close_block(c, open_block(c, &handle));
	leave_by(c, END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
	return c;
}

static void check_finding(const struct finding *f)
{
	char env[400], filter[1000];

	for (int json = 0; json < 2; json++) {
		const char *words = f->env ? f->env : "CULIMBO_GRACE=5s";
		struct actor *a;

		snprintf(env, sizeof(env), "CULIMBO_REPORT=always CULIMBO_LOG=off CULIMBO_REPORT_FORMAT=%s %s",
			 json ? "jsonl" : "text", words);
		a = f->play(env);
		if (!json) {
			ok(has_words(said(a), f->text), "%s, %s: the text says \"%s\"", f->class, f->kind,
			   f->text);
			if (!has_words(said(a), f->text))
				show(a);
			continue;
		}
		snprintf(filter, sizeof(filter),
			 "any(.[]; .type == \"group\" and .pid == %d and .class == \"%s\" and .kind == \"%s\" and "
			 ".count == 1 and (.hint | length) > 10 and (%s)) and "
			 "([.[] | select(.type == \"summary\")] | length) == 1 and "
			 "([.[] | select(.type == \"group\" and .finding) | .count] | add // 0) == "
			 "(.[] | select(.type == \"summary\") | .findings)",
			 (int)a->pid, f->class, f->kind, f->filter);
		ok(holds(a->err, filter), "%s, %s: its JSON object and the number of findings", f->class, f->kind);
		if (!holds(a->err, filter))
			show(a);
		ok(is_valid(a->err), "%s, %s: the JSON is valid by the schema", f->class, f->kind);
	}
}

/* What is asserted for a block of 64 MiB and for its stacks. */
#define BIG_BLOCK ".bytes == 67108864 and .items[0].bytes == 67108864 and (.items[0].address | startswith(\"0x\"))"
#define BOTH " and (.stack | length) > 0 and (.other_stack | length) > 0 and .items[0].when_ns >= 0"
#define HELD " and (.holders | length) == 1 and .holders[0].name == \"actor\" and .holders[0].state == \"alive\""

void memory_findings(void)
{
	static const struct finding findings[] = {
		{ "held-in-limbo", "memory", play_held_in_limbo, " still maps 1 block (64 MiB) that process ",
		  BIG_BLOCK HELD " and .finding and (.stack | length) > 0 and (.other_stack | length) > 0 and .items[0].freed_ns >= 0 and (.hint | contains(\"Close\"))",
		  NULL },
		{ "held", "memory", play_held, " maps 1 block (64 MiB) of it",
		  BIG_BLOCK HELD " and (.stack | length) > 0 and .finding and .items[0].exports == 1 and (.holders[0].open_stack | length) > 0 and .holders[0].opened_ns >= 0 and (.holders[0].command | contains(\"actor\"))", NULL },
		{ "grace", "memory", play_grace, ", whose end gives it back to the driver",
		  BIG_BLOCK " and (.finding | not) and .holders == []",
		  /* A collector thread would release it before the process ends. */
		  "CULIMBO_COLLECTOR=inline" },
		{ "context-gone", "memory", play_context_gone, " ended the context of 1 block (64 MiB) that process ",
		  BIG_BLOCK HELD " and .finding", NULL },
		{ "kept", "memory", play_kept, "could not be tracked", ".bytes == 1024 and .finding",
		  "CULIMBO_DIR=/proc/nowhere" },
		{ "not-closed", "memory", play_not_closed, " never closed 1 block (64 MiB) of process ",
		  BIG_BLOCK " and (.stack | length) > 0 and .items[0].opens == 1 and .exporter.pid > 0 and .exporter.state == \"alive\"",
		  NULL },
		{ "unmanaged", "memory", play_unmanaged, "without culimbo or its file (unmanaged)", ".items[0].opens == 1", NULL },
		{ "reclaimed", "memory", play_reclaimed, " ended without closing 1 block (1 KiB) of process ",
		  "(.other_stack | length) > 0 and .bytes == 1024 and .other.pid > 0 and .other.name == \"actor\"", GRACE },
	};

	for (size_t i = 0; i < sizeof(findings) / sizeof(findings[0]); i++)
		check_finding(&findings[i]);
}

void misuse_findings(void)
{
	static const struct finding findings[] = {
		{ "freed-twice", "memory", play_freed_twice, " freed 1 block (64 MiB) twice", BIG_BLOCK BOTH, NULL },
		{ "exported-after-free", "memory", play_exported_after_free,
		  " exported 1 block (64 MiB) after it had freed it",
		  BIG_BLOCK BOTH, NULL },
		{ "import-freed", "memory", play_import_freed, " instead of closing it",
		  BIG_BLOCK BOTH, NULL },
		{ "closed-twice", "memory", play_closed_twice, " once more than it had opened it", BIG_BLOCK BOTH,
		  NULL },
		{ "stale-refused", "memory", play_stale, " had freed 1 block before process ",
		  "(.stack | length) > 0 and .other.pid > 0 and (.other_stack | length) > 0 and "
		  "all(.other_stack[]; .module and .offset) and .stack != .other_stack and .items[0].other_ns > 0",
		  NULL },
		{ "stale-refused", "memory", play_stale_used_again, "where it was freed is no longer known",
		  "(.stack | length) > 0 and .other.pid > 0 and (.other_stack | not) and (.items[0].other_ns | not)",
		  NULL },
		{ "stale-refused", "memory", play_stale_of_the_dead, " had ended before process ",
		  "(.stack | length) > 0 and .other.pid > 0 and (.other_stack | not)", NULL },
	};

	for (size_t i = 0; i < sizeof(findings) / sizeof(findings[0]); i++)
		check_finding(&findings[i]);
}

void event_findings(void)
{
	static const struct finding findings[] = {
		{ "held-in-limbo", "event", play_event_held, " still has 1 event open that process ",
		  ".holders[0].name == \"actor\"", NULL },
		{ "not-closed", "event", play_event_not_closed, " never destroyed 1 event of process ",
		  ".items[0].opens == 1 and (.hint | contains(\"keeps the event\") and (contains(\"memory\") | not))", NULL },
		{ "event-destroyed-twice", "event", play_event_destroyed_twice, " destroyed 1 event twice",
		  "(.stack | length) > 0 and (.other_stack | length) > 0", NULL },
		{ "event-destroyed-twice", "event", play_event_import_destroyed_twice,
		  " destroyed 1 event twice",
		  "(.stack | length) > 0 and (.other_stack | length) > 0 and .other.pid > 0 and .items[0].other_ns >= 0",
		  NULL },
		{ "event-forced-out", "event", play_event_forced_out,
		  " gave 1 event back before importers were done", "(.other_stack | length) > 0",
		  /* released by the call itself, so the call stack is known */
		  "CULIMBO_GRACE=5s CULIMBO_MAX_EVENTS=0 CULIMBO_COLLECTOR=inline" },
	};

	for (size_t i = 0; i < sizeof(findings) / sizeof(findings[0]); i++)
		check_finding(&findings[i]);
}

#define STRICT "CULIMBO_STRICT=1 CULIMBO_GRACE=5s"

void early_findings(void)
{
	static const struct finding findings[] = {
		{ "freed-while-mapped", "memory", play_freed_while_mapped, "could have read foreign bytes",
		  ".bytes == 1024 and .finding and .other.pid > 0 and .other.name == \"actor\" and "
		  ".items[0].after_free_ns > 0 and .items[0].other_ns > .items[0].when_ns and "
		  "all(.other_stack[]; .module) and .stack != .other_stack" BOTH,
		  STRICT },
		{ "freed-while-mapped", "memory", play_freed_while_mapped, " freed 1 block (1 KiB) while process ",
		  ".items[0].after_free_ns > 0" BOTH,
		  /* the next call notices the last close, or the end does */
		  STRICT " CULIMBO_COLLECTOR=inline" },
		{ "freed-while-mapped", "memory", play_freed_while_mapped_big, "this driver keeps the bytes",
		  BIG_BLOCK " and .items[0].after_free_ns > 0" BOTH, STRICT },
		{ "opened-after-free", "memory", play_opened_after_free, " had freed 1 block (1 KiB) before process ",
		  ".bytes == 1024 and .finding and .other.pid > 0 and .items[0].after_free_ns > 0 and "
		  ".items[0].other_ns > .items[0].when_ns and all(.other_stack[]; .module) and "
		  ".stack != .other_stack" BOTH,
		  "CULIMBO_STRICT=1" },
	};

	for (size_t i = 0; i < sizeof(findings) / sizeof(findings[0]); i++)
		check_finding(&findings[i]);
}

static void no_early(struct actor *a, const char *what)
{
	bool quiet = !strstr(said(a), "MISUSE:") && !strstr(said(a), "STALE:");

	ok(quiet, "%s: the report says of no block that it was freed too early", what);
	if (!quiet)
		show(a);
}

/* Cases that are not findings of that kind. */
void early_quiet(void)
{
	struct actor *p, *c;
	uint64_t block, event;
	struct handle handle;

	p = freed_while_mapped("CULIMBO_GRACE=5s", SMALL);
	ok(!*said(p), "without CULIMBO_STRICT it is no finding, and nothing is printed");
	p = freed_while_mapped("CULIMBO_GRACE=5s CULIMBO_REPORT=always", SMALL);
	ok(strstr(said(p), "culimbo kept 1 block alive that this program freed") && strstr(said(p), "findings=0"),
	   "with CULIMBO_REPORT=always: one line says that the block was kept");
	c = play_opened_after_free("CULIMBO_GRACE=5s");
	ok(!*said(c), "an open after the free is no finding either");

	p = ENTER("P", .env = STRICT);
	c = ENTER("C", .env = "CULIMBO_REPORT=off");
	block = alloc(p, BIG);
	handle = export_block(p, block);
	open_block(c, &handle);
	free_block(p, block);
	kill_actor(c);
	leave_by(p, END_EXIT, 0);
	ok(strstr(said(p), "findings=1"), "its holder was killed: one finding, of that");
	no_early(p, "its holder was killed");

	p = ENTER("P", .env = STRICT);
	c = ENTER("C", .env = "CULIMBO_REPORT=off");
	handle = shared_event(p, &event);
	if (ask(c, OP_event_open, handle.bytes, (const uint64_t[6]){ 0 })->result)
		break_off("cuIpcOpenEventHandle failed with %d", c->reply.result);
	ASK(p, event_destroy, event);
	ASK(c, event_destroy, c->reply.v[0]);
	leave_by(c, END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
	no_early(p, "an event that is destroyed while it is open elsewhere");

	p = ENTER("P", .env = "CULIMBO_GRACE=5s CULIMBO_REPORT=off");
	c = ENTER("C", .env = STRICT);
	handle = shared_event(p, &event);
	ASK(p, event_destroy, event);
	if (ask(c, OP_event_open, handle.bytes, (const uint64_t[6]){ 0 })->result)
		break_off("cuIpcOpenEventHandle failed with %d", c->reply.result);
	ASK(c, event_destroy, c->reply.v[0]);
	leave_by(c, END_EXIT, 0);
	leave_by(p, END_EXIT, 0);
	no_early(c, "an event that is opened after its destroy");

	p = ENTER("P", .env = STRICT);
	block = alloc(p, SMALL);
	handle = export_block(p, block);
	open_block(p, &handle);
	free_block(p, block);
	close_block(p, block);
	leave_by(p, END_EXIT, 0);
	no_early(p, "a block that its own process has open");
}
