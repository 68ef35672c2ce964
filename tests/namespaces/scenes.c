/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exporter and importer each in their own namespaces, with one CULIMBO_DIR.
 *
 * Promised, wherever they are: what C holds is given to nobody, also while C is
 * stopped for longer than the settling time; it comes back when C closes or
 * dies; what C maps outlives P; the files of the dead go; the report names C as
 * C calls itself.
 *
 * Where the kernel forbids a namespace the scene's lines are skipped.
 */
#include "places.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/shm/handle.h"

/*
 * Plays the whole life of a shared block, with P and C in the given namespaces.
 * @c_pid is C's pid inside; 0: its pid here.  @env_c is added to C's environment.
 */
static void live(const char *what, const char *for_p, const char *for_c, const char *env_c, int c_pid)
{
	struct actor *p, *c, *d;
	uint64_t neighbour, block, import;
	struct handle handle;
	char line[100], env[600];
	double took;
	pid_t inner;

	snprintf(env, sizeof env, ENV " %s", env_c ? env_c : "");
	p = enter_in("P", for_p, ENV);
	c = enter_in("C", for_c, env);
	neighbour = alloc(p, SMALL);
	(void)neighbour;

	/* shared, freed, closed */
	block = alloc_filled(p, SMALL, OWN);
	handle = export_block(p, block);
	import = open_block(c, &handle);
	free_block(p, block);
	ok(stays(p, c, block, import, GRACE_MS + 100), "%s: what C holds is given to nobody", what);
	close_block(c, import);
	ok(claim_within(p, block, SMALL, NEXT, 1000, NULL), "%s: and comes back when C closes", what);

	/* stopped for longer than the settling time */
	block = alloc_filled(p, SMALL, OWN);
	handle = export_block(p, block);
	import = open_block(c, &handle);
	free_block(p, block);
	inner = pid_of(c, for_c);
	must(!kill(inner, SIGSTOP), "SIGSTOP");
	ok(stays(p, NULL, block, 0, 3 * SETTLE_MS), "%s: C stopped for %d ms is not taken for dead", what,
	   3 * SETTLE_MS);
	must(!kill(inner, SIGCONT), "SIGCONT");
	ok(reads(c, import, SMALL, OWN, NULL), "%s: and reads its own bytes then", what);

	/* killed */
	must(!kill(inner, SIGKILL), "SIGKILL");
	ok(claim_within(p, block, SMALL, NEXT, SOON_MS, &took), "%s: C killed: it comes back", what);
	note("%s: back %.0f ms after C was killed", what, took);
	ok(took < SETTLE_MS + 500, "%s: within the settling time and 500 ms", what);
	kill_actor(c);

	/* the report names a new C */
	c = enter_in("C", for_c, env);
	block = alloc_filled(p, SMALL, OWN);
	handle = export_block(p, block);
	import = open_block(c, &handle);
	inner = pid_of(c, for_c);
	leave(p);
	snprintf(line, sizeof line, "held by process %d (", c_pid ? c_pid : (int)inner);
	ok(count_said(p, line) == 1 && strstr(said(p), ", alive)"), "%s: P's report says '%s..., alive'", what,
	   line);
	if (!count_said(p, line))
		note("P said: %.300s", said(p));
	ok(reads(c, import, SMALL, OWN, NULL), "%s: C reads on when P has ended", what);
	leave(c);

	/* P is killed: the next exporter removes its file */
	p = enter_in("P", for_p, ENV);
	block = alloc_filled(p, SMALL, OWN);
	export_block(p, block);
	must(!kill(pid_of(p, for_p), SIGKILL), "SIGKILL");
	kill_actor(p);
	/* and C's file, if only the settling time tells that C is dead */
	must(files() >= 1, "a file of the dead");
	wait_ms(2 * SETTLE_MS);
	for (int i = 0; i < 2 && files(); i++) { /* the first look may only start the settling time */
		d = enter_in("D", for_c, env);
		block = alloc(d, SMALL);
		export_block(d, block);
		leave(d);
		if (files())
			wait_ms(2 * SETTLE_MS);
	}
	ok(files() == 0, "%s: P killed: its file goes", what);
}

