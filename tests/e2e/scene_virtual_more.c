/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of virtual memory that is shared by legacy handles (17): processes that end, stand still or run out of
 * something, and handles that are damaged.
 */
#include "scene_virtual.h"
#include "shim/shm/virtual_handle.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The exporter ends, is killed, or stands still. */
void virtual_dead(void)
{
	for (int how = 0; how < 2; how++) {
		struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL);
		uint64_t at = virtual_reserve(p, 4 * PIECE), import, again;
		struct handle handle;
		double start;
		int result;

		virtual_map(p, at, PIECE, OWN);
		handle = export_block(p, at);
		import = open_block(c, &handle);
		if (how)
			kill_actor(p);
		else
			leave(p);
		ok(reads(c, import, PIECE, OWN, NULL), "17 P %s: C reads on", how ? "is killed" : "exits");
		start = now_ms();
		result = try_open(c, &handle, &again);
		ok(result && now_ms() - start < 2000, "17 P %s: another open is refused at once (%d)",
		   how ? "is killed" : "exits", result);
		ok(!try_close(c, import), "17 the import can be closed");
		leave(c);
		ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
	}
}

void virtual_stopped(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL);
	uint64_t at = virtual_reserve(p, 4 * PIECE), import;
	struct handle handle;
	double start;
	int result, status;

	virtual_map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	/* all its threads stand still once it is reported as stopped */
	kill(p->pid, SIGSTOP);
	if (waitpid(p->pid, &status, WUNTRACED) != p->pid || !WIFSTOPPED(status))
		break_off("P is not stopped");
	start = now_ms();
	result = try_open(c, &handle, &import);
	ok(result && now_ms() - start < 9000, "17 P is stopped: the open ends with an error (%d, %.0f ms)", result,
	   now_ms() - start);
	ok(count_said(c, "does not answer") == 1, "17 C says why");
	kill(p->pid, SIGCONT);
	result = try_open(c, &handle, &import);
	ok(!result && reads(c, import, PIECE, OWN, NULL), "17 P goes on: C opens it (%d)", result);
	leave(c);
	leave(p);
}

/* Removes the sockets in CULIMBO_DIR.  Returns how many there were. */
static int remove_sockets(void)
{
	DIR *folder = opendir(getenv("CULIMBO_DIR"));
	struct dirent *entry;
	struct stat st;
	int n = 0;

	while (folder && (entry = readdir(folder)))
		if (!fstatat(dirfd(folder), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISSOCK(st.st_mode))
			n += !unlinkat(dirfd(folder), entry->d_name, 0);
	if (folder)
		closedir(folder);
	return n;
}

/* The exporter has lost its service, and gets another; or it ends, which begins with the end of its service. */
void virtual_no_service(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL);
	const struct timespec moment = { 0, 300000000 };
	uint64_t at = virtual_reserve(p, 4 * PIECE), import;
	struct handle handle;
	double start;
	pid_t killer;
	int result;

	virtual_map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	if (remove_sockets() != 1)
		break_off("P has no socket");
	start = now_ms();
	result = try_open(c, &handle, &import);
	ok(result && !refused(result) && now_ms() - start < 5000,
	   "17 P has lost its socket: the open ends with an error (%d, %.0f ms)", result, now_ms() - start);
	start = now_ms();
	for (int i = 0; i < 4; i++)
		result = try_open(c, &handle, &import);
	ok(result && !refused(result) && now_ms() - start < 1500, "17 and further opens don't wait (%d, four in %.0f ms)",
	   result, now_ms() - start);
	handle = export_block(p, at);
	result = try_open(c, &handle, &import);
	ok(!result && reads(c, import, PIECE, OWN, NULL), "17 P exports it again: C opens it (%d)", result);
	close_block(c, import);
	if (remove_sockets() != 1)
		break_off("P has no socket");
	/* a moment after C has begun */
	killer = fork();
	if (!killer) {
		nanosleep(&moment, NULL);
		kill(p->pid, SIGKILL);
		_exit(0);
	}
	result = try_open(c, &handle, &import);
	ok(refused(result), "17 P has no service, and is dead a moment later: the handle is stale (%d)", result);
	waitpid(killer, NULL, 0);
	kill_actor(p);
	leave(c);
}