static void pid_of_importer(void)
{
	const char *there = "--pid --proc=own";

	if (can(there, "C in a PID namespace"))
		live("C in a PID namespace", NULL, there, NULL, 1);
}
static void pid_of_exporter(void)
{
	const char *there = "--pid --proc=own";

	if (can(there, "P in a PID namespace"))
		live("P in a PID namespace", there, NULL, NULL, 0);
}
static void pid_of_both(void)
{
	const char *of_p = "--pid --proc=own", *of_c = "--pid=2 --proc=own";

	if (can(of_c, "each in a PID namespace"))
		live("each in a PID namespace", of_p, of_c, NULL, 2);
}
/* Both are process 1, as in two containers.  The driver takes them for one process and refuses. */
static void pid_the_same(void)
{
	const char *there = "--pid --proc=own", *what = "P and C are process 1";
	uint64_t p_block, q_block, p_import, q_import;
	struct handle of_p, of_q, of_event;
	struct actor *p, *q, *c, *bare;
	const struct wire_reply *reply;

	if (!can(there, what))
		return;
	live(what, there, there, NULL, 1);
	p = enter_in("P", there, ENV);
	q = enter_in("Q", there, ENV);
	c = enter_in("C", there, ENV);
	bare = enter_bare_in("Bare", there);
	p_block = alloc_filled(p, SMALL, OWN);
	q_block = alloc_filled(q, SMALL, NEXT);
	of_p = export_block(p, p_block);
	of_q = export_block(q, q_block);
	ok(try_open(bare, &of_p, &p_import) == REFUSED_AS_OWN, "%s: bare, an open is refused (control)", what);
	p_import = open_block(c, &of_p);
	q_import = open_block(c, &of_q);
	ok(reads(c, p_import, SMALL, OWN, NULL) && reads(c, q_import, SMALL, NEXT, NULL),
	   "%s: Q is, too; C opens a block of each, and reads the bytes of each", what);
	ok(open_block(c, &of_p) == p_import, "%s: a second open gives the same address", what);
	reply = ASK(p, event_create, 6 /* shared, without times */);
	must(!reply->result, "an event");
	reply = ASK(p, event_export, reply->v[0]);
	must(!reply->result, "the handle of an event");
	memcpy(of_event.bytes, reply->handle, sizeof of_event.bytes);
	for (int i = 0; i < 2; i++)
		ok(ask(c, OP_event_open, of_event.bytes, (const uint64_t[6]){ 0 })->result ==
			   REFUSED_AS_OWN,
		   "%s: an event is refused as bare", what);
	ok(count_said(c, "the driver does not open an event of process 1,") == 1, "%s: and it is said once why", what);
	leave(bare);
	leave(c);
	leave(q);
	leave(p);
}
/* A container that has the host's /proc mounted. */
static void pid_without_proc(void)
{
	const char *there = "--pid";

	if (can(there, "C in a PID namespace, the host's /proc"))
		live("C in a PID namespace, the host's /proc", NULL, there, NULL, 1);
}
static void no_proc(void)
{
	const char *there = "--proc=none";

	if (can(there, "C without /proc"))
		live("C without /proc", NULL, there, NULL, 0);
}

/* True if both handles name the same file and record, but another generation. */
static bool same_record(const struct handle *a, const struct handle *b)
{
	uint64_t mask = (1ull << (CL_STAMP_FILE_BITS + CL_STAMP_RECORD_BITS)) - 1;
	uint64_t of_a = cl_handle_stamp(a->bytes, CL_MEMORY), of_b = cl_handle_stamp(b->bytes, CL_MEMORY);

	return of_a != of_b && (of_a & mask) == (of_b & mask);
}

/*
 * A process in another PID namespace that closes all descriptors and sleeps is taken for
 * dead (README.md names this limit).  Blocks that it opens later are protected, even one
 * that has the record of a block that it has not closed yet.
 */
static void taken_for_dead(void)
{
	enum { N = 2 };
	const char *there = "--pid --proc=own", *what = "C in a PID namespace, taken for dead";
	uint64_t old[N], old_import[N], new[N], new_import[N], stale;
	struct handle was[N], is[N];
	struct actor *p, *c;
	bool back = true, same = true, opens = true, own = true, held = true;

	if (!can(there, what))
		return;
	p = enter_in("P", NULL, ENV);
	c = enter_in("C", there, ENV);
	alloc(p, SMALL);
	for (int i = 0; i < N; i++) {
		old[i] = alloc_filled(p, SMALL, OWN);
		was[i] = export_block(p, old[i]);
		old_import[i] = open_block(c, &was[i]);
	}
	ASK(c, close_fds, CLOSE_CULIMBO);
	for (int i = 0; i < N; i++)
		free_block(p, old[i]);
	for (int i = 0; i < N; i++)
		back = claim_within(p, old[i], SMALL, NEXT, SOON_MS, NULL) && back;
	ok(back, "%s: what it holds comes back", what);
	/* the record that was released last is used first */
	for (int i = N; i-- > 0;) {
		new[i] = alloc_filled(p, SMALL, OWN);
		is[i] = export_block(p, new[i]);
		same = same && same_record(&is[i], &was[i]);
	}
	if (!same) /* in the other order */
		same = same_record(&is[0], &was[1]) && same_record(&is[1], &was[0]);
	must(same, "new blocks of the same records");
	for (int i = 0; i < N; i++) {
		opens = try_open(c, &is[i], &new_import[i]) == 0 && opens;
		own = opens && reads(c, new_import[i], SMALL, OWN, NULL) && own;
	}
	ok(opens && own, "%s: opens new blocks of the records of those that it has not closed", what);
	ok(count_said(c, "2 blocks that are open here are not protected any more") == 1,
	   "%s: and says once what is not protected", what);
	for (int i = 0; i < N; i++)
		ok(try_open(c, &was[i], &stale) != 0, "%s: a stale handle is refused as ever", what);
	if (opens) {
		for (int i = 0; i < N; i++)
			close_block(c, old_import[i]);
		for (int i = 0; i < N; i++)
			free_block(p, new[i]);
		for (int i = 0; i < N; i++)
			held = stays(p, c, new[i], new_import[i], GRACE_MS + 2 * SETTLE_MS) && held;
		ok(held, "%s: closes the old ones, and the new ones are given to nobody", what);
		for (int i = 0; i < N; i++) {
			close_block(c, new_import[i]);
			back = claim_within(p, new[i], SMALL, NEXT, 1000, NULL) && back;
		}
		ok(back, "%s: and come back when it closes them", what);
	}
	leave(c);
	leave(p);
}

/*
 * Each exporter is process 1 of its own PID namespace, as in a container.  So the driver gives
 * the next exporter the same handles as the one that has ended.
 */