/* A free in place of the close, and a close by an ended context. */
void virtual_odd(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL), *o = ENTER("O", .bare = true);
	uint64_t at = virtual_reserve(p, BIG), before = free_memory(o), import, context;
	struct handle handle;
	double took;
	int result;

	virtual_map(p, at, BIG, OWN);
	handle = export_block(p, at);
	import = open_block(c, &handle);
	result = try_free(c, import);
	ok(result == INVALID_VALUE && reads(c, import, BIG, OWN, NULL), "17 cuMemFree of an import is refused (%d)", result);
	close_block(c, import);
	context = ASK(c, ctx_create)->v[0];
	import = open_block(c, &handle);
	ok(ASK(c, ctx_destroy, context)->result == 0, "17 C destroys the context in which it opened it");
	virtual_unmap(p, at, BIG);
	ok(free_within(o, before, 2000, &took), "17 then it is closed: the memory is free once P unmaps it");
	leave(c);
	leave(p);
	leave(o);
}

/* A forked child and an exec end no service, and leave nothing. */
void virtual_forks(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = ALL);
	uint64_t at = virtual_reserve(p, 4 * PIECE), import;
	struct handle handle;
	int result;

	virtual_map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	for (int by_clone = 0; by_clone < 2; by_clone++) {
		ASK(p, fork, END_EXIT, by_clone);
		ASK(c, fork, END_EXIT, by_clone);
		result = try_open(c, &handle, &import);
		ok(!result && reads(c, import, PIECE, OWN, NULL), "17 after a %s the service is there (%d)",
		   by_clone ? "clone()" : "fork()", result);
		ASK(c, fork, END_EXIT, by_clone);
		ok(reads(c, import, PIECE, OWN, NULL), "17 and C's child has ended none of its imports");
		close_block(c, import);
	}
	ASK(p, close_fds, on_real_driver() ? CLOSE_CULIMBO : CLOSE_ALL);
	handle = export_block(p, at);
	result = try_open(c, &handle, &import);
	ok(!result && reads(c, import, PIECE, OWN, NULL), "17 P closes its descriptors: its next handle works (%d)", result);
	if (!result)
		close_block(c, import);
	leave(c);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/*
 * Opens and reads meet unmaps, in several threads on both sides: what is opened has its own bytes, to the end.  Every second
 * block is unmapped as its open begins, and the others when it has ended: these are all opened.
 */
void virtual_threads(void)
{
	enum { CONSUMERS = 4, PRODUCERS = 6, ROUNDS = 40 };
	struct actor *o = ENTER("O", .bare = true), *p, *c;
	const struct wire_reply *made, *got;
	uint64_t before;
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		break_off("socketpair");
	p = ENTER("P", .partner = pair[0], .env = ALL);
	c = ENTER("C", .partner = pair[1]);
	close(pair[0]);
	close(pair[1]);
	before = free_memory(o);
	tell(c, OP_consume, NULL, (const uint64_t[6]){ CONSUMERS });
	tell(p, OP_produce, NULL, (const uint64_t[6]){ PRODUCERS, ROUNDS, PIECE, CONSUMERS, 1 });
	made = hear(p, 50000);
	got = hear(c, 50000);
	ok(!made->result && !got->result, "17 %d threads map, export and unmap, %d open and close: no error (%d %s, %d %s)",
	   PRODUCERS, CONSUMERS, made->result, made->complaint, got->result, got->complaint);
	note("%llu handles, %llu refused", (unsigned long long)got->v[0], (unsigned long long)got->v[1]);
	ok(got->v[0] == made->v[0] && got->v[2] == 0, "17 no import has foreign bytes (%llu)",
	   (unsigned long long)got->v[2]);
	ok(got->v[0] == PRODUCERS * ROUNDS && got->v[1] <= got->v[0] / 2, "17 all that is unmapped after its open is opened");
	ok(free_within(o, before, 5000, NULL), "17 then nothing is left");
	leave(c);
	leave(p);
	leave(o);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* After exec a process is another image: what it had open is closed, and what it shared is gone. */
void virtual_execs(void)
{
	/* so long a process whose lock is free is not yet taken for dead */
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = "CULIMBO_SETTLE=1m"), *o = ENTER("O", .bare = true);
	uint64_t before = free_memory(o), at = virtual_reserve(p, BIG), import, again;
	struct handle handle;
	int result;

	virtual_map(p, at, BIG, OWN);
	handle = export_block(p, at);
	open_block(c, &handle);
	virtual_unmap(p, at, BIG);
	tell(c, OP_exec, NULL, (const uint64_t[6]){ 0 });
	ok(free_within(o, before, 3000, NULL), "17 C execs: what it had open is free");
	ASK(c, begin);
	virtual_map(p, at, BIG, NEXT);
	handle = export_block(p, at);
	import = open_block(c, &handle);
	tell(p, OP_exec, NULL, (const uint64_t[6]){ 0 });
	ASK(p, begin);
	ok(reads(c, import, BIG, NEXT, NULL), "17 P execs: C reads on");
	result = try_open(c, &handle, &again);
	ok(result == 1, "17 P execs: its handles are refused as stale (%d)", result);
	at = virtual_reserve(p, PIECE);
	virtual_map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	again = open_block(c, &handle);
	ok(reads(c, again, PIECE, OWN, NULL), "17 P's new image shares on");
	close_block(c, again);
	close_block(c, import);
	leave(c);
	ok(count_said(c, "had ended") == 1 && !count_said(c, "had freed"), "17 C says that the exporter had ended");
	leave(p);
	leave(o);
}