static void stale(const char *what, const char *there, const char *for_c, bool kill_it)
{
	struct actor *p, *n, *c, *bare;
	uint64_t block, import;
	struct handle handle;
	int result;

	p = enter_in("P", there, ENV);
	block = alloc_filled(p, SMALL, OWN);
	handle = export_block(p, block);
	if (kill_it) {
		must(!kill(pid_of(p, there), SIGKILL), "SIGKILL");
		kill_actor(p);
		wait_ms(2 * SETTLE_MS);
	} else {
		leave(p);
	}
	n = enter_in("N", there, ENV);
	alloc_filled(n, SMALL, NEXT);
	bare = ENTER("Bare", .bare = true);
	result = try_open(bare, &handle, &import);
		ok(result == 0 && reads(bare, import, SMALL, NEXT, NULL),
	   "%s: bare, an ended exporter's handle opens the next one's block (control)", what);
	c = enter_in("C", for_c, ENV " CULIMBO_LOG=info");
	for (int i = 0; i < 2; i++) {
		result = try_open(c, &handle, &import);
		ok(result != 0, "%s: an ended exporter's handle is refused%s", what,
		   i ? ", and again when the next one shares, too" : "");
		if (!i)
			export_block(n, alloc_filled(n, SMALL, OWN));
	}
	ok(count_said(c, kill_it ? "refused a stale handle" : "that process has ended, or its exporter file") == 2 &&
		   !count_said(c, "found no exporter file"),
	   "%s: and it is said why", what);
	leave(c);
	leave(bare);
	leave(n);
}
static void stale_of_a_container(void)
{
	const char *there = "--pid --proc=own --same-addresses";

	if (!can(there, "exporters in PID namespaces"))
		return;
	stale("exporters in PID namespaces", there, NULL, false);
	stale("exporters in PID namespaces, the first killed", there, NULL, true);
	stale("all in PID namespaces", there, there, false);
}

/* ------------------------------------------------------------------- mounts */
static void other_path(void)
{
	char there[900], env[600];

	must(!mkdir(limbo_folder(), 0700), "mkdir");
	snprintf(there, sizeof there, "'--bind=%s:%s/elsewhere'", limbo_folder(), getenv("E2E_SCENE_DIR"));
	snprintf(env, sizeof env, "CULIMBO_DIR=%s/elsewhere", getenv("E2E_SCENE_DIR"));
	if (can(there, "C in a mount namespace"))
		live("C in a mount namespace, another path", NULL, there, env, 0);
}

/*
 * As two containers: all namespaces are their own, both are process 1, and one directory is mounted at two
 * paths.  In the second round their users are those of a user namespace, too.
 */
static void two_containers(void)
{
	static const char own[] = "--pid --ipc --net --proc=own";
	const char *what[] = { "two containers", "two containers with a user namespace each" };
	const char *user[] = { "", "--user=0 " };
	char for_p[100], for_c[1000], env[600];

	must(!mkdir(limbo_folder(), 0700), "mkdir");
	for (int i = 0; i < 2; i++) {
		snprintf(for_p, sizeof for_p, "%s%s", user[i], own);
		snprintf(for_c, sizeof for_c, "%s%s '--bind=%s:%s/elsewhere'", user[i], own, limbo_folder(),
			 getenv("E2E_SCENE_DIR"));
		snprintf(env, sizeof env, "CULIMBO_DIR=%s/elsewhere", getenv("E2E_SCENE_DIR"));
		if (can(for_c, what[i]))
			live(what[i], for_p, for_c, env, 1);
	}
}

static void other_boot_id(void)
{
	char file[400], there[500];
	struct actor *p, *c, *d;
	uint64_t block, import;
	struct handle handle;
	FILE *id;

	snprintf(file, sizeof file, "%s/boot", getenv("E2E_SCENE_DIR"));
	id = fopen(file, "w");
	must(id && fputs("01234567-89ab-cdef-0123-456789abcdef\n", id) >= 0 && !fclose(id), file);
	snprintf(there, sizeof there, "'--boot=%s'", file);
	if (!can(there, "a boot id of its own"))
		return;
	live("C with a boot id of its own (systemd-nspawn)", NULL, there, NULL, 0);
	/* and P with a neighbour that takes it for a file of an earlier boot */
	p = enter_in("P", NULL, ENV);
	c = enter_in("C", NULL, ENV);
	d = enter_in("D", there, ENV);
	block = alloc_filled(p, SMALL, OWN);
	handle = export_block(p, block);
	export_block(d, alloc(d, SMALL));
	ok(files() == 2, "a neighbour with another boot id leaves a living exporter's file alone");
	import = open_block(c, &handle);
	free_block(p, block);
	ok(stays(p, c, block, import, GRACE_MS + 100), "and C, who comes then, is protected");
	leave(d);
	leave(c);
	leave(p);
}

/*
 * C shares, and then enters a root without the exporter files and without /proc.  It has not met P,
 * and can't find out whether P lives, so P's blocks open as without culimbo.  It has met M, so M's
 * blocks stay protected.
 */
static void in_a_chroot(void)
{
	const char *for_c = geteuid() ? "--user=0" : NULL, *what = "C in a chroot";
	struct actor *m, *p, *c;
	uint64_t first, second, block, import;
	struct handle handle, late;
	int result;

	if (!can(for_c ? for_c : "", what))
		return;
	m = enter_in("M", NULL, ENV);
	p = enter_in("P", NULL, ENV);
	c = enter_in("C", for_c, ENV);
	first = alloc(m, SMALL);
	handle = export_block(m, first);
	second = alloc_filled(m, SMALL, OWN);
	late = export_block(m, second);
	open_block(c, &handle);
	must(!*ASK(c, jail)->complaint, c->reply.complaint);
	block = alloc_filled(p, SMALL, OWN);
	handle = export_block(p, block);
	result = try_open(c, &handle, &import);
	ok(result == 0 && reads(c, import, SMALL, OWN, NULL),
	   "%s opens the handle of a living exporter that it has not met (%d)", what, result);
	if (result == 0)
		close_block(c, import);
	ok(count_said(c, "does not see the directory of exporter files any more") == 1, "%s says once why", what);
	import = open_block(c, &late);
	free_block(m, second);
	ok(stays(m, c, second, import, GRACE_MS + 100), "%s: what it opens of one that it has met is protected",
	   what);
	close_block(c, import);
	ok(claim_within(m, second, SMALL, NEXT, 1000, NULL), "%s: and comes back when it closes", what);
	leave(c);
	leave(p);
	leave(m);
}

/* --------------------------------------------------------------------- users */
/* Gives the scene's folders to user @uid. */
static bool give_to(uid_t uid)
{
	char command[900];

	snprintf(command, sizeof command, "chmod 755 '%s' && chown -R %u '%s'", getenv("E2E_TMP"),
		 (unsigned int)uid, getenv("E2E_SCENE_DIR"));
	return geteuid() || system_ok(command);
}

static void users(const char *what, const char *name)
{
	char here[64] = "", there[100];
	const char *for_p = NULL;

	if (!geteuid()) {
		snprintf(here, sizeof here, "--uid=%d", SOMEBODY);
		for_p = here;
		must(give_to(SOMEBODY), "chown");
	}
	snprintf(there, sizeof there, "%s --user=%s", here, name);
	if (!can(there, what))
		return;
	live(what, for_p, there, NULL, 0);
	live(what, there, for_p, NULL, 0);
}
static void user_is_root_inside(void)
{
	users("a user who is root in a namespace, and outside", "0");
}
static void user_has_another_name(void)
{
	users("a user with another number in a namespace, and outside", "4711");
}
static void user_has_no_name(void)
{
	users("a user without a number in a namespace, and outside", "none");
}