/* Switched off, nothing differs from bare. */
void virtual_off(void)
{
	static const char *const envs[] = { ALL " CULIMBO_MODE=observe", ALL " CULIMBO_DISABLE=1" };

	for (size_t i = 0; i < sizeof envs / sizeof *envs; i++) {
		struct actor *p = ENTER("P", .env = envs[i]);
		uint64_t at = virtual_reserve(p, PIECE), memory = virtual_make(p, PIECE, 0);
		struct handle handle;

		if (ASK(p, v_map, at, PIECE, memory)->result)
			break_off("P cannot map");
		ok(try_export(p, at, &handle) == INVALID_VALUE, "17 %s: refused as bare", envs[i]);
		ASK(p, v_types, memory, at);
		ok(!p->reply.v[0] && !p->reply.v[1], "17 %s: the memory has no handle types", envs[i]);
		leave(p);
	}
}

/* Descriptors run out, at either side: an error in bounded time, and it works again after. */
void virtual_no_descriptors(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C");
	uint64_t at = virtual_reserve(p, 4 * PIECE), import;
	struct handle handle;
	double start;
	int result;

	virtual_map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	/* P first: it has had no connection yet, whose end could give it a descriptor */
	for (int side = 0; side < 2; side++) {
		struct actor *poor = side ? c : p;

		ASK(poor, descriptors, 1);
		start = now_ms();
		result = try_open(c, &handle, &import);
		ok(result && now_ms() - start < 9000, "17 %s has no descriptor left: an error (%d, %.0f ms)", poor->name,
		   result, now_ms() - start);
		ASK(poor, descriptors, 0);
		result = try_open(c, &handle, &import);
		ok(!result && reads(c, import, PIECE, OWN, NULL), "17 then it works again (%d)", result);
		if (!result)
			close_block(c, import);
	}
	ok(count_said(c, "no descriptors left") == 1, "17 C says why, once");
	leave(c);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* Devices that have peer access to the one that opens may read an import, whichever came first. */
#define TWO "CULIMBO_SIM_DEVICES=2"
void virtual_peers(void)
{
	for (int all = 1; all >= 0; all--) {
		const char *env = all ? ALL " " TWO : TWO, *who = all ? "with the option" : "without the option";
		struct actor *p = ENTER("P", .env = ALL " " TWO), *c = ENTER("C", .env = env), *d = ENTER("D", .env = env);
		uint64_t at = virtual_reserve(p, 4 * PIECE), import;
		struct handle handle;

		if (ASK(p, devices)->v[0] < 2) {
			note("there are not two devices");
			ok(true, "17 peers # SKIP there is one device");
			return;
		}
		virtual_map(p, at, PIECE, OWN);
		handle = export_block(p, at);
		ASK(c, device, 1);
		ok(!ASK(c, peer, 0)->result, "17 C, %s, before: device 1 gets access to device 0", who);
		ASK(c, device, 0);
		import = open_block(c, &handle);
		ok(ASK(c, v_access, import, 0)->v[0] == 3, "17 the device that opens has access");
		ok(ASK(c, v_access, import, 1)->v[0] == 3, "17 so has one that had peer access before");
		close_block(c, import);
		import = open_block(d, &handle);
		ok(ASK(d, v_access, import, 0)->v[0] == 3 && ASK(d, v_access, import, 1)->v[0] == 0,
		   "17 in D, %s, no other device has", who);
		ASK(d, device, 1);
		ok(!ASK(d, peer, 0)->result && ASK(d, v_access, import, 1)->v[0] == 3,
		   "17 after: device 1 gets it with its peer access");
		ok(reads(d, import, PIECE, OWN, NULL), "17 and its context reads P's bytes");
		ASK(d, device, 0);
		close_block(d, import);
		leave(d);
		virtual_curtain(p, c);
	}
}

/*
 * Bits that an open does not look at: the count of changes (virtual_handle.h), and those bits of a stamp that say only in
 * which place its file is, and in that place change nothing (layout.h, stamp).
 */
static bool changes_nothing(int bit)
{
	return (bit >= CL_VIRTUAL_OFFSET_BITS && bit < 64) ||
	       (bit >= 448 + CL_STAMP_FILE_BITS && bit < 448 + CL_STAMP_FILE_BITS + CL_STAMP_MORE_BITS);
}

/* A handle with any bit changed opens nothing but the block itself, and is refused at once. */
void virtual_flips(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C");
	uint64_t at = virtual_reserve(p, 8 * PIECE), import;
	struct handle handle, damaged;
	double start = now_ms(), began, longest = 0;
	int opened = 0;

	virtual_map(p, at, PIECE, OWN);
	virtual_map(p, at + PIECE, PIECE, OWN);
	virtual_map(p, at + 4 * PIECE, PIECE, OWN);
	handle = export_block(p, at + PIECE);
	close_block(c, open_block(c, &handle));
	for (int bit = 0; bit < 512; bit++) {
		damaged = handle;
		damaged.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
		/* the handle of the reservation, which is as good */
		if (!memcmp(damaged.bytes, (char[CL_VIRTUAL_OFFSET_BITS / 8]){ 0 }, CL_VIRTUAL_OFFSET_BITS / 8) ||
		    changes_nothing(bit))
			continue;
		began = now_ms();
		opened += !try_open(c, &damaged, &import);
		longest = now_ms() - began > longest ? now_ms() - began : longest;
	}
	note("%.0f ms for all", now_ms() - start);
	ok(!opened, "17 none of 488 handles with one bit changed is opened (%d)", opened);
	ok(longest < 2000, "17 each is refused at once (%.0f ms at most)", longest);
	import = open_block(c, &handle);
	ok(reads(c, import, PIECE, OWN, NULL), "17 the handle itself is as good as before");
	close_block(c, import);
	leave(c);
	leave(p);
}

/* A stale handle and a second close are told of as those of any block. */
void virtual_misused(void)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C", .env = "CULIMBO_REPORT=always");
	struct actor *d = ENTER("D", .env = "CULIMBO_MODE=observe CULIMBO_REPORT=always");
	uint64_t at = virtual_reserve(p, 4 * PIECE), import;
	struct handle handle;

	virtual_map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	import = open_block(c, &handle);
	close_block(c, import);
	ok(try_close(c, import) == INVALID_VALUE, "17 C closes it twice");
	virtual_unmap(p, at, PIECE);
	ok(try_open(d, &handle, &import), "17 D, which only observes, opens it too late");
	leave(c);
	leave(d);
	leave(p);
	ok(count_said(c, "closed 1 block (2 MiB) once more than") == 1 && count_said(c, "last closed from") == 1,
	   "17 C says what it has closed twice, and where before");
	ok(count_said(d, "STALE: ") == 1 && count_said(d, "findings=1") == 1, "17 D says that it was stale");
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

static void map_made(struct actor *actor, uint64_t address, uint64_t memory)
{
	if (ASK(actor, v_map, address, PIECE, memory)->result)
		break_off("%s cannot map (%d)", actor->name, actor->reply.result);
}

/* One process is killed with it, and another one opens it too late: both sides say that it was unmapped, not freed. */
static void virtual_told_of_more(void)
{
	struct actor *p = ENTER("P", .env = ALL " CULIMBO_REPORT=always"), *c = ENTER("C", .env = "CULIMBO_REPORT=always");
	struct actor *d = ENTER("D", .env = "CULIMBO_REPORT=always"), *o = ENTER("O", .env = "CULIMBO_MODE=observe CULIMBO_REPORT=always");
	struct actor *q = ENTER("Q", .env = ALL), *e = ENTER("E", .env = "CULIMBO_REPORT=always CULIMBO_STACK=0");
	uint64_t at = virtual_reserve(p, 4 * PIECE), q_at = virtual_reserve(q, 4 * PIECE), plain, import;
	struct handle handle, two[2];

	virtual_map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	(void)open_block(c, &handle);
	virtual_unmap(p, at, PIECE);
	/* E has one of each kind, opened at one place: of these Q waits for the freed one */
	plain = alloc(q, PIECE);
	two[0] = export_block(q, plain);
	virtual_map(q, q_at, PIECE, OWN);
	two[1] = export_block(q, q_at);
	for (int i = 0; i < 2; i++)
		(void)open_block(e, &two[i]);
	free_block(q, plain);
	virtual_unmap(q, q_at, PIECE);
	leave(e);
	ok(count_said(e, "never closed 2 blocks") == 1 && count_said(e, "it waits for this process") == 1,
	   "17 E says that Q waits, of two blocks of which Q has freed one and unmapped one");
	leave(q);
	ok(try_open(d, &handle, &import), "17 D opens what P has unmapped: refused");
	ok(try_open(o, &handle, &import), "17 O, which observes, likewise");
	leave(d);
	leave(o);
	kill_actor(c);
	leave(p);
	ok(count_said(d, "had unmapped 1 block") == 1 && count_said(d, "unmapped from") == 1 && !count_said(d, "freed") &&
		   count_said(d, "HINT: unmap it in process") == 1,
	   "17 D says so, and what to do");
	ok(count_said(o, "had unmapped 1 block") == 1 && !count_said(o, "freed"), "17 O likewise");
	ok(count_said(p, "ended without closing 1 block") == 1 && count_said(p, "unmapped from") == 1 &&
		   !count_said(p, "freed"),
	   "17 P says of C, which was killed, what it had open of what P unmapped");
}

/* What the two sides say of memory that is unmapped while it is open. */
void virtual_told(void)
{
	struct actor *p = ENTER("P", .env = ALL " CULIMBO_REPORT=always"), *c = ENTER("C", .env = "CULIMBO_REPORT=always");
	uint64_t at = virtual_reserve(p, 4 * PIECE), import;
	struct handle handle;

	virtual_map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	import = open_block(c, &handle);
	virtual_unmap(p, at, PIECE);
	(void)import;
	leave(p);
	leave(c);
	ok(count_said(p, "UNMAPPED: process") == 1 && count_said(p, "reads what was there before") == 1,
	   "17 P says that C reads the old bytes");
	ok(count_said(p, "2 MiB, unmapped ") == 1 && count_said(p, "unmapped from") == 1 && count_said(p, "exported from") == 1,
	   "17 and when and where it was unmapped");
	ok(count_said(c, "not_closed=1") == 1, "17 C says that it has not closed it");
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
	/* C ends first, and the exporter's file is still there */
	p = ENTER("P", .env = ALL);
	c = ENTER("C", .env = "CULIMBO_REPORT=always");
	at = virtual_reserve(p, 4 * PIECE);
	virtual_map(p, at, PIECE, OWN);
	handle = export_block(p, at);
	(void)open_block(c, &handle);
	virtual_unmap(p, at, PIECE);
	leave(c);
	ok(count_said(c, "not_closed=1") == 1 && count_said(c, "unmapped by process") == 1 &&
		   count_said(c, "unmapped there ") == 1 && !count_said(c, "it waits for this process"),
	   "17 C, which ends first, says when and where P unmapped it, and that nobody waits for that");
	leave(p);
	virtual_told_of_more();
	/* the second three without a collector's thread, which would see C's close before P ends */
	for (int i = 0; i < 6; i++) {
		int anew = i % 3;
		uint64_t made;

		p = ENTER("P", .env = i < 3 ? ALL : ALL " CULIMBO_COLLECTOR=inline");
		c = ENTER("C");
		at = virtual_reserve(p, 4 * PIECE);
		made = virtual_make(p, PIECE, 0);
		map_made(p, at, made);
		handle = export_block(p, at);
		import = open_block(c, &handle);
		virtual_unmap(p, at, PIECE);
		if (anew == 2) /* the same allocation is at its place again, and C reads what P writes */
			map_made(p, at, made);
		else
			virtual_map(p, anew ? at : at + PIECE, PIECE, NEXT);
		close_block(c, import);
		leave(c);
		leave(p);
		ok(count_said(p, "UNMAPPED: process") == (anew == 1) &&
			   count_said(p, "and mapped other memory there while") == (anew == 1) &&
			   count_said(p, "unmapped from") == (anew == 1) && !count_said(p, "freed from") &&
			   count_said(p, "findings=1") == (anew == 1),
		   "17 C closes it in time%s: P says %s", i < 3 ? "" : ", inline",
		   anew == 1 ? "that it had mapped other memory there" : "nothing");
		ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
	}
}