/* Root of a namespace is another user than real root, and does not use real root's file. */
static void root_of_a_namespace(void)
{
	char there[64], sim[400];
	struct actor *p, *c;
	uint64_t block, import = 0;
	struct handle handle;
	int result;

	snprintf(there, sizeof there, "--uid=%d --user=0", SOMEBODY);
	if (geteuid()) {
		puts("ok - another user who is root in a namespace # SKIP only root can be two users");
		return;
	}
	if (!can(there, "another user who is root in a namespace"))
		return;
	must(!chmod(getenv("E2E_TMP"), 0755) && !chmod(getenv("E2E_SCENE_DIR"), 01777), "chmod");
	p = enter_in("P", NULL, ENV);
	block = alloc_filled(p, SMALL, OWN);
	handle = export_block(p, block);
	must(!chmod(limbo_folder(), 01777), "chmod"); /* so that only the file's owner stops it */
	/* the simulated driver's folder belongs to one user; this one has its own, and its open fails */
	snprintf(sim, sizeof sim, "%s/sim2", getenv("E2E_SCENE_DIR"));
	setenv("CULIMBO_SIM_DIR", sim, 1);
	c = enter_in("C", there, ENV);
	result = try_open(c, &handle, &import);
	ok(result != 0, "another user who is root in a namespace: the driver decides (%d)", result);
	ok(count_said(c, "not protected, as without culimbo") == 1,
	   "another user who is root in a namespace: can't use root's file, and says so");
	if (!count_said(c, "not protected"))
		note("C said: %.300s", said(c));
	leave(c);
	leave(p);
}

/* ---------------------------------------------------------------------- time */
static void time_namespace(void)
{
	const char *there = "--time";
	struct actor *p, *c;
	uint64_t neighbour, block, import;
	struct handle handle;

	if (!can(there, "C in a time namespace"))
		return;
	live("C in a time namespace", NULL, there, NULL, 0);
	/* its start time, as P's /proc has it, is another than C's own said */
	p = enter_in("P", NULL, ENV);
	c = enter_in("C", there, ENV);
	neighbour = alloc(p, SMALL);
	(void)neighbour;
	block = alloc_filled(p, SMALL, OWN);
	handle = export_block(p, block);
	import = open_block(c, &handle);
	ASK(c, close_fds, CLOSE_CULIMBO);
	free_block(p, block);
	ok(stays(p, c, block, import, GRACE_MS + 3 * SETTLE_MS),
	     "C in a time namespace closes all descriptors: what it holds is given to nobody");
	leave(c);
	leave(p);
}

const struct scene memory_scenes[] = {
	{ "pid-of-importer", pid_of_importer, 0 },
	{ "pid-of-exporter", pid_of_exporter, 0 },
	{ "pid-of-both", pid_of_both, 0 },
	{ "pid-the-same", pid_the_same, 0 },
	{ "pid-without-proc", pid_without_proc, 0 },
	{ "no-proc", no_proc, 0 },
	{ "taken-for-dead", taken_for_dead, 0 },
	{ "stale-of-a-container", stale_of_a_container, 0 },
	{ "other-path", other_path, 0 },
	{ "two-containers", two_containers, 0 },
	{ "other-boot-id", other_boot_id, 0 },
	{ "in-a-chroot", in_a_chroot, 0 },
	{ "user-is-root-inside", user_is_root_inside, 0 },
	{ "user-has-another-name", user_has_another_name, 0 },
	{ "user-has-no-name", user_has_no_name, 0 },
	{ "root-of-a-namespace", root_of_a_namespace, 0 },
	{ "time-namespace", time_namespace, 0 },
	{ .name = NULL },
};
/* The stage wants a list for each of its kinds; here there is one. */
const struct scene death_scenes[] = { { .name = NULL } }, pressure_scenes[] = { { .name = NULL } },
	event_scenes[] = { { .name = NULL } }, process_scenes[] = { { .name = NULL } },
	exec_scenes[] = { { .name = NULL } },
	device_scenes[] = { { .name = NULL } },
	green_scenes[] = { { .name = NULL } },
	odd_scenes[] = { { .name = NULL } }, report_scenes[] = { { .name = NULL } },
	random_scenes[] = { { .name = NULL } }, stream_scenes[] = { { .name = NULL } },
	pool_scenes[] = { { .name = NULL } }, virtual_scenes[] = { { .name = NULL } },
	async_scenes[] = { { .name = NULL } }, shared_scenes[] = { { .name = NULL } };
